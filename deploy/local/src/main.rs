//! `microblog`: runs servers in one process, on one machine or in production, and has tools that
//! call them. Under the name of a service's program, such as `microblog-user`, it is that program: so
//! the image and releases have one program with links to it, not seven that are mostly the same.

mod call;
mod changes;
mod demo;
mod export;
mod import;
mod import_posts;
mod verify;

use std::{
    env,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use microblog_local::{
    edges, graph, input, keys, progress, remote, serve, services::Server, tls::Tls, up,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A microblog on one machine: accounts, a follow graph, posts and timelines behind gRPC.
///
/// Exit codes: 0 success, 1 a check failed, 2 error.
#[derive(Parser)]
#[command(name = "microblog", version = microblog_chassis::VERSION)]
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
    ImportPosts(import_posts::Args),
    Demo(demo::Args),
    Verify(verify::Args),
    Export(export::Args),
    Changes(changes::Args),
    Call(call::Args),
    /// Prints a script with which a shell completes commands and options; bash and zsh also methods.
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(microblog completion bash)
  microblog completion zsh > ~/.zfunc/_microblog     # a directory of $fpath
  microblog completion fish > ~/.config/fish/completions/microblog.fish";

fn main() -> ExitCode {
    let name = env::args_os().next().unwrap_or_default();
    if let Some(server) = Server::of_program(Path::new(&name)) {
        return server.main();
    }
    let Cli { command, tls } = Cli::parse();
    let outcome = tls.apply().and_then(|()| match command {
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Import(args) => block_on(import::run(args)),
        Command::ImportPosts(args) => block_on(import_posts::run(args)),
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Verify(args) => block_on(verify::run(args)),
        Command::Export(args) => block_on(export::run(args)),
        Command::Changes(args) => block_on(changes::run(args)),
        Command::Call(args) => block_on(call::run(args)),
        Command::Completion { shell } => print_completion(shell),
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

fn print_completion(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "microblog", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
