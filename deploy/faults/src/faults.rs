//! The faults, by what they concern. Each file has its part of the table, and how they are injected.

mod certificates;
mod clocks;
mod cluster;
mod copies;
mod database;
mod failover;
mod fanout;
mod hostile;
mod network;
mod overload;
mod peers;
mod redis_loss;
mod redis_server;
mod servers;
mod waiting;

use std::{path::Path, time::Duration};

use anyhow::Result;
use tokio::time::sleep;

use crate::{
    system::{Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

/// Between two injections of a fault that repeats.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns all faults. Those of two versions need the programs of another one.
pub(crate) fn all(other_programs: Option<&Path>) -> Vec<Fault> {
    let of_any_layout = [database::all(), hostile::all()].into_iter().flatten();
    let keeping_notices = [servers::all(), network::between_servers()].into_iter().flatten();
    let of_redis = [network::to_redis(), redis_loss::all()].into_iter().flatten();
    let of_any_store: [Vec<Fault>; 3] = [
        keeping_notices.map(Fault::keeping_notices).collect(),
        of_any_layout.map(Fault::with_any_layout).collect(),
        other_programs.map(servers::mixed_versions).into_iter().collect(),
    ];
    let groups = [
        of_redis.map(Fault::keeping_notices).collect(),
        redis_server::all(),
        cluster::all(),
        fanout::all(),
        overload::all(),
        peers::all(),
        clocks::all(),
        certificates::all(),
        copies::all(),
        failover::all(),
    ];
    let of_any_store = of_any_store.into_iter().flatten().map(Fault::with_any_store);
    of_any_store.chain(groups.into_iter().flatten()).collect()
}

/// Returns what was seen by the clients: unknown outcomes.
fn seen_calls(trial: &Trial, since: usize) -> Bite {
    let unknown = trial.load.shared.log.unknown(since);
    Bite::seen_if(unknown > 0, format!("{unknown} unknown outcomes"))
}

/// Injects a fault again and again, for some seconds. Returns the sum of what it has hit.
async fn repeatedly(times: usize, mut inject: impl AsyncFnMut() -> Result<u64>) -> Result<u64> {
    let mut hit = 0;
    for _ in 0..times {
        hit += inject().await?;
        sleep(PAUSE).await;
    }
    Ok(hit)
}

/// The layout of `microblog up`, and [`separate`].
fn one_and_separate() -> Vec<Setup> {
    [vec![Setup::one()], separate()].concat()
}

/// A process for each service and a single Redis.
fn separate() -> Vec<Setup> {
    vec![Setup::separate(StoreKind::Single)]
}
