//! `microblog-load`: measures throughput, latency, processor time and memory of a microblog.

mod bench;
mod child;
mod data;
mod drive;
mod fan_out;
mod info;
mod memory;
mod outcome;
mod raw;
mod run;
mod scenario;
mod server;
mod services;
mod soak;
mod system;
mod telemetry;
mod trial;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures a microblog that runs somewhere, or one that it starts itself.
///
/// Exits with 0 if it measured, and 2 if it could not.
#[derive(Debug, Parser)]
#[command(name = "microblog-load", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    FanOut(fan_out::Args),
    Memory(memory::Args),
    Telemetry(telemetry::Args),
    Soak(soak::Args),
    #[command(hide = true)]
    Collect(telemetry::collector::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => call(run::run(args)),
        Command::FanOut(args) => call(fan_out::run(args)),
        Command::Memory(args) => call(memory::run(args)),
        Command::Telemetry(args) => call(telemetry::run(args)),
        Command::Soak(args) => call(soak::run(args)),
        Command::Collect(args) => telemetry::collector::run(args),
    }
}

/// Runs a command that calls others, in one thread.
fn call(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
