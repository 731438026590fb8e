//! The contents of an entry: a front of the item's kind, and records. Does no I/O.
//! `functions.lua` describes the bytes.

use std::sync::Arc;

use microblog_domain::Partition;
use microblog_keyspace::key;

/// The length of the header of an entry, in bytes.
pub const HEADER: usize = 16;

/// The length of a record, in bytes.
pub const RECORD: usize = 12;

/// The low bits of a record, which are the id. The time is above them.
const ID_BITS: u32 = 53;

/// How many records the entries of a kind may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryLimits {
    /// The records that an entry has at least, if the item has more: its newest ones.
    pub records: usize,
    /// The most records. An entry of more is cut to those in the middle between the two limits, so that neither
    /// the next one nor the end of one changes it as a whole.
    pub cut: usize,
    /// The most records of an entry without a set beside it.
    pub without_set: usize,
}

impl EntryLimits {
    /// Returns the limits of entries without sets.
    pub const fn without_sets(records: usize) -> Self {
        Self { records, cut: Self::cut(records), without_set: u32::MAX as usize }
    }

    /// Returns the most records of an entry that has so many at least: a fifth more.
    pub const fn cut(records: usize) -> usize {
        records + records / 5
    }
}

/// The first byte of an entry.
pub const FORMAT: u8 = 2;

/// The member by which a reader of the set sees that the set was there.
pub const SET_MEMBER: u64 = 0;

/// An id with the time by which it is ordered. A time is below 2^43 (until the year 2248), an id of an
/// account or a post below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// The time, in milliseconds since 1970.
    pub time_ms: u64,
    /// The id.
    pub id: u64,
}

impl Record {
    /// Writes the bytes of records, oldest first.
    pub fn write_all(records: impl IntoIterator<Item = Self>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Self { time_ms, id } in records {
            let record = u128::from(time_ms) << ID_BITS | u128::from(id);
            bytes.extend_from_slice(&record.to_be_bytes()[16 - RECORD..]);
        }
        bytes
    }

    /// Reads records. A rest that is no record is left out.
    pub fn read_all(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        bytes.chunks_exact(RECORD).map(|record| {
            let record = record.iter().fold(0, |number, &byte| number << 8 | u128::from(byte));
            let id = record as u64 & ((1 << ID_BITS) - 1);
            Self { time_ms: (record >> ID_BITS) as u64, id }
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// What the start of an entry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The revision of the item.
    pub revision: u64,
    /// The length of the front, in bytes.
    pub front: usize,
}

impl Head {
    /// Reads the header; `None` if there is no entry, or one of another format.
    pub fn read(entry: &[u8]) -> Option<Self> {
        let header = entry.get(..HEADER).filter(|header| header[0] == FORMAT)?;
        let front = usize::try_from(number(&header[4..8])).ok()?;
        Some(Self { revision: number(&header[8..]), front })
    }
}

/// The contents of an item, as an entry has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The front.
    pub front: Arc<[u8]>,
    /// The records, oldest first.
    pub records: Vec<u8>,
}

impl Contents {
    /// Reads an entry that was read whole; `None` if it is one of another format, or damaged.
    pub fn read(entry: &[u8]) -> Option<Self> {
        let Head { front, .. } = Head::read(entry)?;
        let (front, records) = entry[HEADER..].split_at_checked(front)?;
        Some(Self { front: front.into(), records: records.to_vec() })
    }
}

/// The keys of an entry: in one slot, that of the item's partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKeys {
    /// The partition.
    pub partition: Partition,
    /// The entry.
    pub entry: String,
    /// The lease on its load.
    pub lease: String,
    /// The set beside it.
    pub set: String,
}

impl EntryKeys {
    /// Returns the keys of an item of a kind (`rel`, `outgoing`), with the history of the database that
    /// it was read from.
    pub fn new(prefix: &str, kind: &str, history: &History, partition: Partition, id: u64) -> Self {
        let name = |part| entry_key(prefix, kind, part, &history.0, partition, id);
        Self { partition, entry: name(""), lease: name(":lease"), set: name(":set") }
    }

    pub(crate) fn all(&self) -> [&str; 3] {
        [&self.entry, &self.lease, &self.set]
    }
}

/// Returns a key of an entry: of the entry itself, or of a part beside it (`:lease`).
pub(crate) fn entry_key(
    prefix: &str,
    kind: &str,
    part: &str,
    history: &str,
    partition: Partition,
    id: u64,
) -> String {
    key(format_args!("{prefix}:{{{partition}}}:{kind}{part}:{history}:{id}"))
}

/// The history of a database: short text that differs after each failover, restore or exchange of the
/// database. Part of the keys, so that no entry of another history is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History(pub String);

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            pairs in vec((0..1_u64 << 43, 0..1_u64 << 53), 0..50)
        ) {
            let records: Vec<_> =
                pairs.into_iter().map(|(time_ms, id)| Record { time_ms, id }).collect();
            let bytes = Record::write_all(records.iter().copied());
            prop_assert_eq!(bytes.len(), records.len() * RECORD);
            prop_assert!(Record::read_all(&bytes).eq(records));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..60)) {
            let _ = (Head::read(&bytes), Contents::read(&bytes));
            Record::read_all(&bytes).for_each(drop);
        }
    }
}
