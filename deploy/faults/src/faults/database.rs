//! Faults of PostgreSQL, which keeps its data.

use anyhow::{Context as _, Result, bail};
use microblog_testkit::PostgresServer;

use super::{repeatedly, separate};
use crate::{
    clock,
    system::{Database, Equipment, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// How calls fail without the database: those whose transaction may have committed, and the others.
const FAILURES: [&str; 2] = ["NOT_RECORDED", "STORE_UNAVAILABLE"];

/// Calls that fail meanwhile. Callers repeat a change, so that most of them wait in the end.
const FAILED: usize = 10;
const REPEATED: usize = 20;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "database-killed",
            "PostgreSQL is killed (SIGKILL), and starts again",
            "NOT_RECORDED, STORE_UNAVAILABLE",
            separate(),
            |trial| Box::pin(killed(trial)),
        ),
        Fault::new(
            "database-frozen",
            "PostgreSQL stops (SIGSTOP), and goes on",
            "NOT_RECORDED, STORE_UNAVAILABLE",
            separate(),
            |trial| Box::pin(frozen(trial)),
        ),
        Fault::new(
            "database-disconnects",
            "PostgreSQL ends all connections, twenty times in 4 s",
            "ended connections",
            separate(),
            |trial| Box::pin(disconnected(trial)),
        ),
        Fault::new(
            "database-read-only",
            "PostgreSQL accepts no writes, as with a full disk, and accepts them again",
            "NOT_RECORDED, STORE_UNAVAILABLE",
            separate(),
            |trial| Box::pin(read_only(trial)),
        ),
        Fault::new(
            "database-failover",
            "PostgreSQL is killed, and a standby without the last transactions takes over",
            "the standby is behind; changes are lost",
            vec![Setup::separate(StoreKind::Single).with(Equipment::Standby)],
            |trial| Box::pin(failed_over(trial)),
        ),
    ]
}

/// It is killed (SIGKILL), and starts again once calls have failed.
async fn killed(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    database(trial)?.kill();
    trial.load.failures(&FAILURES, FAILED, since).await;
    database(trial)?.restart().await;
    end(trial, since).await
}

/// It stops (SIGSTOP), and goes on once calls have failed.
async fn frozen(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    database(trial)?.pause();
    trial.load.failures(&FAILURES, FAILED, since).await;
    database(trial)?.resume();
    end(trial, since).await
}

/// It ends all connections again and again.
async fn disconnected(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE usename IN ('user', 'relation', 'post')";
    let ended = repeatedly(REPEATED, async || Ok(database(trial)?.sql(terminate).parse()?)).await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let seen = format!("{ended} ended connections, {unknown} unknown outcomes");
    Ok(Bite::seen_if(ended > 0, seen))
}

/// It accepts no writes, as when its disk is full.
async fn read_only(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    set_read_only(trial, true)?;
    trial.load.failures(&FAILURES, FAILED, since).await;
    set_read_only(trial, false)?;
    end(trial, since).await
}

fn set_read_only(trial: &Trial, is_read_only: bool) -> Result<()> {
    let database = database(trial)?;
    database.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {is_read_only}"));
    database.sql("SELECT pg_reload_conf()");
    Ok(())
}

/// A standby that has stopped to replicate becomes the primary. What it lacks is lost.
async fn failed_over(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let Database::WithStandby(pair) = &trial.system.database else { bail!("there is no standby") };
    pair.standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    pair.standby.sql("SELECT pg_reload_conf()");
    let since = clock::now();
    trial.meanwhile().await;
    let position = |server: &PostgresServer| -> Result<u64> {
        Ok(server.sql("SELECT COALESCE(MAX(position), 0) FROM post.feed").parse()?)
    };
    let lacking = position(&pair.primary)?.saturating_sub(position(&pair.standby)?);
    pair.fail_over().await;
    trial.permit_loss(since, clock::now());
    trial.after().await;
    let seen = format!("a standby that lacks {lacking} changes of posts");
    Ok(Bite::seen_if(lacking > 0, seen))
}

async fn end(trial: &Trial, since: usize) -> Result<Bite> {
    trial.after().await;
    let [not_recorded, unavailable] =
        FAILURES.map(|reason| trial.load.shared.log.count(reason, since));
    Ok(Bite::Seen(format!("{not_recorded} calls NOT_RECORDED, {unavailable} STORE_UNAVAILABLE")))
}

/// Returns the PostgreSQL of a setup that has it.
pub(super) fn database(trial: &Trial) -> Result<&PostgresServer> {
    trial.system.database.server().context("the setup has no PostgreSQL")
}
