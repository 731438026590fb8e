//! The subcommand `report`: what the machine can do at best for a call, and how near the
//! system comes to that, measured in the same minute.

mod benchmark;

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Context as _;

use crate::{
    bench::Bench,
    ceiling::{self, Ceiling},
    outcome::{Outcome, exit_code, table, write_json},
    scenario::{MIX, Scenario},
};

/// Measures each scenario beside the limits of the machine, and tells how near it comes.
///
/// Starts a system of its own. The limits: `echo`, a server of the same kind that does nothing;
/// `chain`, one that makes as many calls as the gateway does to servers that do nothing; `redis`,
/// the commands that a call sends, with nothing around them; `look-ups`, a server that sends these
/// commands in one round trip and does nothing else. All with messages of the same sizes and as many
/// clients. The ratios are to chain and redis one after the other, and to look-ups.
///
/// `mixed` is measured beside what redis-benchmark gets out of the same Redis by GET, and beside how
/// many operations there would be if each of its calls took as long as its chain and redis do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many keys redis-benchmark asks for
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    gets: u64,
    #[command(flatten)]
    bench: Bench,
}

/// All that was measured.
#[derive(Debug, serde::Serialize)]
struct Report {
    calls: Vec<Line>,
    mixed: Mixed,
}

/// A scenario and its limits.
#[derive(Debug, serde::Serialize)]
struct Line {
    outcome: Outcome,
    limits: Ceiling,
    /// To chain and redis.
    ratio: f64,
    ratio_to_look_ups: f64,
}

/// The mixed scenario and bare GETs.
#[derive(Debug, serde::Serialize)]
struct Mixed {
    outcome: Outcome,
    gets_per_second: f64,
    ratio: f64,
    /// Operations a second if each call took as long as its chain and redis.
    limit: f64,
    ratio_to_limit: f64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { bench, gets } = args;
    let (system, world) = bench.start(&bench.graph.graph()?, &[]).await?;
    system.settle().await?;
    let Bench { layout, trial, .. } = bench;
    let mut calls = Vec::new();
    for scenario in ceiling::planned() {
        eprintln!("{}", scenario.name());
        system.rest().await?;
        let limits = layout.ceiling(&system, &world, scenario, &trial).await?;
        let outcome = trial.measure(&system, &world, scenario, trial.load.pace()).await?;
        let ratio = outcome.calls_per_second / limits.chain_and_redis();
        let ratio_to_look_ups = outcome.calls_per_second / limits.look_ups;
        calls.push(Line { outcome, limits, ratio, ratio_to_look_ups });
    }
    eprintln!("{}", Scenario::Mixed.name());
    let redis_url = system.redis_url().context("the system's Redis is not known")?;
    // That Redis is still there.
    system.usage().await?;
    system.rest().await?;
    let gets_per_second = benchmark::gets_per_second(redis_url, trial.load.clients, gets)?;
    let outcome = trial.measure(&system, &world, Scenario::Mixed, trial.load.pace()).await?;
    let ratio = outcome.calls_per_second / gets_per_second;
    let limit = limit_of_mix(&calls)?;
    let ratio_to_limit = outcome.calls_per_second / limit;
    let mixed = Mixed { outcome, gets_per_second, ratio, limit, ratio_to_limit };
    let report = Report { calls, mixed };
    print!("{}", report.text());
    write_json(trial.json.as_deref(), &report)?;
    Ok(exit_code(report.outcomes()))
}

/// Returns how many operations of the mix there would be in a second if each of its calls took as
/// long as its chain and redis.
fn limit_of_mix(calls: &[Line]) -> anyhow::Result<f64> {
    let (mut operations, mut seconds) = (0.0, 0.0);
    for (scenario, share) in MIX {
        let line = calls.iter().find(|line| line.outcome.scenario == scenario.name());
        let line = line.with_context(|| format!("{} has no limits", scenario.name()))?;
        operations += f64::from(share);
        seconds += f64::from(share) / line.limits.chain_and_redis();
    }
    Ok(operations / seconds)
}

impl Report {
    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.calls.iter().map(|line| &line.outcome).chain([&self.mixed.outcome])
    }

    fn text(&self) -> String {
        let Mixed { outcome: mixed, gets_per_second, ratio, limit, ratio_to_limit } = &self.mixed;
        let mut text = table(&self.outcomes().cloned().collect::<Vec<_>>());
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "\n{:<16}{:>11}{:>11}{:>11}{:>11}{:>14}{:>8}{:>11}{:>8}",
            "calls/s",
            "system",
            "echo",
            "chain",
            "redis",
            "chain+redis",
            "ratio",
            "look-ups",
            "ratio"
        );
        for Line { outcome, limits, ratio, ratio_to_look_ups } in &self.calls {
            let _ = writeln!(
                text,
                "{:<16}{:>11.0}{:>11.0}{:>11.0}{:>11.0}{:>14.0}{:>8.2}{:>11.0}{:>8.2}",
                outcome.scenario,
                outcome.calls_per_second,
                limits.echo,
                limits.chain,
                limits.redis,
                limits.chain_and_redis(),
                ratio,
                limits.look_ups,
                ratio_to_look_ups
            );
        }
        let _ = writeln!(
            text,
            "\n{} {:.0} a second; redis-benchmark GET {gets_per_second:.0}; ratio {ratio:.3}; chain+redis \
             of its calls {limit:.0}; ratio {ratio_to_limit:.2}",
            mixed.scenario, mixed.calls_per_second
        );
        text
    }
}
