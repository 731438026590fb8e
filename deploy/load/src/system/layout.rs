//! The processes of a system: which programs they are, where they listen, and how they are
//! configured.

use std::{
    env,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use microblog_local::up::{Access, DataDir, Redis, Software};

use super::{Shape, Store, Urls, redis::Admin};
use crate::child::Child;

// Below the range from which kernels take the ports of outgoing connections.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
const ATTEMPTS: usize = 1000;
const REDIS: u16 = 9;

/// What every server is told unless the caller's environment says otherwise. Limits per account
/// and per address would be what is measured. Calls under way when a system ends are of no use to anybody.
const DEFAULTS: [(&str, &str); 13] = [
    ("MICROBLOG_LOG", "warn"),
    ("MICROBLOG_POSTS_PER_MINUTE", "0"),
    ("MICROBLOG_COMMENTS_PER_MINUTE", "0"),
    ("MICROBLOG_RESTORES_PER_MINUTE", "0"),
    ("MICROBLOG_FOLLOWS_PER_MINUTE", "0"),
    ("MICROBLOG_LIKES_PER_MINUTE", "0"),
    ("MICROBLOG_POST_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_COMMENT_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_LOGINS_PER_MINUTE", "0"),
    ("MICROBLOG_REGISTRATIONS_PER_HOUR", "0"),
    ("MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE", "0"),
    ("MICROBLOG_PASSWORD_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_DRAIN_TIMEOUT_MS", "2000"),
];

/// A system whose processes have been started.
pub(super) struct Started {
    pub(super) urls: Urls,
    pub(super) children: Vec<Child>,
    pub(super) store: Store,
}

/// Ten ports in a row, used as `microblog up` does, whatever the shape.
#[derive(Clone, Copy, Debug)]
struct Ports(u16);

struct Launch<'a> {
    software: Software,
    directory: &'a Path,
    ports: Ports,
    environment: Vec<(String, String)>,
}

/// Starts all processes with their data and logs in a directory.
pub(super) fn start(
    shape: Shape,
    threads: Option<usize>,
    environment: &[(String, String)],
    directory: &Path,
) -> anyhow::Result<Started> {
    let redis_server = env::var_os("MICROBLOG_REDIS_SERVER").map(PathBuf::from);
    let threads = threads.map(|count| ("MICROBLOG_THREADS".to_owned(), count.to_string()));
    let defaults = DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let launch = Launch {
        software: Software::find(redis_server.as_deref())?,
        directory,
        ports: Ports::free()?,
        // Of two values of a variable, the later one counts.
        environment: defaults.into_iter().chain(threads).chain(environment.to_vec()).collect(),
    };
    let data = directory.join("data");
    let (children, store) = match shape {
        Shape::One => launch.one(&data)?,
        Shape::Five => launch.five(&data)?,
    };
    Ok(Started { urls: launch.ports.urls(), children, store })
}

impl Launch<'_> {
    fn one(&self, data: &Path) -> anyhow::Result<(Vec<Child>, Store)> {
        // What it keeps there is made beforehand, so that it is known how to talk to Redis.
        let access = DataDir::open(data)?.prepare_redis(self.ports.redis())?;
        let data = data.to_str().context("the temporary directory's name is not UTF-8")?;
        let port_base = self.ports.0.to_string();
        let flags = ["up", "--data-dir", data, "--port-base", &port_base];
        // An archive that this process knows by its environment is not the system's.
        let child = self.child("microblog", &flags, &[("MICROBLOG_ARCHIVE_URL", "")])?;
        Ok((vec![child], Store { admin: Admin::new(&access)?, _own: None }))
    }

    fn five(&self, data: &Path) -> anyhow::Result<(Vec<Child>, Store)> {
        let data = DataDir::open(data)?;
        let access = data.prepare_redis(self.ports.redis())?;
        let redis = Redis::start(self.software.clone(), &data, access.clone())?;
        let archive = [("MICROBLOG_ARCHIVE_URL", &*data.prepare_archive()?)];
        let Urls { user, relation, post, timeline, .. } = &self.ports.urls();
        let to_user = ["--user-url", user];
        let to_relation = ["--relation-url", relation];
        let to_post = ["--post-url", post];
        let to_timeline = ["--timeline-url", timeline];
        let to_all = [to_user, to_relation, to_post, to_timeline].concat();
        let children = vec![
            self.stored("microblog-user", 1, &[], &access, "user", &[])?,
            self.stored("microblog-relation", 2, &[], &access, "relation", &[])?,
            self.stored("microblog-timeline", 4, &to_relation, &access, "timeline", &[])?,
            self.stored("microblog-post", 3, &to_timeline, &access, "post", &archive)?,
            self.server("microblog-gateway", 0, &to_all, &[])?,
        ];
        Ok((children, Store { admin: Admin::new(&access)?, _own: Some((redis, data)) }))
    }

    /// Starts a server that has a store.
    fn stored(
        &self,
        name: &'static str,
        offset: u16,
        peers: &[&str],
        access: &Access,
        user: &str,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Child> {
        // It has a password: everybody may read the flags of a process.
        let url = access.url(user)?;
        let environment = [&[("MICROBLOG_REDIS_URL", &*url)], environment].concat();
        self.server(name, offset, peers, &environment)
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

impl Ports {
    /// Finds some on which nobody listens at the moment.
    fn free() -> anyhow::Result<Self> {
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        for _ in 0..ATTEMPTS {
            let ports = Self(rand::random_range(PORTS));
            if (0..5).chain([REDIS]).all(|offset| is_free(ports.at(offset))) {
                return Ok(ports);
            }
        }
        bail!("found no free ports on 127.0.0.1 from {} to {}", PORTS.start, PORTS.end)
    }

    fn at(self, offset: u16) -> u16 {
        self.0 + offset
    }

    fn redis(self) -> u16 {
        self.at(REDIS)
    }

    fn urls(self) -> Urls {
        let [gateway, user, relation, post, timeline] =
            [0, 1, 2, 3, 4].map(|offset| format!("http://127.0.0.1:{}", self.at(offset)));
        Urls { gateway, user, relation, post, timeline }
    }
}

/// Finds a program of the workspace beside this one, or one directory above, which is where they
/// are for tests.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("the system does not say where this program is")?;
    let found = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    found.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "found no `{name}` beside {}: build it with `cargo build --release --workspace`",
            own.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_built_is_told_with_how_to_build_it() {
        let error = program("microblog-nothing").unwrap_err().to_string();
        assert!(error.contains("cargo build --release --workspace"), "{error}");
    }

    #[test]
    fn ports_are_those_of_the_launcher() {
        let ports = Ports(50_050);
        assert_eq!(ports.urls().all()[..2], ["http://127.0.0.1:50050", "http://127.0.0.1:50051"]);
        assert_eq!(ports.urls().timeline, "http://127.0.0.1:50054");
        assert_eq!(ports.redis(), 50_059);
    }
}
