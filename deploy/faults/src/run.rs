//! Runs the selected faults one after the other.

use std::{any::Any, fs, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use futures::FutureExt as _;
use microblog_local::launch::Layout;

use crate::{
    faults,
    report::{self, Row, Status},
    system::Setup,
    trial::{Bite, Fault, Trial, Verdict},
};

/// Violations that are printed of a trial.
const PRINTED: usize = 20;

/// Injects faults into a microblog under load, and checks what its clients were promised.
///
/// Starts the programs that were built beside this one, with Redis and PostgreSQL servers of its own.
/// A fault of which nothing was seen makes its trial void, and the command fails.
///
/// Exit codes: 0 all passed, 1 a trial failed or was void, 2 error.
#[derive(Debug, Parser)]
#[command(name = "microblog-faults", version)]
pub(crate) struct Args {
    /// Prints the faults and their setups, and runs none
    #[arg(long)]
    list: bool,
    /// The faults to inject. Default: all
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only setups with this process layout
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// Directory with the programs of another version: injects that these replace servers, too
    #[arg(long, value_name = "DIR")]
    other_programs: Option<PathBuf>,
    /// Seed of the clients' choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The calls that are acknowledged before a fault
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Prints the results as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let mut faults = faults::all(args.other_programs.as_deref());
    for name in &args.only {
        ensure!(faults.iter().any(|fault| fault.name == *name), "there is no fault `{name}`");
    }
    faults.retain(|fault| args.only.is_empty() || args.only.contains(&fault.name));
    for fault in &mut faults {
        fault.setups.retain(|setup| args.layout.is_none_or(|layout| layout == setup.layout));
    }
    let trials: Vec<(&Fault, Setup)> =
        faults.iter().flat_map(|fault| fault.setups.iter().map(move |it| (fault, *it))).collect();
    if args.list {
        for (fault, setup) in trials {
            println!("{} ({setup}): {}. Seen: {}", fault.name, fault.injected, fault.bites);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    for (fault, setup) in trials {
        eprintln!("{} ({setup}): ...", fault.name);
        let row = trial(fault, setup, &args).await;
        eprintln!("{} ({setup}): {:?} in {} s", fault.name, row.status, row.seconds);
        row.violations.iter().take(PRINTED).for_each(|violation| eprintln!("  {violation}"));
        row.logs.iter().for_each(|logs| eprintln!("  logs: {}", logs.display()));
        rows.push(row);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        report::print(&rows);
    }
    ensure!(!rows.is_empty(), "no fault has such a setup");
    let passed = rows.iter().all(|row| row.status == Status::Passed);
    Ok(ExitCode::from(u8::from(!passed)))
}

/// Runs a fault in a setup. A panic of the test servers is a failure.
async fn trial(fault: &Fault, setup: Setup, args: &Args) -> Row {
    let began = Instant::now();
    let mut row = Row {
        fault: fault.name.clone(),
        setup,
        injected: fault.injected.clone(),
        bite: String::new(),
        checked: String::new(),
        status: Status::Failed,
        seconds: 0,
        violations: Vec::new(),
        logs: None,
    };
    let started = std::panic::AssertUnwindSafe(Trial::start(setup, args.seed, args.calls))
        .catch_unwind()
        .await;
    match flatten(started) {
        Ok(mut trial) => {
            let run = std::panic::AssertUnwindSafe(trial.run(fault)).catch_unwind().await;
            match flatten(run) {
                Ok(verdict) => fill(&mut row, verdict),
                Err(error) => row.violations.push(format!("{error:#}")),
            }
            if row.status != Status::Passed {
                row.logs = keep_logs(&trial).ok();
            }
        }
        Err(error) => row.violations.push(format!("the system does not start: {error:#}")),
    }
    row.seconds = began.elapsed().as_secs();
    row
}

fn fill(row: &mut Row, verdict: Verdict) {
    let Verdict { bite, checked, acknowledged } = verdict;
    row.status = match &bite {
        _ if !checked.violations.is_empty() => Status::Failed,
        Bite::Seen(_) => Status::Passed,
        Bite::Missed(_) => Status::Void,
    };
    row.bite = bite.text();
    row.checked = format!(
        "{acknowledged} acknowledged calls, {} comparisons, {} lost; `verify`",
        checked.comparisons, checked.lost
    );
    row.violations = checked.violations;
}

fn flatten<T>(outcome: Result<Result<T>, Box<dyn Any + Send>>) -> Result<T> {
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(anyhow!(text.unwrap_or_default()))
    })
}

/// Writes the logs of the clients and the servers to a directory that stays.
fn keep_logs(trial: &Trial) -> Result<PathBuf> {
    let directory = tempfile::Builder::new().prefix("microblog-faults-logs-").tempdir()?.keep();
    fs::write(directory.join("clients.log"), trial.load.shared.log.to_string())?;
    for (number, (name, log)) in trial.system.logs().into_iter().enumerate() {
        fs::write(directory.join(format!("{number:02}-{name}.log")), log)?;
    }
    Ok(directory)
}
