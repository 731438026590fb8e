//! What calls look up in Redis, made by a handler that does nothing else: the very commands that
//! were recorded, over a connection as services have it.

use std::{
    fs::File,
    io::BufReader,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, ensure};
use microblog_chassis::Worker;
use microblog_domain::Partition;
use microblog_keyspace::{
    Batch, Config, Keyspace, Library,
    redis::{Cmd, cmd},
};
use tonic::Status;

use super::recording::Command;

/// Never loaded: the functions that are called are those of the services.
const LIBRARY: Library = Library { name: "load", source: "" };

/// The look-ups of calls, which are made in turn.
pub(super) struct LookUps {
    keyspace: Keyspace,
    calls: Vec<Vec<Cmd>>,
    next: AtomicUsize,
}

impl LookUps {
    /// Reads the commands of calls from a file. Each worker begins elsewhere.
    pub(super) fn open(config: &Config, file: &Path, worker: Worker) -> anyhow::Result<Self> {
        let named = || format!("cannot read look-ups from {}", file.display());
        let file = BufReader::new(File::open(file).with_context(named)?);
        let calls: Vec<Vec<Command>> = serde_json::from_reader(file).with_context(named)?;
        ensure!(!calls.is_empty(), "there are no look-ups");
        let next = AtomicUsize::new(worker.index * calls.len() / worker.count);
        let commands = |call: Vec<Command>| call.into_iter().filter_map(command).collect();
        let calls = calls.into_iter().map(commands).collect();
        Ok(Self { keyspace: Keyspace::open(config, LIBRARY)?, calls, next })
    }

    /// Sends what one call looks up, all of it together, and waits for the answers.
    pub(super) async fn make(&self) -> Result<(), Status> {
        let call = &self.calls[self.next.fetch_add(1, Ordering::Relaxed) % self.calls.len()];
        let mut batch = Batch::with_capacity(call.len());
        for command in call {
            // A single server has all partitions.
            batch.query(Partition::new(0), command.clone());
        }
        let answers = self.keyspace.send(batch).await;
        answers.map(drop).map_err(|error| Status::unavailable(error.to_string()))
    }
}

fn command(words: Command) -> Option<Cmd> {
    let (name, arguments) = words.split_first()?;
    let mut command = cmd(std::str::from_utf8(name).ok()?);
    for argument in arguments {
        command.arg(argument);
    }
    Some(command)
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn calls_are_made_in_turn_with_their_own_commands() {
        let server = RedisServer::start().await;
        let recorded = tempfile::NamedTempFile::new().unwrap();
        let add = |key: &str| ["RPUSH", key, "\r\n"].map(|word| word.as_bytes().to_vec()).to_vec();
        let calls = [vec![add("a"), add("b")], vec![add("a")]];
        std::fs::write(recorded.path(), serde_json::to_vec(&calls).unwrap()).unwrap();
        let config = Config::at(server.admin_url());
        let second = Worker { index: 1, count: 2 };
        let look_ups = LookUps::open(&config, recorded.path(), second).unwrap();
        let mut admin = server.admin().await;
        for lengths in [[1, 0], [2, 1], [3, 1]] {
            look_ups.make().await.unwrap();
            for (key, length) in ["a", "b"].into_iter().zip(lengths) {
                let found: u64 = cmd("LLEN").arg(key).query_async(&mut admin).await.unwrap();
                assert_eq!(found, length, "{key}");
            }
        }
        std::fs::write(recorded.path(), "[]").unwrap();
        assert!(LookUps::open(&config, recorded.path(), second).is_err());
    }
}
