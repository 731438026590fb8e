//! The rules of accounts: what each call of a group changes. Does no I/O.
//!
//! The rows that the calls need are locked: the rules see all that was committed before.

use std::collections::BTreeMap;

use microblog_domain::{Partition, Stamp, UserId};
use microblog_storage::Rows;

use crate::{
    address::Address,
    identifier::{Identifier, IdentifierKind, guesses_of},
    items::AccountItem,
    name::Name,
    password::Hash,
    profile::{ProfileField, User},
    throttle,
    token::Fingerprint,
};

/// The most sessions of an account: a further one ends the least recently used.
pub(crate) const SESSIONS_MAX: usize = 50;

/// How often the use of a session is noted.
pub(crate) const USE_NOTED_MS: u64 = 3_600_000;

/// A new account.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The name.
    pub(crate) name: Name,
    /// The address.
    pub(crate) address: Address,
    /// The password hash.
    pub(crate) password: Hash,
    /// The display name; may be empty.
    pub(crate) display_name: String,
    /// The id of the request (idempotency key).
    pub(crate) request: String,
}

impl Draft {
    /// Returns its identifiers, in the order in which they are looked at: who registers is told first of the
    /// name, but an external id finds its account whatever the name.
    pub(crate) fn identifiers(&self) -> [Identifier; 2] {
        let (name, address) = (Identifier::from(&self.name), Identifier::from(&self.address));
        match self.address {
            Address::Email(_) => [name, address],
            Address::External(_) => [address, name],
        }
    }
}

/// A call that writes.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Registers an account.
    Register(Box<Draft>),
    /// Counts a guess of a password as failed, unless guesses must wait.
    Guess(u64),
    /// Opens a session if the password is still the one that was checked. Ends the failures of the account.
    Open { id: UserId, checked: Hash, token: Fingerprint, lifetime_ms: u64 },
    /// Notes the use of a session.
    Use(UserId, Fingerprint),
    /// Ends a session.
    Close(UserId, Fingerprint),
    /// Changes the password if it is still the one that was checked, and ends all sessions.
    ChangePassword { id: UserId, checked: Hash, new: Hash },
    /// Changes fields of a profile.
    Update(UserId, Vec<(ProfileField, String)>),
    /// Deletes an account if its password is still the one that was checked, and holds its name for a time.
    Delete { id: UserId, checked: Hash, hold_ms: u64 },
    /// The other services have deleted their data of a deleted account.
    Confirm(UserId),
}

impl Call {
    /// Returns the account whose row the call needs.
    pub(crate) fn account(&self) -> Option<UserId> {
        match self {
            Self::Open { id, .. }
            | Self::ChangePassword { id, .. }
            | Self::Delete { id, .. }
            | Self::Use(id, _)
            | Self::Close(id, _)
            | Self::Update(id, _) => Some(*id),
            Self::Register(_) | Self::Guess(_) | Self::Confirm(_) => None,
        }
    }

    /// Returns the account whose sessions the call needs.
    pub(crate) fn sessions(&self) -> Option<UserId> {
        self.account().filter(|_| !matches!(self, Self::Update(..)))
    }

    /// Returns the key of the guesses that the call counts or ends.
    pub(crate) fn guesses(&self) -> Option<u64> {
        match self {
            Self::Guess(digest) => Some(*digest),
            Self::Open { id, .. } | Self::ChangePassword { id, .. } | Self::Delete { id, .. } => {
                Some(guesses_of(*id))
            }
            _ => None,
        }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The change was made, or there was nothing to change.
    Done,
    /// The account was registered, or its profile is this one.
    Account(User),
    /// An identifier is taken: by an account, or by none if it is held.
    Taken(IdentifierKind, Option<UserId>),
    /// The session was opened, and ends at this time, in Unix ms.
    Opened(u64),
    /// Guesses must wait for this many milliseconds.
    Wait(u64),
    /// There is no such account, or its password is another one.
    Changed,
}

/// The row of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountRow {
    pub(crate) user: User,
    pub(crate) address: Address,
    pub(crate) password: Hash,
    pub(crate) request: String,
    pub(crate) revision: u64,
    pub(crate) sessions_revision: u64,
}

/// The row of an identifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdentifierRow {
    /// As stored.
    pub(crate) text: String,
    /// The account that has it.
    pub(crate) account: Option<UserId>,
    /// Until when no account can get it.
    pub(crate) held_until_ms: u64,
    /// 0 for a row that was made for a registration.
    pub(crate) revision: u64,
}

impl IdentifierRow {
    /// Returns whether an account can get it.
    pub(crate) fn is_free(&self, now_ms: u64) -> bool {
        self.account.is_none() && self.held_until_ms <= now_ms
    }
}

/// The row of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionRow {
    pub(crate) made_ms: u64,
    pub(crate) used_ms: u64,
    pub(crate) expires_ms: u64,
}

/// The row of failed guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuessesRow {
    pub(crate) failures: u64,
    pub(crate) delayed_until_ms: u64,
    pub(crate) expires_ms: u64,
}

/// A change for the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// What happened: a verb, the account, and the version of its profile, if it is another one.
    pub(crate) text: String,
    /// The items that changed, with their new revisions.
    pub(crate) items: Vec<(AccountItem, u64, u64)>,
}

/// The rows that a group reads and changes.
#[derive(Debug)]
pub(crate) struct State {
    now_ms: u64,
    pub(crate) accounts: Rows<UserId, AccountRow>,
    /// By digest. Those that registrations need are all there.
    pub(crate) identifiers: Rows<u64, IdentifierRow>,
    pub(crate) sessions: Rows<(UserId, Fingerprint), SessionRow>,
    /// By digest.
    pub(crate) guesses: Rows<u64, GuessesRow>,
    /// Accounts whose deletion was begun or confirmed.
    pub(crate) deleted: Vec<UserId>,
    pub(crate) confirmed: Vec<UserId>,
    /// What changed, in order.
    pub(crate) events: Vec<Event>,
    /// The items that changed, or were found as they are: the revisions before and after.
    pub(crate) items: BTreeMap<(AccountItem, u64), (u64, u64)>,
}

impl State {
    /// Returns the rows at a time, in Unix ms.
    pub(crate) fn new(
        now_ms: u64,
        accounts: BTreeMap<UserId, AccountRow>,
        identifiers: BTreeMap<u64, IdentifierRow>,
        sessions: BTreeMap<(UserId, Fingerprint), SessionRow>,
        guesses: BTreeMap<u64, GuessesRow>,
    ) -> Self {
        Self {
            now_ms,
            accounts: Rows::new(accounts),
            identifiers: Rows::new(identifiers),
            sessions: Rows::new(sessions),
            guesses: Rows::new(guesses),
            deleted: Vec::new(),
            confirmed: Vec::new(),
            events: Vec::new(),
            items: BTreeMap::new(),
        }
    }

    /// Decides a call. `random` is for the id of a new account.
    pub(crate) fn take(&mut self, call: &Call, random: impl FnMut() -> u16) -> Outcome {
        match call {
            Call::Register(draft) => self.register(draft, random),
            Call::Guess(digest) => self.guess(*digest),
            Call::Open { id, checked, token, lifetime_ms } => {
                self.open(*id, checked, *token, *lifetime_ms)
            }
            Call::Use(id, token) => self.note_use(*id, *token),
            Call::Close(id, token) => self.close(*id, *token),
            Call::ChangePassword { id, checked, new } => self.change_password(*id, checked, new),
            Call::Update(id, fields) => self.update(*id, fields),
            Call::Delete { id, checked, hold_ms } => self.delete(*id, checked, *hold_ms),
            Call::Confirm(id) => {
                self.confirmed.push(*id);
                Outcome::Done
            }
        }
    }

    fn register(&mut self, draft: &Draft, random: impl FnMut() -> u16) -> Outcome {
        let identifiers = draft.identifiers();
        for identifier in &identifiers {
            let digest = identifier.digest();
            if self.has_freed(digest, identifier) {
                continue;
            }
            let row = self.identifiers.now.get(&digest).cloned().unwrap_or_default();
            if !row.is_free(self.now_ms) || row.text != identifier.as_str() {
                // The caller may take its account for the one that it has asked for.
                self.note_item(identifier.kind, digest, row.revision, row.revision);
                let owner = row.account.filter(|_| row.text == identifier.as_str());
                return Outcome::Taken(identifier.kind, owner);
            }
        }
        let id = self.new_id(random);
        let mut items = vec![self.change_item(AccountItem::Profile, id.get(), 0, id.get())];
        for identifier in &identifiers {
            let digest = identifier.digest();
            let revision = self.identifiers.now.get(&digest).map_or(0, |row| row.revision);
            items.extend(self.change_identifier(identifier, Some(id), 0, revision));
        }
        let user = User {
            id,
            name: draft.name.as_str().to_owned(),
            display_name: draft.display_name.clone(),
            bio: String::new(),
            avatar_url: String::new(),
            location: String::new(),
        };
        let row = AccountRow {
            user: user.clone(),
            address: draft.address.clone(),
            password: draft.password.clone(),
            request: draft.request.clone(),
            revision: id.get(),
            sessions_revision: 0,
        };
        self.accounts.now.insert(id, row);
        self.events.push(Event { text: format!("register {id} {id}"), items });
        Outcome::Account(user)
    }

    // Returns whether an earlier call of the group has freed an address: its row was there, and is gone.
    fn has_freed(&self, digest: u64, identifier: &Identifier) -> bool {
        let was_there = self.identifiers.as_read().get(&digest);
        let was_its = was_there.is_some_and(|row| row.text == identifier.as_str());
        was_its && !self.identifiers.now.contains_key(&digest)
    }

    // Returns an id that no account of the group has. Another transaction may issue the same one: then the
    // database rejects one of the two, which is repeated.
    fn new_id(&self, mut random: impl FnMut() -> u16) -> UserId {
        let number = random();
        let (partition, sequence) = (Partition::new(number >> 2), u64::from(number & 3));
        let mut stamp = stamp(self.now_ms, partition) | sequence;
        loop {
            match UserId::new(stamp) {
                Some(id) if !self.accounts.now.contains_key(&id) => return id,
                // The next millisecond.
                _ => stamp += 1 << 12,
            }
        }
    }

    fn guess(&mut self, digest: u64) -> Outcome {
        let now_ms = self.now_ms;
        let known = self.guesses.now.get(&digest).copied();
        let mut row = known.filter(|row| row.expires_ms > now_ms).unwrap_or_default();
        if row.delayed_until_ms > now_ms {
            return Outcome::Wait(row.delayed_until_ms - now_ms);
        }
        row.failures += 1;
        let delay = throttle::delay_after(row.failures);
        row.delayed_until_ms = now_ms + delay.as_millis() as u64;
        row.expires_ms = now_ms + throttle::kept_for(delay).as_millis() as u64;
        self.guesses.now.insert(digest, row);
        Outcome::Done
    }

    fn open(
        &mut self,
        id: UserId,
        checked: &Hash,
        token: Fingerprint,
        lifetime_ms: u64,
    ) -> Outcome {
        if !self.has_password(id, checked) {
            return Outcome::Changed;
        }
        let now_ms = self.now_ms;
        let mut own: Vec<_> = self.sessions_of(id).collect();
        own.sort_unstable_by_key(|(_, row)| (row.expires_ms > now_ms, row.used_ms, row.made_ms));
        let alive = own.iter().filter(|(_, row)| row.expires_ms > now_ms).count();
        let ended = own.len() - alive + (alive + 1).saturating_sub(SESSIONS_MAX);
        for (token, _) in own.into_iter().take(ended) {
            self.sessions.now.remove(&(id, token));
        }
        let expires_ms = now_ms + lifetime_ms;
        let row = SessionRow { made_ms: now_ms, used_ms: now_ms, expires_ms };
        self.sessions.now.insert((id, token), row);
        self.guesses.now.remove(&guesses_of(id));
        self.sessions_changed("login", id);
        Outcome::Opened(expires_ms)
    }

    fn note_use(&mut self, id: UserId, token: Fingerprint) -> Outcome {
        let now_ms = self.now_ms;
        if let Some(row) = self.sessions.now.get_mut(&(id, token))
            && row.used_ms + USE_NOTED_MS <= now_ms
        {
            row.used_ms = now_ms;
            self.sessions_changed("use", id);
        }
        Outcome::Done
    }

    fn close(&mut self, id: UserId, token: Fingerprint) -> Outcome {
        if self.sessions.now.remove(&(id, token)).is_some() {
            self.sessions_changed("logout", id);
        } else if let Some(row) = self.accounts.now.get(&id) {
            // Another call may have ended it: this answer holds for readers, too.
            let revision = row.sessions_revision;
            self.change_item(AccountItem::Sessions, id.get(), revision, revision);
        }
        Outcome::Done
    }

    fn change_password(&mut self, id: UserId, checked: &Hash, new: &Hash) -> Outcome {
        if !self.has_password(id, checked) {
            return Outcome::Changed;
        }
        if let Some(row) = self.accounts.now.get_mut(&id) {
            row.password = new.clone();
        }
        self.end_sessions(id);
        self.guesses.now.remove(&guesses_of(id));
        self.sessions_changed("password", id);
        Outcome::Done
    }

    fn update(&mut self, id: UserId, fields: &[(ProfileField, String)]) -> Outcome {
        let now_ms = self.now_ms;
        let Some(row) = self.accounts.now.get_mut(&id) else { return Outcome::Changed };
        let (old, before) = (row.user.clone(), row.revision);
        for (field, text) in fields {
            row.user.set(*field, text.clone());
        }
        if row.user != old {
            row.revision = next_version(id, before, now_ms);
        }
        let (user, after) = (row.user.clone(), row.revision);
        let item = self.change_item(AccountItem::Profile, id.get(), before, after);
        if before != after {
            let text = format!("update {id} {after}");
            self.events.push(Event { text, items: vec![item] });
        }
        Outcome::Account(user)
    }

    fn delete(&mut self, id: UserId, checked: &Hash, hold_ms: u64) -> Outcome {
        if !self.has_password(id, checked) {
            return Outcome::Changed;
        }
        let Some(row) = self.accounts.now.remove(&id) else { return Outcome::Changed };
        let version = next_version(id, row.revision, self.now_ms);
        let sessions = (row.sessions_revision, row.sessions_revision + 1);
        let mut items = vec![
            self.change_item(AccountItem::Profile, id.get(), row.revision, version),
            self.change_item(AccountItem::Sessions, id.get(), sessions.0, sessions.1),
        ];
        for identifier in row.identifiers() {
            let own = self.identifiers.now.get(&identifier.digest());
            let Some(own) = own.filter(|own| own.account == Some(id)) else { continue };
            let revision = own.revision;
            match identifier.kind {
                IdentifierKind::Name => {
                    let until_ms = self.now_ms + hold_ms;
                    items.extend(self.change_identifier(&identifier, None, until_ms, revision));
                }
                IdentifierKind::Email | IdentifierKind::External => {
                    self.identifiers.now.remove(&identifier.digest());
                }
            }
        }
        self.end_sessions(id);
        self.guesses.now.remove(&guesses_of(id));
        // What was confirmed before was not this deletion.
        self.confirmed.retain(|confirmed| *confirmed != id);
        self.deleted.push(id);
        self.events.push(Event { text: format!("delete {id} {version}"), items });
        Outcome::Done
    }

    fn has_password(&self, id: UserId, checked: &Hash) -> bool {
        self.accounts.now.get(&id).is_some_and(|row| row.password == *checked)
    }

    fn sessions_of(&self, id: UserId) -> impl Iterator<Item = (Fingerprint, SessionRow)> {
        let own = self.sessions.now.range((id, Fingerprint::FIRST)..=(id, Fingerprint::LAST));
        own.map(|((_, token), row)| (*token, *row))
    }

    fn end_sessions(&mut self, id: UserId) {
        self.sessions.now.retain(|(owner, _), _| *owner != id);
    }

    fn sessions_changed(&mut self, verb: &str, id: UserId) {
        let Some(row) = self.accounts.now.get_mut(&id) else { return };
        row.sessions_revision += 1;
        let revision = row.sessions_revision;
        let item = self.change_item(AccountItem::Sessions, id.get(), revision - 1, revision);
        self.events.push(Event { text: format!("{verb} {id}"), items: vec![item] });
    }

    // Gives an identifier to an account, or takes it away. Returns the item, if it is one.
    fn change_identifier(
        &mut self,
        identifier: &Identifier,
        account: Option<UserId>,
        held_until_ms: u64,
        before: u64,
    ) -> Option<(AccountItem, u64, u64)> {
        let digest = identifier.digest();
        // A row that was removed and is made again has a later revision than it had.
        let revision = self.now_ms.max(before + 1);
        let text = identifier.as_str().to_owned();
        let row = IdentifierRow { text, account, held_until_ms, revision };
        self.identifiers.now.insert(digest, row);
        self.note_item(identifier.kind, digest, before, revision)
    }

    fn note_item(
        &mut self,
        kind: IdentifierKind,
        digest: u64,
        before: u64,
        after: u64,
    ) -> Option<(AccountItem, u64, u64)> {
        let is_item = kind == IdentifierKind::Name;
        is_item.then(|| self.change_item(AccountItem::Name, digest, before, after))
    }

    fn change_item(
        &mut self,
        item: AccountItem,
        id: u64,
        before: u64,
        after: u64,
    ) -> (AccountItem, u64, u64) {
        let (_, newest) = self.items.entry((item, id)).or_insert((before, after));
        *newest = after;
        (item, id, after)
    }
}

impl AccountRow {
    /// Returns the identifiers of the account.
    pub(crate) fn identifiers(&self) -> impl Iterator<Item = Identifier> + use<> {
        let name = Name::parse("name", &self.user.name).ok();
        let name = name.map(|name| Identifier::from(&name));
        name.into_iter().chain([Identifier::from(&self.address)])
    }
}

fn stamp(now_ms: u64, partition: Partition) -> u64 {
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(now_ms);
    Stamp::first_at(time, partition).get()
}

/// Returns the version of a change of a profile: a stamp behind the last one.
fn next_version(id: UserId, last: u64, now_ms: u64) -> u64 {
    stamp(now_ms, id.partition()).max(last + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::{address::ExternalId, email::Email};

    const NOW_MS: u64 = Stamp::EPOCH_MS + 1_000_000_000;
    const MINUTE_MS: u64 = 60_000;
    const HOUR_MS: u64 = 60 * MINUTE_MS;
    const DAY_MS: u64 = 24 * HOUR_MS;

    /// The tables.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Stored {
        accounts: BTreeMap<UserId, AccountRow>,
        identifiers: BTreeMap<u64, IdentifierRow>,
        sessions: BTreeMap<(UserId, Fingerprint), SessionRow>,
        guesses: BTreeMap<u64, GuessesRow>,
        deletions: BTreeSet<UserId>,
        /// The feed.
        events: Vec<Event>,
    }

    /// What a group has changed: outcomes, and the items with their revisions before and after.
    type Changed = (Vec<Outcome>, BTreeMap<(AccountItem, u64), (u64, u64)>);

    impl Stored {
        /// Decides a group of calls, with the rows that they need, and writes what has changed, as `group` does.
        /// Each call has a number from which a new account has its id.
        fn run(&mut self, now_ms: u64, calls: &[(u16, Call)]) -> Changed {
            let calls_of = || calls.iter().map(|(_, call)| call);
            let ids: BTreeSet<UserId> = calls_of().filter_map(Call::account).collect();
            let mut accounts = self.accounts.clone();
            accounts.retain(|id, _| ids.contains(id));
            let mut sessions = self.sessions.clone();
            sessions.retain(|(id, _), _| ids.contains(id));
            let mut identifiers = BTreeMap::new();
            for call in calls_of() {
                if let Call::Register(draft) = call {
                    for identifier in draft.identifiers() {
                        let text = identifier.as_str().to_owned();
                        let made = IdentifierRow { text, ..IdentifierRow::default() };
                        let stored = self.identifiers.entry(identifier.digest()).or_insert(made);
                        identifiers.insert(identifier.digest(), stored.clone());
                    }
                }
                let deleted = matches!(call, Call::Delete { .. }).then(|| call.account());
                let deleted = deleted.flatten().and_then(|id| accounts.get(&id));
                for identifier in deleted.into_iter().flat_map(AccountRow::identifiers) {
                    let stored = &self.identifiers[&identifier.digest()];
                    identifiers.insert(identifier.digest(), stored.clone());
                }
            }
            let mut guesses = BTreeMap::new();
            for call in calls_of() {
                let Some(digest) = call.guesses() else { continue };
                if let Call::Guess(_) = call {
                    self.guesses.entry(digest).or_default();
                }
                guesses.extend(self.guesses.get(&digest).map(|row| (digest, *row)));
            }
            let mut state = State::new(now_ms, accounts, identifiers, sessions, guesses);
            let outcomes =
                calls.iter().map(|(number, call)| state.take(call, || *number)).collect();
            self.write(&state);
            (outcomes, state.items)
        }

        fn write(&mut self, state: &State) {
            write(&mut self.accounts, &state.accounts);
            write(&mut self.sessions, &state.sessions);
            write(&mut self.identifiers, &state.identifiers);
            write(&mut self.guesses, &state.guesses);
            self.identifiers.retain(|_, row| row.revision > 0);
            // They are made before.
            assert_eq!(state.identifiers.added().count() + state.guesses.added().count(), 0);
            for (id, row) in state.accounts.changed() {
                let old = &state.accounts.as_read()[id];
                let fixed = |row: &AccountRow| {
                    (row.user.name.clone(), row.address.clone(), row.request.clone())
                };
                assert_eq!(fixed(row), fixed(old), "these are not written");
            }
            self.deletions.extend(&state.deleted);
            self.deletions.retain(|id| !state.confirmed.contains(id));
            self.events.extend(state.events.iter().cloned());
        }

        /// Decides one call.
        fn one(&mut self, now_ms: u64, call: Call) -> Outcome {
            // Ids differ, since the numbers do.
            let number = self.events.len() as u16;
            self.run(now_ms, &[(number, call)]).0.remove(0)
        }

        fn register(&mut self, now_ms: u64, draft: Draft) -> UserId {
            registered(&self.one(now_ms, Call::Register(Box::new(draft))))
        }

        fn tokens(&self, id: UserId) -> Vec<Fingerprint> {
            let own = self.sessions.keys().filter(|(owner, _)| *owner == id);
            own.map(|(_, token)| *token).collect()
        }

        /// Asserts what holds after each group.
        fn check(&self) {
            for (id, account) in &self.accounts {
                assert_eq!(account.identifiers().count(), 2);
                for identifier in account.identifiers() {
                    let row = &self.identifiers[&identifier.digest()];
                    assert_eq!((&*row.text, row.account), (identifier.as_str(), Some(*id)));
                }
                assert!(self.tokens(*id).len() <= SESSIONS_MAX);
                assert!(!self.deletions.contains(id));
            }
            let owned = self.identifiers.values().filter_map(|row| row.account);
            assert_eq!(owned.count(), 2 * self.accounts.len(), "nobody else has one");
            assert!(self.sessions.keys().all(|(id, _)| self.accounts.contains_key(id)));
            // In the feed, the revision of an item grows.
            let mut newest = BTreeMap::new();
            for (item, id, revision) in self.events.iter().flat_map(|event| &event.items) {
                let before = newest.insert((item, id), *revision);
                assert!(before < Some(*revision), "{item:?} {id}: {before:?} {revision}");
            }
        }
    }

    /// Writes rows to a table.
    fn write<K: Ord + Clone, R: Clone + PartialEq>(table: &mut BTreeMap<K, R>, rows: &Rows<K, R>) {
        for key in rows.removed() {
            table.remove(key);
        }
        let written = rows.added().chain(rows.changed());
        table.extend(written.map(|(key, row)| (key.clone(), row.clone())));
    }

    fn registered(outcome: &Outcome) -> UserId {
        let Outcome::Account(user) = outcome else { panic!("{outcome:?}") };
        user.id
    }

    fn draft(name: &str, address: &str) -> Draft {
        Draft {
            name: Name::parse("name", name).unwrap(),
            address: match address.split_once(' ') {
                Some((issuer, id)) => {
                    Address::External(ExternalId::parse(("", issuer), ("", id)).unwrap())
                }
                None => Email::parse("email", address).unwrap().into(),
            },
            password: hash(0),
            display_name: String::new(),
            request: "a request".to_owned(),
        }
    }

    fn register(name: &str, address: &str) -> Call {
        Call::Register(Box::new(draft(name, address)))
    }

    fn hash(number: usize) -> Hash {
        Hash::stored(format!("hash {number}"))
    }

    fn token(number: u16) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Fingerprint::stored(&URL_SAFE_NO_PAD.encode(bytes)).unwrap()
    }

    fn open(id: UserId, number: u16, lifetime_ms: u64) -> Call {
        Call::Open { id, checked: hash(0), token: token(number), lifetime_ms }
    }

    fn delete(id: UserId, hold_ms: u64) -> Call {
        Call::Delete { id, checked: hash(0), hold_ms }
    }

    fn versions(stored: &Stored) -> Vec<u64> {
        let texts = stored.events.iter().map(|event| event.text.rsplit(' ').next().unwrap());
        texts.map(|version| version.parse().unwrap()).collect()
    }

    #[test]
    fn a_conflict_of_names_is_told_before_one_of_addresses() {
        use IdentifierKind::{Email, Name};
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("Ann", "Ann@example.org"));
        let bob = stored.register(NOW_MS, draft("bob", "bob@example.org"));
        for (name, address, expected) in [
            ("ann", "ann@example.org", Outcome::Taken(Name, Some(ann))),
            ("ANN", "bob@example.org", Outcome::Taken(Name, Some(ann))),
            ("ann", "new@example.org", Outcome::Taken(Name, Some(ann))),
            ("new", "aNN@Example.org", Outcome::Taken(Email, Some(ann))),
            ("new", "bob@example.org", Outcome::Taken(Email, Some(bob))),
        ] {
            assert_eq!(stored.one(NOW_MS, register(name, address)), expected, "{name} {address}");
            stored.check();
        }
        assert_eq!(stored.identifiers.len(), 4, "a loser has none");
        assert_ne!(stored.register(NOW_MS, draft("new", "new@example.org")), ann);
    }

    #[test]
    fn an_external_id_finds_its_account_whatever_the_name() {
        use IdentifierKind::{External, Name};
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "sso 1"));
        let bob = stored.register(NOW_MS, draft("bob", "bob@example.org"));
        for (name, address, expected) in [
            ("ann", "sso 1", Outcome::Taken(External, Some(ann))),
            ("bob", "sso 1", Outcome::Taken(External, Some(ann))),
            ("new", "sso 1", Outcome::Taken(External, Some(ann))),
            ("bob", "sso 2", Outcome::Taken(Name, Some(bob))),
        ] {
            assert_eq!(stored.one(NOW_MS, register(name, address)), expected, "{name} {address}");
        }
        assert_ne!(stored.register(NOW_MS, draft("new", "SSO 1")), ann, "case matters");
        stored.check();
    }

    #[test]
    fn a_digest_that_is_another_ones_is_taken() {
        let mut stored = Stored::default();
        stored.register(NOW_MS, draft("ann", "ann@example.org"));
        let name = Identifier::from(&draft("ann", "ann@example.org").name).digest();
        stored.identifiers.get_mut(&name).unwrap().text = "name of another".to_owned();
        let taken = stored.one(NOW_MS, register("ann", "new@example.org"));
        assert_eq!(taken, Outcome::Taken(IdentifierKind::Name, None));
    }

    #[test]
    fn of_two_registrations_in_a_group_the_first_one_wins() {
        use IdentifierKind::{Email, Name};
        let mut stored = Stored::default();
        let calls = [
            (0, register("ann", "ann@example.org")),
            // The same number: of the next millisecond.
            (0, register("bob", "bob@example.org")),
            (1, register("ANN", "other@example.org")),
            (2, register("other", "bob@example.org")),
            (3, register("other", "other@example.org")),
        ];
        let (outcomes, items) = stored.run(NOW_MS, &calls);
        let [ann, bob, other] = [0, 1, 4].map(|at| registered(&outcomes[at]));
        assert_eq!(outcomes[2], Outcome::Taken(Name, Some(ann)));
        assert_eq!(outcomes[3], Outcome::Taken(Email, Some(bob)));
        assert!(ann != bob && ann.partition() == bob.partition());
        let profiles = items.keys().filter(|(item, _)| *item == AccountItem::Profile);
        assert_eq!(profiles.map(|(_, id)| *id).collect::<BTreeSet<_>>(), {
            [ann, bob, other].map(UserId::get).into()
        });
        stored.check();
    }

    #[test]
    fn what_a_group_deletes_a_later_registration_of_it_may_have() {
        for (hold_ms, is_held) in [(0, false), (DAY_MS, true)] {
            for address in ["ann@example.org", "sso 1"] {
                let mut stored = Stored::default();
                let ann = stored.register(NOW_MS, draft("ann", address));
                let calls = [
                    (1, register("new", address)),
                    (2, delete(ann, hold_ms)),
                    (3, register("ann", "other@example.org")),
                    (4, register("new", address)),
                ];
                let (outcomes, items) = stored.run(NOW_MS, &calls);
                assert!(matches!(outcomes[0], Outcome::Taken(_, Some(owner)) if owner == ann));
                assert_eq!(outcomes[1], Outcome::Done);
                match is_held {
                    true => assert_eq!(outcomes[2], Outcome::Taken(IdentifierKind::Name, None)),
                    false => assert_ne!(registered(&outcomes[2]), ann),
                }
                assert_ne!(registered(&outcomes[3]), ann, "the address is free at once");
                stored.check();
                let name = draft("ann", address).identifiers();
                let name = name.iter().find(|one| one.kind == IdentifierKind::Name).unwrap();
                let (before, after) = items[&(AccountItem::Name, name.digest())];
                assert!(before == NOW_MS && after == NOW_MS + if is_held { 1 } else { 2 });
            }
        }
    }

    /// Another transaction may remove a row again and again. An account without its identifiers would be worse
    /// than a wrong answer.
    #[test]
    fn an_identifier_whose_row_is_not_locked_is_taken() {
        let (accounts, identifiers, sessions, guesses) = Default::default();
        let mut state = State::new(NOW_MS, accounts, identifiers, sessions, guesses);
        let taken = state.take(&register("ann", "ann@example.org"), || 0);
        assert_eq!(taken, Outcome::Taken(IdentifierKind::Name, None));
        assert!(!state.accounts.have_changed() && !state.identifiers.have_changed());
    }

    #[test]
    fn a_name_is_held_until_its_time() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        stored.one(NOW_MS, delete(ann, DAY_MS));
        let again = register("ann", "new@example.org");
        let held = Outcome::Taken(IdentifierKind::Name, None);
        assert_eq!(stored.one(NOW_MS + DAY_MS - 1, again.clone()), held);
        assert_ne!(registered(&stored.one(NOW_MS + DAY_MS, again)), ann);
        stored.check();
    }

    #[test]
    fn the_least_recently_used_of_too_many_sessions_ends() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        let lifetime_ms = 100 * DAY_MS;
        for number in 0..SESSIONS_MAX as u16 {
            let now_ms = NOW_MS + u64::from(number);
            let opened = stored.one(now_ms, open(ann, number, lifetime_ms));
            assert_eq!(opened, Outcome::Opened(now_ms + lifetime_ms));
        }
        assert_eq!(stored.tokens(ann).len(), SESSIONS_MAX);
        // The first one was used since.
        let later_ms = NOW_MS + 2 * HOUR_MS;
        stored.one(later_ms, Call::Use(ann, token(0)));
        stored.one(later_ms, open(ann, 100, lifetime_ms));
        stored.one(later_ms, open(ann, 101, lifetime_ms));
        let alive: BTreeSet<Fingerprint> = stored.tokens(ann).into_iter().collect();
        assert_eq!(alive.len(), SESSIONS_MAX);
        assert!([0, 3, 49, 100, 101].iter().all(|&number| alive.contains(&token(number))));
        assert!([1, 2].iter().all(|&number| !alive.contains(&token(number))));

        // Those that have expired end before the others, however recently they were used.
        stored.one(later_ms, open(ann, 102, 10));
        stored.one(later_ms, open(ann, 103, 10));
        let expired_ms = later_ms + 10;
        stored.one(expired_ms, open(ann, 104, lifetime_ms));
        let alive = stored.tokens(ann);
        assert_eq!(alive.len(), SESSIONS_MAX - 1);
        assert!(!alive.contains(&token(102)) && !alive.contains(&token(103)));
        // All in one group.
        let opens: Vec<_> =
            (200..320).map(|number| (number, open(ann, number, lifetime_ms))).collect();
        stored.run(expired_ms + 1, &opens);
        assert_eq!(stored.tokens(ann).len(), SESSIONS_MAX);
        stored.check();
    }

    #[test]
    fn the_use_of_a_session_is_noted_once_an_hour() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        stored.one(NOW_MS, open(ann, 0, DAY_MS));
        let used = |stored: &Stored| stored.sessions[&(ann, token(0))].used_ms;
        for (at_ms, noted_ms) in [
            (NOW_MS + HOUR_MS - 1, NOW_MS),
            (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS),
            (NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS),
            (NOW_MS + 2 * HOUR_MS - 1, NOW_MS + HOUR_MS),
            (NOW_MS + 2 * HOUR_MS, NOW_MS + 2 * HOUR_MS),
        ] {
            stored.one(at_ms, Call::Use(ann, token(0)));
            assert_eq!(used(&stored), noted_ms);
        }
        let uses = stored.events.iter().filter(|event| event.text == format!("use {ann}"));
        assert_eq!(uses.count(), 2);
        // One that has ended does not begin again.
        stored.one(NOW_MS, Call::Close(ann, token(0)));
        stored.one(NOW_MS + DAY_MS, Call::Use(ann, token(0)));
        assert!(stored.sessions.is_empty());
    }

    #[test]
    fn a_session_that_has_ended_is_told_to_readers_again() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        stored.one(NOW_MS, open(ann, 0, DAY_MS));
        let sessions = (AccountItem::Sessions, ann.get());
        for expected in [(1, 2), (2, 2)] {
            let (_, items) = stored.run(NOW_MS, &[(0, Call::Close(ann, token(0)))]);
            assert_eq!(items[&sessions], expected);
        }
    }

    #[test]
    fn a_password_that_was_changed_opens_nothing() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        stored.one(NOW_MS, open(ann, 0, DAY_MS));
        let change =
            |from, to| Call::ChangePassword { id: ann, checked: hash(from), new: hash(to) };
        let calls = [
            (0, change(1, 2)),
            (1, open(ann, 1, DAY_MS)),
            (2, change(0, 1)),
            (3, open(ann, 2, DAY_MS)),
            (4, change(0, 2)),
            (5, delete(ann, 0)),
        ];
        let (outcomes, _) = stored.run(NOW_MS, &calls);
        use Outcome::{Changed, Done, Opened};
        let opened = Opened(NOW_MS + DAY_MS);
        assert_eq!(outcomes, [Changed, opened, Done, Changed, Changed, Changed]);
        assert_eq!(stored.tokens(ann), [], "all have ended");
        assert_eq!(stored.accounts[&ann].password, hash(1));
        stored.check();
    }

    #[test]
    fn guesses_wait_and_are_forgotten() {
        let mut stored = Stored::default();
        let digest = 9;
        let mut guess = |at_ms| stored.one(at_ms, Call::Guess(digest));
        let mut now_ms = NOW_MS;
        for _ in 0..5 {
            assert_eq!(guess(now_ms), Outcome::Done);
        }
        for seconds in [1, 2, 4, 8] {
            assert_eq!(guess(now_ms), Outcome::Wait(seconds * 1_000));
            assert_eq!(guess(now_ms + 300), Outcome::Wait(seconds * 1_000 - 300));
            now_ms += seconds * 1_000;
            assert_eq!(guess(now_ms), Outcome::Done, "after {seconds} s");
        }
        // A day after the last one; an hour, if there was no delay.
        assert_eq!(guess(now_ms + DAY_MS - 1), Outcome::Done);
        assert_eq!(guess(now_ms + DAY_MS - 1), Outcome::Wait(32_000), "the tenth one");
        now_ms += 3 * DAY_MS;
        for _ in 0..2 {
            for _ in 0..4 {
                assert_eq!(guess(now_ms), Outcome::Done);
            }
            now_ms += HOUR_MS;
        }
        assert_eq!(stored.guesses[&digest].failures, 4);
    }

    #[test]
    fn success_ends_the_failures_of_the_account() {
        let success: [fn(UserId) -> Call; 3] = [
            |id| open(id, 0, DAY_MS),
            |id| Call::ChangePassword { id, checked: hash(0), new: hash(0) },
            |id| delete(id, 0),
        ];
        for success in success {
            let mut stored = Stored::default();
            let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
            let guesses = guesses_of(ann);
            stored.one(NOW_MS, Call::Guess(guesses));
            stored.one(NOW_MS, Call::Guess(7));
            // Also those of the same group, before and after it.
            let calls = [(0, Call::Guess(guesses)), (1, success(ann)), (2, Call::Guess(7))];
            stored.run(NOW_MS, &calls);
            assert!(!stored.guesses.contains_key(&guesses));
            assert_eq!(stored.guesses[&7].failures, 2, "others are as they were");
            stored.run(NOW_MS, &[(0, success(ann)), (1, Call::Guess(guesses))]);
            assert_eq!(stored.guesses[&guesses].failures, 1);
        }
    }

    #[test]
    fn versions_grow_though_the_clock_does_not() {
        let mut stored = Stored::default();
        let ann = stored.register(NOW_MS, draft("ann", "ann@example.org"));
        let update = |text: &str| Call::Update(ann, vec![(ProfileField::Bio, text.to_owned())]);
        for (now_ms, text) in [
            (NOW_MS, "one"),
            (NOW_MS, "two"),
            (NOW_MS - HOUR_MS, "three"),
            (NOW_MS + HOUR_MS, "four"),
            (NOW_MS - HOUR_MS, "five"),
        ] {
            // The second one changes nothing.
            for _ in 0..2 {
                let Outcome::Account(user) = stored.one(now_ms, update(text)) else { panic!() };
                assert_eq!(user.bio, text);
            }
        }
        stored.one(NOW_MS - HOUR_MS, delete(ann, DAY_MS));
        stored.register(NOW_MS - HOUR_MS + DAY_MS, draft("ann", "ann@example.org"));
        let versions = versions(&stored);
        assert_eq!((versions.len(), versions[0]), (8, ann.get()), "the first one is the id");
        assert!(versions[..7].is_sorted_by(|a, b| a < b), "{versions:?}");
        let partition = |version: &u64| Stamp::new(*version).unwrap().partition();
        assert_eq!(partition(&versions[4]), ann.partition(), "a stamp of its partition");
        stored.check();
    }

    #[test]
    fn a_deletion_is_listed_until_a_later_confirmation() {
        for is_group in [false, true] {
            let mut stored = Stored::default();
            let [ann, bob] = ["ann", "bob"]
                .map(|name| stored.register(NOW_MS, draft(name, &format!("{name}@example.org"))));
            // A confirmation of nothing, before the deletion.
            let calls = [
                (0, Call::Confirm(ann)),
                (1, delete(ann, 0)),
                (2, delete(bob, 0)),
                (3, Call::Confirm(bob)),
            ];
            match is_group {
                true => _ = stored.run(NOW_MS, &calls),
                false => {
                    calls.iter().for_each(|call| _ = stored.run(NOW_MS, std::slice::from_ref(call)))
                }
            }
            assert_eq!(stored.deletions, [ann].into(), "in a group: {is_group}");
            stored.one(NOW_MS, Call::Confirm(ann));
            assert!(stored.deletions.is_empty());
        }
    }

    /// A call of some account of those that there are.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Register(usize, usize),
        Guess(usize),
        Open(usize, usize, u64),
        Use(usize, usize),
        Close(usize, usize),
        ChangePassword(usize, usize, usize),
        Update(usize, ProfileField, usize),
        Delete(usize, usize, u64),
        Confirm(usize),
    }

    const NAMES: [&str; 3] = ["ann", "ANN", "bob"];
    const ADDRESSES: [&str; 4] = ["ann@example.org", "Ann@example.org", "sso 1", "sso 2"];

    fn step() -> impl Strategy<Value = Step> {
        let (account, password) = (0..4_usize, select(&[0, 0, 0, 1][..]));
        let times = select(&[0, 5, HOUR_MS, DAY_MS][..]);
        let fields = select(&[ProfileField::Bio, ProfileField::DisplayName][..]);
        let of = |account: &std::ops::Range<usize>| account.clone();
        prop_oneof![
            6 => (0..NAMES.len(), 0..ADDRESSES.len()).prop_map(|(a, b)| Step::Register(a, b)),
            3 => of(&account).prop_map(Step::Guess),
            4 => (of(&account), password.clone(), times.clone())
                .prop_map(|(a, b, c)| Step::Open(a, b, c)),
            2 => (of(&account), 0..8_usize).prop_map(|(a, b)| Step::Use(a, b)),
            2 => (of(&account), 0..8_usize).prop_map(|(a, b)| Step::Close(a, b)),
            1 => (of(&account), password.clone(), password.clone())
                .prop_map(|(a, b, c)| Step::ChangePassword(a, b, c)),
            3 => (of(&account), fields, 0..2_usize).prop_map(|(a, b, c)| Step::Update(a, b, c)),
            4 => (of(&account), password, times).prop_map(|(a, b, c)| Step::Delete(a, b, c)),
            2 => account.prop_map(Step::Confirm),
        ]
    }

    impl Step {
        /// Returns the call, about an account or a session that is there when its group begins, or was.
        fn call(self, stored: &Stored, number: u16) -> Call {
            let alive: Vec<UserId> = stored.accounts.keys().copied().collect();
            let gone = UserId::new(4).unwrap();
            let account = |at: usize| alive.get(at).copied().unwrap_or(gone);
            let session = |id: UserId, at: usize| {
                let tokens = stored.tokens(id);
                tokens.get(at).copied().unwrap_or(token(u16::MAX))
            };
            match self {
                Self::Register(name, address) => register(NAMES[name], ADDRESSES[address]),
                Self::Guess(3) => Call::Guess(7),
                Self::Guess(at) => Call::Guess(guesses_of(account(at))),
                Self::Open(at, password, lifetime_ms) => Call::Open {
                    id: account(at),
                    checked: hash(password),
                    token: token(number),
                    lifetime_ms,
                },
                Self::Use(at, which) => Call::Use(account(at), session(account(at), which)),
                Self::Close(at, which) => Call::Close(account(at), session(account(at), which)),
                Self::ChangePassword(at, from, to) => {
                    Call::ChangePassword { id: account(at), checked: hash(from), new: hash(to) }
                }
                Self::Update(at, field, text) => {
                    Call::Update(account(at), vec![(field, ["", "a text"][text].to_owned())])
                }
                Self::Delete(at, password, hold_ms) => {
                    Call::Delete { id: account(at), checked: hash(password), hold_ms }
                }
                Self::Confirm(at) => match stored.deletions.iter().nth(at) {
                    Some(deleted) => Call::Confirm(*deleted),
                    None => Call::Confirm(account(at)),
                },
            }
        }
    }

    proptest! {
        /// The clock of the database may stand still, and go back.
        #[test]
        fn calls_in_groups_of_any_size_do_what_they_do_one_by_one(
            groups in vec((select(&[0, 1, 5, HOUR_MS, DAY_MS][..]), vec(step(), 1..12)), 1..12)
        ) {
            let [mut grouped, mut single] = [Stored::default(), Stored::default()];
            let (mut number, mut now_ms) = (0, NOW_MS);
            for (later_ms, steps) in groups {
                now_ms = if later_ms == 5 { now_ms - 5 } else { now_ms + later_ms };
                let calls = steps.into_iter().map(|step| {
                    number += 1;
                    (number, step.call(&grouped, number))
                });
                let calls: Vec<_> = calls.collect();
                let (outcomes, items) = grouped.run(now_ms, &calls);
                let mut changed = BTreeMap::<_, (u64, u64)>::new();
                let mut one_by_one = Vec::new();
                for call in &calls {
                    let (outcomes, items) = single.run(now_ms, std::slice::from_ref(call));
                    one_by_one.extend(outcomes);
                    for (item, (before, after)) in items {
                        changed.entry(item).or_insert((before, after)).1 = after;
                    }
                }
                prop_assert_eq!(outcomes, one_by_one);
                prop_assert_eq!(items, changed);
                prop_assert_eq!(&grouped, &single);
                grouped.check();
            }
        }
    }
}
