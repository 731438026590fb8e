//! The subcommand `soak`: whether the memory of processes grows while clients call for a long time.

use std::{cell::RefCell, convert::Infallible, fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::ensure;
use humantime::parse_duration;
use tokio::time::{Instant, sleep};

use crate::{
    bench::Bench,
    outcome::{Outcome, exit_code, table, write_json},
    scenario::Scenario,
    system::{ProcessUsage, System},
};

/// Watches the memory of a system while clients call for a long time.
///
/// Starts a system of its own. Of each process, Redis' too: all of it that is in memory, and what of
/// that is anonymous, which leaves out the program's file.
#[derive(Debug, clap::Args)]
#[command(mut_arg("duration", |duration| duration.default_value("10m")))]
pub(crate) struct Args {
    /// What clients do
    #[arg(value_name = "SCENARIO", default_value = "mixed")]
    scenario: Scenario,
    /// How often memory is looked at
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    every: Duration,
    #[command(flatten)]
    bench: Bench,
}

/// What was seen.
#[derive(Debug, serde::Serialize)]
struct Report {
    outcome: Outcome,
    readings: Vec<Reading>,
}

/// The memory of all processes at one moment.
#[derive(Debug, serde::Serialize)]
struct Reading {
    /// Since before the first call of the warm-up.
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
    let Args { scenario, every, bench } = args;
    ensure!(!every.is_zero(), "--every must not be 0");
    let (system, world) = bench.start(&bench.graph.graph()?, &[]).await?;
    let Bench { trial, .. } = bench;
    let (pace, began) = (trial.load.pace(), Instant::now());
    let readings = RefCell::new(vec![Reading::of(&system, began).await?]);
    let clients = trial.warm(&system, &world, scenario, pace).await?;
    let watch = watch(&system, began, every, &readings);
    let before = system.usage().await?;
    let measured = tokio::select! {
        measured = clients.call(scenario, pace, trial.load.duration, "calls") => measured,
        seen = watch => match seen? {},
    };
    let usage = system.usage().await?.since(&before);
    let mut readings = readings.into_inner();
    readings.push(Reading::of(&system, began).await?);
    let report = Report { outcome: Outcome::new(scenario.name(), &measured, usage), readings };
    println!("{}", table(std::slice::from_ref(&report.outcome)));
    print!("{}", memory(&report.readings));
    write_json(trial.json.as_deref(), &report)?;
    Ok(exit_code([&report.outcome]))
}

/// Looks at memory every now and then.
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

/// Returns a table of readings, a line each.
fn memory(readings: &[Reading]) -> String {
    let mut text = format!("{:<10}", "MB");
    // Writing to a string does not fail.
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
