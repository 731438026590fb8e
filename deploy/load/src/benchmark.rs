//! Benchmark of one scenario on one system: clients, warm-up, measurement.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use humantime::parse_duration;
use microblog_local::{edges::EdgeList, remote};
use rand::{SeedableRng as _, rngs::SmallRng};
use tonic::transport::Channel;

use crate::{
    data_set::{self, DataSet},
    load_driver::{LoadModel, Measurements, run_for},
    results::ScenarioResult,
    scenario::{Client, Scenario},
    system::System,
};

/// Connections that the clients share. With fewer, a connection is the bottleneck.
pub(crate) const CONNECTIONS: usize = 8;

/// Duration of the MONITOR sample during the warm-up, which separates commands of clients from
/// commands inside functions.
const MONITOR_DURATION: Duration = Duration::from_millis(500);

/// Benchmark options.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Benchmark {
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) data_set: data_set::Args,
    /// Also writes the results to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Load options.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Load {
    /// Number of clients (closed loop): each sends its next call after the previous response
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clients)]
    pub(crate) clients: usize,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Duration of the warm-up
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
}

/// Open-loop load options.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Rate {
    /// Starts calls at this rate (open loop), independent of responses; latency counts from the
    /// scheduled start
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
}

impl Rate {
    /// Returns the load model.
    pub(crate) fn model(&self, load: &Load) -> anyhow::Result<LoadModel> {
        match self.rate {
            None => Ok(load.model()),
            Some(rate) => {
                ensure!(rate > 0.0 && rate.is_finite(), "--rate must be a number above 0");
                Ok(LoadModel::Open(rate))
            }
        }
    }
}

impl Load {
    /// Returns the closed-loop load model.
    pub(crate) fn model(&self) -> LoadModel {
        LoadModel::Closed(self.clients)
    }
}

impl Benchmark {
    /// Creates the data set of a system.
    pub(crate) async fn create_data_set(
        &self,
        system: &System,
        list: &EdgeList,
        seed: u64,
    ) -> anyhow::Result<DataSet> {
        DataSet::create(system.urls(), list, &self.data_set, seed).await
    }

    /// Warms a scenario up and measures it, until all deliveries are done.
    pub(crate) async fn measure(
        &self,
        system: &System,
        data_set: &DataSet,
        scenario: Scenario,
        model: LoadModel,
    ) -> anyhow::Result<ScenarioResult> {
        let clients = self.warm_up(system, data_set, scenario, model).await?;
        // Delivery to followers is part of a publish call. Deliveries of the warm-up are not
        // measured.
        system.wait_until_delivered().await?;
        let before = system.usage().await?;
        let began = Instant::now();
        let mut measured = clients.run(scenario, model, self.load.duration, "calls").await;
        system.wait_until_delivered().await?;
        measured.seconds = began.elapsed().as_secs_f64();
        let usage = system.usage().await?.since(&before);
        Ok(ScenarioResult::new(scenario.name(), &measured, usage))
    }

    /// Checks and warms up the clients. Background work of earlier calls is done before.
    pub(crate) async fn warm_up<'a>(
        &self,
        system: &System,
        data_set: &'a DataSet,
        scenario: Scenario,
        model: LoadModel,
    ) -> anyhow::Result<Clients<'a>> {
        system.wait_until_quiescent().await?;
        let clients = Clients::new(system, data_set, self.load.clients)?;
        clients.0[0].check(scenario).await?;
        let calls = clients.run(scenario, model, self.load.warm_up, "warm-up");
        let (_, sample) = tokio::join!(calls, system.sample_commands(MONITOR_DURATION));
        sample?;
        Ok(clients)
    }
}

/// The clients of a benchmark.
pub(crate) struct Clients<'a>(Vec<Client<'a>>);

impl<'a> Clients<'a> {
    fn new(system: &System, data_set: &'a DataSet, count: usize) -> anyhow::Result<Self> {
        let channels = |url: &str| -> anyhow::Result<Vec<Channel>> {
            (0..CONNECTIONS).map(|_| remote::channel(url)).collect()
        };
        let gateway = channels(&system.urls().gateway)?;
        let relation = channels(&system.urls().relation)?;
        let client = |index: usize| {
            let random = SmallRng::seed_from_u64(data_set.seed ^ index as u64);
            let connection = index % CONNECTIONS;
            Client::new(data_set, gateway[connection].clone(), relation[connection].clone(), random)
        };
        Ok(Self((0..count).map(client).collect()))
    }

    /// Runs a scenario for a duration.
    pub(crate) async fn run(
        &self,
        scenario: Scenario,
        model: LoadModel,
        duration: Duration,
        label: &'static str,
    ) -> Measurements {
        let step = |client: usize| self.0[client % self.0.len()].perform(scenario);
        run_for(model, duration, label, step).await
    }
}

fn clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must not be 0".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}
