//! Faults of the change journals.

use std::time::Duration;

use anyhow::{Context as _, Result};
use microblog_testkit::{eventually, redis::cmd};

use super::separate;
use crate::{
    model::partition,
    trial::{Bite, Fault, Trial},
};

const UNKNOWN: &str = "future 1 2";
/// The partition waits for a minute.
const LEFT_OUT: Duration = Duration::from_secs(120);

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![Fault::new(
        "journals-poisoned",
        "a change of an unknown kind is added to a journal of post",
        "the change is left out after a minute",
        separate(),
        |trial| Box::pin(poisoned(trial)),
    )]
}

/// A change of an unknown kind is added to the journal of one account's partition. Calls of other
/// partitions go on meanwhile.
async fn poisoned(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let (_, id) = trial.load.shared.model.borrow().accounts().next().context("no account")?;
    let partition = partition(id);
    let mut connection = trial.system.redis.single()?.admin().await;
    let key = format!("post:{{{partition}}}:journal");
    let mut range = cmd("XREVRANGE");
    range.arg(&key).arg("+").arg("-").arg("COUNT").arg(1);
    let newest: Vec<(String, Vec<String>)> = range.query_async(&mut connection).await?;
    let epoch = newest.first().and_then(|(version, _)| Some(version.split_once('-')?.0));
    let next = format!("{}-*", epoch.context("the journal is empty")?);
    cmd("XADD").arg(&key).arg(next).arg("c").arg(UNKNOWN).exec_async(&mut connection).await?;
    trial.meanwhile().await;
    let left_out = || trial.system.logged("a change of an unknown kind");
    eventually("the change is left out", LEFT_OUT, async || left_out() > 0).await;
    trial.after().await;
    let rejected = trial.load.shared.log.count("NOT_RECORDED", since);
    Ok(Bite::Seen(format!("{} changes left out, {rejected} calls NOT_RECORDED", left_out())))
}
