//! A store starts with an older copy of its data.

use std::cell::Cell;

use anyhow::{Result, ensure};

use super::one_and_separate;
use crate::{
    clock,
    trial::{Bite, Fault, Trial},
};

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-old-copy",
            "the files of Redis are copied under load; later Redis is killed, and starts \
             with the copy",
            "the copy is older",
            one_and_separate(),
            |trial| Box::pin(old_redis(trial)),
        ),
        Fault::new(
            "database-old-copy",
            "a copy of the databases of earlier is put back",
            "the copy is older; changes since are lost",
            one_and_separate(),
            |trial| Box::pin(old_database(trial)),
        ),
    ]
}

/// Redis starts with an older copy of its files.
async fn old_redis(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let copy = trial.system.redis.copy()?;
    trial.meanwhile().await;
    let since = trial.load.shared.log.len();
    let is_older = Cell::new(false);
    let put_back = |directory: &std::path::Path| {
        is_older.set(copy.differs(directory)?);
        copy.put_back(directory)
    };
    trial.system.redis.kill_and_change(put_back).await?;
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::seen_if(is_older.get(), format!("an older copy, {unknown} unknown outcomes")))
}

/// The databases are replaced by older copies.
async fn old_database(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let (since, copied) = (trial.load.shared.log.len(), clock::now());
    let copy = trial.system.copy_database().await?;
    trial.meanwhile().await;
    let is_older = trial.system.put_back_database(&copy).await?;
    trial.permit_loss(copied, clock::now());
    ensure!(is_older, "the copy of the database has all that the database had");
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    Ok(Bite::Seen(format!("an older copy, {unknown} unknown outcomes")))
}
