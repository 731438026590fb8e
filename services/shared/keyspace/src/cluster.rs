//! Who serves which slots of a cluster now.

use std::collections::HashSet;

use redis::{Value, cluster_routing::Slot};

use crate::{
    Error,
    address::Node,
    keyspace::{accept, decode},
    links::Links,
};

const SLOTS: usize = 16_384;

/// Returns once every primary sees the cluster whole: otherwise it refuses commands about keys.
pub(crate) async fn serves(links: &Links) -> Result<(), Error> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("INFO");
    for answer in links.everywhere(&question).await? {
        let info: String = decode(answer)?;
        if !info.lines().any(|line| line == "cluster_state:ok") {
            return Err(Error::unavailable("a primary of the cluster sees a part of it missing"));
        }
    }
    Ok(())
}

/// Returns how many primaries the cluster has, once every slot has one.
pub(crate) async fn primaries(links: &Links) -> Result<usize, Error> {
    let ranges = ranges(links).await?;
    let covered: usize = ranges.iter().map(|range| usize::from(range.end - range.start) + 1).sum();
    if covered < SLOTS {
        return Err(Error::unavailable("the cluster has slots without a primary"));
    }
    Ok(ranges.iter().map(|range| &range.primary).collect::<HashSet<_>>().len())
}

/// Returns the primary that holds a slot.
pub(crate) async fn primary(links: &Links, slot: Slot) -> Result<Node, Error> {
    let holds =
        |range: &Range| (range.start..=range.end).any(|number| Slot::new(number) == Some(slot));
    let range = ranges(links).await?.into_iter().find(holds);
    range.map(|range| range.primary).ok_or_else(|| Error::unavailable("the slot has no primary"))
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
