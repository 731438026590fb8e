//! The cache functions on plain data: lease, apply, install, unlink, and the one for the mark.

use crate::rules::{Rule, Rules};

/// The most items of a model.
pub(crate) const ITEMS: usize = 2;
/// The most histories of a model.
pub(crate) const HISTORIES: usize = 2;
/// The most changes that a lease collects.
pub(crate) const COLLECTED_MAX: usize = 2;

/// The content of an item: the operations that made it, oldest first, in three bits each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Value(u16);

impl Value {
    /// Returns the value with one more operation, a number from 0 to 6.
    pub(crate) fn with(self, operation: u8) -> Self {
        Self(self.0 << 3 | u16::from(operation + 1))
    }

    /// Returns whether `operation` is one of those that made the value.
    pub(crate) fn contains(self, operation: u8) -> bool {
        (0..5).any(|place| self.0 >> (3 * place) & 7 == u16::from(operation + 1))
    }
}

/// An item in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// The revision of the content.
    pub(crate) revision: u8,
    /// The content.
    pub(crate) value: Value,
}

/// What a writer or a verifier knows about an item of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Change {
    /// The revision before the transaction.
    pub(crate) before: u8,
    /// The revision after the transaction, the same one if the item is unchanged.
    pub(crate) after: u8,
    /// What leads from one to the other, if it can be done in place.
    pub(crate) operation: Option<u8>,
}

impl Change {
    /// Returns the change that says which revision an item has.
    pub(crate) fn none(revision: u8) -> Self {
        Self { before: revision, after: revision, operation: None }
    }
}

/// The right to load an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    /// Who has it.
    pub(crate) token: u8,
    /// The changes since the lease was given.
    pub(crate) collected: [Option<Change>; COLLECTED_MAX],
}

/// The keys of one item in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    /// The key of the item.
    pub(crate) entry: Option<Entry>,
    /// The key of its lease.
    pub(crate) lease: Option<Lease>,
}

/// Gives a lease if there is neither entry nor lease.
pub(crate) fn lease(slot: Slot, token: u8) -> Slot {
    if slot.entry.is_some() || slot.lease.is_some() {
        return slot;
    }
    let collected = [None; COLLECTED_MAX];
    Slot { entry: None, lease: Some(Lease { token, collected }) }
}

/// Brings an item in line with a change that is committed.
pub(crate) fn apply(slot: Slot, change: Change, rules: Rules) -> Slot {
    match slot.entry {
        Some(entry) => apply_to_entry(slot, entry, change, rules),
        None => Slot {
            entry: None,
            lease: slot.lease.and_then(|lease| apply_to_lease(lease, change, rules)),
        },
    }
}

fn apply_to_entry(slot: Slot, entry: Entry, change: Change, rules: Rules) -> Slot {
    let newer = entry.revision >= change.after;
    if newer && (rules.has(Rule::NewerLeftAlone) || change.operation.is_none()) {
        return slot;
    }
    match change.operation {
        Some(operation)
            if newer
                || entry.revision == change.before
                || !rules.has(Rule::OperationOnBeforeOnly) =>
        {
            let entry = Some(Entry {
                revision: entry.revision.max(change.after),
                value: entry.value.with(operation),
            });
            Slot { entry, ..slot }
        }
        _ => Slot::default(),
    }
}

fn apply_to_lease(mut lease: Lease, change: Change, rules: Rules) -> Option<Lease> {
    if change.operation.is_none() {
        return (!rules.has(Rule::RevisionEndsLease)).then_some(lease);
    }
    if !rules.has(Rule::LeaseCollects) {
        return Some(lease);
    }
    match lease.collected.iter_mut().find(|place| place.is_none()) {
        Some(place) => *place = Some(change),
        None if rules.has(Rule::OverflowEndsLease) => return None,
        None => {}
    }
    Some(lease)
}

/// Installs what was loaded, with what the lease collected. Returns whether it did.
pub(crate) fn install(slot: Slot, token: u8, loaded: Entry, rules: Rules) -> (Slot, bool) {
    let own = slot.lease.filter(|lease| lease.token == token);
    if own.is_none() && rules.has(Rule::OwnLeaseOnly) {
        return (slot, false);
    }
    let collected = own.map_or([None; COLLECTED_MAX], |lease| lease.collected);
    let entry = replay(loaded, collected, rules);
    (Slot { entry, lease: None }, entry.is_some())
}

/// Returns what the changes make of `entry`; nothing if one is missing between them.
fn replay(
    mut entry: Entry,
    mut collected: [Option<Change>; COLLECTED_MAX],
    rules: Rules,
) -> Option<Entry> {
    collected.sort_by_key(|change| change.map(|change| change.after));
    for change in collected.into_iter().flatten() {
        if change.after <= entry.revision || !rules.has(Rule::InstallReplays) {
            continue;
        }
        if change.before != entry.revision && rules.has(Rule::GapEndsInstall) {
            return None;
        }
        if change.before == entry.revision {
            entry = Entry { revision: change.after, value: entry.value.with(change.operation?) };
        }
    }
    Some(entry)
}

/// Deletes the entry and the lease.
pub(crate) fn unlink(slot: Slot, rules: Rules) -> Slot {
    Slot { entry: None, lease: slot.lease.filter(|_| !rules.has(Rule::UnlinkDeletesLease)) }
}

/// What a verifier says about a server: nothing there is older than a position of the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    /// The replication id of the server that it was written for.
    pub(crate) id: u8,
    /// The history of the database that was read.
    pub(crate) history: u8,
    /// The position of the feed up to which the server was verified.
    pub(crate) position: u8,
    /// When, by the server's clock, from 1.
    pub(crate) time: u8,
}

/// Replaces the mark of the server with replication id `id`. Returns whether it did.
pub(crate) fn set_mark(old: &mut Option<Mark>, id: u8, new: Mark) -> bool {
    let own = new.id == id;
    if own {
        *old = Some(new);
    }
    own
}

/// A server of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// The replication id.
    pub(crate) id: u8,
    /// The keys of each item, by item and history.
    pub(crate) slots: [[Slot; HISTORIES]; ITEMS],
    /// The verifier's mark.
    pub(crate) mark: Option<Mark>,
}
