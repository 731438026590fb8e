//! Commands to the current primaries: all of them, or that of a slot.

use std::collections::HashSet;

use futures::future::try_join_all;
use redis::{Cmd, Value, cluster_routing::Slot};

use crate::{
    Error,
    address::Node,
    reply::{check, decode},
    route::Route,
    shared_pool::SharedPool,
    slots::{self, SlotRange},
};

const SLOTS: usize = 16_384;

/// Sends a command to the single server, or to every primary of a cluster. Returns all replies,
/// which may be error replies.
///
/// Reads CLUSTER SLOTS each time: the client library may keep its state from before a failover,
/// because it reaches the new primary as the replica that it was.
pub(crate) async fn send_to_all(pool: &SharedPool, command: &Cmd) -> Result<Vec<Value>, Error> {
    if !pool.is_cluster() {
        return Ok(vec![pool.command(command.clone(), Route::Any).await?]);
    }
    let primaries = primaries(pool).await?;
    let send = |node: &Node| pool.command(command.clone(), Route::Node(node.clone()));
    try_join_all(primaries.iter().map(send)).await
}

/// Checks that every primary reports `cluster_state:ok`. Otherwise it rejects commands with keys.
pub(crate) async fn check_cluster_state(pool: &SharedPool) -> Result<(), Error> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    for reply in send_to_all(pool, &command).await? {
        let info: String = decode(reply)?;
        if !info.lines().any(|line| line == "cluster_state:ok") {
            return Err(Error::unavailable("a primary reports another cluster_state than ok"));
        }
    }
    Ok(())
}

// Returns all primaries, or an error while a slot has none.
async fn primaries(pool: &SharedPool) -> Result<HashSet<Node>, Error> {
    let ranges = slot_ranges(pool).await?;
    let covered: usize = ranges.iter().map(SlotRange::len).sum();
    if covered < SLOTS {
        return Err(Error::unavailable("the cluster has slots without a primary"));
    }
    let primaries = ranges.into_iter().map(|range| range.primary).collect();
    pool.update_primaries(&primaries);
    Ok(primaries)
}

/// Returns the primary of a slot.
pub(crate) async fn of_slot(pool: &SharedPool, slot: Slot) -> Result<Node, Error> {
    let range = slot_ranges(pool).await?.into_iter().find(|range| range.contains(slot));
    range.map(|range| range.primary).ok_or_else(|| Error::unavailable("the slot has no primary"))
}

async fn slot_ranges(pool: &SharedPool) -> Result<Vec<SlotRange>, Error> {
    slots::parse(check(pool.command(slots::command(), Route::Any).await?)?)
}
