//! One scenario on one system: clients, their warm-up, and what was measured.

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
    drive::{Measured, Pace, drive},
    outcome::Outcome,
    scenario::{Caller, Scenario},
    system::System,
    world::{self, World},
};

/// Calls share this many connections: with fewer, one of them is what is measured.
pub(crate) const CONNECTIONS: usize = 8;

/// How long Redis is asked for every command while the system warms up, to tell those that are sent
/// from those inside functions.
const LISTEN: Duration = Duration::from_millis(500);

/// What is measured with.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Trial {
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) world: world::Args,
    /// Writes what was measured to a file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// How much is called.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Load {
    /// So many clients make one call after the other
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clients)]
    pub(crate) clients: usize,
    /// For how long it is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// For how long it runs before that
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
}

/// Calls that do not wait for those before.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Rate {
    /// So many calls begin each second instead, whatever became of those before; a call's latency is
    /// counted from when it was due
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    rate: Option<f64>,
}

impl Rate {
    /// Returns how calls follow each other.
    pub(crate) fn pace(&self, load: &Load) -> anyhow::Result<Pace> {
        match self.rate {
            None => Ok(load.pace()),
            Some(rate) => {
                ensure!(rate > 0.0 && rate.is_finite(), "--rate must be a number above 0");
                Ok(Pace::Open(rate))
            }
        }
    }
}

impl Load {
    /// Returns how calls follow each other: each when the one before was answered.
    pub(crate) fn pace(&self) -> Pace {
        Pace::Closed(self.clients)
    }
}

impl Trial {
    /// Brings a graph into a system.
    pub(crate) async fn world(
        &self,
        system: &System,
        list: &EdgeList,
        seed: u64,
    ) -> anyhow::Result<World> {
        World::make(system.urls(), list, &self.world, seed).await
    }

    /// Measures a scenario, after it has run for a while: until nothing of it is on its way.
    pub(crate) async fn measure(
        &self,
        system: &System,
        world: &World,
        scenario: Scenario,
        pace: Pace,
    ) -> anyhow::Result<Outcome> {
        let clients = self.warm(system, world, scenario, pace).await?;
        // A post that was taken in is brought to followers, which is part of it; of those before, not.
        system.delivered().await?;
        let before = system.usage().await?;
        let began = Instant::now();
        let mut measured = clients.call(scenario, pace, self.load.duration, "calls").await;
        system.delivered().await?;
        measured.seconds = began.elapsed().as_secs_f64();
        let usage = system.usage().await?.since(&before);
        Ok(Outcome::new(scenario.name(), &measured, usage))
    }

    /// Returns clients that have made calls for a while already, which make sense. What was left of
    /// the calls before these is done by then.
    pub(crate) async fn warm<'a>(
        &self,
        system: &System,
        world: &'a World,
        scenario: Scenario,
        pace: Pace,
    ) -> anyhow::Result<Clients<'a>> {
        system.rest().await?;
        let clients = Clients::new(system, world, self.load.clients)?;
        clients.0[0].check(scenario).await?;
        let calls = clients.call(scenario, pace, self.load.warm_up, "warm-up");
        let (_, heard) = tokio::join!(calls, system.listen_in(LISTEN));
        heard?;
        Ok(clients)
    }
}

/// Those who call.
pub(crate) struct Clients<'a>(Vec<Caller<'a>>);

impl<'a> Clients<'a> {
    fn new(system: &System, world: &'a World, count: usize) -> anyhow::Result<Self> {
        let channels = |url: &str| -> anyhow::Result<Vec<Channel>> {
            (0..CONNECTIONS).map(|_| remote::channel(url)).collect()
        };
        let gateway = channels(&system.urls().gateway)?;
        let relation = channels(&system.urls().relation)?;
        let caller = |client: usize| {
            let random = SmallRng::seed_from_u64(world.seed ^ client as u64);
            let connection = client % CONNECTIONS;
            Caller::new(world, gateway[connection].clone(), relation[connection].clone(), random)
        };
        Ok(Self((0..count).map(caller).collect()))
    }

    /// Has them call for some time.
    pub(crate) async fn call(
        &self,
        scenario: Scenario,
        pace: Pace,
        duration: Duration,
        label: &'static str,
    ) -> Measured {
        let step = |client: usize| self.0[client % self.0.len()].perform(scenario);
        drive(pace, duration, label, step).await
    }
}

fn clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must not be 0".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}
