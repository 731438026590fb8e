//! Runs the selected trials, some at the same time.

use std::{
    any::Any,
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use futures::FutureExt as _;
use microblog_local::launch::Layout;
use tokio::{runtime::Builder, task::LocalSet};

use crate::{
    faults,
    report::{self, Row, Status},
    system::Setup,
    trial::{Bite, Fault, Trial, Verdict},
};

/// Violations that are printed of a trial.
const PRINTED: usize = 20;

/// How long networks lose or delay what passes: longer than all timeouts of calls and commands.
const IMPAIRED: Duration = Duration::from_secs(10);
/// In the long form.
const IMPAIRED_LONG: Duration = Duration::from_secs(60);

/// Injects faults into a microblog under load, and checks what its clients were promised.
///
/// Starts the programs that were built beside this one, with Redis and PostgreSQL servers of its own.
/// A fault of which nothing was seen makes its trial void, and the command fails. Prints a row of a
/// table when a trial ends.
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
    /// Also the other setups of each fault, and networks that fail for a minute: takes hours
    #[arg(long)]
    long: bool,
    /// Directory with the programs of another version: injects that these replace servers, too
    #[arg(long, value_name = "DIR")]
    other_programs: Option<PathBuf>,
    /// The trials that run at the same time
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// Seed of the clients' choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The calls that are acknowledged before a fault
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Prints each result as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let faults = faults::all(args.other_programs.as_deref());
    for name in &args.only {
        ensure!(faults.iter().any(|fault| fault.name == *name), "there is no fault `{name}`");
    }
    let trials = selected(&faults, args);
    if args.list {
        for (fault, setup) in &trials {
            println!("{} ({setup}): {}. Seen: {}", fault.name, fault.injected, fault.bites);
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!trials.is_empty(), "no fault has such a setup");
    if !args.json {
        report::print_header();
    }
    let (next, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(fault, setup)) = trials.get(number) else { return Ok(()) };
            let row = reported(fault, setup, args)?;
            if args.json {
                println!("{}", serde_json::to_string(&row)?);
            } else {
                println!("{row}");
            }
            if row.status == Status::Passed {
                passed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let began = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..args.jobs).map(|_| scope.spawn(work)).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<()>>| flatten(thread.join());
        threads.into_iter().try_for_each(join)
    })?;
    let passed = passed.into_inner();
    eprintln!("{passed} of {} trials passed in {} s", trials.len(), began.elapsed().as_secs());
    Ok(ExitCode::from(u8::from(passed < trials.len())))
}

/// Returns the trials that the arguments select.
fn selected<'a>(faults: &'a [Fault], args: &Args) -> Vec<(&'a Fault, Setup)> {
    let is_named = |fault: &&Fault| args.only.is_empty() || args.only.contains(&fault.name);
    let faults = faults.iter().filter(is_named);
    let setups = |fault: &'a Fault| {
        fault.setups.iter().chain(fault.further_setups.iter().filter(|_| args.long))
    };
    let trials = faults.flat_map(|fault| setups(fault).map(move |&setup| (fault, setup)));
    let is_wanted = |setup: Setup| args.layout.is_none_or(|layout| layout == setup.layout);
    trials.filter(|&(_, setup)| is_wanted(setup)).collect()
}

/// Runs a trial in this thread, and prints how it goes.
fn reported(fault: &Fault, setup: Setup, args: &Args) -> Result<Row> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    eprintln!("{} ({setup}): ...", fault.name);
    let row = LocalSet::new().block_on(&runtime, trial(fault, setup, args));
    let Row { status, seconds, violations, logs, .. } = &row;
    let mut report = format!("{} ({setup}): {status:?} in {seconds} s", fault.name);
    for violation in violations.iter().take(PRINTED) {
        report += &format!("\n  {violation}");
    }
    if let Some(logs) = logs {
        report += &format!("\n  logs: {}", logs.display());
    }
    eprintln!("{report}");
    Ok(row)
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
    let impairment = if args.long { IMPAIRED_LONG } else { IMPAIRED };
    let start = Trial::start(setup, args.seed, args.calls, impairment);
    let started = std::panic::AssertUnwindSafe(start).catch_unwind().await;
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
