//! Metrics of the archive. Alone in its process, since the meter provider is global.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

#[allow(dead_code, unused_macros, unused_imports, reason = "no test file uses all of it")]
#[path = "archive/aging.rs"]
mod aging;
mod support;

use aging::Aging;
use microblog_testkit::eventually;
use opentelemetry::global;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};
use support::{
    PATIENCE,
    archives::{ArchiveServer, Kind, connect, execute},
    id,
};

const AUTHOR: u64 = id(1);

/// What Prometheus would scrape.
struct Measured(Registry);

impl Measured {
    fn begin() -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(exporter.unwrap()).build();
        global::set_meter_provider(provider);
        Self(registry)
    }

    /// Returns the sum of all series of this name with these labels.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = TextEncoder::new().encode_to_string(&self.0.gather()).unwrap();
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let is_meant = |line: &&str| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        };
        let lines = text.lines().filter(is_meant);
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    fn operations(&self, system: &str, name: &str, value: &str) -> f64 {
        let labels = [("db_system_name", system), (name, value)];
        self.value("db_client_operation_duration_seconds_count", &labels)
    }

    fn connections(&self, pool: &str, state: &str) -> f64 {
        let pool = ("db_client_connection_pool_name", pool);
        let labels = [pool, ("db_client_connection_state", state)];
        self.value("db_client_connection_count", &labels)
    }
}

#[tokio::test]
async fn operations_and_connections_are_measured() {
    let measured = Measured::begin();
    for (kind, system, refused) in
        [(Kind::Sqlite, "sqlite", "1"), (Kind::Postgres, "postgresql", "42P01")]
    {
        let archives = ArchiveServer::start(kind).await;
        let aging = Aging::start(&archives, 0).await;
        let operations = |name: &str, value: &str| measured.operations(system, name, value);
        let old = aging.system.create(AUTHOR, "old").await.unwrap().id;
        let older = aging.system.create(AUTHOR, "older").await.unwrap().id;
        aging.evict(&[old, older]).await;
        let before = operations("db_query_summary", "SELECT posts");
        aging.system.get(old, 0).await.unwrap();
        assert_eq!(operations("db_query_summary", "SELECT posts") - before, 1.0);
        for name in ["SELECT", "INSERT", "BEGIN", "CREATE"] {
            assert!(operations("db_operation_name", name) >= 1.0, "{name} of {system}");
        }
        assert_eq!(operations("error_type", refused), 0.0);
        for pool in ["database reading", "database writing"] {
            eventually("connections rest", PATIENCE, async || {
                measured.connections(pool, "idle") >= 1.0
                    && measured.connections(pool, "used") == 0.0
            })
            .await;
        }

        let mut archive = connect(&aging.url).await;
        execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
        aging.system.get(older, 0).await.unwrap_err();
        assert_eq!(operations("error_type", refused), 1.0);
        if kind == Kind::Postgres {
            archives.postgres().kill();
            eventually("the archive is unavailable", PATIENCE, async || {
                aging.system.get(older, 0).await.unwrap_err();
                operations("error_type", "unavailable") + operations("error_type", "timeout") >= 1.0
            })
            .await;
            assert!(
                measured.value(
                    "db_client_operation_duration_seconds_count",
                    &[("server_address", "127.0.0.1"), ("db_namespace", "archive_0"),]
                ) >= 1.0
            );
        }
    }
}
