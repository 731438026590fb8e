//! The mark of a primary of the cache: up to which position of the feed its entries are verified.

use microblog_domain::Partition;
use microblog_keyspace::{Call, Error, key, redis::Value};

use crate::{entry::History, feed::Point};

/// The greatest age of a mark that is relied on, by the clock of the server that has it, in whole seconds. With
/// the time that passes between two readings, and [`TRUSTED`](crate::trust), no read relies on one that is 15
/// seconds old.
pub(crate) const AGE_MAX_S: i64 = 12;

/// What a primary tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primary {
    /// Its own replication id; empty if it is no primary.
    pub(crate) replication_id: String,
    /// Its time, in seconds.
    pub(crate) time_s: i64,
    /// The mark; `None` if it has none.
    pub(crate) mark: Option<Mark>,
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The replication id of the server on which it was written.
    pub(crate) replication_id: String,
    /// The history of the database.
    pub(crate) history: History,
    /// Up to where the feed is applied.
    pub(crate) point: Point,
    /// The partitions whose entries are verified.
    pub(crate) partitions: PartitionSet,
    /// The server's time before the feed was read, in seconds.
    pub(crate) time_s: i64,
}

/// Returns the key of the mark of the primary whose first partition this is.
pub(crate) fn mark_key(prefix: &str, first: Partition) -> String {
    key(format_args!("{prefix}:{{{first}}}:mark"))
}

/// Returns the call that reads a mark.
pub(crate) fn read_mark(key: &str) -> Call {
    Call::new("read_mark").key(key)
}

/// Returns the call that writes a mark in place of the one that was read.
pub(crate) fn write_mark(key: &str, mark: &Mark, read: Option<&Mark>) -> Call {
    let call = identified("mark", key, mark).arg(&mark.partitions.0).arg(mark.time_s);
    match read {
        Some(read) => call.arg(&read.replication_id).arg(&read.history.0).arg(position_of(read)),
        None => call.arg("").arg("").arg(""),
    }
}

/// Returns the call that ends a mark of another history.
pub(crate) fn end_mark(key: &str, history: &History) -> Call {
    Call::new("end_mark").key(key).arg(&history.0)
}

/// Returns the call that renews the time of a mark which is still this one and relied on. Its result is 1,
/// or 0. It may be repeated.
pub(crate) fn keep_mark(key: &str, mark: &Mark) -> Call {
    identified("keep", key, mark).arg(AGE_MAX_S)
}

fn identified(function: &'static str, key: &str, mark: &Mark) -> Call {
    let Mark { replication_id, history, .. } = mark;
    Call::new(function).key(key).arg(replication_id).arg(&history.0).arg(position_of(mark))
}

fn position_of(mark: &Mark) -> String {
    let Point { position, time_ms } = mark.point;
    format!("{position} {time_ms}")
}

impl Primary {
    /// Decodes the result of [`read_mark`].
    pub(crate) fn decode(result: Value) -> Result<Self, Error> {
        let fields: Vec<Vec<u8>> = microblog_keyspace::decode(result)?;
        Self::parse(fields).ok_or_else(|| Error::Malformed("malformed mark".into()))
    }

    fn parse(fields: Vec<Vec<u8>>) -> Option<Self> {
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
        let [id, time, mark @ ..] = &*fields else { return None };
        let mark = match mark {
            [id, history, position, partitions, time] => Some(Mark {
                replication_id: text(id)?,
                history: History(text(history)?),
                point: {
                    let position = text(position)?;
                    let (position, time_ms) = position.split_once(' ')?;
                    Point { position: position.parse().ok()?, time_ms: time_ms.parse().ok()? }
                },
                partitions: PartitionSet(partitions.clone()),
                time_s: text(time)?.parse().ok()?,
            }),
            _ => None,
        };
        Some(Self { replication_id: text(id)?, time_s: text(time)?.parse().ok()?, mark })
    }
}

/// A set of partitions, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionSet(Vec<u8>);

impl PartitionSet {
    /// Returns the set of some partitions.
    pub(crate) fn of(partitions: &[Partition]) -> Self {
        let mut bits = vec![0; usize::from(Partition::COUNT) / 8];
        for partition in partitions {
            let at = usize::from(partition.number());
            bits[at / 8] |= 1 << (at % 8);
        }
        Self(bits)
    }

    /// Returns whether a partition is in the set.
    pub(crate) fn contains(&self, partition: Partition) -> bool {
        let at = usize::from(partition.number());
        self.0.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_partitions() {
        let partitions = [0, 7, 8, 1_023].map(Partition::new);
        let set = PartitionSet::of(&partitions);
        assert!(Partition::all().all(|at| set.contains(at) == partitions.contains(&at)));
        assert!(Partition::all().all(|at| !PartitionSet::default().contains(at)));
    }

    #[test]
    fn a_reply_of_another_form_is_rejected() {
        let bytes = |fields: &[&str]| {
            let field = |text: &&str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(fields.iter().map(field).collect())
        };
        let none = Primary { replication_id: "a".into(), time_s: 7, mark: None };
        assert_eq!(Primary::decode(bytes(&["a", "7"])).unwrap(), none);
        let of_no_row = &["a", "7", "a", "h", "7", "", "7"][..];
        for fields in [&["a"][..], &["a", "x"], &["a", "7", "a", "h", "x 1", "", "7"], of_no_row] {
            assert!(Primary::decode(bytes(fields)).is_err(), "{fields:?}");
        }
    }
}
