//! The subcommand `telemetry`: what it costs a system to tell a collector what it does.

pub(crate) mod collector;

use std::{env, fmt::Write as _, process::ExitCode};

use anyhow::ensure;

use self::collector::Collector;
use crate::{bench::Bench, outcome::write_json, scenario::Scenario};

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const SAMPLING: &str = "MICROBLOG_TRACE_SAMPLING";

/// Measures a scenario with telemetry beside the same without.
///
/// Starts two systems and a collector, which takes traces and metrics and drops them. The two are
/// measured in turn, each round in the other order.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What clients do
    #[arg(value_name = "SCENARIO", default_value = "mixed")]
    scenario: Scenario,
    /// How often each of the two is measured
    #[arg(long, value_name = "COUNT", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the calls that is traced, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    sampling: f64,
    #[command(flatten)]
    bench: Bench,
}

/// What was measured.
#[derive(Debug, serde::Serialize)]
struct Report {
    scenario: Scenario,
    sampling: f64,
    rounds: Vec<Round>,
    /// All calls with telemetry a second, to all without.
    ratio: f64,
    /// What came to the collector, in bytes.
    traces: u64,
    metrics: u64,
}

/// Calls a second.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Round {
    without: f64,
    with: f64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        env::var_os(ENDPOINT).is_none(),
        "{ENDPOINT} is set: there would be no system without telemetry"
    );
    let Args { scenario, sampling, bench, .. } = args;
    let list = bench.graph.graph()?;
    let collector = Collector::start()?;
    let told = [(ENDPOINT, collector.url().to_owned()), (SAMPLING, sampling.to_string())];
    let told = told.map(|(name, value)| (name.to_owned(), value));
    let systems = [bench.start(&list, &[]).await?, bench.start(&list, &told).await?];
    let Bench { trial, .. } = bench;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        let mut rates = [0.0; 2];
        for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (system, world) = &systems[place];
            let outcome = trial.measure(system, world, scenario, trial.load.pace()).await?;
            ensure!(outcome.errors.is_empty(), "calls failed: {:?}", outcome.errors);
            rates[place] = outcome.calls_per_second;
        }
        let [without, with] = rates;
        rounds.push(Round { without, with });
    }
    // A system that ends sends what is left.
    drop(systems);
    let [traces, metrics] = collector.taken().await?;
    ensure!(traces > 0 && metrics > 0, "no telemetry came: {traces} and {metrics} bytes");
    let ratio = sum(&rounds, |round| round.with) / sum(&rounds, |round| round.without);
    let report = Report { scenario, sampling, rounds, ratio, traces, metrics };
    print!("{}", report.text());
    write_json(trial.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn text(&self) -> String {
        let scenario = self.scenario.name();
        let mut text =
            format!("{scenario:<16}{:>12}{:>16}{:>8}\n", "calls/s", "with telemetry", "ratio");
        // Writing to a string does not fail.
        for (number, Round { without, with }) in (1..).zip(&self.rounds) {
            let name = format!("round {number}");
            let ratio = with / without;
            let _ = writeln!(text, "{name:<16}{without:>12.0}{with:>16.0}{ratio:>8.3}");
        }
        let rounds = self.rounds.len() as f64;
        let mean = |of| sum(&self.rounds, of) / rounds;
        let (without, with) = (mean(|round| round.without), mean(|round| round.with));
        let ratio = self.ratio;
        let _ = writeln!(text, "{:<16}{without:>12.0}{with:>16.0}{ratio:>8.3}", "all");
        let Self { sampling, traces, metrics, .. } = self;
        let _ = writeln!(
            text,
            "{traces} bytes of traces ({sampling} of the calls) and {metrics} of metrics came"
        );
        text
    }
}

fn sum(rounds: &[Round], of: fn(&Round) -> f64) -> f64 {
    rounds.iter().map(of).sum()
}
