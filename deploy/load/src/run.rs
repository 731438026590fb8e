//! The subcommand `run`: one scenario, and what it took.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::ensure;
use humantime::parse_duration;
use microblog_local::{edges::EdgeList, remote};
use rand::{SeedableRng as _, rngs::SmallRng};
use tonic::transport::Channel;

use crate::{
    data,
    drive::{Pace, drive},
    outcome::{Outcome, table, write_json},
    scenario::{Caller, Scenario},
    system::{Shape, System, Urls},
    world::{self, World},
};

/// Calls share this many connections: with fewer, one of them is what is measured.
pub(crate) const CONNECTIONS: usize = 8;

/// How long Redis is asked for every command while the system warms up, to tell those that are sent
/// from those inside functions.
const LISTEN: Duration = Duration::from_millis(500);

/// Runs one scenario and tells how fast it was.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What clients do
    scenario: Scenario,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    trial: Trial,
}

/// What is measured, and with what.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Trial {
    #[command(flatten)]
    pub(crate) load: Load,
    #[command(flatten)]
    pub(crate) graph: data::Args,
    #[command(flatten)]
    pub(crate) world: world::Args,
    /// Writes what was measured to a file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Trial {
    /// Brings a graph into a system.
    pub(crate) async fn world(&self, system: &System, list: &EdgeList) -> anyhow::Result<World> {
        World::make(system.urls(), list, &self.world, self.graph.seed).await
    }

    /// Measures a scenario.
    pub(crate) async fn measure(
        &self,
        system: &System,
        world: &World,
        scenario: Scenario,
    ) -> anyhow::Result<Outcome> {
        measure(system, world, scenario, &self.load, self.graph.seed).await
    }
}

/// How much is called.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Load {
    /// So many clients make one call after the other
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub(crate) clients: usize,
    /// So many calls begin each second instead, whatever became of those before; a call's latency is
    /// counted from when it was due
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "clients")]
    pub(crate) rate: Option<f64>,
    /// For how long it is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// For how long it runs before that
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
}

impl Load {
    /// Returns how calls follow each other.
    pub(crate) fn pace(&self) -> anyhow::Result<Pace> {
        ensure!(self.clients > 0, "--clients must not be 0");
        match self.rate {
            None => Ok(Pace::Closed(self.clients)),
            Some(rate) => {
                ensure!(rate > 0.0 && rate.is_finite(), "--rate must be a number above 0");
                Ok(Pace::Open(rate))
            }
        }
    }
}

/// Where the system is.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Place {
    /// Starts a system of this layout, with a redis-server and data of its own, instead of calling
    /// one that runs
    #[arg(long, value_name = "LAYOUT")]
    start: Option<Shape>,
    /// The worker threads of each process that is started [default: one for each core]
    #[arg(long, value_name = "COUNT", requires = "start")]
    threads: Option<usize>,
    /// Where the gateway listens, the services on the next four ports
    #[arg(long, value_name = "URL", default_value = remote::GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
    /// Where the user service listens
    #[arg(long, value_name = "URL", default_value = remote::USER_URL, env = "MICROBLOG_USER_URL")]
    user_url: String,
    /// Where the relation service listens
    #[arg(long, value_name = "URL", default_value = remote::RELATION_URL, env = "MICROBLOG_RELATION_URL")]
    relation_url: String,
    /// Where the post service listens
    #[arg(long, value_name = "URL", default_value = remote::POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    /// Where the timeline service listens
    #[arg(long, value_name = "URL", default_value = remote::TIMELINE_URL, env = "MICROBLOG_TIMELINE_URL")]
    timeline_url: String,
}

impl Place {
    /// Starts the system, or takes the one that is there.
    pub(crate) async fn system(&self) -> anyhow::Result<System> {
        match self.start {
            Some(shape) => System::start(shape, self.threads, &[]).await,
            None => Ok(System::elsewhere(Urls {
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
    let Args { scenario, place, trial } = args;
    trial.load.pace()?;
    let list = trial.graph.graph()?;
    let system = place.system().await?;
    let world = trial.world(&system, &list).await?;
    let outcome = trial.measure(&system, &world, scenario).await?;
    print!("{}", table(std::slice::from_ref(&outcome)));
    write_json(trial.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a scenario, after it has run for a while.
async fn measure(
    system: &System,
    world: &World,
    scenario: Scenario,
    load: &Load,
    seed: u64,
) -> anyhow::Result<Outcome> {
    let pace = load.pace()?;
    let channels = (0..CONNECTIONS).map(|_| remote::channel(&system.urls().gateway));
    let channels: Vec<Channel> = channels.collect::<anyhow::Result<_>>()?;
    let callers: Vec<_> = (0..load.clients)
        .map(|client| {
            let channel = channels[client % CONNECTIONS].clone();
            Caller::new(world, channel, SmallRng::seed_from_u64(seed ^ client as u64))
        })
        .collect();
    let step = |client: usize| callers[client % callers.len()].perform(scenario);
    let (_, heard) =
        tokio::join!(drive(pace, load.warm_up, "warm-up", step), system.listen_in(LISTEN));
    heard?;
    let before = system.usage().await?;
    let measured = drive(pace, load.duration, "calls", step).await;
    let usage = system.usage().await?.since(&before);
    Ok(Outcome::new(scenario.name(), &measured, usage))
}
