//! Starts the processes of a system: programs, ports and configuration.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use microblog_local::{
    launch::{DEFAULTS, Layout, Ports, Urls, program},
    up::{DataDir, Redis, Software},
};

use super::redis_admin::Admin;
use crate::child_process::Child;

/// The Redis of a started system.
pub(super) struct Store {
    pub(super) admin: Admin,
    /// Redis and its data directory, unless a process of the system owns them.
    _owned: Option<(Redis, DataDir)>,
}

/// The started processes of a system.
pub(super) struct Started {
    pub(super) urls: Urls,
    pub(super) children: Vec<Child>,
    /// `None` if the servers use an external Redis.
    pub(super) store: Option<Store>,
}

struct Launch<'a> {
    software: Software,
    directory: &'a Path,
    ports: Ports,
    environment: Vec<(String, String)>,
}

/// Starts all processes with their data and logs in a directory.
pub(super) fn start(
    layout: Layout,
    threads: Option<usize>,
    redis_url: Option<&str>,
    directory: &Path,
) -> anyhow::Result<Started> {
    let redis_server = env::var_os("MICROBLOG_REDIS_SERVER").map(PathBuf::from);
    let threads = threads.map(|count| ("MICROBLOG_THREADS".to_owned(), count.to_string()));
    let defaults = DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let launch = Launch {
        software: Software::find(redis_server.as_deref())?,
        directory,
        ports: Ports::free()?,
        // The last value of a variable wins.
        environment: defaults.into_iter().chain(threads).collect(),
    };
    let data = directory.join("data");
    let (children, store) = match (layout, redis_url) {
        (Layout::One, None) => launch.one(&data)?,
        (Layout::One, Some(_)) => bail!("one process starts its own redis-server"),
        (Layout::Five, None) => launch.five(&data)?,
        (Layout::Five, Some(url)) => {
            (launch.servers(&DataDir::open(&data)?, |_| Ok(url.into()))?, None)
        }
    };
    Ok(Started { urls: launch.ports.urls(), children, store })
}

impl Launch<'_> {
    fn one(&self, data: &Path) -> anyhow::Result<(Vec<Child>, Option<Store>)> {
        // Prepares the data directory first, to get the Redis credentials.
        let access = DataDir::open(data)?.prepare_redis(self.ports.redis())?;
        let data = data.to_str().context("the temporary directory's name is not UTF-8")?;
        let port_base = self.ports.base().to_string();
        let flags = ["up", "--data-dir", data, "--port-base", &port_base];
        // Unset, so that the system does not use the databases of this process's environment.
        let unset = [
            ("MICROBLOG_DATABASE_URL", ""),
            ("MICROBLOG_USER_DATABASE_URL", ""),
            ("MICROBLOG_RELATION_DATABASE_URL", ""),
            ("MICROBLOG_POST_DATABASE_URL", ""),
        ];
        let child = self.child("microblog", &flags, &unset)?;
        Ok((vec![child], Some(Store { admin: Admin::new(&access)?, _owned: None })))
    }

    fn five(&self, data: &Path) -> anyhow::Result<(Vec<Child>, Option<Store>)> {
        let data = DataDir::open(data)?;
        let access = data.prepare_redis(self.ports.redis())?;
        let redis = Redis::start(self.software.clone(), &data, access.clone())?;
        let children = self.servers(&data, |user| access.url(user))?;
        Ok((children, Some(Store { admin: Admin::new(&access)?, _owned: Some((redis, data)) })))
    }

    /// Starts a server for each service. `redis_url` returns the URL of Redis for a user.
    fn servers(
        &self,
        data: &DataDir,
        redis_url: impl Fn(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Vec<Child>> {
        let Urls { user, relation, post, timeline, .. } = &self.ports.urls();
        let to_user = ["--user-url", user];
        let to_relation = ["--relation-url", relation];
        let to_post = ["--post-url", post];
        let to_timeline = ["--timeline-url", timeline];
        let to_all = [to_user, to_relation, to_post, to_timeline].concat();
        // The URL contains a password, and every local user can read the flags of a process.
        let stored = |name, offset, peers: &[&str], service, database: &str| {
            let url = redis_url(service)?;
            let environment =
                [("MICROBLOG_REDIS_URL", &*url), ("MICROBLOG_DATABASE_URL", database)];
            self.server(name, offset, peers, &environment)
        };
        let recorded = |name, offset, peers: &[&str], service| {
            stored(name, offset, peers, service, &data.prepare_database(service)?)
        };
        Ok(vec![
            recorded("microblog-user", 1, &[], "user")?,
            recorded("microblog-relation", 2, &[], "relation")?,
            stored("microblog-timeline", 4, &[to_relation, to_post].concat(), "timeline", "")?,
            recorded("microblog-post", 3, &to_timeline, "post")?,
            self.server("microblog-gateway", 0, &to_all, &[])?,
        ])
    }

    fn server(
        &self,
        name: &'static str,
        offset: u16,
        peers: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Child> {
        let listen = format!("127.0.0.1:{}", self.ports.at(offset));
        let flags = [&["--listen", &listen], peers].concat();
        self.child(name, &flags, environment)
    }

    fn child(
        &self,
        name: &'static str,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Child> {
        let mut command = self.software.command(&program(name)?);
        command.args(flags).envs(environment.iter().copied());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Child::start(name, command, self.directory.join(name).with_extension("log"))
    }
}
