//! The subcommand `limits`: what the machine can do at best for calls, without the calls themselves.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Context as _;

use crate::{
    bench::Bench,
    ceiling::{self, Ceiling},
    limits::classical::recipes,
    outcome::write_json,
    scenario::Scenario,
    system::System,
};

/// Measures the limits of the machine for some scenarios, in calls a second.
///
/// Starts a system of its own, whose commands to Redis are recorded. The limits: `echo`, a server of
/// the same kind that does nothing; `chain`, one that makes as many calls as the gateway does to
/// servers that do nothing; `look-ups`, one that sends what a call looks up in Redis, in one round
/// trip; `redis`, the same with nothing around it. All with messages of the same sizes and as many
/// clients. `classical`, for view-followers: what Redis can do of a page's relations by temporary
/// keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenarios [default: all of which it is known of what calls they consist]
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
    /// How many followers the viewer and the listed account of `classical` have each
    #[arg(long, value_name = "COUNT", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    followers: u64,
    #[command(flatten)]
    bench: Bench,
}

/// The limits for a scenario.
#[derive(Debug, serde::Serialize)]
struct Line {
    scenario: Scenario,
    #[serde(flatten)]
    ceiling: Ceiling,
    classical: Option<f64>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let scenarios = match &args.scenarios[..] {
        [] => ceiling::planned(),
        named => named.to_vec(),
    };
    scenarios.iter().try_for_each(|&scenario| ceiling::plan(scenario).map(drop))?;
    let Args { bench, followers, .. } = args;
    let (system, world) = bench.start(&bench.graph.graph()?, &[]).await?;
    let Bench { layout, trial, .. } = bench;
    let mut lines = Vec::new();
    for scenario in scenarios {
        eprintln!("{}", scenario.name());
        let ceiling = layout.ceiling(&system, &world, scenario, &trial).await?;
        let classical = match scenario {
            Scenario::ViewFollowers => Some(classical(&system, followers).await?),
            _ => None,
        };
        lines.push(Line { scenario, ceiling, classical });
    }
    print!("{}", table(&lines));
    write_json(trial.json.as_deref(), &lines)?;
    Ok(ExitCode::SUCCESS)
}

async fn classical(system: &System, followers: u64) -> anyhow::Result<f64> {
    let admin = system.redis_client().context("the system's Redis is not known")?;
    Ok(1e6 / recipes(&admin, followers).await?.temporary_keys_us)
}

fn table(lines: &[Line]) -> String {
    let mut text = format!(
        "{:<16}{:>11}{:>11}{:>11}{:>11}{:>14}{:>11}\n",
        "calls/s", "echo", "chain", "look-ups", "redis", "chain+redis", "classical"
    );
    for Line { scenario, ceiling, classical } in lines {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<16}{:>11.0}{:>11.0}{:>11.0}{:>11.0}{:>14.0}{:>11}",
            scenario.name(),
            ceiling.echo,
            ceiling.chain,
            ceiling.look_ups,
            ceiling.redis,
            ceiling.chain_and_redis(),
            classical.map_or("-".to_owned(), |classical| format!("{classical:.0}")),
        );
    }
    text
}
