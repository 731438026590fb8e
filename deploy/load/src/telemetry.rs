//! The subcommand `telemetry`: cost of exporting telemetry.

pub(crate) mod collector;

use std::{env, fmt::Write as _, process::ExitCode};

use anyhow::ensure;

use self::collector::Collector;
use crate::{results::write_json, scenario::Scenario, setup::Setup};

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const SAMPLING: &str = "MICROBLOG_TRACE_SAMPLING";

/// Compares a scenario with and without telemetry.
///
/// Starts two systems, and a collector that discards traces and metrics. Measures the systems
/// alternately and reverses the order in each round.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "SCENARIO", default_value = "mixed")]
    scenario: Scenario,
    /// Number of measurements of each system
    #[arg(long, value_name = "COUNT", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Sampling ratio of traces, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    sampling: f64,
    #[command(flatten)]
    setup: Setup,
}

/// The results.
#[derive(Debug, serde::Serialize)]
struct Report {
    scenario: Scenario,
    sampling: f64,
    rounds: Vec<Round>,
    /// Sum of the rates with telemetry divided by the sum without.
    ratio: f64,
    /// Bytes that the collector received.
    traces: u64,
    metrics: u64,
}

/// Calls per second of one round.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Round {
    without: f64,
    with: f64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    ensure!(
        env::var_os(ENDPOINT).is_none(),
        "{ENDPOINT} must not be set: one system runs without telemetry"
    );
    let Args { scenario, sampling, setup, .. } = args;
    let list = setup.graph.graph()?;
    let collector = Collector::start()?;
    let environment = [(ENDPOINT, collector.url().to_owned()), (SAMPLING, sampling.to_string())];
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    let systems = [setup.start(&list, &[]).await?, setup.start(&list, &environment).await?];
    let Setup { benchmark, .. } = setup;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        let mut rates = [0.0; 2];
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (system, data_set) = &systems[index];
            let outcome =
                benchmark.measure(system, data_set, scenario, benchmark.load.model()).await?;
            ensure!(outcome.errors.is_empty(), "calls failed: {:?}", outcome.errors);
            rates[index] = outcome.calls_per_second;
        }
        let [without, with] = rates;
        rounds.push(Round { without, with });
    }
    // A system exports the rest of its telemetry when it stops.
    drop(systems);
    let [traces, metrics] = collector.bytes_received().await?;
    ensure!(
        traces > 0 && metrics > 0,
        "the collector received no telemetry: traces {traces} bytes, metrics {metrics} bytes"
    );
    let ratio = sum(&rounds, |round| round.with) / sum(&rounds, |round| round.without);
    let report = Report { scenario, sampling, rounds, ratio, traces, metrics };
    print!("{}", report.text());
    write_json(benchmark.json.as_deref(), &report)?;
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn text(&self) -> String {
        let scenario = self.scenario.name();
        let mut text =
            format!("{scenario:<16}{:>12}{:>16}{:>8}\n", "calls/s", "with telemetry", "ratio");
        // `write!` to a `String` does not fail.
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
            "received {traces} bytes of traces ({sampling} of the calls) and {metrics} bytes of metrics"
        );
        text
    }
}

fn sum(rounds: &[Round], of: fn(&Round) -> f64) -> f64 {
    rounds.iter().map(of).sum()
}
