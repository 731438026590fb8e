//! The slots of a cluster and their primaries: parses CLUSTER SLOTS. Does no I/O.

use crc16::{State, XMODEM};
use microblog_domain::Partition;
use redis::{Cmd, Value};

use crate::{Error, address::Node};

const SLOTS: u16 = 16_384;

/// A range of slots and its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    first: u16,
    last: u16,
    pub(crate) primary: Node,
}

/// Returns the hash slot of a partition's keys
/// (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>).
pub(crate) fn slot_of(partition: Partition) -> u16 {
    State::<XMODEM>::calculate(partition.to_string().as_bytes()) % SLOTS
}

/// Returns the range of a slot. The ranges are those of [`parse`].
pub(crate) fn find(ranges: &[SlotRange], slot: u16) -> Option<&SlotRange> {
    let index = ranges.partition_point(|range| range.last < slot);
    ranges.get(index).filter(|range| range.first <= slot)
}

/// Returns whether every slot is in a range.
pub(crate) fn are_complete(ranges: &[SlotRange]) -> bool {
    let covered: usize = ranges.iter().map(|range| usize::from(range.last - range.first) + 1).sum();
    covered >= usize::from(SLOTS)
}

/// Returns the command CLUSTER SLOTS, whose reply [`parse`] takes.
pub(crate) fn command() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").take()
}

/// Parses the reply to CLUSTER SLOTS, and returns the ranges in order.
pub(crate) fn parse(reply: Value) -> Result<Vec<SlotRange>, Error> {
    let Value::Array(ranges) = reply else {
        return Err(Error::malformed("the reply to CLUSTER SLOTS is no array"));
    };
    let mut ranges = ranges.into_iter().map(parse_range).collect::<Result<Vec<_>, _>>()?;
    ranges.sort_unstable_by_key(|range| range.first);
    Ok(ranges)
}

// [first slot, last slot, [primary's host, port, id, ...], replicas ...]
fn parse_range(value: Value) -> Result<SlotRange, Error> {
    let malformed = || Error::malformed("an entry of CLUSTER SLOTS is malformed");
    let Value::Array(parts) = value else { return Err(malformed()) };
    let mut parts = parts.into_iter();
    let (Some(first), Some(last), Some(Value::Array(node))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    let mut node = node.into_iter();
    let (Some(host), Some(port)) = (node.next(), node.next()) else { return Err(malformed()) };
    let (first, last) = (redis::from_redis_value(first)?, redis::from_redis_value(last)?);
    if first > last || last >= SLOTS {
        return Err(malformed());
    }
    Ok(SlotRange {
        first,
        last,
        primary: Node {
            host: redis::from_redis_value(host)?,
            port: redis::from_redis_value(port)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use redis::cluster_routing::Slot;

    use super::*;

    fn reply(ranges: &[(u16, u16, &str)]) -> Value {
        let node = |host: &str| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(7000), Value::Nil])
        };
        let range = |&(first, last, host): &(u16, u16, &str)| {
            Value::Array(vec![Value::Int(first.into()), Value::Int(last.into()), node(host)])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn slot_of_a_partition_is_that_of_its_keys() {
        for partition in Partition::all() {
            let slot = Slot::for_key(format!("any:{{{partition}}}:thing"));
            assert_eq!(Slot::new(slot_of(partition)), Some(slot));
        }
    }

    #[test]
    fn slots_are_found_in_ranges_of_any_order() {
        let ranges = parse(reply(&[(200, 16_383, "b"), (0, 99, "a"), (150, 150, "a")])).unwrap();
        let host = |slot| find(&ranges, slot).map(|range| &*range.primary.host);
        assert_eq!([0, 99, 150].map(host), [Some("a"); 3]);
        assert_eq!([200, 16_383].map(host), [Some("b"); 2]);
        assert_eq!([100, 149, 151, 199].map(host), [None; 4]);
        assert!(!are_complete(&ranges));
        assert!(are_complete(&parse(reply(&[(8192, 16_383, "b"), (0, 8191, "a")])).unwrap()));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for (first, last) in [(2, 1), (0, 16_384)] {
            assert!(parse(reply(&[(first, last, "a")])).is_err());
        }
        assert!(parse(Value::Nil).is_err() && parse(Value::Array(vec![Value::Nil])).is_err());
    }
}
