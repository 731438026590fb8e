//! The slots of a cluster and their primaries: parses CLUSTER SLOTS and detects failovers. Does no
//! I/O.

use std::collections::HashSet;

use redis::{Cmd, Value, cluster_routing::Slot};

use crate::{Error, address::Node};

/// The last confirmed primaries of a cluster.
#[derive(Default)]
pub(crate) struct KnownPrimaries {
    confirmed: HashSet<Node>,
    // The last reply, if it differed.
    candidate: Option<HashSet<Node>>,
}

impl KnownPrimaries {
    /// Updates the primaries from a reply, and returns whether they changed.
    ///
    /// A change counts after two equal replies in a row: any node may have replied, and after a
    /// failover the nodes disagree for a while.
    pub(crate) fn update(&mut self, reply: &HashSet<Node>) -> bool {
        if self.confirmed == *reply {
            self.candidate = None;
            return false;
        }
        let is_first = self.confirmed.is_empty();
        if !is_first && self.candidate.as_ref() != Some(reply) {
            self.candidate = Some(reply.clone());
            return false;
        }
        *self = Self { confirmed: reply.clone(), candidate: None };
        !is_first
    }
}

/// A range of slots and its primary.
pub(crate) struct SlotRange {
    start: u16,
    end: u16,
    pub(crate) primary: Node,
}

impl SlotRange {
    /// Returns whether the range contains a slot.
    pub(crate) fn contains(&self, slot: Slot) -> bool {
        (self.start..=self.end).any(|number| Slot::new(number) == Some(slot))
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.end - self.start) + 1
    }
}

/// Returns the command CLUSTER SLOTS, whose reply [`parse`] takes.
pub(crate) fn command() -> Cmd {
    redis::cmd("CLUSTER").arg("SLOTS").take()
}

/// Parses the reply to CLUSTER SLOTS.
pub(crate) fn parse(reply: Value) -> Result<Vec<SlotRange>, Error> {
    let Value::Array(ranges) = reply else {
        return Err(Error::malformed("the reply to CLUSTER SLOTS is no array"));
    };
    ranges.into_iter().map(parse_range).collect()
}

// [first slot, last slot, [primary's host, port, id, ...], replicas ...]
fn parse_range(value: Value) -> Result<SlotRange, Error> {
    let malformed = || Error::malformed("an entry of CLUSTER SLOTS is malformed");
    let Value::Array(parts) = value else { return Err(malformed()) };
    let mut parts = parts.into_iter();
    let (Some(start), Some(end), Some(Value::Array(node))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    let mut node = node.into_iter();
    let (Some(host), Some(port)) = (node.next(), node.next()) else { return Err(malformed()) };
    Ok(SlotRange {
        start: redis::from_redis_value(start)?,
        end: redis::from_redis_value(end)?,
        primary: Node {
            host: redis::from_redis_value(host)?,
            port: redis::from_redis_value(port)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primaries(ports: [u16; 2]) -> HashSet<Node> {
        ports.into_iter().map(|port| Node { host: "h".to_owned(), port }).collect()
    }

    #[test]
    fn primaries_change_after_two_equal_replies_in_a_row() {
        let (before, after, other) = (primaries([1, 2]), primaries([1, 3]), primaries([1, 4]));
        let mut known = KnownPrimaries::default();
        assert!(!known.update(&before));
        for _ in 0..3 {
            // The nodes disagree.
            assert!(!known.update(&after));
            assert!(!known.update(&before));
        }
        assert!(!known.update(&other));
        assert!(!known.update(&after));
        assert!(known.update(&after));
        assert!(!known.update(&after));
        assert!(!known.update(&before));
        assert!(known.update(&before));
    }
}
