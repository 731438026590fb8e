//! What the machine can do at best for a scenario's calls, in the same minute and on the same data.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use microblog_keyspace::redis::Client;
use microblog_local::remote;
use rand::{SeedableRng as _, rngs::SmallRng};

use crate::{
    drive::drive,
    limits::{
        ChainSystem, Echo, EchoWithLookUps, Plan, Recording, Replayed, Target,
        plans::{self, Planning},
    },
    scenario::{Caller, PAGE, Scenario},
    services::told,
    system::{Shape, System},
    trial::{CONNECTIONS, Load, Trial},
    world::World,
};

/// How many calls are recorded to be replayed.
const RECORDED: usize = 300;

/// The scenarios of which it is known what calls they consist of.
const PLANNED: [(Scenario, Planning); 8] = [
    (Scenario::ViewFollowers, plans::view_followers),
    (Scenario::Relation, plans::one_pair),
    (Scenario::ViewUser, plans::view_user),
    (Scenario::Home, plans::view_home),
    (Scenario::UserTimeline, plans::view_user_timeline),
    (Scenario::Follow, plans::follow),
    (Scenario::Publish, plans::publish),
    (Scenario::Like, plans::like),
];

const UNKNOWN: &str = "the system's Redis is not known";

/// The layout of a system, and of what it is compared with.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Layout {
    /// The layout of the system
    #[arg(long = "layout", value_name = "LAYOUT", default_value = "one")]
    shape: Shape,
    /// The worker threads of each process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

/// Calls a second that are possible.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Ceiling {
    /// Of a server of the same kind that does nothing.
    pub(crate) echo: f64,
    /// Of one that makes as many calls as the gateway does to servers that do nothing.
    pub(crate) chain: f64,
    /// Of one that does nothing but the call's look-ups in Redis, in one round trip.
    pub(crate) look_ups: f64,
    /// Of Redis, with nothing around it.
    pub(crate) redis: f64,
    /// What is replayed of a call, and what it takes.
    replayed: Replayed,
}

impl Layout {
    /// Starts a system, with more in its environment than in this one's.
    pub(crate) async fn system(&self, environment: &[(String, String)]) -> anyhow::Result<System> {
        System::start(self.shape, self.threads, environment).await
    }

    /// Measures what is possible for a scenario.
    pub(crate) async fn ceiling(
        &self,
        system: &System,
        world: &World,
        scenario: Scenario,
        trial: &Trial,
    ) -> anyhow::Result<Ceiling> {
        let load = &trial.load;
        let plan = plan(scenario)?(world.pages(PAGE, plans::POSTS));
        let Self { shape, threads } = *self;
        let echo = {
            let server = Echo::start(threads)?;
            rate(server.url(), &plan, load).await?
        };
        let chain = {
            let server = ChainSystem::start(shape, &plan.chain, threads)?;
            rate(server.url(), &plan, load).await?
        };
        let admin = system.redis_client().context(UNKNOWN)?;
        // What is remembered when calls are measured is not looked up while they are recorded.
        drop(trial.warm(system, world, scenario, load.pace()).await?);
        system.rest().await?;
        let recording = record(&admin, system, world, scenario).await?;
        let look_ups = {
            let redis_url = system.redis_url().context(UNKNOWN)?;
            let server = EchoWithLookUps::start(threads, &recording, redis_url)?;
            rate(server.url(), &plan, load).await?
        };
        // Once more, so that what is first done costs the same.
        let warm_up = load.warm_up.min(Duration::from_secs(1));
        recording.replay(&admin, load.clients, warm_up).await?;
        let replayed = recording.replay(&admin, load.clients, load.duration).await?;
        Ok(Ceiling { echo, chain, look_ups, redis: replayed.calls_per_second, replayed })
    }
}

impl Ceiling {
    /// Returns how many calls a second are possible when each is both.
    pub(crate) fn chain_and_redis(&self) -> f64 {
        1.0 / (1.0 / self.chain + 1.0 / self.redis)
    }
}

/// Returns the scenarios whose limits can be measured.
pub(crate) fn planned() -> Vec<Scenario> {
    PLANNED.iter().map(|&(scenario, _)| scenario).collect()
}

/// Returns what tells what calls a scenario's are made of.
pub(crate) fn plan(scenario: Scenario) -> anyhow::Result<Planning> {
    let plan = PLANNED.iter().find(|(planned, _)| *planned == scenario);
    let unknown = || format!("it is not known of what calls {} consists", scenario.name());
    plan.map(|&(_, plan)| plan).with_context(unknown)
}

async fn rate(url: &str, plan: &Plan, load: &Load) -> anyhow::Result<f64> {
    let target = Target::new(url, CONNECTIONS, plan.sizes)?;
    let step = |client| target.call(client);
    drive(load.pace(), load.warm_up, "warm-up", step).await;
    let measured = drive(load.pace(), load.duration, "limit", step).await;
    ensure!(measured.failed() == 0, "calls of a server that does nothing: {:?}", measured.errors);
    Ok(measured.calls_per_second())
}

async fn record(
    admin: &Client,
    system: &System,
    world: &World,
    scenario: Scenario,
) -> anyhow::Result<Recording> {
    let gateway = remote::channel(&system.urls().gateway)?;
    let relation = remote::channel(&system.urls().relation)?;
    let caller = Caller::new(world, gateway, relation, SmallRng::seed_from_u64(world.seed));
    let call = async || remote::repeatedly(async || caller.perform(scenario).await).await;
    Recording::of(admin, RECORDED, async || told(call().await)).await
}
