//! Benchmark of one scenario on one system: clients, warm-up, measurement.

use std::{
    convert::Infallible,
    future::pending,
    path::PathBuf,
    time::{Duration, Instant},
};

use humantime::parse_duration;
use microblog_local::remote;
use rand::{SeedableRng as _, rngs::SmallRng};
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::{
    data_set::{self, DataSet},
    load_driver::{LoadModel, Measurements, run_for},
    results::{self, ScenarioResult},
    scenario::{Client, Scenario},
    system::System,
};

/// Connections that the clients share. With fewer, a connection is the bottleneck.
const CONNECTIONS: usize = 8;

/// Clients, unless their number is given.
pub(crate) const CLIENTS: usize = 64;

/// Benchmark options.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Benchmark {
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Duration of the warm-up
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    warm_up: Duration,
    #[command(flatten)]
    pub(crate) data_set: data_set::Args,
    /// Also writes the results to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Benchmark {
    /// Warms a scenario up and measures it, until all deliveries are done. Prints the memory of each
    /// process at an interval, if one is given.
    pub(crate) async fn measure(
        &self,
        system: &System,
        data_set: &DataSet,
        scenario: Scenario,
        model: LoadModel,
        every: Option<Duration>,
    ) -> anyhow::Result<ScenarioResult> {
        // Background work of earlier calls.
        system.wait_until_quiescent().await?;
        let clients = Clients::new(system, data_set, model)?;
        clients.0[0].check(scenario).await?;
        clients.run(scenario, model, self.warm_up, "warm-up").await;
        // Delivery to followers is part of a publish call. Deliveries of the warm-up are not
        // measured.
        system.wait_until_delivered().await?;
        let before = system.usage().await?;
        let began = Instant::now();
        let mut measured = tokio::select! {
            measured = clients.run(scenario, model, self.duration, "calls") => measured,
            failed = print_memory(system, began, every) => match failed? {},
        };
        system.wait_until_delivered().await?;
        measured.seconds = began.elapsed().as_secs_f64();
        let usage = system.usage().await?.since(&before);
        Ok(ScenarioResult::new(results::name(scenario), &measured, usage))
    }
}

/// Prints the memory of each process periodically, if there is an interval.
async fn print_memory(
    system: &System,
    began: Instant,
    every: Option<Duration>,
) -> anyhow::Result<Infallible> {
    let Some(every) = every else { return pending().await };
    loop {
        sleep(every).await;
        let seconds = began.elapsed().as_secs_f64();
        for process in system.usage().await?.processes {
            println!("{seconds:>8.1} s  {}", process.memory());
        }
    }
}

/// The clients of a benchmark.
struct Clients<'a>(Vec<Client<'a>>);

impl<'a> Clients<'a> {
    fn new(system: &System, data_set: &'a DataSet, model: LoadModel) -> anyhow::Result<Self> {
        let count = match model {
            LoadModel::Closed(count) => count,
            LoadModel::Open(_) => CLIENTS,
        };
        let gateway = (0..CONNECTIONS).map(|_| remote::channel(&system.urls().gateway));
        let gateway: Vec<Channel> = gateway.collect::<anyhow::Result<_>>()?;
        let client = |index: usize| {
            let random = SmallRng::seed_from_u64(data_set.seed ^ index as u64);
            Client::new(data_set, gateway[index % CONNECTIONS].clone(), random)
        };
        Ok(Self((0..count).map(client).collect()))
    }

    /// Runs a scenario for a duration.
    async fn run(
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

/// Parses a number of clients.
pub(crate) fn clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must not be 0".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}
