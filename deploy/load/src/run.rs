//! The subcommand `run`: one scenario.

use std::{process::ExitCode, time::Duration};

use anyhow::ensure;
use humantime::parse_duration;
use microblog_local::{keys::Keys, remote};

use crate::{
    benchmark::{Benchmark, CLIENTS, clients},
    data_set::DataSet,
    follow_graph,
    load_driver::LoadModel,
    results::write_json,
    scenario::Scenario,
    system::{Database, Layout, Setup, System, Topology, Urls},
};

/// Runs one scenario and reports throughput, latency and resource usage. Exits with 1 if a call
/// fails.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "SCENARIO")]
    scenario: Scenario,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    graph: follow_graph::Args,
    /// Number of clients (closed loop): each sends its next call after the previous response
    #[arg(long, value_name = "COUNT", default_value_t = CLIENTS, value_parser = clients)]
    clients: usize,
    /// Starts calls at this rate (open loop), independent of responses; latency counts from the
    /// scheduled start
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
    /// Also prints the memory of each process at this interval; only of a started system
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "start")]
    every: Option<Duration>,
    #[command(flatten)]
    benchmark: Benchmark,
}

impl Args {
    fn model(&self) -> anyhow::Result<LoadModel> {
        ensure!(self.every.is_none_or(|every| !every.is_zero()), "--every must not be 0");
        match self.rate {
            None => Ok(LoadModel::Closed(self.clients)),
            Some(rate) => {
                ensure!(rate > 0.0 && rate.is_finite(), "--rate must be a number above 0");
                Ok(LoadModel::Open(rate))
            }
        }
    }
}

/// The system to measure.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Target {
    /// Starts a system of this layout, with its own Redis and data, instead of measuring a running
    /// one
    #[arg(long, value_name = "LAYOUT")]
    start: Option<Layout>,
    /// Worker threads per process of the started system [default: one for each core]
    #[arg(long, value_name = "COUNT", requires = "start")]
    threads: Option<usize>,
    /// Redis of the started system
    #[arg(long, value_name = "TOPOLOGY", default_value = "single", requires = "start")]
    redis: Topology,
    /// Where the databases of the started system are
    #[arg(long, value_name = "DATABASE", default_value = "sqlite", requires = "start")]
    database: Database,
    /// Starts the system with TLS for all calls and for Redis, client certificates, and signed
    /// identities
    #[arg(long, requires = "start")]
    tls: bool,
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
    /// URL of the notice service
    #[arg(long, value_name = "URL", default_value = remote::NOTICE_URL, env = "MICROBLOG_NOTICE_URL")]
    notice_url: String,
}

impl Target {
    /// Starts a system, or returns the running one.
    pub(crate) async fn system(&self) -> anyhow::Result<System> {
        match self.start {
            Some(layout) => {
                let Self { threads, redis, database, tls, .. } = *self;
                System::start(Setup { layout, threads, redis, tls, database }).await
            }
            None => Ok(System::external(Urls {
                gateway: self.gateway_url.clone(),
                user: self.user_url.clone(),
                relation: self.relation_url.clone(),
                post: self.post_url.clone(),
                timeline: self.timeline_url.clone(),
                notice: self.notice_url.clone(),
                keys: Keys::default(),
            })),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let model = args.model()?;
    let Args { scenario, target, graph, benchmark, every, .. } = args;
    let list = graph.graph()?;
    let system = target.system().await?;
    let data_set = DataSet::create(system.urls(), &list, &benchmark.data_set, graph.seed).await?;
    let outcome = benchmark.measure(&system, &data_set, scenario, model, every).await?;
    print!("{}", outcome.table());
    write_json(benchmark.json.as_deref(), &outcome)?;
    Ok(if outcome.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
