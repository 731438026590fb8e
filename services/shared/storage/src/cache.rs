//! The cache: how entries change. Every change is one function of Redis, and each is repeatable.

use microblog_keyspace::{
    Batch, Call, Error, Keyspace, Library, decode,
    redis::{Value, cmd},
};

use uuid::Uuid;

use crate::entry::{Contents, EntryKeys, EntryLimits};

/// The functions. A service opens its keyspace with them.
pub const LIBRARY_SOURCE: &str = include_str!("functions.lua");

/// Returns the function library of a service that needs no other functions.
pub const fn library(name: &'static str) -> Library {
    Library { name, source: LIBRARY_SOURCE }
}

/// How long a lease lasts, in milliseconds, if its loader does not end it: longer than a read of the
/// database may take, or a commit.
const LEASE_MS: u64 = 5_000;

/// How long an entry stays after it was loaded, in seconds. It saves memory; nothing relies on it.
const LIFETIME_S: u64 = 7 * 24 * 3600;

/// The same for an item without a row: anybody can ask for ids that nothing has.
const LIFETIME_WITHOUT_ROW_S: u64 = 60;

/// A committed change of an item.
#[derive(Clone, Debug)]
pub struct Change {
    /// The keys of its entry.
    pub keys: EntryKeys,
    /// The revision before the transaction.
    pub before: u64,
    /// The revision after it; the same if nothing changed.
    pub after: u64,
    /// What is put in place; `None` if the entry must be loaded again.
    pub patch: Option<Patch>,
    /// The limits of the entry.
    pub limits: EntryLimits,
}

/// A committed item that is new.
#[derive(Clone, Debug)]
pub struct Created {
    /// The keys of its entry.
    pub keys: EntryKeys,
    /// The revision.
    pub revision: u64,
    /// The contents.
    pub contents: Contents,
    /// The limits of the entry.
    pub limits: EntryLimits,
}

impl Created {
    /// Returns the change that makes it.
    pub(crate) fn change(self) -> Change {
        let Self { keys, revision, limits, .. } = self;
        Change { keys, before: 0, after: revision, patch: None, limits }
    }
}

/// How the contents of an entry change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The new front, or its beginning: at least one byte. The rest of a longer one stays as it is.
    pub front: Vec<u8>,
    /// The records to append, oldest first.
    pub added: Vec<u8>,
    /// The ids whose records are removed, before the others are appended.
    pub removed: Vec<u64>,
}

/// What [`Cache::apply`] did with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Applied {
    /// There is no entry, and no lease on one any more.
    Absent,
    /// The lease keeps the change for the entry that is being loaded.
    Collected,
    /// The entry has the revision, or a later one.
    Newer,
    /// The change was put in place.
    Put,
    /// The entry was deleted: it lacked another change, or this one could not be put in place.
    Deleted,
}

/// A random number that tells one load of an entry from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

impl Token {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4().as_u64_pair().0)
    }
}

/// The entries of a service in Redis. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    keyspace: Keyspace,
}

impl Cache {
    /// Returns the entries of a keyspace, which was opened with the functions of [`LIBRARY_SOURCE`].
    pub fn new(keyspace: Keyspace) -> Self {
        Self { keyspace }
    }

    /// Returns the name of the keyspace in metrics.
    pub(crate) fn keyspace_name(&self) -> &'static str {
        self.keyspace.name()
    }

    /// Brings entries to committed revisions, in one round trip to each primary. Returns what was done
    /// with each, or why it is not known: an entry of which that is not known must be [removed].
    ///
    /// [removed]: Self::remove
    pub async fn apply(&self, changes: &[Change]) -> Result<Vec<Result<Applied, Error>>, Error> {
        let mut batch = Batch::with_capacity(changes.len());
        for Change { keys, before, after, patch, limits } in changes {
            let call = apply(keys, *before, *after, patch.as_ref(), *limits);
            batch.call(keys.partition, call);
        }
        let replies = self.keyspace.send_each(batch).await?;
        Ok(replies.into_iter().map(|reply| applied(&decode::<String>(reply?)?)).collect())
    }

    /// Takes the lease on the load of an entry. Returns whether it was taken: not if there is an entry,
    /// or another lease.
    pub async fn lease(&self, keys: &EntryKeys, token: Token) -> Result<bool, Error> {
        Ok(self.keyspace.call::<u8>(lease(keys, token)).await? == 1)
    }

    /// Takes the leases on the loads of entries, in one round trip to each primary. Returns which were taken.
    pub async fn lease_each(&self, leases: &[(&EntryKeys, Token)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(leases.len());
        for (keys, token) in leases {
            batch.call(keys.partition, lease(keys, *token));
        }
        let replies = self.keyspace.send_each(batch).await?;
        Ok(replies.into_iter().map(|reply| is_done(reply).unwrap_or(false)).collect())
    }

    /// Ends leases with entries of new items, in one round trip to each primary. Returns of each whether the
    /// entry is there, or why it is not known: an entry of which that is not known must be [removed].
    ///
    /// [removed]: Self::remove
    pub async fn install_each(
        &self,
        created: &[(Created, Token)],
    ) -> Result<Vec<Result<bool, Error>>, Error> {
        let mut batch = Batch::with_capacity(created.len());
        for (Created { keys, revision, contents, limits }, token) in created {
            batch.call(keys.partition, install(keys, *token, *revision, contents, *limits));
        }
        let replies = self.keyspace.send_each(batch).await?;
        Ok(replies.into_iter().map(is_done).collect())
    }

    /// Ends a lease with the entry: what the database had at a moment after the lease was taken. Returns
    /// whether the entry is there: not if the lease has ended, or a change that it collected is not the
    /// next one.
    pub async fn install(
        &self,
        keys: &EntryKeys,
        token: Token,
        revision: u64,
        contents: &Contents,
        limits: EntryLimits,
    ) -> Result<bool, Error> {
        let call = install(keys, token, revision, contents, limits);
        Ok(self.keyspace.call::<u8>(call).await? == 1)
    }

    /// Deletes entries and leases, whatever their revisions.
    pub async fn remove<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a EntryKeys>,
    ) -> Result<(), Error> {
        let mut batch = Batch::new();
        for keys in entries {
            batch.query(keys.partition, cmd("UNLINK").arg(&keys.all()).take());
        }
        self.keyspace.send(batch).await.map(drop)
    }
}

fn lease(keys: &EntryKeys, token: Token) -> Call {
    Call::new("lease").keys(keys.all()).arg(token.0).arg(LEASE_MS)
}

fn install(
    keys: &EntryKeys,
    token: Token,
    revision: u64,
    Contents { front, records }: &Contents,
    limits: EntryLimits,
) -> Call {
    let lifetime_s = if revision == 0 { LIFETIME_WITHOUT_ROW_S } else { LIFETIME_S };
    let call = Call::new("install").keys(keys.all()).arg(token.0).arg(revision);
    let call = call.arg(&**front).arg(&**records);
    call.arg(limits.records).arg(limits.cut).arg(limits.without_set).arg(lifetime_s)
}

fn is_done(reply: Result<Value, Error>) -> Result<bool, Error> {
    Ok(decode::<u8>(reply?)? == 1)
}

/// Returns the call that brings an entry to a committed revision.
pub(crate) fn apply(
    keys: &EntryKeys,
    before: u64,
    after: u64,
    patch: Option<&Patch>,
    limits: EntryLimits,
) -> Call {
    let call = Call::new("apply").keys(keys.all()).arg(before).arg(after);
    let call = match patch {
        Some(Patch { front, added, removed }) => {
            let removed: Vec<u8> = removed.iter().flat_map(|id| id.to_be_bytes()).collect();
            call.arg(&**front).arg(&**added).arg(removed)
        }
        None => call.arg("").arg("").arg(""),
    };
    call.arg(limits.records).arg(limits.cut).arg(limits.without_set).arg(LIFETIME_S)
}

/// Decodes what was done.
pub(crate) fn applied(name: &str) -> Result<Applied, Error> {
    Ok(match name {
        "absent" => Applied::Absent,
        "collected" => Applied::Collected,
        "newer" => Applied::Newer,
        "put" => Applied::Put,
        "deleted" => Applied::Deleted,
        _ => return Err(Error::Malformed("unknown result of a change of an entry".into())),
    })
}
