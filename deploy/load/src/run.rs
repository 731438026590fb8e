//! The subcommand `run`: one scenario.

mod import;

use std::{process::ExitCode, sync::LazyLock};

use anyhow::ensure;
use clap::{ValueEnum, builder::PossibleValue};
use microblog_local::remote;

use crate::{
    benchmark::{Benchmark, Rate},
    follow_graph,
    results::{exit_code, table, write_json},
    scenario::Scenario,
    system::{Layout, System, Urls},
};

/// Runs one scenario and reports throughput, latency and resource usage. Exits with 1 if a call
/// fails.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "SCENARIO")]
    work: Work,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    graph: follow_graph::Args,
    #[command(flatten)]
    benchmark: Benchmark,
    #[command(flatten)]
    rate: Rate,
}

/// The scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Calls of clients.
    Calls(Scenario),
    /// Import of the graph's follows.
    Import,
}

impl ValueEnum for Work {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Work>> = LazyLock::new(|| {
            let calls = Scenario::value_variants().iter().copied().map(Work::Calls);
            calls.chain([Work::Import]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Calls(scenario) => scenario.to_possible_value(),
            Self::Import => Some(PossibleValue::new(import::NAME).help(
                "Imports the follows of the graph once, as `microblog import` does; ignores the \
                 client options. A call is a follow",
            )),
        }
    }
}

/// The system to measure.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Target {
    /// Starts a system of this layout, with its own redis-server and data, instead of measuring a
    /// running one
    #[arg(long, value_name = "LAYOUT")]
    start: Option<Layout>,
    /// Worker threads per process of the started system [default: one for each core]
    #[arg(long, value_name = "COUNT", requires = "start")]
    threads: Option<usize>,
    /// Redis of the started system, instead of its own, such as
    /// `redis-cluster://127.0.0.1:7001,127.0.0.1:7002`: a cluster, or over TLS. Must be empty and
    /// without users. Only with `--start five`; its usage is not measured
    #[arg(long, value_name = "URL", requires = "start")]
    redis_url: Option<String>,
    /// URL of the gateway
    #[arg(long, value_name = "URL", default_value = remote::GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
    /// URL of the user service
    #[arg(long, value_name = "URL", default_value = remote::USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// URL of the relation service
    #[arg(long, value_name = "URL", default_value = remote::RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// URL of the post service
    #[arg(long, value_name = "URL", default_value = remote::POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    /// URL of the timeline service
    #[arg(long, value_name = "URL", default_value = remote::TIMELINE_URL, env = "MICROBLOG_TIMELINE_URL")]
    timeline_url: String,
}

impl Target {
    /// Starts a system, or returns the running one.
    pub(crate) async fn system(&self) -> anyhow::Result<System> {
        match self.start {
            Some(layout) => {
                System::start(layout, self.threads, self.redis_url.as_deref(), &[]).await
            }
            None => Ok(System::external(Urls {
                gateway: self.gateway_url.clone(),
                user: self.user_url.clone(),
                relation: self.relation_url.clone(),
                post: self.post_url.clone(),
                timeline: self.timeline_url.clone(),
            })),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { work, target, graph, benchmark, rate } = args;
    let model = rate.model(&benchmark.load)?;
    let list = graph.graph()?;
    ensure!(!list.edges.is_empty(), "the graph has no follows");
    let system = target.system().await?;
    let outcome = match work {
        Work::Import => import::measure(&system, &list).await?,
        Work::Calls(scenario) => {
            let data_set = benchmark.create_data_set(&system, &list, graph.seed()).await?;
            benchmark.measure(&system, &data_set, scenario, model).await?
        }
    };
    print!("{}", table(std::slice::from_ref(&outcome)));
    write_json(benchmark.json.as_deref(), &outcome)?;
    Ok(exit_code([&outcome]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_accepts_import_and_all_scenarios() {
        assert_eq!(Work::from_str("import", false), Ok(Work::Import));
        assert_eq!(Work::from_str("mixed", false), Ok(Work::Calls(Scenario::Mixed)));
        assert!(Work::from_str("export", false).is_err());
    }
}
