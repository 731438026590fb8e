//! A Redis primary and its replica, monitored by three Sentinels.

use std::path::Path;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    PATIENCE, RedisServer,
    child_process::ChildProcess,
    eventually, free_port,
    redis_config::{ADMIN, credentials, password},
    redis_server::connect,
};

/// The name of the primary in the Sentinels' configuration.
const MASTER: &str = "main";

/// A primary, a replica and three Sentinels. Dropping it kills all of them.
pub struct Sentinels {
    primary: RedisServer,
    replica: RedisServer,
    sentinels: Vec<(u16, ChildProcess)>,
    _directory: TempDir,
}

/// A single Sentinel. Dropping it kills it.
pub struct LoneSentinel {
    port: u16,
    _running: ChildProcess,
    _directory: TempDir,
}

impl LoneSentinel {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the monitored primary.
    pub fn master(&self) -> &'static str {
        MASTER
    }
}

impl Sentinels {
    /// Starts all processes and waits until the Sentinels know each other and the replica.
    /// `down-after-milliseconds` is long, so that a stall of a busy machine causes no failover.
    pub async fn start() -> Self {
        Self::start_with_timeout(20_000).await
    }

    /// Starts all processes like [`Self::start`], with `down-after-milliseconds` at 500, for
    /// failover tests.
    pub async fn start_with_quick_failover() -> Self {
        Self::start_with_timeout(500).await
    }

    /// Starts all processes like [`Self::start`], with this `down-after-milliseconds`.
    pub async fn start_with_timeout(down_after_ms: u32) -> Self {
        let secret = password(ADMIN);
        let auth = [("masteruser", ADMIN), ("masterauth", secret.as_str())];
        let quick = [("repl-diskless-sync-delay", "0")];
        let primary = RedisServer::start_with(&[auth.as_slice(), &quick].concat()).await;
        let address = format!("127.0.0.1 {}", primary.port());
        let replicaof = [("replicaof", address.as_str())];
        let replica =
            RedisServer::start_with(&[auth.as_slice(), &quick, &replicaof].concat()).await;
        let directory = TempDir::with_prefix("microblog-sentinels-").expect("make a directory");
        let start = |_| start_sentinel(directory.path(), &address, down_after_ms, 2, "");
        let sentinels: Vec<_> = (0..3).map(start).collect();
        let group = Self { primary, replica, sentinels, _directory: directory };
        for (port, running) in &group.sentinels {
            eventually("the sentinels know each other and the replica", PATIENCE, async || {
                assert!(running.exit_status().is_none(), "a sentinel exited:\n{}", running.log());
                knows_all(*port).await
            })
            .await;
        }
        group
    }

    /// Starts a single Sentinel that monitors the primary at `address` (host and port), with
    /// additional configuration lines. It does not wait until the Sentinel answers.
    pub fn lone(address: &str, lines: &[(&str, &str)]) -> LoneSentinel {
        let directory = TempDir::with_prefix("microblog-sentinel-").expect("make a directory");
        let lines: String = lines.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        let (port, running) = start_sentinel(directory.path(), address, 20_000, 1, &lines);
        LoneSentinel { port, _running: running, _directory: directory }
    }

    /// Returns the group's URL for a user of `deploy/redis/users.acl`.
    pub fn url(&self, user: &str) -> String {
        let addresses = self.sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}"));
        let addresses = addresses.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{}@{addresses}/{MASTER}", credentials(user))
    }

    /// Returns the initial primary.
    pub fn primary(&self) -> &RedisServer {
        &self.primary
    }

    /// Returns the initial replica.
    pub fn replica(&self) -> &RedisServer {
        &self.replica
    }

    /// Stops the three Sentinels (SIGSTOP): they accept connections and do not answer.
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
    address: &str,
    down_after_ms: u32,
    quorum: usize,
    lines: &str,
) -> (u16, ChildProcess) {
    let port = free_port();
    let config = directory.join(format!("{port}.conf"));
    let secret = password(ADMIN);
    let text = format!(
        "bind 127.0.0.1\nport {port}\ndir {}\nsentinel monitor {MASTER} {address} {quorum}\n\
         sentinel auth-user {MASTER} {ADMIN}\nsentinel auth-pass {MASTER} {secret}\n\
         sentinel down-after-milliseconds {MASTER} {down_after_ms}\n\
         sentinel failover-timeout {MASTER} 3000\n{lines}",
        directory.display()
    );
    std::fs::write(&config, text).expect("write the sentinel's configuration");
    let args = [config.display().to_string(), "--sentinel".to_owned()];
    let log = directory.join(format!("{port}.log"));
    (port, ChildProcess::start("redis-server", &args, &log))
}

async fn knows_all(port: u16) -> bool {
    let url = format!("redis://127.0.0.1:{port}");
    let Ok(mut connection) = connect(&url).await else { return false };
    let mut command = redis::cmd("SENTINEL");
    let answer = command.arg("MASTER").arg(MASTER).query_async(&mut connection).await;
    let Ok(fields): Result<std::collections::HashMap<String, String>, _> = answer else {
        return false;
    };
    let is = |name: &str, value: &str| fields.get(name).is_some_and(|found| found == value);
    is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")
}
