//! Failovers to a replica that lacks what the primary had.

use anyhow::Result;
use microblog_testkit::{ADMIN, PATIENCE, RedisServer, connect, eventually, redis::cmd};

use crate::{
    system::{Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// A user that is neither the replica's nor the Sentinels'.
const OPERATOR: &str = "operator";

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "failover",
            "a primary is cut off from its replica and killed later, and the replica is promoted",
            "a failover",
            vec![
                Setup::separate(StoreKind::Sentinel),
                Setup::separate(StoreKind::Cluster),
                Setup::replicas(StoreKind::Cluster),
            ],
            |trial| Box::pin(behind(trial)),
        ),
        Fault::new(
            "failover-isolated",
            "a primary is cut off from its replica and the Sentinels, but not from its clients; \
             healed after the replica's promotion",
            "a failover",
            vec![Setup::separate(StoreKind::Sentinel)],
            |trial| Box::pin(isolated(trial)),
        ),
    ]
}

/// A replica that lacks what the primary had becomes the primary.
async fn behind(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    cut(trial).await?;
    trial.meanwhile().await;
    fail_over(trial).await?;
    Ok(end(trial, since).await)
}

/// A primary rejects its replica and the Sentinels, which promote the replica, while it serves its
/// clients. Two servers are primaries, until the old one is told that it is a replica.
async fn isolated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let (primary, replica) = trial.system.redis.pair()?;
    let mut add = cmd("ACL");
    add.arg("SETUSER").arg(OPERATOR).arg(&["on", "nopass", "~*", "&*", "+@all"]);
    add.exec_async(&mut primary.admin().await).await?;
    let url = format!("redis://{OPERATOR}:any@127.0.0.1:{}", primary.port());
    let mut operator = connect(&url).await?;
    let mut switch = async |state: &str| {
        let mut set = cmd("ACL");
        set.arg("SETUSER").arg(ADMIN).arg(state).exec_async(&mut operator).await?;
        let mut close = cmd("CLIENT");
        close.arg("KILL").arg("USER").arg(ADMIN).exec_async(&mut operator).await
    };
    switch("off").await?;
    eventually("the replica is promoted", PATIENCE, async || has_role(replica, "master").await)
        .await;
    switch("on").await?;
    eventually("the old primary is its replica", PATIENCE, async || {
        has_role(primary, "slave").await
    })
    .await;
    Ok(end(trial, since).await)
}

/// Cuts a replica off from its primary.
async fn cut(trial: &Trial) -> Result<()> {
    let (primary, replica) = trial.system.redis.pair()?;
    // Stopped, it does not connect again.
    replica.pause();
    let mut end_link = cmd("CLIENT");
    end_link.arg("KILL").arg("TYPE").arg("replica");
    end_link.exec_async(&mut primary.admin().await).await?;
    Ok(())
}

/// Kills the primary, waits until the replica is promoted, and starts the old primary again. On a busy
/// machine, they may change places once more.
async fn fail_over(trial: &Trial) -> Result<()> {
    let (primary, replica) = trial.system.redis.pair()?;
    primary.kill();
    replica.resume();
    eventually("the replica is promoted", PATIENCE, async || has_role(replica, "master").await)
        .await;
    primary.restart().await;
    eventually("one of them is the primary's replica", PATIENCE, async || {
        let replicas = [has_role(primary, "slave").await, has_role(replica, "slave").await];
        let primaries = [has_role(primary, "master").await, has_role(replica, "master").await];
        replicas != primaries && replicas[0] != replicas[1]
    })
    .await;
    Ok(())
}

/// Returns whether a server has a role. While the role changes, connections are closed.
pub(super) async fn has_role(server: &RedisServer, role: &str) -> bool {
    let Ok(mut connection) = server.connect().await else { return false };
    let info = cmd("INFO").arg("replication").query_async(&mut connection).await;
    info.is_ok_and(|info: String| info.contains(&format!("role:{role}")))
}

/// Waits until calls succeed, and returns what was seen.
async fn end(trial: &Trial, since: usize) -> Bite {
    trial.after().await;
    Bite::Seen(format!("a failover, {} unknown outcomes", trial.load.shared.log.unknown(since)))
}
