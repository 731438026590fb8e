//! Faults of a redis-server that keeps its data.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use microblog_testkit::{
    PATIENCE, RedisServer, eventually,
    redis::{Value, aio::MultiplexedConnection, cmd},
};
use tokio::{task::spawn_blocking, time::sleep};

use super::{failover::has_role, seen_calls};
use crate::{
    system::Redis,
    trial::{Bite, Trial},
};

/// Longer than all timeouts of commands.
const FROZEN: Duration = Duration::from_secs(10);
/// Calls that fail meanwhile.
const FAILED: usize = 20;
/// Less than the last second of writes, and not the end of one.
const CUT_BYTES: u64 = 10_001;
const REPEATED: usize = 20;
const PAUSE: Duration = Duration::from_millis(200);
/// Some hundred of the partitions.
const SLOTS: u32 = 2_000;

/// It is killed (SIGKILL), and starts again with its data.
pub(super) async fn killed(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.redis.kill_and_change(|_| Ok(())).await?;
    trial.after().await;
    Ok(seen_calls(trial, since))
}

/// As [`killed`], with each write on the disk before its reply.
pub(super) async fn killed_with_fsync(trial: &mut Trial) -> Result<Bite> {
    let mut connection = only(trial)?.admin().await;
    let mut set = cmd("CONFIG");
    set.arg("SET").arg("appendfsync").arg("always").exec_async(&mut connection).await?;
    killed(trial).await
}

/// It stops for some time (SIGSTOP), and goes on.
pub(super) async fn frozen(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    only(trial)?.pause();
    sleep(FROZEN).await;
    only(trial)?.resume();
    trial.after().await;
    Ok(seen_calls(trial, since))
}

/// It is killed, and loses the end of its append-only file, from the middle of a transaction on.
pub(super) async fn truncated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    trial.system.redis.kill_and_change(truncate).await?;
    trial.after().await;
    let found = trial.system.logged("redis lacks recorded changes");
    Ok(Bite::seen_if(found > 0, format!("lost changes, found {found} times")))
}

fn truncate(directory: &Path) -> Result<()> {
    let files = fs::read_dir(directory.join("appendonlydir"))?;
    let files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    let is_increment = |path: &&PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let newest = files.iter().filter(is_increment).max().context("no append-only file")?;
    let file = fs::OpenOptions::new().write(true).open(newest)?;
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(CUT_BYTES))?;
    Ok(())
}

/// It reaches its memory limit, which is raised later.
pub(super) async fn full(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let mut connection = only(trial)?.admin().await;
    let limit = async |connection: &mut MultiplexedConnection, bytes: u64| {
        cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec_async(connection).await
    };
    limit(&mut connection, 1).await?;
    trial.load.failures("STORE_FULL", FAILED, since).await;
    limit(&mut connection, 0).await?;
    trial.after().await;
    let rejected = trial.load.shared.log.count("STORE_FULL", since);
    Ok(Bite::Seen(format!("{rejected} calls STORE_FULL")))
}

/// It closes all connections again and again.
pub(super) async fn disconnected(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let mut closed = 0;
    for _ in 0..REPEATED {
        for server in trial.system.redis.servers() {
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
            closed += kill.query_async::<u64>(&mut server.admin().await).await?;
        }
        sleep(PAUSE).await;
    }
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{closed} closed connections, {unknown} unknown outcomes");
    Ok(Bite::seen_if(closed > 0, seen))
}

/// All function libraries are deleted again and again.
pub(super) async fn without_functions(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut flushed = 0;
    for _ in 0..REPEATED {
        let mut connection = only(trial)?.admin().await;
        let libraries: Vec<Value> =
            cmd("FUNCTION").arg("LIST").query_async(&mut connection).await?;
        flushed += libraries.len();
        cmd("FUNCTION").arg("FLUSH").arg("SYNC").exec_async(&mut connection).await?;
        sleep(PAUSE).await;
    }
    trial.after().await;
    Ok(Bite::seen_if(flushed > 4, format!("{flushed} deleted libraries")))
}

/// The replicas of a cluster become its primaries, one after the other, without a failure.
pub(super) async fn failed_over_as_planned(trial: &mut Trial) -> Result<Bite> {
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
pub(super) async fn slots_moved(trial: &mut Trial) -> Result<Bite> {
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

async fn node_id(server: &RedisServer) -> Result<String> {
    Ok(cmd("CLUSTER").arg("MYID").query_async(&mut server.admin().await).await?)
}

async fn keys(server: &RedisServer) -> Result<u64> {
    Ok(cmd("DBSIZE").query_async(&mut server.admin().await).await?)
}

/// Moves slots as an operator does.
async fn reshard(node: &RedisServer, from: &str, to: &str) -> Result<()> {
    let mut command = Command::new("redis-cli");
    command.args(["--no-auth-warning", "-u", &node.admin_url(), "--cluster", "reshard"]);
    command.arg(format!("127.0.0.1:{}", node.port()));
    command.args(["--cluster-from", from, "--cluster-to", to, "--cluster-yes"]);
    command.args(["--cluster-slots", &SLOTS.to_string()]);
    let output = spawn_blocking(move || command.output()).await?.context("cannot run redis-cli")?;
    let text = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "redis-cli: {}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Returns the single redis-server of a setup that has it.
pub(super) fn only(trial: &Trial) -> Result<&RedisServer> {
    match &trial.system.redis {
        Redis::Single(server) => Ok(server),
        _ => anyhow::bail!("the setup has no single redis-server of its own"),
    }
}
