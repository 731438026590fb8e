//! A primary and its replica, watched by three Sentinels.

use std::path::Path;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    PATIENCE, RedisServer,
    child::Running,
    eventually, free_port,
    redis_server::connect,
    settings::{ADMIN, credentials, password},
};

/// The name under which the Sentinels know the primary.
const MASTER: &str = "main";

/// A primary, a replica and three Sentinels. Dropping it kills all.
pub struct Sentinels {
    primary: RedisServer,
    replica: RedisServer,
    sentinels: Vec<(u16, Running)>,
    _directory: TempDir,
}

/// A Sentinel without others. Dropping it kills it.
pub struct LoneSentinel {
    port: u16,
    _running: Running,
    _directory: TempDir,
}

impl LoneSentinel {
    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of its primary.
    pub fn master(&self) -> &'static str {
        MASTER
    }
}

impl Sentinels {
    /// Starts all and waits until the Sentinels know each other and the replica. A primary counts
    /// as dead so late that a busy machine's stall fails nothing over.
    pub async fn start() -> Self {
        Self::start_after(20_000).await
    }

    /// Starts all like [`Self::start`]; after half a second without an answer a primary counts as
    /// dead, for tests of a failover.
    pub async fn start_with_quick_failover() -> Self {
        Self::start_after(500).await
    }

    async fn start_after(down_after_ms: u32) -> Self {
        let secret = password(ADMIN);
        let auth = [("masteruser", ADMIN), ("masterauth", secret.as_str())];
        let quick = [("repl-diskless-sync-delay", "0")];
        let primary = RedisServer::start_with(&[auth.as_slice(), &quick].concat()).await;
        let place = format!("127.0.0.1 {}", primary.port());
        let follow = [("replicaof", place.as_str())];
        let replica = RedisServer::start_with(&[auth.as_slice(), &quick, &follow].concat()).await;
        let directory = TempDir::with_prefix("microblog-sentinels-").expect("make a directory");
        let start = |_| start_sentinel(directory.path(), &place, down_after_ms, 2, "");
        let sentinels: Vec<_> = (0..3).map(start).collect();
        let group = Self { primary, replica, sentinels, _directory: directory };
        for (port, running) in &group.sentinels {
            eventually("the sentinels know each other and the replica", PATIENCE, async || {
                assert!(running.ended().is_none(), "a sentinel ended:\n{}", running.log());
                knows_all(*port).await
            })
            .await;
        }
        group
    }

    /// Starts a Sentinel alone, with further lines of its configuration, of a primary at a host and a
    /// port, and returns it with its port. It may not be up yet.
    pub fn lone(place: &str, lines: &[(&str, &str)]) -> LoneSentinel {
        let directory = TempDir::with_prefix("microblog-sentinel-").expect("make a directory");
        let lines: String = lines.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        let (port, running) = start_sentinel(directory.path(), place, 20_000, 1, &lines);
        LoneSentinel { port, _running: running, _directory: directory }
    }

    /// Returns the group's address as one of the users in `deploy/redis/users.acl` reaches it.
    pub fn url(&self, user: &str) -> String {
        let places = self.sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}"));
        let places = places.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{}@{places}/{MASTER}", credentials(user))
    }

    /// Returns what was the primary at the start.
    pub fn primary(&self) -> &RedisServer {
        &self.primary
    }

    /// Returns what was the replica at the start.
    pub fn replica(&self) -> &RedisServer {
        &self.replica
    }

    /// Freezes the three Sentinels (SIGSTOP): they take connections, and never answer.
    pub fn pause_sentinels(&self) {
        self.sentinels.iter().for_each(|(_, running)| running.signal(Signal::SIGSTOP));
    }

    /// Kills one of the three Sentinels.
    pub fn kill_sentinel(&self, sentinel: usize) {
        self.sentinels[sentinel].1.kill();
    }
}

fn start_sentinel(
    directory: &Path,
    place: &str,
    down_after_ms: u32,
    quorum: usize,
    lines: &str,
) -> (u16, Running) {
    let port = free_port();
    let config = directory.join(format!("{port}.conf"));
    let secret = password(ADMIN);
    let text = format!(
        "bind 127.0.0.1\nport {port}\ndir {}\nsentinel monitor {MASTER} {place} {quorum}\n\
         sentinel auth-user {MASTER} {ADMIN}\nsentinel auth-pass {MASTER} {secret}\n\
         sentinel down-after-milliseconds {MASTER} {down_after_ms}\n\
         sentinel failover-timeout {MASTER} 3000\n{lines}",
        directory.display()
    );
    std::fs::write(&config, text).expect("write the sentinel's configuration");
    let args = [config.display().to_string(), "--sentinel".to_owned()];
    let log = directory.join(format!("{port}.log"));
    (port, Running::start("redis-server", &args, &log))
}

async fn knows_all(port: u16) -> bool {
    let url = format!("redis://127.0.0.1:{port}");
    let Ok(mut connection) = connect(&url).await else { return false };
    let mut question = redis::cmd("SENTINEL");
    let answer = question.arg("MASTER").arg(MASTER).query_async(&mut connection).await;
    let Ok(facts): Result<std::collections::HashMap<String, String>, _> = answer else {
        return false;
    };
    let is = |name: &str, value: &str| facts.get(name).is_some_and(|found| found == value);
    is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")
}
