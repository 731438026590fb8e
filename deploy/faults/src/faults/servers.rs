//! Faults of our own servers.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use microblog_local::launch::program;
use microblog_testkit::{PATIENCE, eventually, redis::cmd};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::five;
use crate::{
    system::{Level, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Longer than all timeouts of calls between servers, and than all leases.
const FROZEN: Duration = Duration::from_secs(30);
/// Calls that fail meanwhile.
const FAILED: usize = 10;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let mut faults = Vec::new();
    for program in [
        "microblog-gateway",
        "microblog-user",
        "microblog-relation",
        "microblog-post",
        "microblog-timeline",
    ] {
        let service = program.trim_start_matches("microblog-");
        let bites = if service == "timeline" { "posts wait for delivery" } else { "failed calls" };
        faults.push(Fault::new(
            format!("{service}-killed"),
            format!("{service} is killed (SIGKILL), and starts again"),
            bites,
            five(),
            move |trial| Box::pin(killed(trial, program)),
        ));
        faults.push(Fault::new(
            format!("{service}-frozen"),
            format!("{service} stops for 30 s (SIGSTOP), and goes on"),
            bites,
            five(),
            move |trial| Box::pin(frozen(trial, program)),
        ));
    }
    faults.push(Fault::new(
        "all-killed",
        "`microblog up` is killed with all its servers and Redis, and starts again",
        "failed calls",
        vec![Setup::one(Level::Recorded)],
        |trial| Box::pin(killed(trial, "microblog")),
    ));
    faults.push(Fault::new(
        "all-restarted",
        "each server is stopped (SIGTERM) and started again, one after the other",
        "all exit with 0",
        vec![
            Setup::five(StoreKind::Single, Level::Local),
            Setup::five(StoreKind::Cluster, Level::Recorded),
        ],
        |trial| Box::pin(restarted(trial)),
    ));
    faults
}

/// Returns the fault of two versions side by side.
pub(super) fn mixed_versions(other_programs: &Path) -> Fault {
    let other_programs = other_programs.to_owned();
    Fault::new(
        "versions-mixed",
        "each server is replaced by another version, one after the other, and back",
        "all exit with 0",
        vec![
            Setup::five(StoreKind::Single, Level::Recorded),
            Setup::five(StoreKind::Cluster, Level::Recorded),
        ],
        move |trial| {
            let other_programs = other_programs.clone();
            Box::pin(async move { mixed(trial, &other_programs).await })
        },
    )
}

/// A server is killed (SIGKILL) and starts again.
async fn killed(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.kill_server(program)?;
    let missed = missed(trial, program, since).await?;
    trial.system.start_server(program).await?;
    trial.after().await;
    Ok(Bite::Seen(missed))
}

/// A server stops for some time (SIGSTOP), and goes on.
async fn frozen(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.signal_server(program, Signal::SIGSTOP)?;
    sleep(FROZEN).await;
    let missed = missed(trial, program, since).await?;
    trial.system.signal_server(program, Signal::SIGCONT)?;
    trial.after().await;
    Ok(Bite::Seen(missed))
}

/// Each server is stopped (SIGTERM) and started again, callees first.
async fn restarted(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let programs = trial.system.server_names();
    for program in &programs {
        trial.system.stop_server(program).await?;
        trial.system.start_server(program).await?;
        trial.after().await;
    }
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("{} drained servers, {unknown} unknown outcomes", programs.len())))
}

/// Each server is replaced by another version, callees first, and back.
async fn mixed(trial: &mut Trial, other_programs: &Path) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let own = program("microblog")?;
    let own_programs = own.parent().context("a program has a directory")?;
    let programs = trial.system.server_names();
    for version in [other_programs, own_programs] {
        for program in &programs {
            trial.system.replace_server(program, version).await?;
            trial.after().await;
        }
    }
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("{} replacements, {unknown} unknown outcomes", 2 * programs.len())))
}

/// Waits until the server is missed, and returns by what. No write waits for the timeline service:
/// the post service keeps what it has to deliver.
async fn missed(trial: &Trial, program: &str, since: usize) -> Result<String> {
    if program != "microblog-timeline" {
        trial.load.unknown(FAILED, since).await;
        return Ok(format!("{} unknown outcomes", trial.load.shared.log.unknown(since)));
    }
    let mut connection = trial.system.redis.single()?.admin().await;
    let mut outboxes = 0;
    eventually("posts wait for their delivery", PATIENCE, async || {
        let keys = cmd("KEYS").arg("post:*:outbox").query_async(&mut connection).await;
        outboxes = keys.map_or(0, |keys: Vec<String>| keys.len());
        outboxes > 0
    })
    .await;
    Ok(format!("posts of {outboxes} partitions that wait for their delivery"))
}
