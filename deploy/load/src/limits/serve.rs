//! The hidden subcommand: a server that does nothing, in a process of its own.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::ensure;
use microblog_chassis::{self as chassis, Listening, Worker};
use microblog_keyspace as keyspace;

use super::{
    chain::{Chain, Peer},
    empty::Empty,
    look_ups::LookUps,
};
use crate::server::end_with_parent;

/// Serves calls that do nothing, to be compared with.
#[derive(Debug, clap::Args)]
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

    /// Look-ups to make in Redis before each answer, as the commands of calls in JSON
    #[arg(long, value_name = "FILE")]
    look_ups: Option<PathBuf>,

    #[command(flatten)]
    redis: keyspace::Config,

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
    let listen = move |worker: Worker| {
        let listening = listen(&args, worker).map_err(Error);
        async { listening }
    };
    Ok(chassis::run(&config, listen))
}

fn listen(args: &Args, worker: Worker) -> anyhow::Result<Vec<Listening>> {
    let peers = peers(args)?;
    let mut service = Empty::new(&args.chain, |peer| peers[peer as usize].clone())?;
    if let Some(file) = &args.look_ups {
        service = service.with(LookUps::open(&args.redis, file, worker)?);
    }
    Ok(vec![Listening { address: args.listen, service: service.service() }])
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
