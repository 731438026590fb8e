//! A running system: the real programs, their Redis and their databases.

mod commands;
mod database;
mod files;
mod redis;

use std::cell::RefCell;

use anyhow::Context as _;
use clap::ValueEnum;
use microblog_local::launch::{self, Layout, Ports, Urls, program};
use microblog_testkit::Process;
use serde::Serialize;
use tempfile::TempDir;

pub(crate) use self::{
    database::{Database, DatabaseKind},
    files::Copy,
    redis::{Redis, StoreKind, erase},
};

/// Longer than any write of a server that nobody waits for any more, in milliseconds.
pub(crate) const WRITE_BUDGET_MS: u64 = 2_000;

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
}

impl Setup {
    /// Returns the setup of `microblog up` at a level.
    pub(crate) const fn one(level: Level) -> Self {
        let (store, database) = (StoreKind::Single, DatabaseKind::Sqlite);
        Self { layout: Layout::Colocated, store, database, level }
    }

    /// Returns a process for each service at a level, with PostgreSQL.
    pub(crate) const fn five(store: StoreKind, level: Level) -> Self {
        Self { layout: Layout::Five, store, database: DatabaseKind::Postgres, level }
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layout, store, database, level } = self;
        let text = format!("{level:?}, {layout:?}, {store:?}, {database:?}");
        f.write_str(&text.to_lowercase())
    }
}

/// A server: how to start it, and its process while it runs.
struct Server {
    name: &'static str,
    port: u16,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    process: RefCell<Option<Process>>,
}

/// A running system. Dropping it stops its processes and deletes its data.
pub(crate) struct System {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    urls: Urls,
    servers: Vec<Server>,
    /// The names and logs of servers that were stopped.
    logs: RefCell<Vec<(&'static str, String)>>,
    _directory: TempDir,
}

impl System {
    /// Starts a system, and waits until all servers are SERVING.
    pub(crate) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let directory = TempDir::with_prefix("microblog-faults-")?;
        let ports = Ports::free()?;
        let redis = Redis::start(setup, directory.path(), ports).await?;
        let database = Database::start(setup.database, directory.path()).await?;
        let servers = match setup.layout {
            Layout::Colocated => launcher(&database, directory.path(), ports)?,
            Layout::Five => separate(&redis, &database, ports)?,
        };
        let level = format!("{:?}", setup.level).to_lowercase();
        let mut system = Self {
            redis,
            database,
            urls: ports.urls(),
            servers,
            logs: RefCell::default(),
            _directory: directory,
        };
        for server in &mut system.servers {
            let common = launch::DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned()));
            server.environment.extend(common);
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

    /// Starts all servers, and waits until they are SERVING.
    async fn start_servers(&self) -> anyhow::Result<()> {
        for server in &self.servers {
            let path = program(server.name)?;
            let path = path.to_str().context("the program's path is not UTF-8")?;
            let args: Vec<&str> = server.args.iter().map(String::as_str).collect();
            let environment: Vec<(&str, &str)> =
                server.environment.iter().map(|(name, value)| (&**name, &**value)).collect();
            let process = Process::spawn_command(server.port, path, &args, &environment);
            *server.process.borrow_mut() = Some(process);
        }
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
        for server in &self.servers {
            if let Some(process) = server.process.borrow_mut().take() {
                process.kill9();
                self.logs.borrow_mut().push((server.name, process.log()));
            }
        }
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
    directory: &std::path::Path,
    ports: Ports,
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
        port: ports.base(),
        args: flags.map(str::to_owned).to_vec(),
        environment,
        process: RefCell::default(),
    }])
}

/// A process for each service.
fn separate(redis: &Redis, database: &Database, ports: Ports) -> anyhow::Result<Vec<Server>> {
    let Urls { user, relation, post, timeline, .. } = &ports.urls();
    let flag = |service: &str, url: &str| format!("--{service}-url={url}");
    let all = [("user", user), ("relation", relation), ("post", post), ("timeline", timeline)];
    let to = |names: &[&str]| -> Vec<String> {
        let peers = all.iter().filter(|(name, _)| names.contains(name));
        peers.map(|(name, url)| flag(name, url)).collect()
    };
    let gateway = to(&["user", "relation", "post", "timeline"]);
    let mut servers = Vec::new();
    for (service, name, offset, peers) in [
        ("user", "microblog-user", 1, Vec::new()),
        ("relation", "microblog-relation", 2, Vec::new()),
        ("timeline", "microblog-timeline", 4, to(&["relation", "post"])),
        ("post", "microblog-post", 3, to(&["timeline"])),
        ("gateway", "microblog-gateway", 0, gateway),
    ] {
        let port = ports.at(offset);
        let mut args = vec![format!("--listen=127.0.0.1:{port}")];
        args.extend(peers);
        let mut environment =
            vec![("MICROBLOG_DATABASE_URL".to_owned(), database.url(service).unwrap_or_default())];
        if service != "gateway" {
            environment.push(("MICROBLOG_REDIS_URL".to_owned(), redis.url(service)?));
        }
        servers.push(Server { name, port, args, environment, process: RefCell::default() });
    }
    Ok(servers)
}
