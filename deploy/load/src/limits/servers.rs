//! The servers that do nothing, one alone and the whole system of them.

use super::{
    chain::{Chain, Peer},
    child::Server,
};
use crate::system::Shape;

/// One server whose only method does nothing.
#[derive(Debug)]
pub(crate) struct Echo(Server);

impl Echo {
    /// Starts it with so many worker threads; without a number, one per core.
    pub(crate) fn start(threads: Option<usize>) -> anyhow::Result<Self> {
        Server::start(&arguments(threads, &Chain::default(), &[])).map(Self)
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        self.0.url()
    }
}

/// A server whose only method makes the calls of a chain, and the servers behind it.
#[derive(Debug)]
pub(crate) struct ChainSystem {
    front: Server,
    _behind: Vec<Server>,
}

impl ChainSystem {
    /// Starts it, with what is behind the front one in the same process and called without a network,
    /// or in a process for each service; each process with so many worker threads, or one per core.
    pub(crate) fn start(
        shape: Shape,
        chain: &Chain,
        threads: Option<usize>,
    ) -> anyhow::Result<Self> {
        let callee = |_: &Peer| Server::start(&arguments(threads, &Chain::default(), &[]));
        let behind = match shape {
            Shape::One => Vec::new(),
            Shape::Five => Peer::ALL.iter().map(callee).collect::<anyhow::Result<Vec<_>>>()?,
        };
        let urls: Vec<_> = behind.iter().map(Server::url).collect();
        let front = Server::start(&arguments(threads, chain, &urls))?;
        Ok(Self { front, _behind: behind })
    }

    /// Returns where its front listens.
    pub(crate) fn url(&self) -> &str {
        self.front.url()
    }
}

fn arguments(threads: Option<usize>, chain: &Chain, peers: &[&str]) -> Vec<String> {
    let threads = threads.unwrap_or(0);
    let mut arguments = vec![format!("--threads={threads}"), format!("--chain={chain}")];
    if !peers.is_empty() {
        arguments.push(format!("--peers={}", peers.join(",")));
    }
    arguments
}
