//! The servers that do nothing, one alone and the whole system of them, and the one that looks
//! something up.

use std::io::Write as _;

use anyhow::Context as _;
use tempfile::NamedTempFile;

use super::{
    chain::{Chain, Peer},
    recording::Recording,
};
use crate::{server::Server, system::Shape};

/// The subcommand that serves.
const SERVE: &str = "serve";

/// One server whose only method does nothing.
pub(crate) struct Echo(Server);

impl Echo {
    /// Starts it with so many worker threads; without a number, one per core.
    pub(crate) fn start(threads: Option<usize>) -> anyhow::Result<Self> {
        server(&arguments(threads, &Chain::default(), &[])).map(Self)
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        self.0.url()
    }
}

/// A server whose only method makes the calls of a chain, and the servers behind it.
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
        let callee = |_: &Peer| server(&arguments(threads, &Chain::default(), &[]));
        let behind = match shape {
            Shape::One => Vec::new(),
            Shape::Five => Peer::ALL.iter().map(callee).collect::<anyhow::Result<Vec<_>>>()?,
        };
        let urls: Vec<_> = behind.iter().map(Server::url).collect();
        let front = server(&arguments(threads, chain, &urls))?;
        Ok(Self { front, _behind: behind })
    }

    /// Returns where its front listens.
    pub(crate) fn url(&self) -> &str {
        self.front.url()
    }
}

/// A server whose only method makes the look-ups of calls that were recorded.
pub(crate) struct EchoWithLookUps {
    server: Server,
    _recorded: NamedTempFile,
}

impl EchoWithLookUps {
    /// Starts it on a Redis at this URL, with so many worker threads, or one per core.
    pub(crate) fn start(
        threads: Option<usize>,
        recording: &Recording,
        redis_url: &str,
    ) -> anyhow::Result<Self> {
        let mut recorded = NamedTempFile::with_prefix("microblog-load-")
            .context("cannot make a temporary file: choose another place with TMPDIR")?;
        recorded.write_all(&serde_json::to_vec(&recording.calls)?)?;
        let mut arguments = arguments(threads, &Chain::default(), &[]);
        arguments.push(format!("--look-ups={}", recorded.path().display()));
        // It has a password: everybody may read the flags of a process.
        let environment = [("MICROBLOG_REDIS_URL", redis_url)];
        let server = Server::start(SERVE, &arguments, &environment)?;
        Ok(Self { server, _recorded: recorded })
    }

    /// Returns where it listens.
    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }
}

fn server(arguments: &[String]) -> anyhow::Result<Server> {
    Server::start(SERVE, arguments, &[])
}

fn arguments(threads: Option<usize>, chain: &Chain, peers: &[&str]) -> Vec<String> {
    let threads = threads.unwrap_or(0);
    let mut arguments = vec![format!("--threads={threads}"), format!("--chain={chain}")];
    if !peers.is_empty() {
        arguments.push(format!("--peers={}", peers.join(",")));
    }
    arguments
}
