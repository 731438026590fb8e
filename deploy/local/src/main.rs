//! `microblog`: the whole of microblog on one machine in one process, and tools that call it.

mod demo;
mod export;
mod import;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use microblog_local::{edges, graph, keys, progress, remote, tls::Tls, up};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A microblog on one machine: accounts, a follow graph, posts and timelines behind gRPC.
///
/// Exits with 0 if all went well, 1 if something is not as it should be, 2 if the command could
/// not be carried out.
#[derive(Debug, Parser)]
#[command(name = "microblog", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<up::Args>),
    Import(import::Args),
    Demo(demo::Args),
    Verify(verify::Args),
    Export(export::Args),
}

fn main() -> ExitCode {
    let Cli { command, tls } = Cli::parse();
    let outcome = tls.apply().and_then(|()| match command {
        Command::Up(args) => up::run(&args),
        Command::Import(args) => call(import::run(args)),
        Command::Demo(args) => call(demo::run(args)),
        Command::Verify(args) => call(verify::run(args)),
        Command::Export(args) => call(export::run(args)),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// Runs a command that is a client of a running microblog.
fn call(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
