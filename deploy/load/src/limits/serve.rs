//! The hidden subcommand: a server that does nothing, in a process of its own.

use std::{net::SocketAddr, process::ExitCode};

use anyhow::ensure;
use microblog_chassis::{self as chassis, Listening, Worker};

use super::{
    chain::{Chain, Peer},
    empty::Empty,
};

/// Serves calls that do nothing, to be compared with.
#[derive(Debug, clap::Args)]
// As `microblog up` logs, and where it listens.
#[command(mut_arg("log", |log| log.default_value("warn,microblog_chassis::process=info")))]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The calls that each call makes, such as user:56:15,relation:9:700;post:9:60
    #[arg(long, value_name = "CALLS", default_value = "")]
    chain: Chain,

    /// Where user, relation, post and timeline are; without it they are in this process
    #[arg(long, value_name = "URL,URL,URL,URL", value_delimiter = ',')]
    peers: Vec<String>,

    #[command(flatten)]
    chassis: chassis::Config,
}

/// Why a worker does not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve: {0:#}")]
struct Error(anyhow::Error);

/// Serves until it is told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let peers = args.peers.len();
    ensure!(peers == 0 || peers == Peer::ALL.len(), "--peers needs {} URLs", Peer::ALL.len());
    end_with_parent()?;
    let config = args.chassis.clone();
    let listen = move |_worker: Worker| {
        let listening = listen(&args).map_err(Error);
        async { listening }
    };
    Ok(chassis::run(&config, listen))
}

fn listen(args: &Args) -> anyhow::Result<Vec<Listening>> {
    let peers = peers(args)?;
    let service = Empty::new(&args.chain, |peer| peers[peer as usize].clone())?.service();
    Ok(vec![Listening { address: args.listen, service }])
}

/// Returns the peers in the order of their discriminants.
fn peers(args: &Args) -> anyhow::Result<Vec<chassis::Peer>> {
    let config = &args.chassis;
    if args.peers.is_empty() {
        let callee = || {
            let nobody = |_| unreachable!("an empty chain calls nobody");
            let service = Empty::new(&Chain::default(), nobody)?.service();
            anyhow::Ok(chassis::Peer::local(&service, config))
        };
        return Peer::ALL.iter().map(|_| callee()).collect();
    }
    let remote = |url: &String| Ok(chassis::Peer::remote(url, config)?);
    args.peers.iter().map(remote).collect()
}

/// Has the kernel end this process when the one that started it ends, however it does.
#[cfg(target_os = "linux")]
fn end_with_parent() -> anyhow::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?)
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() -> anyhow::Result<()> {
    Ok(())
}
