//! Loss of all data of Redis.

use anyhow::Result;

use crate::{
    system::{Level, Setup, StoreKind, erase},
    trial::{Bite, Fault, Trial},
};

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-lost",
            "Redis is killed, its files are deleted, it starts empty; `microblog restore`",
            "STORES_MISMATCHED",
            vec![
                Setup::one(Level::Recorded),
                Setup::separate(StoreKind::Cluster, Level::Recorded),
                Setup::replicas(StoreKind::Cluster, Level::Recorded),
            ],
            |trial| Box::pin(lost(trial)),
        ),
        Fault::new(
            "redis-lost-local",
            "as redis-lost, with what the database has by then",
            "STORES_MISMATCHED; only writes after the printed times are lost, and some are",
            vec![Setup::one(Level::Local), Setup::separate(StoreKind::Single, Level::Local)],
            |trial| Box::pin(lost(trial)),
        ),
    ]
}

/// Redis loses all data under load, and is restored from the database.
async fn lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    lose_and_restore(trial).await
}

/// Deletes all data of Redis, and restores them once calls are rejected.
pub(super) async fn lose_and_restore(trial: &mut Trial) -> Result<Bite> {
    let since = trial.load.shared.log.len();
    let killed_at = trial.system.redis.kill_and_change(erase).await?;
    trial.load.failed_with("STORES_MISMATCHED", since).await;
    let recorded_at = trial.system.restore().await?;
    if trial.setup.level == Level::Local {
        trial.permit_loss(recorded_at, killed_at);
    }
    trial.after().await;
    let log = &trial.load.shared.log;
    let (rejected, unknown) = (log.count("STORES_MISMATCHED", since), log.unknown(since));
    Ok(Bite::Seen(format!("{rejected} calls STORES_MISMATCHED, {unknown} unknown outcomes")))
}
