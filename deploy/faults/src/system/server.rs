//! The processes of a system, and how to start them.

use std::{cell::RefCell, path::Path};

use anyhow::Context as _;
use microblog_local::{
    launch::{Ports, Urls, program},
    services::SERVERS,
};
use microblog_testkit::Process;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Database, Proxy, Redis, database, redis};

/// The replicas of each server. There is one gateway if it has a process of its own.
const REPLICAS: u16 = 2;
/// From the port of a service to that of its other replica.
const REPLICA_PORTS: u16 = 6;

/// The program with all services.
const COLOCATED: &str = "microblog";
const GATEWAY: &str = "microblog-gateway";

/// A server: how to start it, and its process while it runs.
pub(crate) struct Server {
    /// Of its program. Replicas have the same.
    pub(crate) name: &'static str,
    /// Of the services that it serves, the gateway's first.
    pub(super) urls: Vec<String>,
    pub(super) port: u16,
    args: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) process: RefCell<Option<Process>>,
}

impl Server {
    pub(super) fn start(&self) -> anyhow::Result<()> {
        self.start_program(&program(self.name)?)
    }

    pub(super) fn start_program(&self, path: &Path) -> anyhow::Result<()> {
        let path = path.to_str().context("the program's path is not UTF-8")?;
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        let process = Process::spawn_command(self.port, path, &args, &environment);
        *self.process.borrow_mut() = Some(process);
        Ok(())
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.borrow().is_some()
    }

    pub(crate) fn has_gateway(&self) -> bool {
        [COLOCATED, GATEWAY].contains(&self.name)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(Pid::from_raw(self.process_id()?.try_into()?), signal)?)
    }

    pub(super) fn process_id(&self) -> anyhow::Result<u32> {
        Ok(self.process.borrow().as_ref().context("the server does not run")?.id())
    }
}

/// `microblog up`.
pub(super) fn launcher(
    database: &Database,
    directory: &Path,
    ports: Ports,
    urls: &Urls,
) -> anyhow::Result<Server> {
    let data = redis::data_dir(directory).display().to_string();
    let flags = ["up", "--data-dir", &data, "--port-base", &ports.base().to_string()];
    let mut environment = vec![("MICROBLOG_DATABASE_URL".to_owned(), String::new())];
    for service in database::SERVICES {
        let url = database.url(service).context("`microblog up` has databases")?;
        environment.push((format!("MICROBLOG_{}_DATABASE_URL", service.to_uppercase()), url));
    }
    Ok(Server {
        name: COLOCATED,
        urls: urls.all().map(str::to_owned).to_vec(),
        port: ports.base(),
        args: flags.map(str::to_owned).to_vec(),
        environment,
        process: RefCell::default(),
    })
}

/// Two processes with all services: `microblog serve`.
pub(super) fn colocated(
    redis: &Redis,
    database: &Database,
    ports: Ports,
) -> anyhow::Result<Vec<Server>> {
    (0..REPLICAS).map(|replica| all_services(redis, database, ports, replica)).collect()
}

fn all_services(
    redis: &Redis,
    database: &Database,
    ports: Ports,
    replica: u16,
) -> anyhow::Result<Server> {
    let (mut urls, mut environment) = (Vec::new(), Vec::new());
    for server in SERVERS {
        let mut set = |setting: &str, value: String| {
            let name = format!("MICROBLOG_{}_{setting}", server.name().to_uppercase());
            environment.push((name, value));
        };
        let address = server.address(ports.at(replica * REPLICA_PORTS)).to_string();
        urls.push(format!("http://{address}"));
        set("LISTEN", address);
        if server.has_redis() {
            set("REDIS_URL", redis.url(server.name())?);
        }
        if let Some(url) = database.url(server.name()) {
            set("DATABASE_URL", url);
        }
    }
    let services = SERVERS.map(|server| server.name()).join(",");
    Ok(Server {
        name: COLOCATED,
        urls,
        port: ports.at(replica * REPLICA_PORTS),
        args: vec!["serve".to_owned(), format!("--services={services}")],
        environment,
        process: RefCell::default(),
    })
}

/// Two processes for each service, and one for the gateway, with proxies between them.
pub(super) async fn separate(
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
        ("notice", "microblog-notice", 5, &[("user", 1), ("relation", 2), ("post", 3)]),
        (
            "gateway",
            GATEWAY,
            0,
            &[("user", 1), ("relation", 2), ("post", 3), ("timeline", 4), ("notice", 5)],
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
