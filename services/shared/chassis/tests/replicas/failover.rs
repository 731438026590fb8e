//! Unreachable and unresponsive endpoints.

use std::{
    convert::Infallible,
    net::{self, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Response;
use http_body_util::Empty;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tonic::Code;

use crate::{
    caller::{Kind, Load, NOT_IDEMPOTENT, READ, WRITE, call, frequent_refresh, peer_at, watch},
    replica::{FakeResolver, Replica, hosts},
    support::{config, eventually},
};

#[tokio::test]
async fn dead_endpoint_fails_no_call() {
    let [alive, dead] = hosts();
    let _replica = Replica::start(alive);
    let peer = peer_at(&FakeResolver::new(&[dead, alive]), &frequent_refresh());
    for number in 0..1_000 {
        call(&peer, Kind::NotIdempotent)
            .await
            .unwrap_or_else(|failed| panic!("{number}: {failed:?}"));
    }
}

#[tokio::test]
async fn unresponsive_endpoint_delays_no_call() {
    let [alive, silent] = hosts();
    let _replica = Replica::start(alive);
    let _silent = net::TcpListener::bind(silent).unwrap();
    let peer = peer_at(&FakeResolver::new(&[silent, alive]), &frequent_refresh());
    let mut slow = 0;
    for _ in 0..500 {
        // A call to that endpoint takes longer; half of them would.
        let called =
            tokio::time::timeout(Duration::from_millis(1_900), call(&peer, Kind::NotIdempotent));
        match called.await {
            Ok(answer) => drop(answer.unwrap()),
            Err(_) => slow += 1,
        }
    }
    // A busy machine may delay some.
    assert!(slow < 5, "{slow} of 500 calls had to wait");
}

#[tokio::test]
async fn call_ends_at_its_deadline_if_no_endpoint_responds() {
    let silent = hosts::<2>().map(|host| net::TcpListener::bind(host).unwrap());
    let names = FakeResolver::new(&silent.each_ref().map(|silent| silent.local_addr().unwrap()));
    let mut short = frequent_refresh();
    short.default_timeout_ms = 300;
    let peer = peer_at(&names, &short);
    let started = Instant::now();
    let (_, status) = call(&peer, Kind::Read).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let took = started.elapsed();
    assert!(took.as_millis() >= 300, "{took:?}");
    // With a longer deadline, it fails before the deadline.
    let (_, status) = call(&peer_at(&names, &frequent_refresh()), Kind::Read).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn calls_fail_fast_while_all_endpoints_are_down_and_recover() {
    let [first, second] = hosts();
    let peer = peer_at(&FakeResolver::new(&[first, second]), &frequent_refresh());
    let mut slow = 0;
    for _ in 0..20 {
        let started = Instant::now();
        let (_, status) = call(&peer, Kind::Read).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        slow += usize::from(started.elapsed() > Duration::from_secs(1));
    }
    // No call waits for a connection, which takes longer. A busy machine may delay some.
    assert!(slow < 5, "{slow} of 20 calls had to wait");
    for address in [first, second, first] {
        let _replica = Replica::start(address);
        eventually("it is found", async || call(&peer, Kind::NotIdempotent).await.is_ok()).await;
    }
}

#[tokio::test]
async fn killed_server_fails_only_calls_that_are_not_idempotent() {
    let slowly = |_| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    };
    let [stays, dies] = hosts();
    let stays = Replica::start_with(stays, slowly);
    let mut dies = Replica::start_with(dies, slowly);
    let peer = peer_at(&FakeResolver::new(&[stays.address, dies.address]), &frequent_refresh());
    let load = Load::start(&peer, &[Kind::Read, Kind::Write, Kind::NotIdempotent], 15);
    eventually("calls are made", async || load.made() > 500).await;
    for _ in 0..3 {
        dies.kill().await;
        let made = load.made();
        eventually("calls are made by the other one", async || load.made() > made + 300).await;
        dies.start_again();
        let calls = dies.calls();
        eventually("it is back", async || dies.calls() > calls + 100).await;
    }
    let failures = load.end().await;
    let both = |method| [stays.calls_of(method), dies.calls_of(method)].concat();
    let failure_of = |seen: &[String]| failures.iter().find(|(mark, _)| seen.contains(mark));
    for method in [READ, WRITE] {
        let failure = failure_of(&both(method));
        assert!(failure.is_none(), "{method}: {failure:?}");
    }
    let mut seen = both(NOT_IDEMPOTENT);
    let in_all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), in_all, "some were repeated");
    assert!(failure_of(&seen).is_some(), "nothing was under way");
}

#[tokio::test]
async fn stream_is_retried_only_before_its_first_message() {
    let [first, second] = hosts();
    let mut holds = Replica::start_with(first, |_| std::future::pending());
    let names = FakeResolver::new(&[first]);
    let peer = peer_at(&names, &frequent_refresh());
    let stream = tokio::spawn(async move { watch(&peer).await });
    eventually("the stream is requested", async || holds.calls() == 1).await;
    let mut answers = Replica::start(second);
    names.set(Some(&[first, second]));
    holds.kill().await;
    let mut stream = stream.await.unwrap().expect("the other one answers");
    assert_eq!(answers.calls(), 1);
    answers.kill().await;
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn truncated_response_is_retried() {
    let [first, second] = hosts();
    let mut breaks = Replica::start_with(first, |_| std::future::pending());
    let names = FakeResolver::new(&[first]);
    let peer = peer_at(&names, &frequent_refresh());
    let read = tokio::spawn({
        let peer = peer.clone();
        async move { call(&peer, Kind::StreamedRead).await }
    });
    eventually("the call is in flight", async || breaks.calls() == 1).await;
    // The message has arrived, but not the status: another call's response came after it.
    assert!(!read.is_finished());
    let _answers = Replica::start(second);
    names.set(Some(&[first, second]));
    breaks.kill().await;
    read.await.unwrap().expect("the other one answers");
}

/// Takes eight seconds: the HTTP/2 keepalive interval plus its timeout.
#[tokio::test]
async fn timed_out_connection_retries_reads_but_not_writes() {
    let [stuck, alive] = hosts();
    let (end, ended) = mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let stuck = Replica::start_with(stuck, move |_| {
        let ended = ended.clone();
        async move {
            // Blocks the server's whole thread.
            let _ = ended.lock().unwrap().recv();
            Ok(())
        }
    });
    // Dropped before the server, whose drop waits for it.
    let end = end;
    let names = FakeResolver::new(&[stuck.address]);
    let mut patient = frequent_refresh();
    patient.default_timeout_ms = 30_000;
    let peer = peer_at(&names, &patient);
    let calls = [Kind::Read, Kind::Write].map(|kind| {
        let peer = peer.clone();
        tokio::spawn(async move { call(&peer, kind).await })
    });
    eventually("one is under way", async || stuck.calls() > 0).await;
    let alive = Replica::start(alive);
    names.set(Some(&[stuck.address, alive.address]));
    let [read, write] = calls;
    read.await.unwrap().expect("it is read elsewhere");
    let (_, status) = write.await.unwrap().expect_err("it may still be written");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(alive.calls_of(WRITE).len(), 0);
    drop(end);
}

/// Accepts connections at an address, and serves each for that long. Returns their count.
async fn serve_briefly(address: SocketAddr, time: Duration) -> Arc<AtomicUsize> {
    let accepted = Arc::new(AtomicUsize::new(0));
    let (listener, count) = (TcpListener::bind(address).await.unwrap(), accepted.clone());
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            count.fetch_add(1, SeqCst);
            tokio::spawn(async move {
                let answer = async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()));
                let server = http2::Builder::new(TokioExecutor::new());
                let served = server.serve_connection(TokioIo::new(connection), service_fn(answer));
                let _ = tokio::time::timeout(time, served).await;
            });
        }
    });
    accepted
}

#[tokio::test]
async fn flapping_server_is_reconnected_with_backoff() {
    // One server that answers no connection, and one that does.
    for time in [Duration::ZERO, Duration::from_millis(10)] {
        let [alive, ends] = hosts();
        let _replica = Replica::start(alive);
        let accepted = serve_briefly(ends, time).await;
        let peer = peer_at(&FakeResolver::new(&[alive, ends]), &config());
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(1_500) {
            let _ = call(&peer, Kind::NotIdempotent).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let accepted = accepted.load(SeqCst);
        assert!((1..40).contains(&accepted), "{time:?}: {accepted}");
    }
}
