//! Loss of all data of Redis.

use anyhow::Result;

use crate::{
    clock,
    model::Since,
    system::{Level, erase},
    trial::{Bite, Trial},
};

/// Redis loses all data under load, and is restored from the database.
pub(super) async fn lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    lose_and_restore(trial).await
}

/// Deletes all data of Redis, and restores them once calls are rejected.
pub(super) async fn lose_and_restore(trial: &mut Trial) -> Result<Bite> {
    let since = trial.load.shared.log.len();
    trial.system.redis.kill_and_change(erase).await?;
    trial.load.failed_with("STORES_MISMATCHED", since).await;
    let recorded_at = trial.system.restore().await?;
    if trial.setup.level == Level::Local {
        trial.permit_loss(Since::Partitions(recorded_at), clock::now());
    }
    trial.after().await;
    let log = &trial.load.shared.log;
    let (rejected, unknown) = (log.count("STORES_MISMATCHED", since), log.unknown(since));
    Ok(Bite::Seen(format!("{rejected} calls STORES_MISMATCHED, {unknown} unknown outcomes")))
}
