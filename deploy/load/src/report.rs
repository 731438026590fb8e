//! The subcommand `report`: what the machine can do at best for a call, and how near the
//! system comes to that, measured in the same minute.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use microblog_keyspace::redis::Client;
use microblog_local::remote;
use rand::{SeedableRng as _, rngs::SmallRng};

use crate::{
    drive::drive,
    limits::{ChainSystem, Echo, Plan, Recording, Replayed, Target, plans},
    outcome::{Outcome, table, write_json},
    run::{CONNECTIONS, Load, Trial},
    scenario::{Caller, Scenario},
    system::{Shape, System},
    world::World,
};

/// How many calls are recorded to be replayed.
const RECORDED: usize = 300;

/// The scenarios whose calls behind the gateway are known.
const PLANNED: [(Scenario, fn() -> Plan); 7] = [
    (Scenario::ViewFollowers, plans::view_followers),
    (Scenario::Relation, plans::view_user),
    (Scenario::Home, plans::view_home),
    (Scenario::UserTimeline, plans::view_user_timeline),
    (Scenario::Follow, plans::follow),
    (Scenario::Publish, plans::publish),
    (Scenario::Like, plans::like),
];

/// Measures each scenario beside the limits of the machine, and tells how near it comes.
///
/// Starts a system of its own. The limits: `echo`, a server of the same kind that does nothing;
/// `chain`, one that makes as many calls as the gateway does to servers that do nothing; `redis`,
/// the commands that a call sends, with nothing around them. All with messages of the same sizes and
/// as many clients. `ratio` is to chain and redis one after the other.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The layout of the system
    #[arg(long, value_name = "LAYOUT", default_value = "one")]
    layout: Shape,
    /// The worker threads of each process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    #[command(flatten)]
    trial: Trial,
}

/// What the machine can do at best for a call.
#[derive(Clone, Debug, serde::Serialize)]
struct Limits {
    echo: f64,
    chain: f64,
    redis: f64,
    /// What is replayed of a call, and what it takes.
    replayed: Replayed,
}

impl Limits {
    /// Returns how many calls a second are possible when each is both.
    fn chain_and_redis(&self) -> f64 {
        1.0 / (1.0 / self.chain + 1.0 / self.redis)
    }
}

/// A scenario and its limits.
#[derive(Clone, Debug, serde::Serialize)]
struct Line {
    outcome: Outcome,
    limits: Limits,
    ratio: f64,
}

/// Runs `report`.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let list = args.trial.graph.graph()?;
    let system = System::start(args.layout, args.threads, &[]).await?;
    let world = args.trial.world(&system, &list).await?;
    let mut lines = Vec::new();
    for (scenario, plan) in PLANNED {
        eprintln!("{}", scenario.name());
        let limits = limits(&args, &system, &world, scenario, &plan()).await?;
        let outcome = args.trial.measure(&system, &world, scenario).await?;
        let ratio = outcome.calls_per_second / limits.chain_and_redis();
        lines.push(Line { outcome, limits, ratio });
    }
    let outcomes: Vec<_> = lines.iter().map(|line| line.outcome.clone()).collect();
    println!("{}", table(&outcomes));
    print!("{}", ratios(&lines));
    write_json(args.trial.json.as_deref(), &lines)?;
    Ok(ExitCode::SUCCESS)
}

async fn limits(
    args: &Args,
    system: &System,
    world: &World,
    scenario: Scenario,
    plan: &Plan,
) -> anyhow::Result<Limits> {
    let echo = {
        let server = Echo::start(args.threads)?;
        rate(&Target::new(server.url(), CONNECTIONS, plan.sizes)?, &args.trial.load).await?
    };
    let chain = {
        let server = ChainSystem::start(args.layout, &plan.chain, args.threads)?;
        rate(&Target::new(server.url(), CONNECTIONS, plan.sizes)?, &args.trial.load).await?
    };
    let admin = system.redis_client().context("the system's Redis is not known")?;
    let replayed = replay(args, &admin, system, world, scenario).await?;
    Ok(Limits { echo, chain, redis: replayed.calls_per_second, replayed })
}

async fn rate(target: &Target, load: &Load) -> anyhow::Result<f64> {
    let step = |client| target.call(client);
    drive(load.pace()?, load.warm_up, "warm-up", step).await;
    let measured = drive(load.pace()?, load.duration, "limit", step).await;
    let failed = measured.failed();
    anyhow::ensure!(failed == 0, "{failed} calls of a server that does nothing failed");
    Ok(measured.calls_per_second())
}

async fn replay(
    args: &Args,
    admin: &Client,
    system: &System,
    world: &World,
    scenario: Scenario,
) -> anyhow::Result<Replayed> {
    let channel = remote::channel(&system.urls().gateway)?;
    let caller = Caller::new(world, channel, SmallRng::seed_from_u64(args.trial.graph.seed));
    let recording = Recording::of(admin, RECORDED, async || {
        let done = caller.perform(scenario).await;
        done.map_err(|status| anyhow!("{}", remote::told(&status)))
    });
    let recording = recording.await?;
    // Once more, so that what is first done costs the same.
    let warm_up = args.trial.load.warm_up.min(Duration::from_secs(1));
    recording.replay(admin, args.trial.load.clients, warm_up).await?;
    recording.replay(admin, args.trial.load.clients, args.trial.load.duration).await
}

fn ratios(lines: &[Line]) -> String {
    let mut text = format!(
        "{:<16}{:>11}{:>11}{:>11}{:>11}{:>14}{:>8}\n",
        "calls/s", "system", "echo", "chain", "redis", "chain+redis", "ratio"
    );
    for Line { outcome, limits, ratio } in lines {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<16}{:>11.0}{:>11.0}{:>11.0}{:>11.0}{:>14.0}{:>8.2}",
            outcome.scenario,
            outcome.calls_per_second,
            limits.echo,
            limits.chain,
            limits.redis,
            limits.chain_and_redis(),
            ratio
        );
    }
    text
}
