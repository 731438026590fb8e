//! Deadlines and trace context: enforced and propagated.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _, stream};
use microblog_chassis::{Config, Peer, context};
use microblog_proto::user::{
    VerifyRequest, VerifyResponse, user_service_client::UserServiceClient,
};
use tonic::{Code, Request};

use crate::support::{Server, Stub, code_and_reason, config, get, request};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const LONG: Option<Duration> = Some(Duration::from_secs(30));

fn assert_deadline_exceeded(status: &tonic::Status) {
    let expected = (Code::DeadlineExceeded, "ERROR_REASON_DEADLINE_EXCEEDED".to_owned());
    assert_eq!(code_and_reason(status), expected, "{status:?}");
}

fn stuck() -> Stub {
    let first = || stream::iter([Ok(VerifyResponse::default())]);
    Stub::new()
        .get(|_| futures::future::pending())
        .verify(move || first().chain(stream::pending()).boxed())
}

// A client enforces its own timeout. These settings make the server's the shorter one.
fn short(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

#[tokio::test]
async fn call_without_a_deadline_gets_the_default() {
    let server = Server::start(stuck().service(), short(|config| config.default_timeout_ms = 50));
    assert_deadline_exceeded(&server.client().get_user_by_name(request(None)).await.unwrap_err());
}

#[tokio::test]
async fn deadline_is_capped_at_the_maximum() {
    let server = Server::start(stuck().service(), short(|config| config.max_timeout_ms = 50));
    assert_deadline_exceeded(&server.client().get_user_by_name(request(LONG)).await.unwrap_err());
}

fn verify(timeout: Option<Duration>) -> Request<VerifyRequest> {
    let mut request = Request::new(VerifyRequest::default());
    timeout.into_iter().for_each(|timeout| request.set_timeout(timeout));
    request
}

#[tokio::test]
async fn stream_ends_at_its_deadline() {
    let server = Server::start(stuck().service(), config());
    // The client enforces its timeout until the headers only.
    let request = verify(Some(Duration::from_secs(2)));
    let mut answers = server.client().verify(request).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
    assert_deadline_exceeded(&answers.next().await.unwrap().unwrap_err());
}

#[tokio::test]
async fn stream_has_the_deadline_of_its_caller_or_none() {
    let slow = || {
        let later = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            Ok(VerifyResponse::default())
        };
        stream::once(later).boxed()
    };
    let config = short(|config| (config.default_timeout_ms, config.max_timeout_ms) = (500, 500));
    let inner = Server::start(Stub::new().verify(slow).service(), config.clone());
    let local = Peer::local(&Stub::new().verify(slow).service(), &config);
    for peer in [inner.peer(), local] {
        let relay = move || {
            let mut client = UserServiceClient::new(peer.clone());
            let answers = async move { client.verify(verify(None)).await.unwrap().into_inner() };
            answers.flatten_stream().boxed()
        };
        let server = Server::start(Stub::new().verify(relay).service(), config.clone());
        for timeout in [None, LONG] {
            let answers = server.client().verify(verify(timeout)).await.unwrap().into_inner();
            assert_eq!(answers.map(Result::unwrap).count().await, 1, "{timeout:?}");
        }
    }
}

#[tokio::test]
async fn calls_of_a_long_stream_have_the_longest_deadline_of_a_call() {
    let config = short(|config| config.max_timeout_ms = 50);
    let inner = Server::start(stuck().service(), self::config());
    let remote = Peer::remote(&inner.url(), &config).unwrap();
    for peer in [remote, Peer::local(&stuck().service(), &config)] {
        let calling = move || {
            let peer = peer.clone();
            stream::once(async move { Err(get(peer, "").await.unwrap_err()) }).boxed()
        };
        let server = Server::start(Stub::new().verify(calling).service(), self::config());
        let started = Instant::now();
        let mut answers = server.client().verify(verify(LONG)).await.unwrap().into_inner();
        assert_deadline_exceeded(&answers.next().await.unwrap().unwrap_err());
        // Otherwise, the call would take as long as the stream may.
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[tokio::test]
async fn malformed_grpc_timeout_is_rejected() {
    let server = Server::start(Stub::new().service(), config());
    let mut request = request(None);
    request.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    let status = server.client().get_user_by_name(request).await.unwrap_err();
    let expected = (Code::InvalidArgument, "ERROR_REASON_INVALID_FIELD".to_owned());
    assert_eq!(code_and_reason(&status), expected);
    assert!(status.message().starts_with("grpc-timeout: "), "{status:?}");
}

/// A service that responds with its remaining milliseconds and its trace id.
fn deadline_stub() -> Stub {
    Stub::new().get(|_| async {
        let remaining = context::remaining().expect("a deadline").as_millis();
        let trace = context::trace().expect("a trace");
        Ok(format!("{remaining} {}", trace.id()))
    })
}

/// A service that spends 200 ms, and then calls another one.
fn relay_after_200_ms(peer: Peer) -> Stub {
    Stub::new().get(move |_| {
        let peer = peer.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            get(peer, "").await
        }
    })
}

async fn deadline_and_trace_reach(peer: Peer) {
    let server = Server::start(relay_after_200_ms(peer).service(), config());
    let mut request = request(LONG);
    request.metadata_mut().insert("traceparent", TRACEPARENT.parse().unwrap());
    let answer = server.client().get_user_by_name(request).await.unwrap().into_inner();
    let answer = answer.user.unwrap().name;
    let (remaining, trace) = answer.split_once(' ').unwrap();
    let remaining: u64 = remaining.parse().unwrap();
    assert!((1_000..=29_800).contains(&remaining), "{remaining} ms left");
    assert_eq!(trace, "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[tokio::test]
async fn deadline_and_trace_propagate_to_a_remote_peer() {
    let inner = Server::start(deadline_stub().service(), config());
    deadline_and_trace_reach(inner.peer()).await;
}

#[tokio::test]
async fn deadline_and_trace_propagate_to_a_local_peer() {
    deadline_and_trace_reach(Peer::local(&deadline_stub().service(), &config())).await;
}

#[tokio::test]
async fn traceparent_propagates_unchanged_without_recording() {
    let seen = Arc::new(Mutex::new(None));
    let note = seen.clone();
    let inner = Stub::new().get(move |request| {
        let header = request.metadata().get("traceparent").cloned();
        *note.lock().unwrap() = header;
        async { Ok(String::new()) }
    });
    let inner = Server::start(inner.service(), config());
    let outer = Server::start(relay_after_200_ms(inner.peer()).service(), config());
    let mut request = request(None);
    request.metadata_mut().insert("traceparent", TRACEPARENT.parse().unwrap());
    outer.client().get_user_by_name(request).await.unwrap();
    let seen = seen.lock().unwrap().take().unwrap();
    assert_eq!(seen.to_str().unwrap(), TRACEPARENT);
}

#[tokio::test]
async fn stuck_peer_is_bounded_by_the_callers_deadline() {
    let inner = Server::start(stuck().service(), config());
    for peer in [inner.peer(), Peer::local(&stuck().service(), &config())] {
        let outer =
            Server::start(relay_after_200_ms(peer).service(), short(|c| c.max_timeout_ms = 400));
        let started = Instant::now();
        assert_deadline_exceeded(
            &outer.client().get_user_by_name(request(LONG)).await.unwrap_err(),
        );
        // Otherwise, the peer would take the default of ten seconds.
        assert!(started.elapsed() < Duration::from_secs(9));
    }
}

#[tokio::test]
async fn peer_call_outside_a_call_has_the_default_timeout() {
    let inner = Server::start(stuck().service(), config());
    let short = short(|config| config.default_timeout_ms = 50);
    assert_deadline_exceeded(
        &get(Peer::remote(&inner.url(), &short).unwrap(), "").await.unwrap_err(),
    );
    assert_deadline_exceeded(&get(Peer::local(&stuck().service(), &short), "").await.unwrap_err());
}
