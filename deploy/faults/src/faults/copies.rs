//! A store starts with an older copy of its data.

use anyhow::{Result, ensure};

use super::{one_and_separate, redis_loss::lose_and_restore};
use crate::{
    clock,
    model::of_databases,
    trial::{Bite, Fault, Trial},
};

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "redis-old-copy",
            "the files of Redis are copied under load; later Redis is killed, and starts \
             with the copy",
            "lost changes are found",
            one_and_separate(),
            |trial| Box::pin(old_redis(trial)),
        ),
        Fault::new(
            "database-old-copy",
            "a copy of the database of earlier is put back; once posts are written anew, all \
             data of Redis are lost; `microblog restore`",
            "the copy is older; STORES_MISMATCHED; changes of accounts and follows since are lost",
            one_and_separate(),
            |trial| Box::pin(old_database(trial)),
        ),
    ]
}

/// Redis starts with an older copy of its files, and settles itself.
async fn old_redis(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let copy = trial.system.redis.copy()?;
    trial.meanwhile().await;
    let since = trial.load.shared.log.len();
    trial.system.redis.kill_and_change(|directory| copy.put_back(directory)).await?;
    trial.after().await;
    let found = trial.system.logged("redis lacks recorded changes");
    let log = &trial.load.shared.log;
    let (recovering, unknown) = (log.count("RECOVERING", since), log.unknown(since));
    let seen = format!(
        "lost changes, found {found} times, {recovering} calls RECOVERING, {unknown} unknown outcomes"
    );
    Ok(Bite::seen_if(found > 0, seen))
}

/// The database is replaced by an older copy. Posts are written anew from Redis, which can then be restored
/// from it. Accounts and the follow graph are what the copy has.
async fn old_database(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let copied = clock::now();
    let copy = trial.system.copy_database().await?;
    trial.meanwhile().await;
    let is_older = trial.system.put_back_database(&copy).await?;
    trial.permit_loss(of_databases(copied), clock::now());
    ensure!(is_older, "the copy of the database has all that the database had");
    trial.after().await;
    trial.system.wait_until_recorded().await?;
    lose_and_restore(trial).await
}
