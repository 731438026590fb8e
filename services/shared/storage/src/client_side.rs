//! The client-side cache of small entries, with the marks of the primaries that they are from.
//!
//! A tracked connection may lead to another server than the shared ones: to an old primary to which it
//! has stayed, or to a new one. So what it answers is relied on only with a mark that it has answered as
//! well, and never with that of another connection. The mark is read by the function that also tells the
//! server's own replication id, since a promoted replica has the mark of its former primary. That also fails
//! on a replica, which ends the connection. The mark is cached, too, until the verifier writes it again.
//!
//! So it is of no importance how many connections the process has made since it has asked for the mark. A
//! tracked connection that is closed discards what was read on it.
//!
//! Redis may announce late that an entry has expired. Until then, the copy here is what the database has:
//! whoever applies a change, or removes the entry, finds it expired, which is announced first.

use std::sync::Arc;

use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, ClientSideCache, Error, Keyspace, Kind,
    redis::{Cmd, Value, cmd},
};

use crate::{
    entry::{Contents, entry_key},
    mark::{Primary, mark_key, read_mark},
    reader::{Found, Item},
    trust::Trusted,
};

/// The key of a cached value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key<I> {
    /// An entry.
    Entry { item: I, history: [u8; HISTORY_BYTES], id: u64 },
    /// The mark of the primary with this first partition.
    Mark(Partition),
}

/// A read of entries and a mark.
pub(crate) type TrackedRead<I> = keyspace::TrackedRead<Key<I>, Cached>;

/// A read that has begun.
pub(crate) struct Begun<I> {
    pub(crate) read: TrackedRead<I>,
    /// Entries that are not read often enough to be cached here, sorted. They are left out.
    pub(crate) rejected: Vec<(I, u64)>,
}

/// The length of a history.
const HISTORY_BYTES: usize = 8;

/// A cached value.
#[derive(Clone)]
pub(crate) enum Cached {
    Entry(Found<Contents>),
    Mark(Arc<Primary>),
}

/// The small entries of a service, in this process.
pub(crate) struct ClientSide<I: Item> {
    cache: ClientSideCache<Key<I>, Cached>,
}

impl<I: Item> ClientSide<I> {
    /// Returns the cache of a keyspace; `None` if no entries are small.
    pub(crate) fn open(keyspace: &Keyspace) -> Option<Self> {
        let kind = Kind { partition, command, id, decode: decode_value, heap_bytes };
        (!I::SMALL.is_empty()).then(|| Self { cache: keyspace.client_side_cache(kind) })
    }

    /// Begins to read small entries of a primary. `None` if there is no tracked connection to it.
    pub(crate) fn begin(
        &self,
        trusted: &Trusted,
        entries: impl Iterator<Item = (I, u64)>,
    ) -> Option<Begun<I>> {
        let history = trusted.history.0.as_bytes().try_into().ok()?;
        let keys = entries.map(|(item, id)| Key::Entry { item, history, id }).collect();
        // The mark is last: if all are cached, a cluster is asked for the first. An entry costs less.
        let (read, rejected) = self.cache.begin_tracked(keys, Key::Mark(trusted.first()))?;
        let entry = |key| match key {
            Key::Entry { item, id, .. } => Some((item, id)),
            Key::Mark(_) => None,
        };
        Some(Begun { read, rejected: rejected.into_iter().filter_map(entry).collect() })
    }

    /// Reads entries of a primary, in one round trip to it, or none of its own if another read is about to
    /// take one. Returns them in their order; `None` for one that was invalidated meanwhile. Returns none if the
    /// connection does not answer, or leads to a server that is not the trusted one.
    pub(crate) async fn end(
        &self,
        trusted: &Trusted,
        read: TrackedRead<I>,
    ) -> Vec<Option<Found<Contents>>> {
        let mut values = self.cache.end_tracked(read).await.unwrap_or_default();
        match values.pop() {
            Some(Some(Cached::Mark(server))) if trusted.is(&server) => {}
            _ => return Vec::new(),
        }
        let entry = |value| match value {
            Some(Cached::Entry(found)) => Some(found),
            _ => None,
        };
        values.into_iter().map(entry).collect()
    }
}

fn partition<I>(key: Key<I>) -> Partition {
    match key {
        Key::Entry { id, .. } => Partition::of_id(id),
        Key::Mark(first) => first,
    }
}

fn command<I: Item>(key: Key<I>) -> Cmd {
    match key {
        Key::Entry { item, history, id } => {
            let history = String::from_utf8_lossy(&history);
            let entry = entry_key(I::PREFIX, item.kind(), "", &history, Partition::of_id(id), id);
            cmd("GET").arg(entry).take()
        }
        Key::Mark(first) => read_mark(&mark_key(I::PREFIX, first)).into_command(I::LIBRARY),
    }
}

// Keys of leases and sets are never read here, so that none of them is invalidated.
fn id<I: Item>(key: &[u8]) -> Option<Key<I>> {
    let key = str::from_utf8(key).ok()?.strip_prefix(I::PREFIX)?.strip_prefix(":{")?;
    let (partition, key) = key.split_once("}:")?;
    let mut parts = key.split(':');
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some("mark"), None, ..] => Some(Key::Mark(Partition::new(partition.parse().ok()?))),
        [Some(kind), Some(history), Some(id), None] => {
            let item = I::SMALL.iter().copied().find(|item| item.kind() == kind)?;
            let history = history.as_bytes().try_into().ok()?;
            Some(Key::Entry { item, history, id: id.parse().ok()? })
        }
        _ => None,
    }
}

fn decode_value<I>(key: Key<I>, reply: Value) -> Result<Cached, Error> {
    Ok(match key {
        Key::Entry { .. } => Cached::Entry(Contents::find(reply)?),
        Key::Mark(_) => Cached::Mark(Arc::new(Primary::decode(reply)?)),
    })
}

fn heap_bytes(value: &Cached) -> usize {
    // The reference counts of an `Arc`.
    const COUNTS: usize = 16;
    match value {
        Cached::Entry(Found::Whole(Contents { front, records })) => {
            COUNTS + front.len() + records.len()
        }
        Cached::Entry(_) => 0,
        Cached::Mark(_) => COUNTS + size_of::<Primary>(),
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{BoxFuture, FutureExt as _};
    use microblog_keyspace::Library;
    use microblog_record::{self as record, Database};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        cache::library,
        entry::{EntryKeys, EntryLimits, History},
        reader::Loaded,
    };

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    enum Thing {
        Card,
        CardHolder,
        Large,
    }

    impl Item for Thing {
        const PREFIX: &'static str = "thing";
        const LIBRARY: Library = library("thing");
        const SMALL: &'static [Self] = &[Self::Card, Self::CardHolder];

        fn kind(self) -> &'static str {
            match self {
                Self::Card => "card",
                Self::CardHolder => "card_holder",
                Self::Large => "large",
            }
        }

        fn limits(self) -> EntryLimits {
            EntryLimits::without_sets(0)
        }

        fn load(self, _: &Database, _: u64) -> BoxFuture<'_, Result<Loaded, record::Error>> {
            std::future::ready(Err(record::Error::Unavailable(None))).boxed()
        }
    }

    fn entry(item: Thing, history: [u8; HISTORY_BYTES], id: u64) -> EntryKeys {
        let history = History(String::from_utf8(history.to_vec()).unwrap());
        EntryKeys::new(Thing::PREFIX, item.kind(), &history, Partition::of_id(id), id)
    }

    proptest! {
        #[test]
        fn keys_of_redis_are_those_of_cached_values(
            at in 0..2_usize, history in "[A-Za-z0-9_-]{8}", number: u64, first in 0..1_024_u16
        ) {
            let history: [u8; HISTORY_BYTES] = history.as_bytes().try_into().unwrap();
            let (item, first) = (Thing::SMALL[at], Partition::new(first));
            let key = Key::Entry { item, history, id: number };
            let keys = entry(item, history, number);
            prop_assert_eq!(id(keys.entry.as_bytes()), Some(key));
            let get = cmd("GET").arg(&keys.entry).take();
            prop_assert_eq!(command(key).get_packed_command(), get.get_packed_command());
            for other in [keys.lease, keys.set, entry(Thing::Large, history, number).entry] {
                prop_assert_eq!(id::<Thing>(other.as_bytes()), None);
            }
            let mark = mark_key(Thing::PREFIX, first);
            prop_assert_eq!(id(mark.as_bytes()), Some(Key::<Thing>::Mark(first)));
        }

        #[test]
        fn any_key_is_read_without_a_panic(key: Vec<u8>, text in "thing:\\{[0-9]*\\}:[a-z0-9:]*") {
            let _ = (id::<Thing>(&key), id::<Thing>(text.as_bytes()));
        }
    }
}
