//! Starting the servers on this machine: programs, ports, and configuration without rate limits. For
//! the load generator and the fault suite.

use std::{env, path::PathBuf};

use anyhow::Context as _;

use crate::{keys::Keys, services::SERVERS};

const REDIS: u16 = 9;

/// Environment variables of every server, which the caller's environment overrides. Rate limits are
/// off, since they would be the bottleneck. The drain timeout is short.
pub const DEFAULTS: [(&str, &str); 13] = [
    ("MICROBLOG_LOG", "warn"),
    ("MICROBLOG_POSTS_PER_MINUTE", "0"),
    ("MICROBLOG_COMMENTS_PER_MINUTE", "0"),
    ("MICROBLOG_FOLLOWS_PER_MINUTE", "0"),
    ("MICROBLOG_LIKES_PER_MINUTE", "0"),
    ("MICROBLOG_POST_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_COMMENT_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_CHANGE_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_LOGINS_PER_MINUTE", "0"),
    ("MICROBLOG_REGISTRATIONS_PER_HOUR", "0"),
    ("MICROBLOG_AVAILABILITY_CHECKS_PER_MINUTE", "0"),
    ("MICROBLOG_PASSWORD_CALLS_PER_MINUTE", "0"),
    ("MICROBLOG_DRAIN_TIMEOUT_MS", "2000"),
];

/// The process layout of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// All services in one process
    Colocated,
    /// A process for each service
    Separate,
}

/// The URLs of a system's servers, and the keys for calls to services.
#[derive(Clone)]
pub struct Urls {
    /// The gateway.
    pub gateway: String,
    /// The user service.
    pub user: String,
    /// The relation service.
    pub relation: String,
    /// The post service.
    pub post: String,
    /// The timeline service.
    pub timeline: String,
    /// The notice service.
    pub notice: String,
    /// The identity keys.
    pub keys: Keys,
}

impl Urls {
    /// Returns all of them, the gateway's first.
    pub fn all(&self) -> [&str; 6] {
        [&self.gateway, &self.user, &self.relation, &self.post, &self.timeline, &self.notice]
    }
}

/// A block of free ports. The first ten are assigned as `microblog up` does.
#[derive(Clone, Copy, Debug)]
pub struct Ports(u16);

impl Ports {
    /// Their number: room for the ten of `microblog up`, and for two replicas of each service.
    pub const COUNT: u16 = 20;

    /// Returns the block that begins with a port.
    pub fn at_base(base: u16) -> Self {
        Self(base)
    }

    /// Returns the first port of the block.
    pub fn base(self) -> u16 {
        self.0
    }

    /// Returns the port at an offset from the first one.
    pub fn at(self, offset: u16) -> u16 {
        self.0 + offset
    }

    /// Returns the port of redis-server.
    pub fn redis(self) -> u16 {
        self.at(REDIS)
    }

    /// Returns the URLs of the servers without TLS.
    pub fn urls(self) -> Urls {
        self.urls_with("http", Keys::default())
    }

    /// Returns the URLs of the servers with a scheme, and these keys.
    pub fn urls_with(self, scheme: &str, keys: Keys) -> Urls {
        let [gateway, user, relation, post, timeline, notice] =
            SERVERS.map(|server| format!("{scheme}://{}", server.address(self.0)));
        Urls { gateway, user, relation, post, timeline, notice, keys }
    }
}

/// Finds a program of the workspace in this program's directory, or in its parent for tests.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot determine the path of this program")?;
    let found = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    found.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "`{name}` not found beside {}: build it with `cargo build --release --workspace`",
            own.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_program_contains_the_build_command() {
        let error = program("microblog-nothing").unwrap_err().to_string();
        assert!(error.contains("cargo build --release --workspace"), "{error}");
    }

    #[test]
    fn ports_are_assigned_as_by_the_launcher() {
        let ports = Ports(50_050);
        assert_eq!(ports.urls().all()[..2], ["http://127.0.0.1:50050", "http://127.0.0.1:50051"]);
        assert_eq!(ports.urls().timeline, "http://127.0.0.1:50054");
        assert_eq!(ports.redis(), 50_059);
    }
}
