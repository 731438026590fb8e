//! Each server in its own process, as in production: logs at the most verbose level, responses,
//! telemetry, metrics and command lines.

use std::{net::SocketAddr, time::Duration};

use microblog_testkit::{RedisServer, eventually, free_port, redis};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    canaries::{Canaries, word},
    client::Client,
    collector::{Collector, KEY_HEADER},
    outputs::Outputs,
    server::{Server, Variables, private_file},
    stores::{Databases, add_password, redis_url, take_password},
};

const SERVICES: [&str; 5] = ["user", "relation", "timeline", "post", "gateway"];
/// A base64 key, slightly longer than the minimum.
const IDENTITY_KEY_LENGTH: usize = 44;
const PATIENCE: Duration = Duration::from_secs(60);

/// The running system and its secrets.
struct System {
    servers: Vec<Server>,
    ports: [u16; 5],
    redis: RedisServer,
    redis_password: String,
    databases: Databases,
    database_password: String,
    collector: Collector,
    collector_at: SocketAddr,
    receiving: JoinHandle<()>,
    collector_password: String,
    collector_key: String,
    files: TempDir,
    /// A public text: the service name in the telemetry.
    public: String,
}

#[tokio::test]
async fn separate_servers_do_not_leak_secrets_in_text_logs() {
    watch("text").await;
}

#[tokio::test]
async fn separate_servers_do_not_leak_secrets_in_json_logs() {
    watch("json").await;
}

async fn watch(log_format: &str) {
    let canaries = Canaries::new();
    let mut outputs = Outputs::default();
    let mut system = System::start(&canaries, log_format).await;
    let trace_id = format!("{:032x}", rand::random_range(1..u128::MAX));
    let gateway = system.url("gateway");
    let other = Client::join(&gateway, &canaries, &trace_id).await;
    let mut client = Client::join(&gateway, &canaries, &trace_id).await;
    client.make_calls(&other).await;
    system.collect_numbers(&mut outputs).await;
    system.lose_stores(&mut client).await;
    outputs.add("responses to the client", client.recorded());
    outputs.add("responses to the other client", other.recorded());
    system.stop(&mut outputs).await;

    outputs.assert_keeps(&canaries);
    outputs.assert_contains("the log of", &trace_id);
    outputs.assert_contains("the metrics page of", &system.public);
    outputs.assert_contains("spans", &system.public);
    outputs.assert_contains("metrics", &system.public);
    outputs.assert_contains("responses to the client", "BAD_CREDENTIALS");
    outputs.assert_contains("responses to the client", "LOGIN_THROTTLED");
    outputs.assert_contains("responses to the client", "STORE_UNAVAILABLE");
    outputs.assert_contains("the command line of", "--listen=127.0.0.1:");
}

impl System {
    async fn start(canaries: &Canaries, log_format: &str) -> Self {
        let redis_password = canaries.make("the password of Redis");
        let redis = RedisServer::start().await;
        add_password(&redis, &redis_password).await;
        let database_password = canaries.make("the password of the databases");
        let databases = Databases::start(&database_password).await;
        let (collector, collector_at, receiving) = Collector::start();
        let mut system = Self {
            servers: Vec::new(),
            ports: SERVICES.map(|_| free_port()),
            redis,
            redis_password,
            databases,
            database_password,
            collector,
            collector_at,
            receiving,
            collector_password: canaries.make("the password of the collector"),
            collector_key: canaries.make("the key for the collector"),
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
        let Self { collector_at, collector_password, collector_key, .. } = self;
        let peers =
            SERVICES.map(|peer| (format!("MICROBLOG_{}_URL", peer.to_uppercase()), self.url(peer)));
        let own = [
            ("MICROBLOG_REDIS_URL", redis_url(&self.redis, service, &self.redis_password)),
            ("MICROBLOG_DATABASE_URL", self.databases.url(service, &self.database_password)),
            ("MICROBLOG_LOG", "trace".to_owned()),
            ("MICROBLOG_LOG_FORMAT", log_format.to_owned()),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                format!("http://sender:{collector_password}@{collector_at}"),
            ),
            ("OTEL_EXPORTER_OTLP_HEADERS", format!("{KEY_HEADER}={collector_key}")),
            ("OTEL_SERVICE_NAME", self.public.clone()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "200".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        peers.into_iter().chain(own).collect()
    }

    /// Collects metrics, traces and command lines of the running servers.
    async fn collect_numbers(&self, outputs: &mut Outputs) {
        let Self { collector, collector_key, public, .. } = self;
        eventually("spans and metrics came, with the key", PATIENCE, async || {
            collector.spans().contains("GatewayService/Logout")
                && collector.metrics().contains(public)
                && collector.was_sent(collector_key)
        })
        .await;
        for server in &self.servers {
            outputs.add(format!("the metrics page of {}", server.name), server.metrics());
            outputs.add(format!("the command line of {}", server.name), server.command_line());
        }
    }

    /// Makes the stores reject the servers and stop, and the collector too.
    async fn lose_stores(&mut self, client: &mut Client<'_>) {
        let mut admin = self.redis.admin().await;
        eventually("the session is cached", PATIENCE, async || {
            client.look().await;
            let keys = redis::cmd("KEYS").arg("usr:*:sessions:*").take();
            !keys.query_async::<Vec<String>>(&mut admin).await.unwrap().is_empty()
        })
        .await;
        self.databases.change_password("another");
        assert!(client.publish("a post that cannot be stored").await.is_none());
        for service in ["user", "relation", "post"] {
            self.databases.wait_for_rejected_password(service, PATIENCE).await;
        }
        take_password(&self.redis, &self.redis_password).await;
        client.call_during_outage().await;
        // The others stay SERVING: they have reached their databases.
        let lost = |server: &&mut Server| &*server.name == "timeline";
        for server in self.servers.iter_mut().filter(lost) {
            server.not_serving().await;
        }
        let collector = &self.collector;
        let failed = async || collector.spans().contains("StringValue(\"UNAVAILABLE\")");
        eventually("spans of calls that failed came", PATIENCE, failed).await;
        self.databases.kill();
        self.redis.kill();
        self.receiving.abort();
        client.call_during_outage().await;
    }

    async fn stop(&mut self, outputs: &mut Outputs) {
        for server in self.servers.iter_mut().rev() {
            let status = server.stop().await;
            assert!(
                status.success(),
                "{} ended with {status}: {}",
                server.name,
                server.last_words()
            );
            server.assert_no_panic();
            outputs.add(format!("the log of {}", server.name), server.output());
        }
        outputs.add("spans", self.collector.spans());
        outputs.add("metrics", self.collector.metrics());
    }
}
