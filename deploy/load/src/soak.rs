//! The subcommand `soak`: memory growth under sustained load.

use std::{cell::RefCell, convert::Infallible, fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::ensure;
use humantime::parse_duration;
use tokio::time::{Instant, sleep};

use crate::{
    results::{ScenarioResult, exit_code, table, write_json},
    scenario::Scenario,
    setup::Setup,
    system::{ProcessUsage, System},
};

/// Samples the memory of a system under sustained load.
///
/// Starts its own system. For each process, including Redis: resident memory, and the anonymous
/// part of it, which excludes file mappings such as the program.
#[derive(Debug, clap::Args)]
#[command(mut_arg("duration", |duration| duration.default_value("10m")))]
pub(crate) struct Args {
    /// The scenario
    #[arg(value_name = "SCENARIO", default_value = "mixed")]
    scenario: Scenario,
    /// Sampling interval
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    every: Duration,
    #[command(flatten)]
    setup: Setup,
}

/// The results.
#[derive(Debug, serde::Serialize)]
struct Report {
    outcome: ScenarioResult,
    readings: Vec<Reading>,
}

/// Memory of all processes at one time.
#[derive(Debug, serde::Serialize)]
struct Reading {
    /// Seconds since before the warm-up.
    seconds: f64,
    processes: Vec<Memory>,
}

#[derive(Debug, serde::Serialize)]
struct Memory {
    name: String,
    resident_bytes: u64,
    anonymous_bytes: u64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { scenario, every, setup } = args;
    ensure!(!every.is_zero(), "--every must not be 0");
    let (system, data_set) = setup.start(&setup.graph.graph()?).await?;
    let Setup { benchmark, .. } = setup;
    let (model, began) = (benchmark.load.model(), Instant::now());
    let readings = RefCell::new(vec![Reading::of(&system, began).await?]);
    let clients = benchmark.warm_up(&system, &data_set, scenario, model).await?;
    let watch = watch(&system, began, every, &readings);
    let before = system.usage().await?;
    let measured = tokio::select! {
        measured = clients.run(scenario, model, benchmark.load.duration, "calls") => measured,
        seen = watch => match seen? {},
    };
    let usage = system.usage().await?.since(&before);
    let mut readings = readings.into_inner();
    readings.push(Reading::of(&system, began).await?);
    let report =
        Report { outcome: ScenarioResult::new(scenario.name(), &measured, usage), readings };
    println!("{}", table(std::slice::from_ref(&report.outcome)));
    print!("{}", memory(&report.readings));
    write_json(benchmark.json.as_deref(), &report)?;
    Ok(exit_code([&report.outcome]))
}

/// Samples memory periodically.
async fn watch(
    system: &System,
    began: Instant,
    every: Duration,
    readings: &RefCell<Vec<Reading>>,
) -> anyhow::Result<Infallible> {
    loop {
        sleep(every).await;
        let reading = Reading::of(system, began).await?;
        readings.borrow_mut().push(reading);
    }
}

impl Reading {
    async fn of(system: &System, began: Instant) -> anyhow::Result<Self> {
        let memory = |process: ProcessUsage| Memory {
            name: process.name,
            resident_bytes: process.resident_bytes,
            anonymous_bytes: process.anonymous_bytes,
        };
        let processes = system.usage().await?.processes.into_iter().map(memory).collect();
        Ok(Self { seconds: began.elapsed().as_secs_f64(), processes })
    }
}

/// Returns a table with a row per sample.
fn memory(readings: &[Reading]) -> String {
    let mut text = format!("{:<10}", "MB");
    // `write!` to a `String` does not fail.
    for process in readings.first().iter().flat_map(|reading| &reading.processes) {
        let _ = write!(text, "{:>22}{:>11}", process.name, "anonymous");
    }
    for Reading { seconds, processes } in readings {
        let _ = write!(text, "\n{:<10}", format!("{seconds:.1} s"));
        for Memory { resident_bytes, anonymous_bytes, .. } in processes {
            let megabytes = |bytes: &u64| *bytes as f64 / 1e6;
            let (all, own) = (megabytes(resident_bytes), megabytes(anonymous_bytes));
            let _ = write!(text, "{all:>22.1}{own:>11.1}");
        }
    }
    text + "\n"
}
