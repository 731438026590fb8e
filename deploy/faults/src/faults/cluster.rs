//! Changes of a Redis Cluster by its operator, under load.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use microblog_testkit::{PATIENCE, RedisServer, eventually, redis::cmd};
use tokio::task::spawn_blocking;

use super::failover::has_role;
use crate::{
    system::{Redis, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Some hundred of the partitions.
const SLOTS: u32 = 2_000;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups = || vec![Setup::separate(StoreKind::Cluster)];
    vec![
        Fault::new(
            "failover-planned",
            "each replica takes over by `CLUSTER FAILOVER`",
            "failovers",
            setups(),
            |trial| Box::pin(failed_over_as_planned(trial)),
        ),
        Fault::new(
            "slots-moved",
            "2,000 slots move to another primary and back by `redis-cli --cluster reshard`",
            "keys that moved",
            setups(),
            |trial| Box::pin(slots_moved(trial)),
        ),
        Fault::new(
            "primary-added",
            "2,000 slots move to a new primary, and back, and it is removed",
            "keys that moved",
            setups(),
            |trial| Box::pin(primary_added(trial)),
        ),
    ]
}

/// The replicas of a cluster become its primaries, one after the other, without a failure.
async fn failed_over_as_planned(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let nodes = trial.system.redis.servers();
    let replicas = &nodes[nodes.len() / 2..];
    for replica in replicas {
        cmd("CLUSTER").arg("FAILOVER").exec_async(&mut replica.admin().await).await?;
        eventually("the replica is the primary", PATIENCE, async || {
            has_role(replica, "master").await
        })
        .await;
        trial.after().await;
    }
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("{} failovers, {unknown} unknown outcomes", replicas.len())))
}

/// Slots with data move from one primary of a cluster to another, and back.
async fn slots_moved(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let nodes = trial.system.redis.servers();
    let (first, second) = (node_id(nodes[0]).await?, node_id(nodes[1]).await?);
    let before = keys(nodes[0]).await?;
    reshard(nodes[0], &first, &second).await?;
    let moved = before.saturating_sub(keys(nodes[0]).await?);
    trial.after().await;
    reshard(nodes[0], &second, &first).await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{SLOTS} slots, {moved} keys, {unknown} unknown outcomes");
    Ok(Bite::seen_if(moved > 0, seen))
}

/// A primary joins a cluster, gets slots with data, and leaves it again.
async fn primary_added(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let Redis::Cluster(cluster) = &trial.system.redis else { bail!("not a cluster") };
    let (new, old) = (cluster.start_node().await, &cluster.nodes()[0]);
    let (new_id, old_id) = (node_id(&new).await?, node_id(old).await?);
    manage(old, &["add-node", &address(&new), &address(old)]).await?;
    let all = || cluster.nodes().iter().chain([&new]);
    agree(all(), &new_id).await;
    reshard(old, &old_id, &new_id).await?;
    let moved = keys(&new).await?;
    trial.after().await;
    agree(all(), &new_id).await;
    reshard(old, &new_id, &old_id).await?;
    manage(old, &["del-node", &address(old), &new_id]).await?;
    drop(new);
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{SLOTS} slots, {moved} keys, {unknown} unknown outcomes");
    Ok(Bite::seen_if(moved > 0, seen))
}

/// Waits until all nodes agree on the slots, and know one of them: only then, redis-cli moves slots.
async fn agree<'a>(nodes: impl Iterator<Item = &'a RedisServer> + Clone, id: &str) {
    eventually("the nodes agree on the slots", PATIENCE, async || {
        for node in nodes.clone() {
            let has = async |about: &str, text: &str| {
                let read = cmd("CLUSTER").arg(about).query_async(&mut node.admin().await).await;
                read.is_ok_and(|read: String| read.contains(text))
            };
            let is_ready = has("NODES", id).await && has("INFO", "cluster_state:ok").await;
            if !is_ready || manage(node, &["check", &address(node)]).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
}

fn address(node: &RedisServer) -> String {
    format!("127.0.0.1:{}", node.port())
}

async fn node_id(server: &RedisServer) -> Result<String> {
    Ok(cmd("CLUSTER").arg("MYID").query_async(&mut server.admin().await).await?)
}

async fn keys(server: &RedisServer) -> Result<u64> {
    Ok(cmd("DBSIZE").query_async(&mut server.admin().await).await?)
}

/// Moves slots.
async fn reshard(node: &RedisServer, from: &str, to: &str) -> Result<()> {
    let (address, slots) = (address(node), SLOTS.to_string());
    let moved = ["--cluster-from", from, "--cluster-to", to, "--cluster-slots", &slots];
    manage(node, &[&["reshard", &address], &moved[..], &["--cluster-yes"]].concat()).await
}

/// Changes the cluster as an operator does.
async fn manage(node: &RedisServer, args: &[&str]) -> Result<()> {
    let mut command = Command::new("redis-cli");
    command.args(["--no-auth-warning", "-u", &node.admin_url(), "--cluster"]).args(args);
    let output = spawn_blocking(move || command.output()).await?.context("cannot run redis-cli")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let end: Vec<&str> = text.trim().lines().rev().take(3).collect();
    ensure!(output.status.success(), "redis-cli: {}", end.join(" | "));
    Ok(())
}
