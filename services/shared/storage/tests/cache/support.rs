//! A cache on a store of its own, and an item in it.

use std::collections::BTreeSet;

use microblog_domain::Partition;
use microblog_keyspace::{
    Config, Keyspace,
    redis::{ToRedisArgs, cmd},
};
use microblog_storage::{
    Applied, Cache, Change, Contents, EntryKeys, EntryLimits, Head, History, Patch, Record, Token,
    cache::library,
    entry::{HEADER, SET_MEMBER},
};
use microblog_testkit::{Store, Topology};

/// A limit that no list of these tests reaches.
const UNLIMITED: usize = 1_000_000;

/// Returns the limits of entries of up to so many records. Those of more than 48 have a set.
pub(crate) fn limits(records: usize) -> EntryLimits {
    EntryLimits { without_set: 48, ..EntryLimits::without_sets(records) }
}

pub(crate) struct System {
    pub(crate) cache: Cache,
    pub(crate) keyspace: Keyspace,
    _redis: Store,
}

impl System {
    pub(crate) async fn start(topology: Topology) -> Self {
        let redis = Store::start(topology).await;
        let keyspace = Keyspace::open(&Config::at(redis.url("admin")), library("rel")).unwrap();
        keyspace.ready().await.unwrap();
        Self { cache: Cache::new(keyspace.clone()), keyspace, _redis: redis }
    }

    /// Takes a lease. Returns whether it was taken.
    pub(crate) async fn lease(&self, id: u64, token: u64) -> bool {
        self.cache.lease(&keys(id), Token(token)).await.unwrap()
    }

    /// Ends a lease with an entry. Returns whether the entry is there.
    pub(crate) async fn install(&self, id: u64, token: u64, at: u64, contents: &Contents) -> bool {
        self.cache.install(&keys(id), Token(token), at, contents, limits(UNLIMITED)).await.unwrap()
    }

    /// Loads an entry.
    pub(crate) async fn load(&self, id: u64, revision: u64, contents: &Contents) {
        assert!(self.lease(id, 1).await && self.install(id, 1, revision, contents).await);
    }

    pub(crate) async fn apply(&self, change: Change) -> Applied {
        let mut applied = self.cache.apply(&[change]).await.unwrap();
        applied.remove(0).unwrap()
    }

    /// Returns the revision of an entry, and its contents; `None` if there is none.
    pub(crate) async fn entry(&self, keys: &EntryKeys) -> Option<(u64, Contents)> {
        let bytes: Vec<u8> = self.query("GET", &keys.entry).await;
        let head = Head::read(&bytes)?;
        let (front, records) = bytes[HEADER..].split_at(head.front);
        let contents = Contents { front: front.into(), records: records.to_vec() };
        Some((head.revision, contents))
    }

    /// Returns the ids of the set beside an entry; `None` if there is no set.
    pub(crate) async fn set(&self, keys: &EntryKeys) -> Option<BTreeSet<u64>> {
        let mut ids: BTreeSet<u64> = self.query("SMEMBERS", &keys.set).await;
        ids.remove(&SET_MEMBER).then_some(ids)
    }

    pub(crate) async fn delete(&self, key: &str) {
        let _: u64 = self.query("DEL", key).await;
    }

    async fn query<T>(&self, command: &str, key: impl ToRedisArgs) -> T
    where
        T: microblog_keyspace::redis::FromRedisValue + Send,
    {
        self.keyspace.query(cmd(command).arg(key).take()).await.unwrap()
    }
}

pub(crate) fn keys(id: u64) -> EntryKeys {
    let history = History("h1".into());
    EntryKeys::new("rel", "incoming", &history, Partition::of_id(id), id)
}

pub(crate) fn change(id: u64, before: u64, after: u64, contents: Option<Contents>) -> Change {
    let patch = |Contents { front, records }| Patch {
        front: front.to_vec(),
        added: records,
        removed: Vec::new(),
    };
    let patch = contents.map(patch);
    Change { keys: keys(id), before, after, patch, limits: limits(UNLIMITED) }
}

/// Returns contents with the records of some times.
pub(crate) fn contents(times: impl IntoIterator<Item = u64>) -> Contents {
    let records = times.into_iter().map(|time_ms| Record { time_ms, id: 1_000 + time_ms * 4 });
    Contents { front: (*b"front").into(), records: Record::write_all(records) }
}
