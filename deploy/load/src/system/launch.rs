//! Starts the processes of a system: ports, stores and configuration.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use microblog_chassis::identity::KeyFile;
use microblog_local::{
    keys::Keys,
    launch::{DEFAULTS, Layout, Ports, Urls, program},
    services::{SERVERS, Server},
    tls::Tls,
    up::{DataDir, Software},
};
use microblog_testkit::{Authority, Files, PostgresServer, free_ports};

use super::store::Store;
use crate::child_process::Child;

/// The address of all servers, for which their certificate is valid.
const HOST: &str = "127.0.0.1";

/// Of the roles in a private PostgreSQL server, which trusts every local connection.
const DATABASE_PASSWORD: &str = "load";

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
    pub(crate) database: Database,
}

/// Where the databases of the services are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Database {
    /// A file for each service
    Sqlite,
    /// A PostgreSQL server of its own
    Postgresql,
}

/// The topology of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    /// One redis-server
    Single,
    /// A Redis Cluster of three primaries
    Cluster,
}

/// The started processes of a system.
pub(super) struct Started {
    pub(super) urls: Urls,
    pub(super) children: Vec<Child>,
    pub(super) store: Store,
    pub(super) postgres: Option<PostgresServer>,
    /// Certificates and keys.
    pub(super) files: Option<Files>,
}

/// Starts all processes with their data and logs in a directory.
pub(super) async fn start(setup: Setup, directory: &Path) -> anyhow::Result<Started> {
    let redis_server = env::var_os("MICROBLOG_REDIS_SERVER").map(PathBuf::from);
    let software = Software::find(redis_server.as_deref())?;
    let files = setup.tls.then(certificates);
    let store = Store::start(setup.redis, files.as_ref()).await;
    let postgres = match setup.database {
        // As in production, unlike in tests.
        Database::Postgresql => Some(PostgresServer::start_with(&["autovacuum=on"]).await),
        Database::Sqlite => None,
    };
    if let Some(postgres) = &postgres {
        postgres.create_roles(DATABASE_PASSWORD);
    }
    let keys = files.as_ref().map(|files| KeyFile::open(files.path("keys"))).transpose()?;
    let scheme = if files.is_some() { "https" } else { "http" };
    let ports = Ports::at_base(free_ports(Ports::COUNT));
    let urls = ports.urls_with(scheme, Keys { identity_key_file: keys });
    if let Some(files) = &files {
        // This process is a client of the system.
        let [ca, certificate, key] = ["ca.pem", "server.crt", "server.key"];
        Tls::of(files.path(ca), files.path(certificate), files.path(key)).apply()?;
    }
    let data = DataDir::open(&directory.join("data"))?;
    let mut environment =
        DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    environment.extend(setup.threads.map(|count| ("MICROBLOG_THREADS".into(), count.to_string())));
    let database = |server: &str| match &postgres {
        Some(postgres) => Ok(postgres.url_of(server, DATABASE_PASSWORD)),
        None => data.prepare_database(server),
    };
    environment.extend(of_services(&urls, &store, database)?);
    environment.extend(files.as_ref().map(of_tls).into_iter().flatten());
    let processes = match setup.layout {
        Layout::Colocated => vec![("microblog", SERVERS.to_vec())],
        Layout::Separate => SERVERS.map(|server| (server.name(), vec![server])).to_vec(),
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
    Ok(Started { urls, children, store, postgres, files })
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
    database: impl Fn(&str) -> anyhow::Result<String>,
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
            set("DATABASE_URL", database(server.name())?);
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
