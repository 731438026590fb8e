//! Faults of PostgreSQL, which keeps its data.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::failover::database;
use crate::trial::{Bite, Trial};

/// Calls that fail meanwhile.
const FAILED: usize = 20;
const REPEATED: usize = 20;
const PAUSE: Duration = Duration::from_millis(200);

/// It is killed (SIGKILL), and starts again once calls have failed.
pub(super) async fn killed(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    database(trial)?.kill();
    trial.load.failures("NOT_RECORDED", FAILED, since).await;
    database(trial)?.restart().await;
    end(trial, since).await
}

/// It stops (SIGSTOP), and goes on once calls have failed.
pub(super) async fn frozen(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    database(trial)?.pause();
    trial.load.failures("NOT_RECORDED", FAILED, since).await;
    database(trial)?.resume();
    end(trial, since).await
}

/// It ends all connections again and again.
pub(super) async fn disconnected(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE usename IN ('user', 'relation', 'post')";
    let mut ended = 0;
    for _ in 0..REPEATED {
        ended += database(trial)?.sql(terminate).parse::<u64>()?;
        sleep(PAUSE).await;
    }
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{ended} ended connections, {unknown} unknown outcomes");
    Ok(Bite::seen_if(ended > 0, seen))
}

/// It accepts no writes, as when its disk is full.
pub(super) async fn read_only(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    set_read_only(trial, true)?;
    trial.load.failures("NOT_RECORDED", FAILED, since).await;
    set_read_only(trial, false)?;
    end(trial, since).await
}

fn set_read_only(trial: &Trial, is_read_only: bool) -> Result<()> {
    let database = database(trial)?;
    database.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {is_read_only}"));
    database.sql("SELECT pg_reload_conf()");
    Ok(())
}

async fn end(trial: &Trial, since: usize) -> Result<Bite> {
    trial.after().await;
    let rejected = trial.load.shared.log.count("NOT_RECORDED", since);
    Ok(Bite::Seen(format!("{rejected} calls NOT_RECORDED")))
}
