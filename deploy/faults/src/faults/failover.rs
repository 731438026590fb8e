//! Failovers to a replica that lacks acknowledged writes.

use anyhow::{Context as _, Result};
use microblog_testkit::{PATIENCE, PostgresServer, RedisServer, eventually, redis::cmd};

use crate::{
    clock,
    model::Since,
    trial::{Bite, Trial},
};

/// Calls that fail meanwhile, where none can be acknowledged.
const FAILED: usize = 20;

const SCHEMAS: [&str; 3] = ["\"user\"", "relation", "post"];

/// At the level `local`, with a database that has stopped: what the replica lacks is lost.
pub(super) async fn unrecorded(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    database(trial)?.pause();
    let cut_at = clock::now();
    cut(trial).await?;
    trial.meanwhile().await;
    fail_over(trial).await?;
    trial.permit_loss(Since::All(cut_at), clock::now());
    database(trial)?.resume();
    trial.after().await;
    Ok(Bite::Seen("a failover".to_owned()))
}

/// At the level `replicated`: nothing is acknowledged that the replica lacks.
pub(super) async fn replicated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    cut(trial).await?;
    trial.load.failures("NOT_REPLICATED", FAILED, since).await;
    fail_over(trial).await?;
    end(trial, since, &["NOT_REPLICATED", "RECOVERING"]).await
}

/// At the level `recorded`: the database has what the replica lacks.
pub(super) async fn recorded(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    cut(trial).await?;
    trial.meanwhile().await;
    fail_over(trial).await?;
    end(trial, since, &["RECOVERING"]).await
}

/// The recorder waits for a lock, with changes that only the old primary has.
pub(super) async fn before_commit(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let tables = SCHEMAS.map(|schema| format!("{schema}.journal_positions"));
    let locks = database(trial)?.lock_tables(&tables).await;
    cut(trial).await?;
    trial.load.failures("NOT_RECORDED", FAILED, since).await;
    fail_over(trial).await?;
    drop(locks);
    end(trial, since, &["NOT_RECORDED"]).await
}

/// The recorder has committed, and cannot trim the journals.
pub(super) async fn before_trim(trial: &mut Trial) -> Result<Bite> {
    let (primary, _) = trial.system.redis.pair()?;
    for user in ["user", "relation", "post"] {
        let mut rule = cmd("ACL");
        rule.arg("SETUSER").arg(user).arg("-xtrim");
        rule.exec_async(&mut primary.admin().await).await?;
    }
    recorded(trial).await
}

/// Returns the PostgreSQL of a setup that has it.
pub(super) fn database(trial: &Trial) -> Result<&PostgresServer> {
    trial.system.database.server().context("the setup has no PostgreSQL")
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
