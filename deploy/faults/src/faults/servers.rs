//! Faults of our own servers.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use microblog_local::launch::program;
use nix::sys::signal::Signal;
use rand::RngExt as _;
use tokio::time::{Instant, sleep};

use super::{separate, waiting};
use crate::{
    system::{Server, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Longer than all timeouts of calls between servers, and than all leases.
const FROZEN: Duration = Duration::from_secs(30);
/// Calls that fail meanwhile.
const FAILED: usize = 10;
/// More bytes than those of keepalives.
const SERVED: u64 = 500;
/// How often one replica is killed.
const KILLED: usize = 3;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let mut faults = Vec::new();
    for program in [
        "microblog-gateway",
        "microblog-user",
        "microblog-relation",
        "microblog-post",
        "microblog-timeline",
        "microblog-notice",
    ] {
        let service = program.trim_start_matches("microblog-");
        let bites = match service {
            "timeline" => "posts wait for delivery",
            "notice" => "changes wait",
            _ => "failed calls",
        };
        faults.push(Fault::new(
            format!("{service}-killed"),
            format!("all replicas of {service} are killed (SIGKILL), and start again"),
            bites,
            separate(),
            move |trial| Box::pin(killed(trial, program)),
        ));
        faults.push(Fault::new(
            format!("{service}-frozen"),
            format!("all replicas of {service} stop for 30 s (SIGSTOP), and go on"),
            bites,
            separate(),
            move |trial| Box::pin(frozen(trial, program)),
        ));
        // The load has no calls of the notice service, which a replica must have had.
        if matches!(service, "gateway" | "notice") {
            continue;
        }
        faults.push(Fault::new(
            format!("{service}-replica-killed"),
            format!(
                "one of two replicas of {service} is killed (SIGKILL) and starts again, \
                 {KILLED} times"
            ),
            "calls go on",
            separate(),
            move |trial| Box::pin(replica_killed(trial, program)),
        ));
        faults.push(Fault::new(
            format!("{service}-replica-frozen"),
            format!("one of two replicas of {service} stops for 30 s (SIGSTOP), and goes on"),
            "calls go on",
            separate(),
            move |trial| Box::pin(replica_frozen(trial, program)),
        ));
    }
    faults.push(Fault::new(
        "all-killed",
        "`microblog up` is killed with all its servers and Redis, and starts again",
        "failed calls",
        vec![Setup::one()],
        |trial| Box::pin(killed(trial, "microblog")),
    ));
    let replicas = || vec![Setup::replicas(StoreKind::Cluster)];
    faults.push(Fault::new(
        "replica-killed",
        format!(
            "one of two replicas with all services is killed (SIGKILL) and starts again, \
             {KILLED} times"
        ),
        "calls go on",
        replicas(),
        |trial| Box::pin(replica_killed(trial, "microblog")),
    ));
    faults.push(Fault::new(
        "replica-frozen",
        "one of two replicas with all services stops for 30 s (SIGSTOP), and goes on",
        "calls go on",
        replicas(),
        |trial| Box::pin(replica_frozen(trial, "microblog")),
    ));
    faults.push(Fault::new(
        "feed-killed",
        "random servers are killed (SIGKILL) and start again, for 50 s (--long: five minutes)",
        "failed reads of the change feed, no expired cursor",
        vec![Setup::separate(StoreKind::Single), Setup::replicas(StoreKind::Cluster)],
        |trial| Box::pin(feed_killed(trial)),
    ));
    faults.push(Fault::new(
        "all-restarted",
        "each server is stopped (SIGTERM) and started again, one after the other",
        "all exit with 0",
        vec![
            Setup::separate(StoreKind::Single),
            Setup::separate(StoreKind::Cluster),
            Setup::replicas(StoreKind::Cluster),
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
            Setup::separate(StoreKind::Single),
            Setup::separate(StoreKind::Cluster),
            Setup::replicas(StoreKind::Cluster),
        ],
        move |trial| {
            let other_programs = other_programs.clone();
            Box::pin(async move { mixed(trial, &other_programs).await })
        },
    )
}

/// All replicas of a server are killed (SIGKILL) and start again.
async fn killed(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    trial.system.kill_all(program)?;
    let missed = missed(trial, program, since).await;
    trial.system.start_servers().await?;
    trial.after().await;
    Ok(Bite::Seen(missed))
}

/// All replicas of a server stop for some time (SIGSTOP), and go on.
async fn frozen(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let replicas = trial.system.replicas(program)?;
    replicas.iter().try_for_each(|replica| replica.signal(Signal::SIGSTOP))?;
    sleep(FROZEN).await;
    let missed = missed(trial, program, since).await;
    replicas.iter().try_for_each(|replica| replica.signal(Signal::SIGCONT))?;
    trial.after().await;
    Ok(Bite::Seen(missed))
}

/// One replica is killed (SIGKILL) and starts again, some times. Calls go on.
async fn replica_killed(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let replica = trial.system.replicas(program)?[0];
    let served = served(trial, replica).await;
    for _ in 0..KILLED {
        trial.system.kill(replica);
        trial.after().await;
        trial.system.start_servers().await?;
        trial.after().await;
    }
    Ok(calls_go_on(trial, replica, served, since))
}

/// One replica stops for some time (SIGSTOP), and goes on. The other one does its work meanwhile.
async fn replica_frozen(trial: &mut Trial, program: &str) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let replica = trial.system.replicas(program)?[0];
    let served = served(trial, replica).await;
    replica.signal(Signal::SIGSTOP)?;
    trial.after().await;
    sleep(FROZEN).await;
    trial.after().await;
    replica.signal(Signal::SIGCONT)?;
    trial.after().await;
    Ok(calls_go_on(trial, replica, served, since))
}

/// Returns how many bytes the server's callers send to it while calls go on.
async fn served(trial: &Trial, server: &Server) -> u64 {
    let before = trial.system.bytes_to(server);
    trial.after().await;
    trial.system.bytes_to(server) - before
}

/// Returns what was seen of a replica that was gone: it had calls before. Half of the clients have none
/// but the gateway in it.
fn calls_go_on(trial: &Trial, replica: &Server, served: u64, since: usize) -> Bite {
    let unknown = trial.load.shared.log.unknown(since);
    let is_seen = if replica.has_gateway() { unknown > 0 } else { served > SERVED };
    Bite::seen_if(is_seen, format!("calls go on, {unknown} unknown outcomes"))
}

/// Random servers are killed (SIGKILL) and start again, for some time. No cursor of the change feed
/// expires.
async fn feed_killed(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let (failed, expired) = trial.reader.failures();
    let until = Instant::now() + 5 * trial.impairment;
    let mut killed = 0;
    while Instant::now() < until {
        let servers = trial.system.servers();
        trial.system.kill(&servers[rand::rng().random_range(0..servers.len())]);
        killed += 1;
        trial.system.start_servers().await?;
        trial.after().await;
    }
    let (now_failed, now_expired) = trial.reader.failures();
    let (failed, expired) = (now_failed - failed, now_expired - expired);
    let seen = format!("{killed} killed servers, {failed} failed reads, {expired} expired cursors");
    Ok(Bite::seen_if(failed > 0 && expired == 0, seen))
}

/// Each server is stopped (SIGTERM) and started again, callees first.
async fn restarted(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    for server in trial.system.servers() {
        trial.system.restart(server).await?;
        trial.after().await;
    }
    let (drained, unknown) = (trial.system.servers().len(), trial.load.shared.log.unknown(since));
    Ok(Bite::Seen(format!("{drained} drained servers, {unknown} unknown outcomes")))
}

/// Each server is replaced by another version, callees first, and back.
async fn mixed(trial: &mut Trial, other_programs: &Path) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let own = program("microblog")?;
    let own_programs = own.parent().context("a program has a directory")?;
    let servers = trial.system.servers();
    for version in [other_programs, own_programs] {
        for server in servers {
            trial.system.replace(server, version).await?;
            trial.after().await;
        }
    }
    let (replaced, unknown) = (2 * servers.len(), trial.load.shared.log.unknown(since));
    Ok(Bite::Seen(format!("{replaced} replacements, {unknown} unknown outcomes")))
}

/// Waits until the server is missed, and returns by what. No write waits for the timeline service:
/// the post service keeps what it has to deliver.
async fn missed(trial: &Trial, program: &str, since: usize) -> String {
    if program == "microblog-timeline" {
        return waiting::deliveries(trial).await;
    } else if program == "microblog-notice" {
        return waiting::notices(trial, "post").await;
    }
    trial.load.unknown(FAILED, since).await;
    format!("{} unknown outcomes", trial.load.shared.log.unknown(since))
}
