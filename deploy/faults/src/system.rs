//! A running system: the real programs, their Redis and their databases.

mod certificates;
mod clocks;
mod commands;
mod database;
mod files;
mod network;
mod redis;

use std::{cell::RefCell, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use microblog_local::{
    keys::Keys,
    launch::{self, Layout, Ports, Urls, program},
};
use microblog_testkit::Process;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Serialize;
use tempfile::TempDir;

pub(crate) use self::{
    certificates::{Certificates, identity_key},
    clocks::Clock,
    commands::recorded_versions,
    database::{Database, DatabaseKind},
    files::Copy,
    network::{DELAY, Passage, Proxy},
    redis::{Redis, StoreKind, erase},
};

/// Longer than any write of a server that nobody waits for any more, in milliseconds.
pub(crate) const WRITE_BUDGET_MS: u64 = 2_000;

/// The replicas of each service with [`Layout::Five`]. There is one gateway.
const REPLICAS: u16 = 2;
/// From the port of a service to that of its other replica.
const REPLICA_PORTS: u16 = 4;

/// A server drains for two seconds, and completes the calls that it has.
const STOPPED: Duration = Duration::from_secs(30);

/// The setting of logs with which servers log that they have read changed files.
const LOGS_RELOADS: &str = "warn,microblog_files=info";

/// When writes are acknowledged (`--durability`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// When Redis has them
    Local,
    /// When a replica has them
    Replicated,
    /// When the database has them
    Recorded,
}

/// What a system consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    pub(crate) store: StoreKind,
    pub(crate) database: DatabaseKind,
    pub(crate) level: Level,
    pub(crate) equipment: Equipment,
}

/// What only some faults need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Equipment {
    Nothing,
    /// A standby of PostgreSQL.
    Standby,
    /// The clocks of all servers and of Redis can be set.
    Clocks,
    /// TLS and signed identities between the servers.
    Tls,
}

impl Setup {
    /// Returns the setup of `microblog up` at a level.
    pub(crate) const fn one(level: Level) -> Self {
        let (store, database) = (StoreKind::Single, DatabaseKind::Sqlite);
        let equipment = Equipment::Nothing;
        Self { layout: Layout::Colocated, store, database, level, equipment }
    }

    /// Returns processes for each service at a level, with PostgreSQL.
    pub(crate) const fn five(store: StoreKind, level: Level) -> Self {
        let (database, equipment) = (DatabaseKind::Postgres, Equipment::Nothing);
        Self { layout: Layout::Five, store, database, level, equipment }
    }

    /// Returns this setup with the other stores, and with TLS if there is no other equipment.
    pub(crate) fn elsewhere(self) -> Vec<Self> {
        let stores = [StoreKind::Sentinel, StoreKind::Cluster];
        let with_tls = Some(self.with(Equipment::Tls));
        let with_tls = with_tls.filter(|_| self.equipment == Equipment::Nothing);
        stores.map(|store| Self { store, ..self }).into_iter().chain(with_tls).collect()
    }

    /// Returns this setup with an equipment.
    pub(crate) const fn with(self, equipment: Equipment) -> Self {
        Self { equipment, ..self }
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layout, store, database, level, equipment } = self;
        let text = format!("{level:?}, {layout:?}, {store:?}, {database:?}").to_lowercase();
        f.write_str(&text)?;
        match equipment {
            Equipment::Nothing => Ok(()),
            equipment => write!(f, ", {}", format!("{equipment:?}").to_lowercase()),
        }
    }
}

/// A server: how to start it, and its process while it runs.
pub(crate) struct Server {
    /// Of its program. Replicas have the same.
    pub(crate) name: &'static str,
    /// Of the services that it serves.
    urls: Vec<String>,
    port: u16,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    process: RefCell<Option<Process>>,
}

impl Server {
    fn start(&self) -> anyhow::Result<()> {
        self.start_program(&program(self.name)?)
    }

    fn start_program(&self, path: &Path) -> anyhow::Result<()> {
        let path = path.to_str().context("the program's path is not UTF-8")?;
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        let process = Process::spawn_command(self.port, path, &args, &environment);
        *self.process.borrow_mut() = Some(process);
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let process = self.process.borrow();
        let id = process.as_ref().context("the server does not run")?.id();
        Ok(kill(Pid::from_raw(id.try_into()?), signal)?)
    }
}

/// A running system. Dropping it stops its processes and deletes its data.
pub(crate) struct System {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    /// With [`Equipment::Tls`].
    pub(crate) certificates: Option<Certificates>,
    urls: Urls,
    servers: Vec<Server>,
    /// Between the servers, and between each and its Redis if that is a single server. None if all
    /// are in one process.
    proxies: Vec<Proxy>,
    /// The names and logs of servers that were stopped.
    logs: RefCell<Vec<(&'static str, String)>>,
    directory: TempDir,
}

impl System {
    /// Starts a system, and waits until all servers are SERVING.
    pub(crate) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-faults-")?;
        let ports = Ports::free()?;
        let redis = Redis::start(setup, directory.path(), ports).await?;
        let database = Database::start(setup, directory.path()).await?;
        let certificates = match setup.equipment {
            Equipment::Tls => Some(Certificates::new()?),
            _ => None,
        };
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let urls = ports.urls_with(scheme, Keys::default());
        let urls = Urls { gateway: ports.urls().gateway, ..urls };
        let (servers, proxies) = match setup.layout {
            Layout::Colocated => (launcher(&database, directory.path(), ports, &urls)?, Vec::new()),
            Layout::Five => separate(&redis, &database, ports, scheme).await?,
        };
        let level = format!("{:?}", setup.level).to_lowercase();
        let mut system = Self {
            redis,
            database,
            certificates,
            urls,
            servers,
            proxies,
            logs: RefCell::default(),
            directory,
        };
        let clock = match setup.equipment {
            Equipment::Clocks => Clock::Servers.prepare(system.directory.path())?.to_vec(),
            _ => Vec::new(),
        };
        for server in &mut system.servers {
            let common = launch::DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned()));
            server.environment.extend(common);
            if let Some(certificates) = &system.certificates {
                let service = server.name.trim_start_matches("microblog-");
                server.environment.extend(certificates.of_server(service));
                let log = ("MICROBLOG_LOG".to_owned(), LOGS_RELOADS.to_owned());
                server.environment.push(log);
            }
            server.environment.extend(clock.iter().cloned());
            for (name, value) in [
                ("MICROBLOG_DURABILITY", level.as_str()),
                ("MICROBLOG_THREADS", "1"),
                ("MICROBLOG_WRITE_BUDGET_MS", &WRITE_BUDGET_MS.to_string()),
            ] {
                server.environment.push((name.to_owned(), value.to_owned()));
            }
        }
        system.start_servers().await?;
        Ok(system)
    }

    /// Returns the URLs of the servers.
    pub(crate) fn urls(&self) -> &Urls {
        &self.urls
    }

    /// Starts all servers that do not run, and waits until all are SERVING.
    pub(crate) async fn start_servers(&self) -> anyhow::Result<()> {
        let mut stopped = self.servers.iter().filter(|server| !server.is_running());
        stopped.try_for_each(Server::start)?;
        self.wait_until_serving().await;
        Ok(())
    }

    /// Copies the data of the database. Stops what uses them meanwhile.
    pub(crate) async fn copy_database(&self) -> anyhow::Result<Copy> {
        self.stop_database();
        let copy = self.database.copy()?;
        self.start_database().await?;
        Ok(copy)
    }

    /// Replaces the data of the database by a copy. Returns whether they differed.
    pub(crate) async fn put_back_database(&self, copy: &Copy) -> anyhow::Result<bool> {
        self.stop_database();
        let differed = self.database.put_back(copy)?;
        self.start_database().await?;
        Ok(differed)
    }

    /// Kills PostgreSQL, or the servers that have SQLite's files open.
    fn stop_database(&self) {
        match self.database.server() {
            Some(server) => server.kill(),
            None => self.kill_servers(),
        }
    }

    async fn start_database(&self) -> anyhow::Result<()> {
        match self.database.server() {
            Some(server) => server.restart().await,
            None => self.start_servers().await?,
        }
        Ok(())
    }

    /// Kills all servers (SIGKILL).
    fn kill_servers(&self) {
        self.servers.iter().for_each(|server| self.kill(server));
    }

    /// Kills a server (SIGKILL).
    pub(crate) fn kill(&self, server: &Server) {
        if let Some(process) = server.process.borrow_mut().take() {
            process.kill9();
            self.logs.borrow_mut().push((server.name, process.log()));
        }
    }

    /// Kills all replicas of a server (SIGKILL), by the name of its program.
    pub(crate) fn kill_all(&self, name: &str) -> anyhow::Result<()> {
        self.replicas(name)?.into_iter().for_each(|server| self.kill(server));
        Ok(())
    }

    /// Stops a server (SIGTERM), which exits with 0.
    async fn stop(&self, server: &Server) -> anyhow::Result<()> {
        let process = server.process.take().context("the server does not run")?;
        process.terminate();
        let status = process.ended(STOPPED).await;
        self.logs.borrow_mut().push((server.name, process.log()));
        ensure!(status.success(), "{} exits with {status} after SIGTERM", server.name);
        Ok(())
    }

    /// Stops a server (SIGTERM), starts it again, and waits until all are SERVING.
    pub(crate) async fn restart(&self, server: &Server) -> anyhow::Result<()> {
        self.stop(server).await?;
        self.start_servers().await
    }

    /// Replaces a server by another version of its program, and waits until all are SERVING.
    pub(crate) async fn replace(&self, server: &Server, programs: &Path) -> anyhow::Result<()> {
        self.stop(server).await?;
        server.start_program(&programs.join(server.name))?;
        self.wait_until_serving().await;
        Ok(())
    }

    /// Returns the servers, callees first.
    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the replicas of a server, by the name of its program.
    pub(crate) fn replicas(&self, name: &str) -> anyhow::Result<Vec<&Server>> {
        let replicas: Vec<_> = self.servers.iter().filter(|server| server.name == name).collect();
        ensure!(!replicas.is_empty(), "there is no server {name}");
        Ok(replicas)
    }

    /// Closes the connections between the servers, and to a single Redis.
    pub(crate) fn close_connections(&self) {
        self.proxies.iter().for_each(Proxy::close_connections);
    }

    /// Returns the proxies of a caller, or of all, to a callee.
    pub(crate) fn proxies(&self, caller: Option<&str>, callee: &str) -> Vec<&Proxy> {
        let is_one = |proxy: &&Proxy| {
            proxy.callee == callee && caller.is_none_or(|caller| caller == proxy.caller)
        };
        self.proxies.iter().filter(is_one).collect()
    }

    /// Returns how many lines of the logs have a text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let lines = |(_, log): &(_, String)| log.lines().filter(|line| line.contains(text)).count();
        self.logs().iter().map(lines).sum()
    }

    /// Returns the names and logs of all servers, stopped ones first, and those of the stores.
    pub(crate) fn logs(&self) -> Vec<(&'static str, String)> {
        let mut logs = self.logs.borrow().clone();
        for server in &self.servers {
            logs.extend(server.process.borrow().iter().map(|it| (server.name, it.log())));
        }
        logs.extend(self.redis.logs().into_iter().map(|log| ("redis", log)));
        logs.extend(self.database.log().map(|log| ("postgres", log)));
        logs
    }
}

/// `microblog up`.
fn launcher(
    database: &Database,
    directory: &Path,
    ports: Ports,
    urls: &Urls,
) -> anyhow::Result<Vec<Server>> {
    let data = redis::data_dir(directory).display().to_string();
    let flags = ["up", "--data-dir", &data, "--port-base", &ports.base().to_string()];
    let mut environment = vec![("MICROBLOG_DATABASE_URL".to_owned(), String::new())];
    for service in database::RECORDED {
        let url = database.url(service).context("`microblog up` has databases")?;
        environment.push((format!("MICROBLOG_{}_DATABASE_URL", service.to_uppercase()), url));
    }
    Ok(vec![Server {
        name: "microblog",
        urls: urls.all().map(str::to_owned).to_vec(),
        port: ports.base(),
        args: flags.map(str::to_owned).to_vec(),
        environment,
        process: RefCell::default(),
    }])
}

/// Two processes for each service, and one for the gateway, with proxies between them.
async fn separate(
    redis: &Redis,
    database: &Database,
    ports: Ports,
    scheme: &str,
) -> anyhow::Result<(Vec<Server>, Vec<Proxy>)> {
    let (mut servers, mut proxies) = (Vec::new(), Vec::new());
    for (caller, name, offset, callees) in [
        ("user", "microblog-user", 1, &[][..]),
        ("relation", "microblog-relation", 2, &[]),
        ("timeline", "microblog-timeline", 4, &[("relation", 2), ("post", 3)]),
        ("post", "microblog-post", 3, &[("timeline", 4)]),
        (
            "gateway",
            "microblog-gateway",
            0,
            &[("user", 1), ("relation", 2), ("post", 3), ("timeline", 4)],
        ),
    ] {
        let is_gateway = caller == "gateway";
        for replica in 0..if is_gateway { 1 } else { REPLICAS } {
            let port = ports.at(offset + replica * REPLICA_PORTS);
            let mut args = vec![format!("--listen=127.0.0.1:{port}")];
            for &(callee, offset) in callees {
                let mut urls = Vec::new();
                for replica in 0..REPLICAS {
                    let port = ports.at(offset + replica * REPLICA_PORTS);
                    let proxy = Proxy::start(caller, callee, port).await?;
                    urls.push(format!("{scheme}://127.0.0.1:{}", proxy.port()));
                    proxies.push(proxy);
                }
                args.push(format!("--{callee}-url={}", urls.join(",")));
            }
            let database_url = database.url(caller).unwrap_or_default();
            let mut environment = vec![("MICROBLOG_DATABASE_URL".to_owned(), database_url)];
            if !is_gateway {
                let mut url = redis.url(caller)?;
                if let Redis::Single(server) = redis {
                    let proxy = Proxy::start(caller, "redis", server.port()).await?;
                    let [to, by] = [server.port(), proxy.port()].map(|port| format!(":{port}"));
                    url = url.replace(&to, &by);
                    proxies.push(proxy);
                }
                environment.push(("MICROBLOG_REDIS_URL".to_owned(), url));
            }
            let scheme = if is_gateway { "http" } else { scheme };
            let urls = vec![format!("{scheme}://127.0.0.1:{port}")];
            let process = RefCell::default();
            servers.push(Server { name, urls, port, args, environment, process });
        }
    }
    Ok((servers, proxies))
}
