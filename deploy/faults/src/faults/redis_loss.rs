//! Loss of all data of Redis.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;

use crate::{
    load::CLIENTS,
    system::{Setup, StoreKind, erase, has_data},
    trial::{Bite, Fault, Trial},
};

/// More calls than were under way.
const AFTERWARDS: usize = 2 * CLIENTS;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![Fault::new(
        "redis-lost",
        "Redis is killed, its files are deleted, it starts empty",
        "calls that are done without what was cached",
        vec![
            Setup::one(),
            Setup::separate(StoreKind::Cluster),
            Setup::replicas(StoreKind::Cluster),
        ],
        |trial| Box::pin(lost(trial)),
    )]
}

/// Redis loses all data under load.
async fn lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let erased = AtomicUsize::new(0);
    let change = |directory: &Path| {
        erase(directory)?;
        let has_data = has_data(directory);
        erased.fetch_add(usize::from(!has_data), Ordering::Relaxed);
        Ok(())
    };
    trial.system.redis.kill_and_change(change).await?;
    let erased = erased.into_inner();
    trial.load.done("", AFTERWARDS, since).await;
    let log = &trial.load.shared.log;
    let (done, unknown) = (log.done("", since), log.unknown(since));
    trial.after().await;
    Ok(Bite::seen_if(
        erased > 0,
        format!("{done} calls were done with an empty Redis, {unknown} unknown outcomes"),
    ))
}
