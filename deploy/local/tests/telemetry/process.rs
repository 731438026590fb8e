//! Runs the services as processes: `microblog` under the names of their programs, as in the image.

use std::{
    fs::File,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use microblog_testkit::{PATIENCE, RedisServer, eventually, free_port};
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{collector::Collector, launcher};

const START: Duration = PATIENCE;
const SERVICES: [&str; 5] = ["user", "relation", "timeline", "post", "gateway"];

/// The whole system, with a process per service.
pub(crate) struct System {
    children: Vec<Child>,
    addresses: Vec<(&'static str, SocketAddr)>,
    pub(crate) redis: RedisServer,
    /// Of logs and databases.
    directory: TempDir,
}

impl System {
    /// Starts the system with a collector, which receives sampled traces without delay.
    pub(crate) async fn start(collector: &Collector) -> Self {
        let redis = RedisServer::start().await;
        let addresses =
            SERVICES.map(|name| (name, SocketAddr::from(([127, 0, 0, 1], free_port()))));
        let directory = TempDir::new().unwrap();
        let mut system =
            Self { children: Vec::new(), addresses: addresses.to_vec(), redis, directory };
        for service in SERVICES {
            let child = system.spawn(service, collector);
            system.children.push(child);
        }
        for service in SERVICES {
            let url = system.url(service);
            eventually(service, START, async || is_serving(&url).await).await;
        }
        system
    }

    pub(crate) fn url(&self, service: &str) -> String {
        let (_, address) = self.addresses.iter().find(|(name, _)| *name == service).unwrap();
        format!("http://{address}")
    }

    fn spawn(&self, service: &'static str, collector: &Collector) -> Child {
        let log = File::create(self.directory.path().join(service)).unwrap();
        let mut command = Command::new(launcher::PROGRAM);
        command.arg0(format!("microblog-{service}"));
        for (peer, _) in &self.addresses {
            command.env(format!("MICROBLOG_{}_URL", peer.to_uppercase()), self.url(peer));
        }
        let file = self.directory.path().join(service).with_extension("sqlite");
        let database = matches!(service, "user" | "relation" | "post")
            .then(|| ("MICROBLOG_DATABASE_URL", format!("sqlite://{}", file.display())));
        command
            .env("MICROBLOG_LISTEN", self.url(service).trim_start_matches("http://"))
            .env("MICROBLOG_THREADS", "1")
            .env("MICROBLOG_REDIS_URL", self.redis.url(service))
            .envs(database)
            .env("OTEL_SERVICE_NAME", service)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
            .env("OTEL_METRICS_EXPORTER", "none")
            .env("OTEL_TRACES_SAMPLER", "parentbased_always_off")
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            for service in SERVICES {
                let log = std::fs::read_to_string(self.directory.path().join(service));
                eprintln!("log of {service}:\n{}", log.unwrap_or_default());
            }
        }
    }
}

async fn is_serving(url: &str) -> bool {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
}
