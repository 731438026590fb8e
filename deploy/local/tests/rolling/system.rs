//! A system on one redis-server, with two replicas of each server, each in its own process.

use std::{thread, time::Duration};

use microblog_testkit::{Process, RedisServer, free_port};

use crate::programs::Programs;

/// In the order of calls, which is the upgrade order of `deploy/README.md`.
pub(crate) const CALLED_FIRST: [&str; 5] = ["user", "relation", "timeline", "post", "gateway"];
pub(crate) const REPLICAS: usize = 2;

const STOP: Duration = Duration::from_secs(60);

/// Flags that turn rate limits off.
const UNLIMITED: [(&str, &[&str]); 2] = [
    ("post", &["--posts-per-minute=0"]),
    (
        "gateway",
        &[
            "--follows-per-minute=0",
            "--likes-per-minute=0",
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
    /// Logs of the stopped servers.
    logs: Vec<String>,
}

/// A replica with a fixed port, across restarts.
struct Replica {
    service: &'static str,
    port: u16,
    process: Option<Process>,
}

impl System {
    /// Starts a system, and waits until all servers are SERVING.
    pub(crate) async fn start(programs: &Programs) -> Self {
        let redis = RedisServer::start().await;
        let place = |service| Replica { service, port: free_port(), process: None };
        let services = CALLED_FIRST.into_iter().flat_map(|service| [service; REPLICAS]);
        let replicas = services.map(place).collect();
        let mut system = Self { replicas, redis, logs: Vec::new() };
        for service in CALLED_FIRST {
            for replica in 0..REPLICAS {
                system.start_again(service, replica, programs).await;
            }
        }
        system
    }

    /// Returns the URLs of a service.
    pub(crate) fn urls(&self, service: &str) -> Vec<String> {
        let of_service = self.replicas.iter().filter(|replica| replica.service == service);
        of_service.map(|replica| format!("http://127.0.0.1:{}", replica.port)).collect()
    }

    /// Stops a server gracefully.
    pub(crate) async fn stop(&mut self, service: &str, replica: usize) {
        let process = self.take(service, replica);
        process.terminate();
        let status = process.ended(STOP).await;
        self.logs.push(process.log());
        assert!(status.success(), "{service} ended with {status}:\n{}", process.log());
    }

    /// Kills a server.
    pub(crate) fn kill(&mut self, service: &str, replica: usize) {
        let process = self.take(service, replica);
        process.kill9();
        self.logs.push(process.log());
    }

    /// Restarts a server on its port, and waits until it is SERVING.
    pub(crate) async fn start_again(&mut self, service: &str, replica: usize, programs: &Programs) {
        let args = self.args(service);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let port = self.place(service, replica).port;
        let process = Process::start_on(port, &programs.server(service), &args).await;
        self.place(service, replica).process = Some(process);
    }

    fn take(&mut self, service: &str, replica: usize) -> Process {
        self.place(service, replica).process.take().unwrap()
    }

    fn place(&mut self, service: &str, replica: usize) -> &mut Replica {
        let mut of_service = self.replicas.iter_mut().filter(|place| place.service == service);
        of_service.nth(replica).unwrap()
    }

    fn args(&self, service: &str) -> Vec<String> {
        let peers: &[&str] = match service {
            "timeline" => &["relation", "post"],
            "post" => &["timeline"],
            "gateway" => &["user", "relation", "timeline", "post"],
            _ => &[],
        };
        let peers = peers.iter().map(|peer| format!("--{peer}-url={}", self.urls(peer).join(",")));
        let limits = UNLIMITED.into_iter().filter(|(limited, _)| *limited == service);
        let limits = limits.flat_map(|(_, flags)| flags).map(|&flag| flag.to_owned());
        let redis = format!("--redis-url={}", self.redis.url(service));
        let redis = (service != "gateway").then_some(redis);
        let common = ["--threads=1", "--log=warn"].map(str::to_owned);
        common.into_iter().chain(redis).chain(peers).chain(limits).collect()
    }
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
