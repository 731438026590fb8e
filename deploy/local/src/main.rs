//! `microblog`: runs servers in one process, on one machine or in production, and has tools that
//! call them.

mod changes;
mod demo;
mod export;
mod import;
mod restore;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use microblog_local::{edges, graph, keys, progress, remote, serve, tls::Tls, up};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A microblog on one machine: accounts, a follow graph, posts and timelines behind gRPC.
///
/// Exit codes: 0 success, 1 a check failed, 2 error.
#[derive(Parser)]
#[command(name = "microblog", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Subcommand)]
enum Command {
    Up(Box<up::Args>),
    Serve(Box<serve::Args>),
    Import(import::Args),
    Demo(demo::Args),
    Verify(verify::Args),
    Restore(restore::Args),
    Export(export::Args),
    Changes(changes::Args),
}

fn main() -> ExitCode {
    let Cli { command, tls } = Cli::parse();
    let outcome = tls.apply().and_then(|()| match command {
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Import(args) => block_on(import::run(args)),
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Verify(args) => block_on(verify::run(args)),
        Command::Restore(args) => block_on(restore::run(args)),
        Command::Export(args) => block_on(export::run(args)),
        Command::Changes(args) => block_on(changes::run(args)),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// Runs an asynchronous command on one thread.
fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
