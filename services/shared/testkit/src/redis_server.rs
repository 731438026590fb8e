//! A single redis-server.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::sys::signal::Signal;
use redis::{AsyncConnectionConfig, Client, RedisResult, aio::MultiplexedConnection};
use tempfile::TempDir;

use crate::{
    PATIENCE,
    child_process::{ChildProcess, require},
    eventually, free_port,
    redis_config::{ADMIN, credentials, password, write_acl, write_config},
};

/// Connects to Redis or Sentinel with a long response timeout. The client's default is half a
/// second.
pub async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// A redis-server on a free port of 127.0.0.1, with the configuration and users of `deploy/redis`.
/// Dropping it kills it and deletes its data.
pub struct RedisServer {
    port: u16,
    tls_port: Option<u16>,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    directory: TempDir,
    running: Mutex<Option<ChildProcess>>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with further options: names and values as in `redis.conf`.
    pub async fn start_with(options: &[(&str, &str)]) -> Self {
        Self::start_in(options, &[]).await
    }

    /// Starts a server like [`Self::start_with`], with further environment variables.
    pub async fn start_in(options: &[(&str, &str)], environment: &[(String, String)]) -> Self {
        require("redis-server");
        let mut log = String::new();
        for _ in 0..5 {
            let server = Self::new(options, environment);
            // Another process may have taken the port; the server then exits at once.
            if server.run().await {
                return server;
            }
            log = server.log();
        }
        panic!("redis-server does not start:\n{log}");
    }

    /// Starts a replica of this server, and waits until it has the data.
    pub async fn start_replica(&self) -> Self {
        let mut without_delay = redis::cmd("CONFIG");
        without_delay.arg("SET").arg("repl-diskless-sync-delay").arg(0);
        without_delay.exec_async(&mut self.admin().await).await.expect("configure the primary");
        let (primary, secret) = (format!("127.0.0.1 {}", self.port), password(ADMIN));
        let replica = Self::start_with(&[
            ("replicaof", &primary),
            ("masteruser", ADMIN),
            ("masterauth", &secret),
        ])
        .await;
        replica.wait_until_in_sync().await;
        replica
    }

    /// Waits until this replica is in sync with its primary.
    pub(crate) async fn wait_until_in_sync(&self) {
        eventually("the replica is in sync with its primary", PATIENCE, async || {
            let mut info = redis::cmd("INFO");
            let info = info.arg("replication").query_async(&mut self.admin().await).await;
            info.is_ok_and(|info: String| info.contains("master_link_status:up"))
        })
        .await;
    }

    fn new(options: &[(&str, &str)], environment: &[(String, String)]) -> Self {
        let tls_port = options.iter().find(|(name, _)| *name == "tls-port");
        let tls_port = tls_port.map(|(_, port)| port.parse().expect("a port"));
        let options =
            options.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).into()]);
        let directory = TempDir::with_prefix("microblog-redis-").expect("make a directory");
        write_acl(&directory.path().join("users.acl"));
        write_config(&directory.path().join("redis.conf"));
        let (port, options, running) = (free_port(), options.collect(), Mutex::default());
        let environment = environment.to_vec();
        Self { port, tls_port, options, environment, directory, running }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the directory of its data and its log.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the port for TLS, if it has one.
    pub(crate) fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    /// Returns the URL for a user of `deploy/redis/users.acl`, over TLS.
    ///
    /// # Panics
    /// If it has no port for TLS.
    pub fn tls_url(&self, user: &str) -> String {
        let port = self.tls_port.expect("a port for TLS");
        format!("rediss://{}@127.0.0.1:{port}", credentials(user))
    }

    /// Returns the URL for a user of `deploy/redis/users.acl`, without TLS.
    pub fn url(&self, user: &str) -> String {
        format!("redis://{}@127.0.0.1:{}", credentials(user), self.port)
    }

    /// Returns the URL for an administrator with all permissions.
    pub fn admin_url(&self) -> String {
        self.url(ADMIN)
    }

    /// Returns a connection of the administrator.
    pub async fn admin(&self) -> MultiplexedConnection {
        self.connect().await.expect("connect to redis-server")
    }

    /// Connects as the administrator.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        connect(&self.admin_url()).await
    }

    /// Kills the server (SIGKILL), as a crash would.
    pub fn kill(&self) {
        drop(self.running().take());
    }

    /// Restarts the server with its data on the same port, and waits until it answers.
    pub async fn restart(&self) {
        self.kill();
        assert!(self.run().await, "redis-server does not start again:\n{}", self.log());
    }

    /// Deletes the data of a killed server. The node of a cluster stays in it.
    pub fn delete_data(&self) {
        // Neither exists before the first write.
        let _ = std::fs::remove_dir_all(self.directory().join("appendonlydir"));
        let _ = std::fs::remove_file(self.directory().join("dump.rdb"));
    }

    /// Stops the process (SIGSTOP): connections stay open, and the server does not answer.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Continues the process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Limits the size of its files (`RLIMIT_FSIZE`), or removes the limit. Writes beyond it fail, as on
    /// a full disk.
    ///
    /// # Panics
    /// If `prlimit` of util-linux is missing.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let id = self.running().as_ref().expect("redis-server runs").id();
        let mut prlimit = Command::new("prlimit");
        // Only the soft limit: an ordinary user can raise it again.
        prlimit.args([format!("--pid={id}"), format!("--fsize={limit}:")]);
        assert!(prlimit.status().is_ok_and(|it| it.success()), "prlimit: cannot limit the files");
    }

    /// Returns the number of calls of each command since the start or the last reset, by lower-case
    /// name (`zadd`, `function|load`). Commands inside functions count, and so does the INFO of
    /// this method.
    pub async fn commandstats(&self) -> HashMap<String, u64> {
        let info = self.commandstats_text().await;
        let calls = |line: &str| {
            let (name, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), statistics.split(',').next()?.parse().ok()?))
        };
        info.lines().filter_map(calls).collect()
    }

    /// Returns the microseconds that the server has spent in functions since the start or the last
    /// reset.
    pub async fn function_time(&self) -> f64 {
        let info = self.commandstats_text().await;
        let time = |line: &str| {
            let (_, statistics) = line.strip_prefix("cmdstat_fcall:")?.split_once("usec=")?;
            statistics.split(',').next()?.parse().ok()
        };
        info.lines().find_map(time).unwrap_or(0.0)
    }

    async fn commandstats_text(&self) -> String {
        let mut info = redis::cmd("INFO");
        info.arg("commandstats");
        info.query_async(&mut self.admin().await).await.expect("read commandstats")
    }

    /// Resets the statistics.
    pub async fn reset_commandstats(&self) {
        let mut command = redis::cmd("CONFIG");
        command.arg("RESETSTAT");
        command.exec_async(&mut self.admin().await).await.expect("reset commandstats");
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    // Starts the process. Returns false if it exits before it answers.
    async fn run(&self) -> bool {
        // At a limit of its files, writes fail in place of killing it.
        let script = r#"trap "" XFSZ; exec redis-server "$@""#;
        let mut args = vec!["-c".to_owned(), script.to_owned(), "redis-server".to_owned()];
        args.extend(self.args());
        let start = |command: &mut Command| {
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        };
        let running = ChildProcess::start_with("sh", &args, &self.log_file(), "KILL", start);
        *self.running() = Some(running);
        let mut is_running = true;
        eventually("redis-server answers", PATIENCE, async || {
            is_running =
                self.running().as_ref().is_some_and(|running| running.exit_status().is_none());
            !is_running || self.is_answering().await
        })
        .await;
        is_running
    }

    async fn is_answering(&self) -> bool {
        let Ok(mut connection) = self.connect().await else { return false };
        redis::cmd("PING").exec_async(&mut connection).await.is_ok()
    }

    fn args(&self) -> Vec<String> {
        let directory = self.directory.path().display();
        let port = self.port.to_string();
        let own = [
            ("bind", "127.0.0.1".to_owned()),
            ("port", port),
            ("dir", directory.to_string()),
            ("aclfile", format!("{directory}/users.acl")),
        ];
        let own = own.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]);
        [format!("{directory}/redis.conf")]
            .into_iter()
            .chain(own)
            .chain(self.options.iter().cloned())
            .collect()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("redis.log")
    }

    fn signal(&self, signal: Signal) {
        self.running().as_ref().expect("redis-server runs").signal(signal);
    }

    fn running(&self) -> MutexGuard<'_, Option<ChildProcess>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
