//! A running system: the real programs, their Redis and their databases.

mod certificates;
mod clocks;
mod commands;
mod database;
mod files;
mod network;
mod redis;
mod server;

use std::{cell::RefCell, fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use microblog_local::{
    keys::Keys,
    launch::{self, Layout, Ports, Urls},
};
use microblog_testkit::free_ports;
use serde::Serialize;
use tempfile::TempDir;

pub(crate) use self::{
    certificates::{Certificates, identity_key},
    clocks::Clock,
    database::{Database, DatabaseKind},
    files::Copy,
    network::{DELAY, Passage, Proxy},
    redis::{Redis, StoreKind, erase, has_data},
    server::Server,
};

use crate::feed;

/// Longer than any write of a server that nobody waits for any more, in milliseconds.
pub(crate) const WRITE_BUDGET_MS: u64 = 2_000;

/// A server drains for two seconds, and completes the calls that it has.
const STOPPED: Duration = Duration::from_secs(30);

/// The setting of logs with which servers log that they have read changed files.
const LOGS_RELOADS: &str = "warn,microblog_files=info";

/// What a system consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    pub(crate) store: StoreKind,
    pub(crate) database: DatabaseKind,
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
    /// Returns the setup of `microblog up`.
    pub(crate) const fn one() -> Self {
        let (store, database) = (StoreKind::Single, DatabaseKind::Sqlite);
        let equipment = Equipment::Nothing;
        Self { layout: Layout::Colocated, store, database, equipment }
    }

    /// Returns replicas with all services, with PostgreSQL.
    pub(crate) const fn replicas(store: StoreKind) -> Self {
        let (database, equipment) = (DatabaseKind::Postgres, Equipment::Nothing);
        Self { layout: Layout::Colocated, store, database, equipment }
    }

    /// Returns processes for each service, with PostgreSQL.
    pub(crate) const fn separate(store: StoreKind) -> Self {
        let (database, equipment) = (DatabaseKind::Postgres, Equipment::Nothing);
        Self { layout: Layout::Separate, store, database, equipment }
    }

    /// Returns this setup with the other stores, and with TLS if there is no other equipment.
    pub(crate) fn with_other_stores(self) -> Vec<Self> {
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
        let Self { layout, store, database, equipment } = self;
        let text = format!("{layout:?}, {store:?}, {database:?}").to_lowercase();
        f.write_str(&text)?;
        match equipment {
            Equipment::Nothing => Ok(()),
            equipment => write!(f, ", {}", format!("{equipment:?}").to_lowercase()),
        }
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
        let ports = Ports::at_base(free_ports(Ports::COUNT));
        let redis = Redis::start(setup, directory.path(), ports).await?;
        let database = Database::start(setup, directory.path()).await?;
        let certificates = match setup.equipment {
            Equipment::Tls => Some(Certificates::new()?),
            _ => None,
        };
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let urls = ports.urls_with(scheme, Keys::default());
        let urls = Urls { gateway: ports.urls().gateway, ..urls };
        let (servers, proxies) = match (setup.layout, &redis) {
            (Layout::Colocated, Redis::Private(_)) => {
                (vec![server::launcher(&database, directory.path(), ports, &urls)?], Vec::new())
            }
            (Layout::Colocated, redis) => (server::colocated(redis, &database, ports)?, Vec::new()),
            (Layout::Separate, redis) => server::separate(redis, &database, ports, scheme).await?,
        };
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
        let callers = system.directory.path().join("callers.json");
        fs::write(&callers, feed::CALLERS)?;
        for server in &mut system.servers {
            let callers = ("MICROBLOG_CALLERS_FILE".to_owned(), callers.display().to_string());
            server.environment.push(callers);
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

    /// Returns the URLs of all services of all servers.
    pub(crate) fn all_urls(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().flat_map(|server| &server.urls).map(String::as_str)
    }

    /// Returns the URLs of all gateways.
    pub(crate) fn gateways(&self) -> Vec<&str> {
        let servers = self.servers.iter().filter(|server| server.has_gateway());
        servers.filter_map(|server| server.urls.first()).map(String::as_str).collect()
    }

    /// Starts all servers that do not run, and waits until all are SERVING.
    pub(crate) async fn start_servers(&self) -> anyhow::Result<()> {
        let mut stopped = self.servers.iter().filter(|server| !server.is_running());
        stopped.try_for_each(Server::start)?;
        self.wait_until_serving().await
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
        self.wait_until_serving().await
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

    /// Returns how many bytes the callers of a server have sent to it through proxies.
    pub(crate) fn bytes_to(&self, server: &Server) -> u64 {
        self.proxies.iter().filter(|proxy| proxy.target() == server.port).map(Proxy::sent).sum()
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
