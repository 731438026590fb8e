//! Failovers to a replica that lacks acknowledged writes.

use std::collections::BTreeMap;

use anyhow::Result;
use microblog_testkit::{ADMIN, PATIENCE, RedisServer, connect, eventually, redis::cmd};

use super::database::database;
use crate::{
    clock::{self, Millis},
    model::{PARTITIONS, Partition},
    system::{Level, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Calls that fail meanwhile, where none can be acknowledged.
const FAILED: usize = 20;

/// A user that is neither the replica's nor the Sentinels'.
const OPERATOR: &str = "operator";

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups = |level| {
        vec![
            Setup::separate(StoreKind::Sentinel, level),
            Setup::separate(StoreKind::Cluster, level),
            Setup::replicas(StoreKind::Cluster, level),
        ]
    };
    vec![
        Fault::new(
            "failover-local",
            "the database stops; a primary is cut off from its replica, and killed after more \
             writes; the replica is promoted; `microblog verify --repair`",
            "a failover; acknowledged writes after the cut are lost",
            setups(Level::Local),
            |trial| Box::pin(unrecorded(trial)),
        ),
        Fault::new(
            "failover-replicated",
            "a primary is cut off from its replica and killed later, and the replica is \
             promoted",
            "a failover; NOT_REPLICATED",
            setups(Level::Replicated),
            |trial| Box::pin(replicated(trial)),
        ),
        Fault::new(
            "failover-recorded",
            "as failover-replicated",
            "a failover; RECOVERING",
            setups(Level::Recorded),
            |trial| Box::pin(recorded(trial)),
        ),
        Fault::new(
            "failover-before-commit",
            "as failover-recorded, while another transaction locks the positions",
            "a failover; NOT_RECORDED",
            vec![Setup::separate(StoreKind::Sentinel, Level::Recorded)],
            |trial| Box::pin(before_commit(trial)),
        ),
        Fault::new(
            "failover-before-trim",
            "as failover-recorded, while post may not trim journals",
            "a failover; RECOVERING; rejected XTRIM",
            vec![Setup::separate(StoreKind::Sentinel, Level::Recorded)],
            |trial| Box::pin(before_trim(trial)),
        ),
        Fault::new(
            "failover-isolated",
            "a primary is cut off from its replica and the Sentinels, but not from its clients; \
             healed after the replica's promotion",
            "a failover; NOT_REPLICATED or RECOVERING",
            vec![
                Setup::separate(StoreKind::Sentinel, Level::Replicated),
                Setup::separate(StoreKind::Sentinel, Level::Recorded),
            ],
            |trial| Box::pin(isolated(trial)),
        ),
    ]
}

/// At the level `local`, with a database that has stopped: what the replica lacks is lost.
async fn unrecorded(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    database(trial)?.pause();
    let since = partitions(trial, clock::now()).await?;
    cut(trial).await?;
    trial.meanwhile().await;
    fail_over(trial).await?;
    // The old primary may have acknowledged calls between its start and its demotion.
    trial.permit_loss(since, clock::now());
    database(trial)?.resume();
    trial.after().await;
    // Of some reposts, one side is lost.
    trial.load.stop().await?;
    trial.system.repair().await?;
    Ok(Bite::Seen("a failover".to_owned()))
}

/// At the level `replicated`: nothing is acknowledged that the replica lacks.
async fn replicated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    cut(trial).await?;
    trial.load.failures(&["NOT_REPLICATED"], FAILED, since).await;
    fail_over(trial).await?;
    end(trial, since, &["NOT_REPLICATED", "RECOVERING"]).await
}

/// At the level `recorded`: the database has what the replica lacks.
async fn recorded(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    cut(trial).await?;
    trial.meanwhile().await;
    fail_over(trial).await?;
    end(trial, since, &["RECOVERING"]).await
}

/// The recorder waits for a lock, with changes that only the old primary has.
async fn before_commit(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let locks = database(trial)?.lock_tables(&["post.journal_positions".to_owned()]).await;
    cut(trial).await?;
    trial.load.failures(&["NOT_RECORDED"], FAILED, since).await;
    fail_over(trial).await?;
    drop(locks);
    end(trial, since, &["NOT_RECORDED"]).await
}

/// The recorder has committed, and cannot trim the journals.
async fn before_trim(trial: &mut Trial) -> Result<Bite> {
    let (primary, _) = trial.system.redis.pair()?;
    let mut rule = cmd("ACL");
    rule.arg("SETUSER").arg("post").arg("-xtrim");
    rule.exec_async(&mut primary.admin().await).await?;
    eventually("XTRIM is rejected", PATIENCE, async || {
        let statistics =
            cmd("INFO").arg("commandstats").query_async(&mut primary.admin().await).await;
        let statistics: String = statistics.unwrap_or_default();
        let trims = statistics.lines().find(|line| line.starts_with("cmdstat_xtrim:"));
        trims.is_some_and(|trims| !trims.contains("rejected_calls=0"))
    })
    .await;
    recorded(trial).await
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
    let reason = match trial.setup.level {
        Level::Replicated => "NOT_REPLICATED",
        _ => "RECOVERING",
    };
    end(trial, since, &[reason]).await
}

/// Returns the partitions of posts of the primary that fails over, each with a time.
async fn partitions(trial: &Trial, time: Millis) -> Result<BTreeMap<Partition, Millis>> {
    let (primary, _) = trial.system.redis.pair()?;
    let mut connection = primary.admin().await;
    let mut own = BTreeMap::new();
    for number in 0..PARTITIONS {
        // In a cluster, other servers have the slots of others.
        let key = format!("{{{number}}}");
        if cmd("EXISTS").arg(key).exec_async(&mut connection).await.is_ok() {
            own.insert(("post".to_owned(), number), time);
        }
    }
    Ok(own)
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
async fn end(trial: &Trial, since: usize, reasons: &[&str]) -> Result<Bite> {
    trial.after().await;
    let log = &trial.load.shared.log;
    let counts: Vec<usize> = reasons.iter().map(|reason| log.count(reason, since)).collect();
    let seen: Vec<String> = reasons
        .iter()
        .zip(&counts)
        .map(|(reason, count)| format!("{count} calls {reason}"))
        .collect();
    let seen = format!("a failover, {}, {} unknown outcomes", seen.join(", "), log.unknown(since));
    Ok(Bite::seen_if(counts[0] > 0, seen))
}
