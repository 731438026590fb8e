//! Faults of a redis-server that keeps its data.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use microblog_testkit::redis::{Value, aio::MultiplexedConnection, cmd};
use tokio::time::sleep;

use super::{one_and_separate, repeatedly, seen_calls, separate, waiting};
use crate::{
    system::{Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Longer than all timeouts of commands.
const FROZEN: Duration = Duration::from_secs(10);
/// Less than the last second of writes, and not the end of one.
const CUT_BYTES: u64 = 10_001;
const REPEATED: usize = 20;
/// Those that a system has: one of each service.
const LIBRARIES: u64 = 5;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-killed",
            "Redis is killed (SIGKILL), and starts again with its data",
            "failed calls",
            one_and_separate(),
            |trial| Box::pin(killed(trial)),
        ),
        Fault::new(
            "redis-frozen",
            "Redis stops for 10 s (SIGSTOP), and goes on",
            "failed calls",
            separate(),
            |trial| Box::pin(frozen(trial)),
        ),
        Fault::new(
            "redis-truncated",
            "Redis is killed, and starts with the end of its append-only file cut off",
            "a file that is shorter",
            one_and_separate(),
            |trial| Box::pin(truncated(trial)),
        ),
        Fault::new(
            "redis-full",
            "Redis reaches `maxmemory`, which is raised later",
            "posts that wait for delivery",
            separate(),
            |trial| Box::pin(full(trial)),
        ),
        Fault::new(
            "redis-disk-full",
            "Redis cannot write its append-only file any more, as on a full disk; later it can",
            "posts that wait for delivery; MISCONF in its log",
            separate(),
            |trial| Box::pin(disk_full(trial)),
        ),
        Fault::new(
            "redis-disk-full-killed",
            "as redis-disk-full, and Redis is killed meanwhile",
            "posts that wait for delivery",
            separate(),
            |trial| Box::pin(killed_with_full_disk(trial)),
        ),
        Fault::new(
            "redis-disconnects",
            "Redis closes all connections, twenty times in 4 s",
            "closed connections",
            vec![Setup::separate(StoreKind::Single), Setup::separate(StoreKind::Cluster)],
            |trial| Box::pin(disconnected(trial)),
        ),
        Fault::new(
            "redis-functions-lost",
            "all functions are deleted, twenty times in 4 s",
            "libraries that were loaded again",
            separate(),
            |trial| Box::pin(without_functions(trial)),
        ),
    ]
}

/// It is killed (SIGKILL), and starts again with its data.
async fn killed(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.redis.kill_and_change(|_| Ok(())).await?;
    trial.after().await;
    Ok(seen_calls(trial, since))
}

/// It stops for some time (SIGSTOP), and goes on.
async fn frozen(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.redis.single()?.pause();
    sleep(FROZEN).await;
    trial.system.redis.single()?.resume();
    trial.after().await;
    Ok(seen_calls(trial, since))
}

/// It is killed, and loses the end of its append-only file, from the middle of a transaction on.
async fn truncated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.redis.kill_and_change(truncate).await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("a shorter file, {unknown} unknown outcomes")))
}

/// Returns the file to which it appends.
fn newest_increment(directory: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(directory.join("appendonlydir"))?;
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    let is_increment = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    files.filter(is_increment).max().context("no append-only file")
}

fn truncate(directory: &Path) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(newest_increment(directory)?)?;
    let length = file.metadata()?.len();
    ensure!(length > CUT_BYTES, "the append-only file has {length} bytes");
    file.set_len(length - CUT_BYTES)?;
    Ok(())
}

/// It reaches its memory limit, which is raised later.
async fn full(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = trial.system.redis.single()?.admin().await;
    let limit = async |connection: &mut MultiplexedConnection, bytes: u64| {
        cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec_async(connection).await
    };
    limit(&mut connection, 1).await?;
    let waiting = waiting::deliveries(trial).await;
    limit(&mut connection, 0).await?;
    trial.after().await;
    Ok(Bite::Seen(waiting))
}

/// It cannot write its append-only file any more, and later it can.
async fn disk_full(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    fill_disk(trial).await?;
    let redis = trial.system.redis.single()?;
    redis.limit_files(None);
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let solved = redis.log().contains("AOF write error looks solved");
    Ok(Bite::seen_if(solved, format!("a write error, {unknown} unknown outcomes")))
}

/// As [`disk_full`], and it is killed meanwhile.
async fn killed_with_full_disk(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    fill_disk(trial).await?;
    // It starts without the limit.
    trial.system.redis.kill_and_change(|_| Ok(())).await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("a write error, {unknown} unknown outcomes")))
}

/// Limits the size of its files to that of now, and waits until it rejects writes: posts wait for their
/// delivery.
async fn fill_disk(trial: &Trial) -> Result<()> {
    let redis = trial.system.redis.single()?;
    let size = newest_increment(redis.directory())?.metadata()?.len();
    redis.limit_files(Some(size));
    waiting::deliveries(trial).await;
    ensure!(redis.log().contains("Error writing to the AOF file"), "Redis logs no write error");
    Ok(())
}

/// It closes all connections again and again.
async fn disconnected(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let closed = repeatedly(REPEATED, async || {
        let mut closed = 0;
        for server in trial.system.redis.servers() {
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
            closed += kill.query_async::<u64>(&mut server.admin().await).await?;
        }
        Ok(closed)
    })
    .await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{closed} closed connections, {unknown} unknown outcomes");
    Ok(Bite::seen_if(closed > 0, seen))
}

/// All function libraries are deleted again and again.
async fn without_functions(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let flushed = repeatedly(REPEATED, async || {
        let mut connection = trial.system.redis.single()?.admin().await;
        let libraries: Vec<Value> =
            cmd("FUNCTION").arg("LIST").query_async(&mut connection).await?;
        cmd("FUNCTION").arg("FLUSH").arg("SYNC").exec_async(&mut connection).await?;
        Ok(libraries.len() as u64)
    })
    .await?;
    trial.after().await;
    Ok(Bite::seen_if(flushed > LIBRARIES, format!("{flushed} deleted libraries")))
}
