//! Each server as a process of its own, as in production: what it logs, down to the smallest line
//! of any library, what it tells callers, what it sends and shows.

use std::{net::SocketAddr, time::Duration};

use microblog_testkit::{RedisServer, eventually, free_port};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    canaries::{Canaries, word},
    collected::Collected,
    receiver::{KEY_HEADER, Receiver},
    server::{Server, Variables, private_file},
    stores::{Archive, STORED, add_password, redis_url, take_password},
    visitor::Visitor,
};

const SERVICES: [&str; 5] = ["user", "relation", "timeline", "post", "gateway"];
/// Of base64: what a key must have at least, and a little more.
const IDENTITY_KEY_LENGTH: usize = 44;
const PATIENCE: Duration = Duration::from_secs(60);

/// All that runs, and its secrets.
struct System {
    servers: Vec<Server>,
    ports: [u16; 5],
    redis: RedisServer,
    redis_password: String,
    archive: Archive,
    archive_password: String,
    receiver: Receiver,
    receiver_at: SocketAddr,
    receiving: JoinHandle<()>,
    receiver_password: String,
    receiver_key: String,
    files: TempDir,
    /// What everybody may see: the name under which servers send what they count.
    public: String,
}

#[tokio::test]
async fn separate_servers_show_no_secret_in_lines_for_people() {
    watch("text").await;
}

#[tokio::test]
async fn separate_servers_show_no_secret_in_lines_for_machines() {
    watch("json").await;
}

async fn watch(log_format: &str) {
    let canaries = Canaries::new();
    let mut collected = Collected::default();
    let mut system = System::start(&canaries, log_format).await;
    let trace_id = format!("{:032x}", rand::random_range(1..u128::MAX));
    let gateway = system.url("gateway");
    let other = Visitor::join(&gateway, &canaries, &trace_id).await;
    let mut visitor = Visitor::join(&gateway, &canaries, &trace_id).await;
    visitor.visit(&other).await;
    system.collect_numbers(&mut collected).await;
    system.lose_stores(&mut visitor).await;
    collected.add("what callers are told", visitor.told());
    collected.add("what others are told", other.told());
    system.stop(&mut collected).await;

    collected.assert_keeps(&canaries);
    collected.assert_tells("the log of", &trace_id);
    collected.assert_tells("the metrics page of", &system.public);
    collected.assert_tells("spans", &system.public);
    collected.assert_tells("metrics", &system.public);
    collected.assert_tells("what callers are told", "BAD_CREDENTIALS");
    collected.assert_tells("what callers are told", "LOGIN_THROTTLED");
    collected.assert_tells("what callers are told", "STORE_UNAVAILABLE");
    collected.assert_tells("the command line of", "--listen=127.0.0.1:");
}

impl System {
    async fn start(canaries: &Canaries, log_format: &str) -> Self {
        let redis_password = canaries.make("the password of Redis");
        let redis = RedisServer::start().await;
        add_password(&redis, &redis_password).await;
        let archive_password = canaries.make("the password of the archive");
        let archive = Archive::start(&archive_password).await;
        let (receiver, receiver_at, receiving) = Receiver::start();
        let mut system = Self {
            servers: Vec::new(),
            ports: SERVICES.map(|_| free_port()),
            redis,
            redis_password,
            archive,
            archive_password,
            receiver,
            receiver_at,
            receiving,
            receiver_password: canaries.make("the password of the collector"),
            receiver_key: canaries.make("the key for the collector"),
            files: tempfile::tempdir().unwrap(),
            public: word(20),
        };
        let identity = canaries.make_of("the key of identities", IDENTITY_KEY_LENGTH);
        let identity = private_file(system.files.path(), "keys", &identity);
        let sentinels = canaries.make("the password of Sentinels");
        for (service, port) in SERVICES.into_iter().zip(system.ports) {
            let mut variables = system.variables(service, log_format);
            for (variable, value) in [
                ("MICROBLOG_REDIS_SENTINEL_PASSWORD", &sentinels),
                ("MICROBLOG_IDENTITY_KEY_FILE", &identity),
            ] {
                variables.push((variable.to_owned(), value.clone()));
            }
            system.servers.push(Server::spawn_on(port, service, &variables));
        }
        for server in &mut system.servers {
            server.serving().await;
        }
        system
    }

    fn url(&self, service: &str) -> String {
        let place = SERVICES.iter().position(|name| *name == service).unwrap();
        format!("http://127.0.0.1:{}", self.ports[place])
    }

    fn variables(&self, service: &str, log_format: &str) -> Variables {
        let Self { receiver_at, receiver_password, receiver_key, .. } = self;
        let peers =
            SERVICES.map(|peer| (format!("MICROBLOG_{}_URL", peer.to_uppercase()), self.url(peer)));
        let own = [
            ("MICROBLOG_REDIS_URL", redis_url(&self.redis, service, &self.redis_password)),
            ("MICROBLOG_ARCHIVE_URL", self.archive.url(&self.archive_password)),
            ("MICROBLOG_LOG", "trace".to_owned()),
            ("MICROBLOG_LOG_FORMAT", log_format.to_owned()),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                format!("http://sender:{receiver_password}@{receiver_at}"),
            ),
            ("OTEL_EXPORTER_OTLP_HEADERS", format!("{KEY_HEADER}={receiver_key}")),
            ("OTEL_SERVICE_NAME", self.public.clone()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "200".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        peers.into_iter().chain(own).collect()
    }

    /// Takes what is counted and traced, and how servers were started, while they run.
    async fn collect_numbers(&self, collected: &mut Collected) {
        let Self { receiver, receiver_key, public, .. } = self;
        eventually("spans and metrics came, with the key", PATIENCE, async || {
            receiver.spans().contains("GatewayService/Logout")
                && receiver.metrics().contains(public)
                && receiver.was_sent(receiver_key)
        })
        .await;
        for server in &self.servers {
            collected.add(format!("the metrics page of {}", server.name), server.metrics());
            collected.add(format!("the command line of {}", server.name), server.command_line());
        }
    }

    /// Has stores refuse the servers, and go away, and the collector as well.
    async fn lose_stores(&mut self, visitor: &mut Visitor<'_>) {
        self.archive.change_password("another");
        visitor.publish("a post that cannot be archived").await.unwrap();
        self.archive.refused(PATIENCE).await;
        take_password(&self.redis, &self.redis_password).await;
        visitor.call_in_vain().await;
        for server in self.servers.iter_mut().filter(|it| STORED.contains(&&*it.name)) {
            server.not_serving().await;
        }
        let receiver = &self.receiver;
        let failed = async || receiver.spans().contains("StringValue(\"UNAVAILABLE\")");
        eventually("spans of calls that failed came", PATIENCE, failed).await;
        self.archive.kill();
        self.redis.kill();
        self.receiving.abort();
        visitor.call_in_vain().await;
    }

    async fn stop(&mut self, collected: &mut Collected) {
        for server in self.servers.iter_mut().rev() {
            let status = server.stop().await;
            assert!(
                status.success(),
                "{} ended with {status}: {}",
                server.name,
                server.last_words()
            );
            server.assert_no_panic();
            collected.add(format!("the log of {}", server.name), server.said());
        }
        collected.add("spans", self.receiver.spans());
        collected.add("metrics", self.receiver.metrics());
    }
}
