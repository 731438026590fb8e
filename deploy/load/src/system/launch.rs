//! Starts the processes of a system: ports, stores and configuration.

use std::{
    env,
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use microblog_chassis::identity::KeyFile;
use microblog_local::{
    keys::Keys,
    services::{SERVERS, Server},
    tls::Tls,
    up::{DataDir, Software},
};
use microblog_testkit::{Authority, Files};

use super::store::Store;
use crate::child_process::Child;

// Below the ephemeral port range of Linux.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
const ATTEMPTS: usize = 1000;

/// The address of all servers, for which their certificate is valid.
const HOST: &str = "127.0.0.1";

/// Environment variables of every server, which the caller's environment overrides. Rate limits are
/// off, since they would be the bottleneck. The drain timeout is short.
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

/// Variables of servers in a process of their own, with which `microblog serve` does not start.
const OF_OTHERS: [&str; 2] = ["MICROBLOG_LISTEN", "MICROBLOG_DATABASE_URL"];

/// How to start a system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    /// Worker threads per process; `None` for one per core.
    pub(crate) threads: Option<usize>,
    pub(crate) redis: Topology,
    /// TLS everywhere, with client certificates, and signed identities.
    pub(crate) tls: bool,
}

/// The process layout of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    /// All services in one process
    Colocated,
    /// A process for each service
    Five,
}

/// The topology of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    /// One redis-server
    Single,
    /// A Redis Cluster of three primaries
    Cluster,
}

/// The URLs of a system's servers, and the keys for calls to services.
#[derive(Clone)]
pub(crate) struct Urls {
    pub(crate) gateway: String,
    pub(crate) user: String,
    pub(crate) relation: String,
    pub(crate) post: String,
    pub(crate) timeline: String,
    pub(crate) keys: Keys,
}

impl Urls {
    pub(super) fn all(&self) -> [&str; 5] {
        [&self.gateway, &self.user, &self.relation, &self.post, &self.timeline]
    }
}

/// The started processes of a system.
pub(super) struct Started {
    pub(super) urls: Urls,
    pub(super) children: Vec<Child>,
    pub(super) store: Store,
    /// Certificates and keys.
    pub(super) files: Option<Files>,
}

/// Starts all processes with their data and logs in a directory.
pub(super) async fn start(setup: Setup, directory: &Path) -> anyhow::Result<Started> {
    let redis_server = env::var_os("MICROBLOG_REDIS_SERVER").map(PathBuf::from);
    let software = Software::find(redis_server.as_deref())?;
    let files = setup.tls.then(certificates);
    let store = Store::start(setup.redis, files.as_ref()).await;
    let urls = urls(free_ports()?, files.as_ref())?;
    if let Some(files) = &files {
        // This process is a client of the system.
        let [ca, certificate, key] = ["ca.pem", "server.crt", "server.key"];
        Tls::of(files.path(ca), files.path(certificate), files.path(key)).apply()?;
    }
    let data = DataDir::open(&directory.join("data"))?;
    let mut environment =
        DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    environment.extend(setup.threads.map(|count| ("MICROBLOG_THREADS".into(), count.to_string())));
    environment.extend(of_services(&urls, &store, &data)?);
    environment.extend(files.as_ref().map(of_tls).into_iter().flatten());
    let processes = match setup.layout {
        Layout::Colocated => vec![("microblog", SERVERS.to_vec())],
        Layout::Five => SERVERS.map(|server| (server.name(), vec![server])).to_vec(),
    };
    let child = |(name, servers): (&'static str, Vec<Server>)| {
        let names: Vec<_> = servers.into_iter().map(Server::name).collect();
        let mut command = software.command(&program("microblog")?);
        command.args(["serve", "--services", &names.join(",")]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        for name in OF_OTHERS {
            command.env_remove(name);
        }
        Child::start(name, command, directory.join(name).with_extension("log"))
    };
    let children = processes.into_iter().map(child).collect::<anyhow::Result<_>>()?;
    Ok(Started { urls, children, store, files })
}

/// Makes an authority, a certificate for all servers and clients, and identity keys.
fn certificates() -> Files {
    let (authority, files) = (Authority::new(), Files::new());
    files.write("ca.pem", authority.pem());
    files.certificate("server", &authority.issue(&[HOST]));
    files.write("keys", format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()));
    files
}

/// Returns the variables with the addresses of all services and their stores, as `microblog serve`
/// reads them. The URLs of stores contain passwords, and every local user can read the flags of a
/// process.
fn of_services(
    urls: &Urls,
    store: &Store,
    data: &DataDir,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (server, url) in SERVERS.into_iter().zip(urls.all()) {
        let mut set = |setting: &str, value: String| {
            let name = format!("MICROBLOG_{}_{setting}", server.name().to_uppercase());
            variables.push((name, value));
        };
        let (_, address) = url.split_once("://").context("a URL has a scheme")?;
        set("LISTEN", address.to_owned());
        set("URL", url.to_owned());
        if server.has_redis() {
            set("REDIS_URL", store.url(server.name()));
        }
        if server.has_database() {
            set("DATABASE_URL", data.prepare_database(server.name())?);
        }
    }
    Ok(variables)
}

/// Returns the variables with the certificates and keys.
fn of_tls(files: &Files) -> Vec<(String, String)> {
    let variables = [
        ("TLS_CERT_FILE", "server.crt"),
        ("TLS_KEY_FILE", "server.key"),
        ("TLS_CLIENT_CA_FILE", "ca.pem"),
        ("PEER_CA_FILE", "ca.pem"),
        ("PEER_CERT_FILE", "server.crt"),
        ("PEER_KEY_FILE", "server.key"),
        ("REDIS_CA_FILE", "ca.pem"),
        ("IDENTITY_KEY_FILE", "keys"),
    ];
    let path = |file| files.path(file).display().to_string();
    variables.map(|(name, file)| (format!("MICROBLOG_{name}"), path(file))).to_vec()
}

/// Finds ports for all servers.
fn free_ports() -> anyhow::Result<u16> {
    let is_free = |port: u16| TcpListener::bind((HOST, port)).is_ok();
    for _ in 0..ATTEMPTS {
        let base = rand::random_range(PORTS);
        if (0..).zip(SERVERS).all(|(offset, _)| is_free(base + offset)) {
            return Ok(base);
        }
    }
    bail!("found no free ports on {HOST} from {} to {}", PORTS.start, PORTS.end)
}

fn urls(port_base: u16, files: Option<&Files>) -> anyhow::Result<Urls> {
    let scheme = if files.is_some() { "https" } else { "http" };
    let [gateway, user, relation, post, timeline] =
        SERVERS.map(|server| format!("{scheme}://{}", server.address(port_base)));
    let keys = files.map(|files| KeyFile::open(files.path("keys"))).transpose()?;
    let keys = Keys { identity_key_file: keys };
    Ok(Urls { gateway, user, relation, post, timeline, keys })
}

/// Finds a program of the workspace in this program's directory, or in its parent for tests.
fn program(name: &str) -> anyhow::Result<PathBuf> {
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
}
