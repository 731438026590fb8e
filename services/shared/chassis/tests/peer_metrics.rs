//! Metrics of a peer with several endpoints.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "no test file uses all of it")]
#[path = "replicas/caller.rs"]
mod caller;
#[allow(dead_code, reason = "no test file uses all of it")]
#[path = "replicas/replica.rs"]
mod replica;
mod support;

use caller::{Kind, call, frequent_refresh, peer_at};
use opentelemetry::global;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};
use replica::{FakeResolver, Replica, hosts};
use support::eventually;
use tonic::Status;

/// The only test of this file: metrics are per process.
#[tokio::test]
async fn retries_and_endpoints_are_counted() {
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build();
    global::set_meter_provider(SdkMeterProvider::builder().with_reader(exporter.unwrap()).build());
    // Sums all series with these attributes.
    let value = |name: &str, attributes: &[&str]| -> f64 {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let is_meant = |line: &&str| {
            line.starts_with(name) && attributes.iter().all(|attribute| line.contains(attribute))
        };
        let lines = text.lines().filter(is_meant);
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let retries = |reason, outcome| {
        let service = r#"microblog_rpc_service="microblog.user.v1.UserService""#;
        let [reason, outcome] = [format!("reason=\"{reason}\""), format!("outcome=\"{outcome}\"")];
        value("microblog_peer_retries", &[service, &reason, &outcome])
    };
    let addresses = |state| {
        value("microblog_peer_endpoints", &[r#"peer="peer:1""#, &format!("state=\"{state}\"")])
    };

    let [fails, works, dead] = hosts();
    let mut fails =
        Replica::start_with(fails, |_| async { Err(Status::unavailable("for a while")) });
    let works = Replica::start(works);
    let names = FakeResolver::new(&[fails.address, works.address, dead]);
    let peer = peer_at(&names, &frequent_refresh());
    eventually("two of them answer", async || {
        let _ = call(&peer, Kind::NotIdempotent).await;
        (addresses("live"), addresses("unavailable")) == (2.0, 1.0)
    })
    .await;
    let seen = fails.calls();
    for _ in 0..40 {
        call(&peer, Kind::Read).await.unwrap();
    }
    let repeated = fails.calls() - seen;
    assert!(repeated > 0);
    assert_eq!(retries("unanswered", "answered"), repeated as f64);
    assert_eq!(retries("unanswered", "failed") + retries("unanswered", "denied"), 0.0);

    fails.stop().await;
    eventually("one of them answers", async || {
        call(&peer, Kind::NotIdempotent).await.unwrap();
        (addresses("live"), addresses("unavailable")) == (1.0, 2.0)
    })
    .await;
    names.set(Some(&[works.address]));
    eventually("there is one", async || {
        call(&peer, Kind::NotIdempotent).await.unwrap();
        (addresses("live"), addresses("unavailable")) == (1.0, 0.0)
    })
    .await;
    drop(peer);
    eventually("there is none", async || addresses("live") == 0.0).await;
}
