//! Who serves which slots of a cluster now.

use std::collections::HashSet;

use futures::future::try_join_all;
use redis::{Cmd, Value, cluster_routing::Slot};

use crate::{
    Error,
    address::Node,
    keyspace::{accept, decode},
    links::Links,
    route,
};

const SLOTS: usize = 16_384;

/// Sends a command to the one node, or to every primary of a cluster, and returns all answers, some
/// of which may be refusals.
///
/// Who is a primary is asked each time: the client may go on for long with what it knew before a
/// failover, since it reaches the new primary as the replica that it was.
pub(crate) async fn everywhere(links: &Links, command: &Cmd) -> Result<Vec<Value>, Error> {
    if !links.is_cluster() {
        return Ok(vec![links.command(command.clone(), None).await?]);
    }
    let primaries = primaries(links).await?;
    let send = |node| links.command(command.clone(), Some(route::to_node(node)));
    try_join_all(primaries.iter().map(send)).await
}

/// Returns once every primary sees the cluster whole: otherwise it refuses commands about keys.
pub(crate) async fn serves(links: &Links) -> Result<(), Error> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("INFO");
    for answer in everywhere(links, &question).await? {
        let info: String = decode(answer)?;
        if !info.lines().any(|line| line == "cluster_state:ok") {
            return Err(Error::unavailable("a primary of the cluster sees a part of it missing"));
        }
    }
    Ok(())
}

// All primaries, once every slot has one.
async fn primaries(links: &Links) -> Result<HashSet<Node>, Error> {
    let ranges = ranges(links).await?;
    let covered: usize = ranges.iter().map(|range| usize::from(range.end - range.start) + 1).sum();
    if covered < SLOTS {
        return Err(Error::unavailable("the cluster has slots without a primary"));
    }
    let primaries = ranges.into_iter().map(|range| range.primary).collect();
    links.learn_primaries(&primaries);
    Ok(primaries)
}

/// Returns the primary that holds a slot.
pub(crate) async fn primary(links: &Links, slot: Slot) -> Result<Node, Error> {
    let holds =
        |range: &Range| (range.start..=range.end).any(|number| Slot::new(number) == Some(slot));
    let range = ranges(links).await?.into_iter().find(holds);
    range.map(|range| range.primary).ok_or_else(|| Error::unavailable("the slot has no primary"))
}

/// The primaries of a cluster as its nodes last told.
#[derive(Default)]
pub(crate) struct Primaries {
    known: HashSet<Node>,
    // What the last answer said, if that was different.
    doubted: Option<HashSet<Node>>,
}

impl Primaries {
    /// Takes in an answer, and returns whether the primaries are others than before.
    ///
    /// Any node may have answered, and for a while after a change not all of them agree: only a
    /// second answer in a row counts.
    pub(crate) fn learn(&mut self, answer: &HashSet<Node>) -> bool {
        if self.known == *answer {
            self.doubted = None;
            return false;
        }
        let is_first = self.known.is_empty();
        if !is_first && self.doubted.as_ref() != Some(answer) {
            self.doubted = Some(answer.clone());
            return false;
        }
        *self = Self { known: answer.clone(), doubted: None };
        !is_first
    }
}

struct Range {
    start: u16,
    end: u16,
    primary: Node,
}

async fn ranges(links: &Links) -> Result<Vec<Range>, Error> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let Value::Array(ranges) = accept(links.command(question, None).await?)? else {
        return Err(Error::malformed("CLUSTER SLOTS did not answer with a list"));
    };
    ranges.into_iter().map(range).collect()
}

// [first slot, last slot, [primary's host, port, id, ...], replicas ...]
fn range(value: Value) -> Result<Range, Error> {
    let malformed = || Error::malformed("an entry of CLUSTER SLOTS has another form");
    let Value::Array(parts) = value else { return Err(malformed()) };
    let mut parts = parts.into_iter();
    let (Some(start), Some(end), Some(Value::Array(node))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    let mut node = node.into_iter();
    let (Some(host), Some(port)) = (node.next(), node.next()) else { return Err(malformed()) };
    Ok(Range {
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
    fn primaries_change_with_the_second_equal_answer_in_a_row() {
        let (before, after, other) = (primaries([1, 2]), primaries([1, 3]), primaries([1, 4]));
        let mut known = Primaries::default();
        assert!(!known.learn(&before));
        for _ in 0..3 {
            // Nodes that disagree.
            assert!(!known.learn(&after));
            assert!(!known.learn(&before));
        }
        assert!(!known.learn(&other));
        assert!(!known.learn(&after));
        assert!(known.learn(&after));
        assert!(!known.learn(&after));
        assert!(!known.learn(&before));
        assert!(known.learn(&before));
    }
}
