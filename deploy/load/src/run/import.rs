//! Import throughput, with the calls of `microblog import`.

use std::collections::BTreeMap;

use anyhow::ensure;
use microblog_local::{edges::EdgeList, graph};

use crate::{results::ScenarioResult, service_clients, system::System};

/// The name of the scenario.
pub(super) const NAME: &str = "import";

/// Creates the accounts of a graph and measures the import of its follows. Each follow counts as a
/// call without a latency. At least one follow must be new.
pub(super) async fn measure(system: &System, list: &EdgeList) -> anyhow::Result<ScenarioResult> {
    let target = service_clients::import_target(system.urls(), "");
    let ids = graph::users(list, &target).await?.ids;
    let before = system.usage().await?;
    let follows = graph::follows(list, &ids, &target).await?;
    let usage = system.usage().await?.since(&before);
    let created = follows.outcome.created;
    ensure!(created > 0, "all follows of the graph are there already");
    let seconds = follows.took.as_secs_f64();
    Ok(ScenarioResult {
        scenario: NAME.to_owned(),
        calls: created,
        seconds,
        calls_per_second: created as f64 / seconds,
        latency_us: None,
        errors: BTreeMap::new(),
        usage,
    })
}
