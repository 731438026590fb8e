//! The rules of the follow graph: what each step of a group of calls changes. Does no I/O.
//!
//! The rows of all accounts of the group are locked, and the edges between them were read later: the
//! steps see all that was committed before.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use microblog_domain::UserId;
use microblog_storage::Record;

use crate::graph::{Edge, EdgeKind, List};

/// A change that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Creates an edge. A block also ends the follows between the two.
    Create(EdgeKind, Edge),
    /// Ends an edge.
    End(EdgeKind, Edge),
    /// Deletes an account: it cannot get edges any more. Those that it has are ended later.
    Delete(UserId),
    /// The deleted account has no edges any more.
    Deleted(UserId),
}

impl Step {
    /// Returns the accounts of the step.
    pub(crate) fn accounts(self) -> [UserId; 2] {
        match self {
            Self::Create(_, Edge { from, to }) | Self::End(_, Edge { from, to }) => [from, to],
            Self::Delete(user) | Self::Deleted(user) => [user, user],
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The change was made.
    Done(Seen),
    /// There was nothing to change.
    Unchanged(Seen),
    /// Rejected: the target blocks the source.
    BlockedByTarget,
    /// Rejected: the source blocks the target.
    TargetBlocked,
    /// Rejected: the list is at its limit.
    Limit,
    /// Rejected: one of the accounts is deleted.
    Deleted,
}

/// What a step sees of its two accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The time of the edge, in Unix ms; 0 if there is none any more.
    pub(crate) since_ms: u64,
    /// Whether the target follows the source.
    pub(crate) is_follower: bool,
}

/// The limits of lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of accounts that are followed.
    pub(crate) following: u64,
    /// Of accounts that are blocked, and of those that are muted.
    pub(crate) blocks: u64,
}

impl Limits {
    fn of(self, kind: EdgeKind) -> u64 {
        match kind {
            EdgeKind::Follow => self.following,
            EdgeKind::Block | EdgeKind::Mute => self.blocks,
        }
    }
}

/// The length of a list, and the revision of the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListRow {
    pub(crate) length: u64,
    pub(crate) revision: u64,
}

/// The row of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// The time of the newest entry of its lists, and of the newest end of an edge from it, in Unix ms.
    pub(crate) newest: u64,
    /// When it was deleted, in Unix ms; 0 if it was not.
    pub(crate) deleted: u64,
    lists: [ListRow; List::ALL.len()],
}

impl Account {
    /// Returns the row of a list.
    pub(crate) fn list(&self, list: List) -> ListRow {
        self.lists[list as usize]
    }

    /// Returns the row of a list, to be changed.
    pub(crate) fn list_mut(&mut self, list: List) -> &mut ListRow {
        &mut self.lists[list as usize]
    }
}

/// How the entry of an item changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemChange {
    /// The records that are added, oldest first.
    pub(crate) added: Vec<Record>,
    /// The ids whose records were there before, and are removed.
    pub(crate) removed: Vec<u64>,
}

/// A change for the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// What changed: the step, or what followed from it.
    pub(crate) step: Step,
    /// The time, in Unix ms.
    pub(crate) time_ms: u64,
    /// The items that changed.
    pub(crate) items: Vec<(List, UserId)>,
}

/// The part of the graph that a group reads and changes.
#[derive(Debug)]
pub(crate) struct Graph {
    limits: Limits,
    now_ms: u64,
    before: BTreeMap<UserId, Account>,
    /// The rows as the steps leave them.
    pub(crate) accounts: BTreeMap<UserId, Account>,
    edges_before: HashMap<(EdgeKind, Edge), u64>,
    edges: HashMap<(EdgeKind, Edge), u64>,
    /// The items that change.
    pub(crate) items: BTreeMap<(List, UserId), ItemChange>,
    /// The items on which an answer relies that changes nothing.
    pub(crate) unchanged: BTreeSet<(List, UserId)>,
    /// For the feed, in order.
    pub(crate) events: Vec<Event>,
    /// The accounts that were deleted, and those that have no edges any more.
    pub(crate) deletions: Vec<Step>,
}

impl Graph {
    /// Returns the graph as the database has it at a time, in Unix ms. Accounts without a row are not among
    /// `accounts`.
    pub(crate) fn new(
        limits: Limits,
        now_ms: u64,
        accounts: BTreeMap<UserId, Account>,
        edges: HashMap<(EdgeKind, Edge), u64>,
    ) -> Self {
        Self {
            limits,
            now_ms,
            before: accounts.clone(),
            accounts,
            edges_before: edges.clone(),
            edges,
            items: BTreeMap::new(),
            unchanged: BTreeSet::new(),
            events: Vec::new(),
            deletions: Vec::new(),
        }
    }

    /// Takes a step.
    pub(crate) fn take(&mut self, step: Step) -> Outcome {
        match step {
            Step::Create(kind, edge) => self.create(kind, edge),
            Step::End(kind, edge) => self.end(kind, edge),
            Step::Delete(user) => self.delete(user),
            Step::Deleted(user) => {
                self.deletions.push(step);
                self.events.push(Event { step, time_ms: self.now_ms, items: Vec::new() });
                Outcome::Done(self.seen(EdgeKind::Follow, Edge { from: user, to: user }))
            }
        }
    }

    /// Returns the revision of an item before and after the group.
    pub(crate) fn revisions(&self, list: List, user: UserId) -> (u64, u64) {
        let revision = |accounts: &BTreeMap<UserId, Account>| {
            accounts.get(&user).map_or(0, |account| account.list(list).revision)
        };
        (revision(&self.before), revision(&self.accounts))
    }

    /// Returns the accounts whose rows change.
    pub(crate) fn changed_accounts(&self) -> impl Iterator<Item = (UserId, &Account)> {
        let is_changed =
            |(user, account): &(&UserId, &Account)| self.before.get(user) != Some(account);
        self.accounts.iter().filter(is_changed).map(|(user, account)| (*user, account))
    }

    /// Returns the edges of a kind that are not any more what they were, and those that are new, with their
    /// times.
    pub(crate) fn changed_edges(&self, kind: EdgeKind) -> (Vec<Edge>, Vec<(Edge, u64)>) {
        type Edges = HashMap<(EdgeKind, Edge), u64>;
        let of_kind = |edges: &Edges, others: &Edges| {
            let is_other =
                |(key, since): &(&(EdgeKind, Edge), &u64)| others.get(*key) != Some(*since);
            let mut found: Vec<(Edge, u64)> = edges
                .iter()
                .filter(|((of, _), _)| *of == kind)
                .filter(is_other)
                .map(|((_, edge), since)| (*edge, *since))
                .collect();
            found.sort_unstable();
            found
        };
        let ended = of_kind(&self.edges_before, &self.edges);
        let created = of_kind(&self.edges, &self.edges_before);
        (ended.into_iter().map(|(edge, _)| edge).collect(), created)
    }

    fn create(&mut self, kind: EdgeKind, edge: Edge) -> Outcome {
        let Edge { from, to } = edge;
        if [from, to].iter().any(|user| self.account(*user).deleted > 0) {
            return Outcome::Deleted;
        }
        if kind == EdgeKind::Follow {
            if self.has(EdgeKind::Block, edge.reversed()) {
                return self.rejected(EdgeKind::Block, edge.reversed(), Outcome::BlockedByTarget);
            }
            if self.has(EdgeKind::Block, edge) {
                return self.rejected(EdgeKind::Block, edge, Outcome::TargetBlocked);
            }
        }
        if self.has(kind, edge) {
            return self.unchanged(kind, edge);
        }
        if self.account(from).list(kind.outgoing()).length >= self.limits.of(kind) {
            self.unchanged.insert((kind.outgoing(), from));
            return Outcome::Limit;
        }
        if kind == EdgeKind::Block {
            for follow in [edge, edge.reversed()] {
                if self.has(EdgeKind::Follow, follow) {
                    self.end(EdgeKind::Follow, follow);
                }
            }
        }
        let time_ms = match kind {
            EdgeKind::Follow | EdgeKind::Block => self.next_time(&[from, to]),
            EdgeKind::Mute => self.next_time(&[from]),
        };
        let mut items = self.add(kind, edge, time_ms);
        if kind == EdgeKind::Follow && self.has(kind, edge.reversed()) {
            for (user, peer) in [(from, to), (to, from)] {
                items.extend(self.add_to(List::Mutuals, user, peer, time_ms));
            }
        }
        self.record(Step::Create(kind, edge), time_ms, items);
        self.done(kind, edge)
    }

    fn end(&mut self, kind: EdgeKind, edge: Edge) -> Outcome {
        let Edge { from, to } = edge;
        let Some(since) = self.edges.remove(&(kind, edge)) else {
            return self.unchanged(kind, edge);
        };
        // Later than the edge, and earlier than its next one. Not later than what else there is: the many ends
        // of a deletion would make times run ahead.
        let time_ms = self.now_ms.max(since + 1);
        let newest = &mut self.accounts.entry(from).or_default().newest;
        *newest = (*newest).max(time_ms);
        let mut items = self.remove_from(kind.outgoing(), from, to);
        items.extend(kind.incoming().into_iter().flat_map(|list| self.remove_from(list, to, from)));
        if kind == EdgeKind::Follow && self.has(kind, edge.reversed()) {
            for (user, peer) in [(from, to), (to, from)] {
                items.extend(self.remove_from(List::Mutuals, user, peer));
            }
        }
        self.record(Step::End(kind, edge), time_ms, items);
        self.done(kind, edge)
    }

    fn delete(&mut self, user: UserId) -> Outcome {
        let seen = Seen::default();
        if self.account(user).deleted > 0 {
            return Outcome::Unchanged(seen);
        }
        let time_ms = self.next_time(&[user]);
        self.accounts.entry(user).or_default().deleted = time_ms;
        self.deletions.push(Step::Delete(user));
        self.events.push(Event { step: Step::Delete(user), time_ms, items: Vec::new() });
        Outcome::Done(seen)
    }

    fn has(&self, kind: EdgeKind, edge: Edge) -> bool {
        self.edges.contains_key(&(kind, edge))
    }

    fn account(&self, user: UserId) -> Account {
        self.accounts.get(&user).copied().unwrap_or_default()
    }

    fn seen(&self, kind: EdgeKind, edge: Edge) -> Seen {
        Seen {
            since_ms: self.edges.get(&(kind, edge)).copied().unwrap_or_default(),
            is_follower: self.has(EdgeKind::Follow, edge.reversed()),
        }
    }

    fn done(&mut self, kind: EdgeKind, edge: Edge) -> Outcome {
        let seen = self.seen(kind, edge);
        if seen.is_follower {
            self.rely_on(EdgeKind::Follow, edge.reversed());
        }
        Outcome::Done(seen)
    }

    fn unchanged(&mut self, kind: EdgeKind, edge: Edge) -> Outcome {
        self.rely_on(kind, edge);
        match self.done(kind, edge) {
            Outcome::Done(seen) => Outcome::Unchanged(seen),
            outcome => outcome,
        }
    }

    fn rejected(&mut self, kind: EdgeKind, because: Edge, outcome: Outcome) -> Outcome {
        self.rely_on(kind, because);
        outcome
    }

    // Notes the items of an edge: what is answered must not be taken back by a read.
    fn rely_on(&mut self, kind: EdgeKind, Edge { from, to }: Edge) {
        self.unchanged.insert((kind.outgoing(), from));
        self.unchanged.extend(kind.incoming().map(|list| (list, to)));
    }

    /// Returns the time of a new entry of lists of accounts: later than all entries of their lists.
    fn next_time(&mut self, users: &[UserId]) -> u64 {
        let newest = users.iter().map(|user| self.account(*user).newest).max().unwrap_or_default();
        let time_ms = self.now_ms.max(newest + 1);
        for user in users {
            self.accounts.entry(*user).or_default().newest = time_ms;
        }
        time_ms
    }

    // Adds an edge. Returns the items that change.
    fn add(&mut self, kind: EdgeKind, edge: Edge, time_ms: u64) -> Vec<(List, UserId)> {
        let Edge { from, to } = edge;
        self.edges.insert((kind, edge), time_ms);
        let mut items = self.add_to(kind.outgoing(), from, to, time_ms);
        items.extend(
            kind.incoming().into_iter().flat_map(|list| self.add_to(list, to, from, time_ms)),
        );
        items
    }

    // Adds an entry to a list. Returns the items that change.
    fn add_to(
        &mut self,
        list: List,
        user: UserId,
        peer: UserId,
        time_ms: u64,
    ) -> Vec<(List, UserId)> {
        self.accounts.entry(user).or_default().list_mut(list).length += 1;
        let record = Record { id: peer.get(), time_ms };
        self.items.entry((list, user)).or_default().added.push(record);
        self.change(list, user)
    }

    // Removes an entry from a list. Returns the items that change.
    fn remove_from(&mut self, list: List, user: UserId, peer: UserId) -> Vec<(List, UserId)> {
        let row = self.accounts.entry(user).or_default().list_mut(list);
        row.length = row.length.saturating_sub(1);
        let change = self.items.entry((list, user)).or_default();
        match change.added.iter().position(|record| record.id == peer.get()) {
            Some(at) => _ = change.added.remove(at),
            None => change.removed.push(peer.get()),
        }
        self.change(list, user)
    }

    // Raises the revisions of the items that have the length of a list, once in a group.
    fn change(&mut self, list: List, user: UserId) -> Vec<(List, UserId)> {
        let has_length = |item: &List| crate::items::Front::lists(*item).contains(&list);
        let items: Vec<_> =
            List::ALL.into_iter().filter(has_length).map(|item| (item, user)).collect();
        for &(item, user) in &items {
            self.items.entry((item, user)).or_default();
            let before = self.before.get(&user).map_or(0, |account| account.list(item).revision);
            self.accounts.entry(user).or_default().list_mut(item).revision = before + 1;
        }
        items
    }

    fn record(&mut self, step: Step, time_ms: u64, mut items: Vec<(List, UserId)>) {
        items.sort_unstable();
        items.dedup();
        self.events.push(Event { step, time_ms, items });
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const USERS: [u64; 4] = [4, 8, 12, 16];
    const LIMITS: Limits = Limits { following: 2, blocks: 1 };

    fn user(at: usize) -> UserId {
        UserId::new(USERS[at]).unwrap()
    }

    fn step() -> impl Strategy<Value = Step> {
        let edge = (0..4_usize, 1..4_usize)
            .prop_map(|(at, offset)| Edge { from: user(at), to: user((at + offset) % 4) });
        (select(&EdgeKind::ALL[..]), edge, 0..20_u8).prop_map(|(kind, edge, what)| match what {
            0 => Step::Delete(edge.from),
            1..8 => Step::End(kind, edge),
            _ => Step::Create(kind, edge),
        })
    }

    /// The stored graph: what a group has left.
    #[derive(Default)]
    struct Stored {
        accounts: BTreeMap<UserId, Account>,
        edges: HashMap<(EdgeKind, Edge), u64>,
        /// The version of the newest change of each edge.
        versions: HashMap<(EdgeKind, Edge), u64>,
        /// The newest time of each list.
        newest: HashMap<(List, UserId), u64>,
        /// The entries of each list, with their times, as the cache has them: by the changes alone.
        entries: BTreeMap<(List, UserId), BTreeMap<u64, u64>>,
    }

    impl Stored {
        /// Takes a group of steps at a time, and checks what it leaves.
        fn take(&mut self, now_ms: u64, steps: &[Step]) {
            let mut graph = Graph::new(LIMITS, now_ms, self.accounts.clone(), self.edges.clone());
            let deleted = |graph: &Graph, edge: Edge| {
                [edge.from, edge.to].iter().any(|user| graph.account(*user).deleted > 0)
            };
            for &step in steps {
                let outcome = graph.take(step);
                if let Step::Create(_, edge) = step {
                    assert_eq!(outcome == Outcome::Deleted, deleted(&graph, edge));
                }
            }
            for Event { step, time_ms, .. } in &graph.events {
                let (Step::Create(kind, edge) | Step::End(kind, edge)) = *step else { continue };
                let newest = self.versions.entry((kind, edge)).or_default();
                assert!(*time_ms > *newest, "{step:?}: the change before is as new");
                *newest = *time_ms;
            }
            for ((list, user), ItemChange { added, removed }) in &graph.items {
                let entries = self.entries.entry((*list, *user)).or_default();
                for id in removed {
                    assert!(entries.remove(id).is_some(), "{list:?} of {user}: {id} was not there");
                }
                for record in added {
                    assert_eq!(
                        entries.insert(record.id, record.time_ms),
                        None,
                        "{list:?} of {user}"
                    );
                }
                for record in added {
                    let newest = self.newest.entry((*list, *user)).or_default();
                    assert!(record.time_ms > *newest, "{list:?} of {user}: one before is as new");
                    *newest = record.time_ms;
                }
                let (before, after) = graph.revisions(*list, *user);
                assert_eq!(after, before + 1);
            }
            self.accounts = graph.accounts.clone();
            for kind in EdgeKind::ALL {
                let (ended, created) = graph.changed_edges(kind);
                for edge in ended {
                    self.edges.remove(&(kind, edge)).expect("it was there");
                }
                for (edge, since) in created {
                    assert_eq!(self.edges.insert((kind, edge), since), None);
                }
            }
            assert_eq!(self.edges, graph.edges);
            self.check();
        }

        fn check(&self) {
            let count = |is_counted: &dyn Fn(&(EdgeKind, Edge)) -> bool| {
                self.edges.keys().filter(|edge| is_counted(edge)).count() as u64
            };
            for (&user, account) in &self.accounts {
                for kind in EdgeKind::ALL {
                    let outgoing = count(&|(of, edge)| *of == kind && edge.from == user);
                    assert_eq!(account.list(kind.outgoing()).length, outgoing);
                    assert!(outgoing <= LIMITS.of(kind));
                    if let Some(list) = kind.incoming() {
                        let incoming = count(&|(of, edge)| *of == kind && edge.to == user);
                        assert_eq!(account.list(list).length, incoming);
                    }
                }
                let follows = |edge: Edge| self.edges.contains_key(&(EdgeKind::Follow, edge));
                let mutuals = count(&|(of, edge)| {
                    *of == EdgeKind::Follow && edge.from == user && follows(edge.reversed())
                });
                assert_eq!(account.list(List::Mutuals).length, mutuals);
            }
            let mut entries = BTreeMap::<_, BTreeMap<u64, u64>>::new();
            let mut add = |list, user, peer: UserId, since| {
                entries.entry((list, user)).or_default().insert(peer.get(), since);
            };
            for (&(kind, edge), &since) in &self.edges {
                add(kind.outgoing(), edge.from, edge.to, since);
                if let Some(list) = kind.incoming() {
                    add(list, edge.to, edge.from, since);
                }
                let other = self.edges.get(&(kind, edge.reversed()));
                if let (EdgeKind::Follow, Some(&other)) = (kind, other) {
                    add(List::Mutuals, edge.from, edge.to, since.max(other));
                }
            }
            let cached = self.entries.iter().filter(|(_, entries)| !entries.is_empty());
            assert!(cached.eq(&entries), "the changes of the lists are not those of the edges");
            for (kind, edge) in self.edges.keys() {
                let is_blocked = [*edge, edge.reversed()]
                    .iter()
                    .any(|edge| self.edges.contains_key(&(EdgeKind::Block, *edge)));
                assert!(*kind != EdgeKind::Follow || !is_blocked, "a follow beside a block");
            }
        }
    }

    proptest! {
        /// The clock of the database may stand still, and go back.
        #[test]
        fn any_steps_at_any_times_leave_a_graph_that_agrees(
            groups in vec((0..8_u64, vec(step(), 1..12)), 1..12)
        ) {
            let mut stored = Stored::default();
            for (now_ms, steps) in groups {
                stored.take(1_000 + now_ms, &steps);
            }
        }
    }
}
