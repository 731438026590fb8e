//! `microblog-load`: measures throughput, latency, CPU time and memory of a microblog deployment.

mod benchmark;
mod child_process;
mod data_set;
mod fan_out;
mod follow_graph;
mod load_driver;
mod memory;
mod raw_call;
mod redis_info;
mod results;
mod run;
mod scenario;
mod service_clients;
mod setup;
mod soak;
mod system;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load generator and benchmarks for a microblog that is running, or that it starts itself.
///
/// Exit codes: 0 success, 1 calls failed, 2 error.
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
    Soak(soak::Args),
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
        Command::Run(args) => block_on(run::run(args)),
        Command::FanOut(args) => block_on(fan_out::run(args)),
        Command::Memory(args) => block_on(memory::run(args)),
        Command::Soak(args) => block_on(soak::run(args)),
    }
}

/// Runs an asynchronous command on one thread.
fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
