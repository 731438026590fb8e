//! Retries of UNAVAILABLE, and the retry budget.

use std::time::{Duration, Instant};

use futures::future::join_all;
use microblog_chassis::status;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::{
    caller::{Kind, NOT_IDEMPOTENT, READ, WRITE, call, frequent_refresh, peer_at},
    replica::{FakeResolver, Replica, hosts},
    support::eventually,
};

fn unavailable() -> Status {
    Status::unavailable("store unavailable")
}

#[tokio::test]
async fn unavailable_calls_are_retried_on_another_endpoint() {
    let [fails, works] = hosts();
    let fails = Replica::start_with(fails, |_| async { Err(unavailable()) });
    let works = Replica::start(works);
    let peer = peer_at(&FakeResolver::new(&[fails.address, works.address]), &frequent_refresh());
    eventually("both are called", async || {
        let _ = call(&peer, Kind::StreamedRead).await;
        fails.calls() > 0 && works.calls() > 0
    })
    .await;
    for _ in 0..40 {
        call(&peer, Kind::Read).await.unwrap();
        call(&peer, Kind::Write).await.unwrap();
    }
    assert!(!fails.calls_of(READ).is_empty() && !fails.calls_of(WRITE).is_empty());
    let mut failed = 0;
    for _ in 0..40 {
        match call(&peer, Kind::NotIdempotent).await {
            Ok(_) => {}
            Err((_, status)) => {
                assert_eq!(status.message(), "store unavailable");
                failed += 1;
            }
        }
    }
    assert_eq!(fails.calls_of(NOT_IDEMPOTENT).len(), failed);
    assert_eq!(works.calls_of(NOT_IDEMPOTENT).len(), 40 - failed);
    assert!(failed > 0);
}

#[tokio::test]
async fn other_status_codes_are_not_retried() {
    let replicas = hosts::<2>().map(|address| {
        Replica::start_with(address, |_| async { Err(Status::not_found("nobody")) })
    });
    let names = FakeResolver::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = peer_at(&names, &frequent_refresh());
    for _ in 0..50 {
        let (_, status) = call(&peer, Kind::Read).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
    }
    assert_eq!(replicas.iter().map(Replica::calls).sum::<usize>(), 50);
}

#[tokio::test]
async fn failures_of_the_common_store_are_not_retried() {
    let replicas = hosts::<2>()
        .map(|address| Replica::start_with(address, |_| async { Err(status::not_recorded()) }));
    let names = FakeResolver::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = peer_at(&names, &frequent_refresh());
    for kind in [Kind::Write, Kind::Read, Kind::StreamedRead] {
        for _ in 0..10 {
            let (_, status) = call(&peer, kind).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
        }
    }
    assert_eq!(replicas.iter().map(Replica::calls).sum::<usize>(), 30);
}

#[tokio::test]
async fn calls_to_be_retried_later_are_not_retried_at_once() {
    let replicas = hosts::<2>().map(|address| {
        Replica::start_with(address, |_| async {
            let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(7)));
            Err(Status::with_error_details(Code::Unavailable, "later", details))
        })
    });
    let names = FakeResolver::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = peer_at(&names, &frequent_refresh());
    for kind in [Kind::Write, Kind::Read, Kind::StreamedRead] {
        for _ in 0..10 {
            let (_, status) = call(&peer, kind).await.unwrap_err();
            let delay = status.get_details_retry_info().unwrap().retry_delay;
            assert_eq!(delay, Some(Duration::from_secs(7)));
        }
    }
    assert_eq!(replicas.iter().map(Replica::calls).sum::<usize>(), 30);
}

#[tokio::test]
async fn a_write_that_was_retried_is_not_rejected() {
    let [fails, full] = hosts();
    let fails = Replica::start_with(fails, |_| async { Err(unavailable()) });
    let full = Replica::start_with(full, |_| async { Err(status::store_full()) });
    let peer = peer_at(&FakeResolver::new(&[fails.address, full.address]), &frequent_refresh());
    eventually("both are called", async || {
        let _ = call(&peer, Kind::StreamedRead).await;
        fails.calls() > 0 && full.calls() > 0
    })
    .await;
    let [mut retried, mut rejected] = [0; 2];
    for kind in [Kind::Write, Kind::Read].into_iter().cycle().take(80) {
        let before = fails.calls();
        let (_, status) = call(&peer, kind).await.unwrap_err();
        let may_be_done = fails.calls() > before && kind == Kind::Write;
        let expected = if may_be_done { Code::Unavailable } else { Code::ResourceExhausted };
        assert_eq!(status.code(), expected, "{kind:?}");
        retried += usize::from(may_be_done);
        rejected += usize::from(kind == Kind::Write && !may_be_done);
    }
    assert!(retried > 0 && rejected > 0, "{retried} {rejected}");
}

#[tokio::test]
async fn single_endpoint_is_not_retried() {
    let [address] = hosts();
    let only = Replica::start_with(address, |_| async { Err(unavailable()) });
    let peer = peer_at(&FakeResolver::new(&[address]), &frequent_refresh());
    for _ in 0..20 {
        call(&peer, Kind::Read).await.unwrap_err();
    }
    assert_eq!(only.calls(), 20);
}

#[tokio::test]
async fn retry_budget_limits_retries_to_a_tenth() {
    const CALLS: usize = 5_000;
    // Per ten-second window of the budget; a busy machine takes longer than one.
    const FLOOR: usize = 100;
    let started = Instant::now();
    let replicas =
        hosts::<2>().map(|address| Replica::start_with(address, |_| async { Err(unavailable()) }));
    let names = FakeResolver::new(&replicas.each_ref().map(|replica| replica.address));
    let peer = peer_at(&names, &frequent_refresh());
    for _ in 0..CALLS / 50 {
        for called in join_all((0..50).map(|_| call(&peer, Kind::Read))).await {
            assert_eq!(called.unwrap_err().1.code(), Code::Unavailable);
        }
    }
    let seen: usize = replicas.iter().map(Replica::calls).sum();
    let again = seen - CALLS;
    let spans = 2 + started.elapsed().as_secs() as usize / 10;
    assert!(again <= CALLS / 10 + spans * FLOOR, "{again} in {spans} times ten seconds");
    assert!(again >= CALLS / 10, "{again}");
}
