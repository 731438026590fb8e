//! `microblog-load`: measures throughput, latency, CPU time and memory of a microblog deployment.

mod benchmark;
mod capacity;
mod child_process;
mod data_set;
mod follow_graph;
mod load_driver;
mod memory;
mod redis_info;
mod report;
mod results;
mod run;
mod scenario;
mod service_clients;
mod system;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load generator and benchmarks for a microblog that is running, or that it starts itself.
///
/// Exit codes: 0 success, 1 calls failed, 2 error.
#[derive(Debug, Parser)]
#[command(name = "microblog-load", version = microblog_chassis::VERSION)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Report(report::Args),
    Memory(memory::Args),
    Capacity(Box<capacity::Args>),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let work = async {
        match command {
            Command::Run(args) => run::run(*args).await,
            Command::Report(args) => report::run(args).await,
            Command::Memory(args) => memory::run(args).await,
            Command::Capacity(args) => capacity::run(*args).await,
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(work)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
