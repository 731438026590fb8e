//! A system on one redis-server and one PostgreSQL, with two replicas of each server, each in its own
//! process.

use std::{thread, time::Duration};

use microblog_testkit::{PostgresServer, Process, RedisServer, free_port};

use crate::programs::Programs;

/// The services of each process, in the upgrade order of `deploy/README.md`: those that are called
/// first. Each process has two replicas.
pub(crate) type Layout = [&'static [&'static str]];

/// A process for each service, of its own program.
pub(crate) const SEPARATE: &Layout =
    &[&["user"], &["relation"], &["timeline"], &["post"], &["gateway"]];
/// All services in one process.
pub(crate) const COLOCATED: &Layout = &[&["user", "relation", "timeline", "post", "gateway"]];
/// Calls in both directions between two processes.
pub(crate) const MIXED: &Layout = &[&["user", "relation", "post"], &["timeline", "gateway"]];

pub(crate) const REPLICAS: usize = 2;

const STOP: Duration = Duration::from_secs(60);

const DATABASE_PASSWORD: &str = "secret";

/// Flags that turn rate limits off.
const UNLIMITED: [(&str, &[&str]); 2] = [
    ("post", &["--posts-per-minute=0"]),
    (
        "gateway",
        &[
            "--follows-per-minute=0",
            "--likes-per-minute=0",
            "--change-calls-per-minute=0",
            "--post-calls-per-minute=0",
            "--logins-per-minute=0",
            "--registrations-per-hour=0",
        ],
    ),
];

/// A running system.
pub(crate) struct System {
    replicas: Vec<Replica>,
    redis: RedisServer,
    database: PostgresServer,
    /// Logs of the stopped processes.
    logs: Vec<String>,
}

/// A replica of a process, with fixed ports across restarts.
struct Replica {
    services: Vec<(&'static str, u16)>,
    process: Option<Process>,
}

impl Replica {
    fn has(&self, service: &str) -> bool {
        self.services.iter().any(|(own, _)| *own == service)
    }
}

impl System {
    /// Starts a system, and waits until all services are SERVING.
    pub(crate) async fn start(layout: &Layout, programs: &Programs) -> Self {
        let (redis, database) = (RedisServer::start().await, PostgresServer::start().await);
        database.create_roles(DATABASE_PASSWORD);
        let place = |services: &&[&'static str]| Replica {
            services: services.iter().map(|&service| (service, free_port())).collect(),
            process: None,
        };
        let replicas = layout.iter().flat_map(|services| [place(services), place(services)]);
        let mut system = Self { replicas: replicas.collect(), redis, database, logs: Vec::new() };
        for process in 0..layout.len() {
            for replica in 0..REPLICAS {
                system.start_again(process, replica, programs).await;
            }
        }
        system
    }

    /// Returns the URLs of a service.
    pub(crate) fn urls(&self, service: &str) -> Vec<String> {
        let services = self.replicas.iter().flat_map(|replica| &replica.services);
        let of_service = services.filter(|(name, _)| *name == service);
        of_service.map(|(_, port)| format!("http://127.0.0.1:{port}")).collect()
    }

    /// Stops a replica of a process of the layout gracefully.
    pub(crate) async fn stop(&mut self, process: usize, replica: usize) {
        let process = self.take(process, replica);
        process.terminate();
        let status = process.ended(STOP).await;
        self.logs.push(process.log());
        assert!(status.success(), "a process ended with {status}:\n{}", process.log());
    }

    /// Kills a replica.
    pub(crate) fn kill(&mut self, process: usize, replica: usize) {
        let process = self.take(process, replica);
        process.kill9();
        self.logs.push(process.log());
    }

    /// Restarts a replica on its ports, and waits until its services are SERVING.
    pub(crate) async fn start_again(
        &mut self,
        process: usize,
        replica: usize,
        programs: &Programs,
    ) {
        let index = process * REPLICAS + replica;
        let args = self.args(&self.replicas[index]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let started = match *self.replicas[index].services {
            [(service, port)] => Process::start_on(port, &programs.server(service), &args).await,
            _ => Process::start_services(&programs.program("microblog"), &args).await,
        };
        self.replicas[index].process = Some(started);
    }

    fn take(&mut self, process: usize, replica: usize) -> Process {
        self.replicas[process * REPLICAS + replica].process.take().unwrap()
    }

    /// Returns the arguments of a service's own program, or of `microblog serve`.
    fn args(&self, replica: &Replica) -> Vec<String> {
        let names: Vec<_> = replica.services.iter().map(|(service, _)| *service).collect();
        let is_alone = names.len() == 1;
        let mut args = match is_alone {
            true => Vec::new(),
            false => vec!["serve".to_owned(), format!("--services={}", names.join(","))],
        };
        args.extend(["--threads=1", "--log=warn"].map(str::to_owned));
        for &(service, port) in &replica.services {
            let own = if is_alone { String::new() } else { format!("{service}-") };
            if !is_alone {
                args.push(format!("--{own}listen=127.0.0.1:{port}"));
            }
            if service != "gateway" {
                args.push(format!("--{own}redis-url={}", self.redis.url(service)));
            }
            if matches!(service, "user" | "relation" | "post") {
                let url = self.database.url_of(service, DATABASE_PASSWORD);
                args.push(format!("--{own}database-url={url}"));
            }
            let limits = UNLIMITED.into_iter().filter(|(limited, _)| *limited == service);
            args.extend(limits.flat_map(|(_, flags)| flags).map(|&flag| flag.to_owned()));
        }
        let callees = ["user", "relation", "timeline", "post"].into_iter();
        let called = callees.filter(|callee| calls(&names, callee) && !replica.has(callee));
        args.extend(called.map(|callee| format!("--{callee}-url={}", self.urls(callee).join(","))));
        args
    }
}

/// Returns whether one of these services calls another.
fn calls(services: &[&str], callee: &str) -> bool {
    services.iter().any(|service| match *service {
        "timeline" => ["relation", "post"].contains(&callee),
        "post" => callee == "timeline",
        "gateway" => true,
        _ => false,
    })
}

impl Drop for System {
    fn drop(&mut self) {
        if thread::panicking() {
            let running = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
            self.logs.extend(running.map(Process::log));
            eprintln!("logs of the servers:\n{}", self.logs.concat());
        }
    }
}
