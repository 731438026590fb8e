//! Metrics of a keyspace. One test per process, because the meter provider is global.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use microblog_domain::Partition;
use microblog_keyspace::{Call, Config, Keyspace, Kind, decode, redis::cmd};
use microblog_testkit::{PATIENCE, RedisCluster, RedisServer, eventually};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};
use support::{LIBRARY, USER, get, key, open, open_ready, put, send};

/// Exports the metrics of this process.
struct Exported {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Exported {
    fn start() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        global::set_meter_provider(provider.clone());
        Self { exporter, provider }
    }

    /// Returns the last value of each series (of a histogram, its count), by the name of the instrument
    /// and the values of some attributes.
    fn numbers(&self) -> BTreeMap<String, f64> {
        self.provider.force_flush().unwrap();
        let mut numbers = BTreeMap::new();
        for resource in self.exporter.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(|scope| scope.metrics()) {
                let mut insert = |attributes: &mut dyn Iterator<Item = &KeyValue>, number: f64| {
                    numbers.insert(name(metric.name(), attributes), number);
                };
                match metric.data() {
                    AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
                        .data_points()
                        .for_each(|point| insert(&mut point.attributes(), point.count() as f64)),
                    AggregatedMetrics::I64(MetricData::Sum(sum)) => sum
                        .data_points()
                        .for_each(|point| insert(&mut point.attributes(), point.value() as f64)),
                    AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                        .data_points()
                        .for_each(|point| insert(&mut point.attributes(), point.value() as f64)),
                    _ => {}
                }
            }
        }
        numbers
    }

    fn number(&self, name: &str) -> f64 {
        self.numbers().get(name).copied().unwrap_or_default()
    }
}

fn name(metric: &str, attributes: &mut dyn Iterator<Item = &KeyValue>) -> String {
    let keys = ["db.operation.name", "error.type", "db.client.connection.pool.name", "result"];
    let shown = attributes.filter(|attribute| keys.contains(&attribute.key.as_str()));
    let mut values: Vec<_> = shown.map(|attribute| format!(" {}", attribute.value)).collect();
    values.sort();
    format!("{metric}{}", values.concat())
}

#[tokio::test]
async fn round_trips_connections_and_caches_are_measured() {
    let metrics = Exported::start();
    let server = RedisServer::start().await;
    let keyspace = open_ready(server.url(USER)).await;
    let trips = |what: &str| metrics.number(&format!("db.client.operation.duration {what}"));
    let (key, calls) = (key(3, "measured"), trips("FCALL"));
    put(&keyspace, &key, "a").await.unwrap();
    get(&keyspace, &key).await.unwrap();
    get(&keyspace, &key).await.unwrap();
    send(&keyspace, 5, "b").await.unwrap();
    assert_eq!((trips("FCALL") - calls, trips("GET"), trips("PIPELINE")), (1.0, 2.0, 1.0));

    let error = keyspace.call::<()>(Call::new("test_reject").key(&key)).await.unwrap_err();
    assert_eq!(error.code(), Some("LIMIT"));
    keyspace.query::<()>(cmd("FLUSHALL")).await.unwrap_err();
    assert_eq!((trips("FCALL LIMIT"), trips("FLUSHALL NOPERM")), (1.0, 1.0));

    let connections =
        |kind: &str| metrics.number(&format!("db.client.connection.count test {kind}"));
    assert_eq!((connections("shared"), connections("exclusive")), (1.0, 0.0));
    let exclusive = keyspace.dedicated_connection(&key).await.unwrap();
    assert_eq!(connections("exclusive"), 1.0);
    drop((exclusive, keyspace));
    assert_eq!((connections("shared"), connections("exclusive")), (0.0, 0.0));

    let nowhere = open("redis://127.0.0.1:1".to_owned());
    get(&nowhere, &key).await.unwrap_err();
    assert_eq!(trips("GET unavailable"), 1.0);
    assert!(metrics.number("db.client.connection.create_time test shared unavailable") >= 1.0);

    check_cache(&metrics, &server).await;
    check_cluster(&metrics).await;
}

async fn check_cluster(metrics: &Exported) {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    let connections =
        |pool: &str| metrics.number(&format!("db.client.connection.count test {pool}"));
    // The library has found the cluster, and is not needed until a command is redirected.
    assert_eq!((connections("shared"), connections("library")), (3.0, 0.0));
    assert_eq!(metrics.number("microblog.redis.redirections"), 0.0);
    // A command without a key.
    keyspace.query::<()>(cmd("PING")).await.unwrap();
    assert_eq!(metrics.number("microblog.redis.redirections"), 1.0);
    assert_eq!(connections("library"), 1.0);
}

/// Cacheable values.
const VALUES: Kind<u16, u64> = Kind {
    partition: Partition::new,
    command: |id| cmd("HGET").arg(value_key(id)).arg("n").take(),
    id: |key| std::str::from_utf8(key).ok()?.rsplit(':').next()?.parse().ok(),
    decode: |_, answer| Ok(decode::<Option<u64>>(answer)?.unwrap_or_default()),
    heap_bytes: |_| 1000,
};

fn value_key(id: u16) -> String {
    format!("pst:{{{id}}}:value:{id}")
}

async fn check_cache(metrics: &Exported, server: &RedisServer) {
    // The Redis user with access to CLIENT TRACKING.
    let keyspace = Keyspace::open(&Config::at(server.url("post")), LIBRARY).unwrap();
    let values = keyspace.client_side_cache(VALUES);
    let number = |name: &str| metrics.number(&format!("microblog.cache.{name}"));
    eventually("reads are tracked", PATIENCE, async || {
        values.read(&[9]).await.unwrap();
        number("values") == 1.0
    })
    .await;
    assert!(number("reads untracked") >= 1.0, "the first read bypasses the cache");
    assert!(number("size") > 1000.0);
    let (hits, misses) = (number("reads hit"), number("reads miss"));
    // The second read is cached.
    for _ in 0..3 {
        values.read(&[1, 2, 9]).await.unwrap();
    }
    assert_eq!((number("reads hit") - hits, number("reads miss") - misses), (5.0, 4.0));
    assert_eq!(number("values"), 3.0);
    assert_eq!(metrics.number("db.client.connection.count test tracking"), 1.0);
    cmd("HSET")
        .arg(value_key(1))
        .arg("n")
        .arg(7)
        .exec_async(&mut server.admin().await)
        .await
        .unwrap();
    assert_eq!(values.read(&[2]).await.unwrap(), [0]);
    assert_eq!((number("invalidations"), number("values")), (1.0, 2.0));
    drop((values, keyspace));
    eventually("the cache and its connection are dropped", PATIENCE, async || {
        let connections = metrics.number("db.client.connection.count test tracking");
        (number("values"), number("size"), connections) == (0.0, 0.0, 0.0)
    })
    .await;
}
