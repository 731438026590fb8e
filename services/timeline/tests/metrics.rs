//! Metrics of the service. The only test of its process, since the meter provider is global.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod support;

use std::collections::BTreeMap;

use microblog_proto::timeline as pb;
use microblog_testkit::{Topology, eventually};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};
use support::{PATIENCE, System, id};

/// Returns the last value of each instrument, by its name and attribute values.
fn numbers(exporter: &InMemoryMetricExporter) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    let finished = exporter.get_finished_metrics().unwrap();
    for metric in finished.iter().flat_map(|resource| resource.scope_metrics()) {
        for metric in metric.metrics() {
            let mut note = |attributes: &mut dyn Iterator<Item = &KeyValue>, number: f64| {
                let mut values: Vec<_> = attributes.map(|a| format!(" {}", a.value)).collect();
                values.sort();
                numbers.insert(format!("{}{}", metric.name(), values.concat()), number);
            };
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum.data_points().for_each(|p| {
                    note(&mut p.attributes(), p.value() as f64);
                }),
                AggregatedMetrics::U64(MetricData::Gauge(gauge)) => {
                    gauge.data_points().for_each(|p| note(&mut p.attributes(), p.value() as f64));
                }
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    gauge.data_points().for_each(|p| note(&mut p.attributes(), p.value()));
                }
                AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                    histogram
                        .data_points()
                        .for_each(|p| note(&mut p.attributes(), p.count() as f64));
                }
                _ => {}
            }
        }
    }
    numbers
}

#[tokio::test]
async fn the_service_exports_its_metrics() {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    global::set_meter_provider(provider.clone());
    let system = System::start(Topology::Single).await;
    let (alice, bob, carol) = (id(1), id(2), id(3));
    for follower in [bob, carol] {
        system.follow(follower, alice).await;
        assert_eq!(system.home(follower).await, [0; 0]);
    }
    let post = system.post(alice).await;
    for follower in [bob, carol] {
        system.home_becomes(follower, &[post]).await;
    }
    system.follow(bob, carol).await;
    assert_eq!(system.home(bob).await, [post]);
    let invalid = pb::CountNewRequest { user_id: 0, since_token: String::new() };
    system.client.clone().count_new(invalid).await.unwrap_err();

    eventually("all is measured", PATIENCE, async || {
        provider.force_flush().unwrap();
        let numbers = numbers(&exporter);
        let number = |name: &str| numbers.get(&format!("microblog.timeline.{name}")).copied();
        number("posts push") == Some(1.0)
            && number("deliveries") == Some(2.0)
            && number("builds first_read true") == Some(2.0)
            && number("builds backfill true") == Some(1.0)
            && number("rejections InvalidArgument") == Some(1.0)
            && number("step.duration done false push") == Some(1.0)
            && number("job.duration push") == Some(1.0)
            && number("queue.depth") == Some(0.0)
            && number("queue.age") == Some(0.0)
    })
    .await;

    // An unsupported step stays in the stream.
    let mut redis = system.redis.nodes()[0].admin().await;
    let mut add = microblog_testkit::redis::cmd("XADD");
    add.arg("tl:{0}:fanout").arg("1-0").arg("job").arg("rubbish");
    add.exec_async(&mut redis).await.unwrap();
    eventually("the backlog is exported", PATIENCE, async || {
        provider.force_flush().unwrap();
        let numbers = numbers(&exporter);
        numbers.get("microblog.timeline.queue.depth") == Some(&1.0)
            && numbers["microblog.timeline.queue.age"] > 1e9
    })
    .await;
}
