//! Server limits, and isolation of failing calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{StreamExt as _, future::join_all, stream};
use microblog_chassis::Peer;
use microblog_proto::user::{
    GetUserByNameRequest, GetUserByNameResponse, GetUserRequest, VerifyRequest, VerifyResponse,
    user_service_client::UserServiceClient,
};
use microblog_testkit::PATIENCE;
use tokio::{sync::Semaphore, task::JoinHandle};
use tonic::{Code, Request, Status, client::Grpc, metadata::AsciiMetadataKey};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_prost::ProstCodec;

use crate::support::{self, Server, Stub, code_and_reason, config, eventually, get, request};

/// A service whose calls each wait for a semaphore permit, and the number in flight.
fn gated() -> (Stub, Arc<Semaphore>, Arc<AtomicUsize>) {
    let (gate, in_flight) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (door, count) = (gate.clone(), in_flight.clone());
    let stub = Stub::new().get(move |_| {
        let (door, count) = (door.clone(), count.clone());
        async move {
            count.fetch_add(1, SeqCst);
            door.acquire().await.unwrap().forget();
            count.fetch_sub(1, SeqCst);
            Ok(String::new())
        }
    });
    (stub, gate, in_flight)
}

#[tokio::test]
async fn max_calls_limits_all_connections_together() {
    let (stub, gate, in_flight) = gated();
    let mut limited = config();
    limited.max_calls = 2;
    let server = Server::start(stub.service(), limited);
    let call = || {
        let mut client = server.client();
        tokio::spawn(async move { client.get_user_by_name(request(None)).await })
    };
    let admitted = [call(), call()];
    eventually("two calls are in flight", async || in_flight.load(SeqCst) == 2).await;
    let status = call().await.unwrap().unwrap_err();
    let overloaded = (Code::ResourceExhausted, "ERROR_REASON_OVERLOADED".to_owned());
    assert_eq!(code_and_reason(&status), overloaded);
    let check = HealthCheckRequest { service: "liveness".to_owned() };
    HealthClient::new(server.channel()).check(check).await.unwrap();
    gate.add_permits(3);
    for call in admitted {
        call.await.unwrap().unwrap();
    }
    call().await.unwrap().unwrap();
}

/// Makes a call with the beginning of a request that never ends. Returns its error.
fn unfinished_call(
    server: &Server,
    method: &str,
    beginning: Option<GetUserByNameRequest>,
) -> JoinHandle<Status> {
    let mut client = Grpc::new(server.channel());
    let path = format!("/microblog.user.v1.UserService/{method}").parse().unwrap();
    tokio::spawn(async move {
        client.ready().await.unwrap();
        let codec = ProstCodec::<GetUserByNameRequest, GetUserByNameResponse>::default();
        let request = Request::new(stream::iter(beginning).chain(stream::pending()));
        client.streaming(request, path, codec).await.unwrap_err()
    })
}

#[tokio::test]
async fn calls_without_their_messages_keep_no_others_out() {
    let mut limited = config();
    (limited.max_calls, limited.default_timeout_ms) = (2, 600_000);
    let server = Server::start(Stub::new().service(), limited);
    let silent_call = || unfinished_call(&server, "GetUserByName", None);
    // They go on when they are dropped.
    drop([silent_call(), silent_call()]);
    let mut client = server.client();
    eventually("a call with its message is admitted, and no other one", async || {
        let other = tokio::time::timeout(Duration::from_millis(200), silent_call()).await;
        let is_rejected = other.is_ok_and(|other| other.unwrap().code() == Code::ResourceExhausted);
        is_rejected && client.get_user_by_name(request(None)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_message_that_does_not_arrive_in_time_ends_its_call() {
    let mut limited = config();
    limited.default_timeout_ms = 500;
    let server = Server::start(Stub::new().service(), limited);
    // A stream has no deadline of its own.
    for method in ["GetUserByName", "Verify"] {
        let call = tokio::time::timeout(PATIENCE, unfinished_call(&server, method, None)).await;
        let status = call.expect("the call ends").unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{method}");
    }
}

#[tokio::test]
async fn a_message_that_does_not_arrive_delays_no_drain() {
    let mut config = config();
    (config.default_timeout_ms, config.drain_timeout_ms) = (600_000, 600_000);
    config.max_calls = 2;
    let mut server = Server::start(Stub::new().service(), config);
    let calls = ["GetUserByName", "Verify"].map(|method| unfinished_call(&server, method, None));
    eventually("both wait, and no other one may", async || {
        let other = unfinished_call(&server, "GetUserByName", None);
        let other = tokio::time::timeout(Duration::from_millis(200), other).await;
        let is_rejected = other.is_ok_and(|other| other.unwrap().code() == Code::ResourceExhausted);
        is_rejected && calls.iter().all(|call| !call.is_finished())
    })
    .await;
    server.stop();
    tokio::time::timeout(PATIENCE, server.ended()).await.expect("the drain ends");
    for call in calls {
        assert_eq!(call.await.unwrap().code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn messages_that_do_not_arrive_take_a_bounded_memory() {
    let mut limited = config();
    (limited.max_message_bytes, limited.default_timeout_ms) = (10_000, 600_000);
    let server = Server::start(Stub::new().service(), limited);
    let beginning = GetUserByNameRequest { name: "a".repeat(9_000) };
    // Of 10,000 bytes each, 16 messages may be incomplete.
    let mut calls: Vec<_> = (0..30)
        .map(|_| unfinished_call(&server, "GetUserByName", Some(beginning.clone())))
        .collect();
    eventually("some are rejected, and not all", async || {
        (1..=13).contains(&calls.iter().filter(|call| call.is_finished()).count())
    })
    .await;
    let mut client = server.client();
    client.get_user_by_name(beginning.clone()).await.unwrap();
    let (rejected, waiting): (Vec<_>, Vec<_>) = calls.drain(..).partition(JoinHandle::is_finished);
    for call in rejected {
        let overloaded = (Code::ResourceExhausted, "ERROR_REASON_OVERLOADED".to_owned());
        assert_eq!(code_and_reason(&call.await.unwrap()), overloaded);
    }
    waiting.iter().for_each(JoinHandle::abort);
    eventually("another one waits", async || {
        let call = unfinished_call(&server, "GetUserByName", Some(beginning.clone()));
        tokio::time::timeout(Duration::from_millis(200), call).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn admitted_call_is_not_limited_again_at_a_local_peer() {
    let peer = Peer::local(&Stub::new().service(), &config());
    let outer = Stub::new().get(move |_| {
        let peer = peer.clone();
        async move { get(peer, "inner").await }
    });
    let mut limited = config();
    limited.max_calls = 1;
    let server = Server::start(outer.service(), limited);
    let answer = server.client().get_user_by_name(request(None)).await.unwrap();
    assert_eq!(answer.into_inner().user.unwrap().name, "inner");
}

#[tokio::test]
async fn max_streams_limits_each_connection() {
    let (stub, gate, in_flight) = gated();
    let mut limited = config();
    limited.max_streams = 3;
    let server = Server::start(stub.service(), limited);
    let client = server.client();
    gate.add_permits(1);
    // The first response implies that the client has the server's settings.
    client.clone().get_user_by_name(request(None)).await.unwrap();
    let calls = join_all((0..10).map(|_| {
        let mut client = client.clone();
        async move { client.get_user_by_name(request(None)).await }
    }));
    let calls = tokio::spawn(calls);
    eventually("three calls are in flight", async || in_flight.load(SeqCst) == 3).await;
    // A full round trip on another connection: time for more calls to arrive, if there were any.
    let check = HealthCheckRequest::default();
    HealthClient::new(server.channel()).check(check).await.unwrap();
    assert_eq!(in_flight.load(SeqCst), 3);
    gate.add_permits(10);
    for result in calls.await.unwrap() {
        result.unwrap();
    }
}

#[tokio::test]
async fn oversized_message_is_rejected() {
    let server = Server::start(Stub::new().service(), config());
    let huge = GetUserByNameRequest { name: "a".repeat(5_000_000) };
    let status = server.client().get_user_by_name(huge).await.unwrap_err();
    let expected = (Code::ResourceExhausted, "ERROR_REASON_MESSAGE_TOO_LARGE".to_owned());
    assert_eq!(code_and_reason(&status), expected);
    let fits = GetUserByNameRequest { name: "a".repeat(4_000_000) };
    server.client().get_user_by_name(fits).await.unwrap();
}

/// Returns a request with that many bytes of metadata in that many headers. Digits and letters
/// compress badly in HPACK.
fn with_metadata(bytes: usize, parts: usize) -> Request<GetUserByNameRequest> {
    let mut with_metadata = request(None);
    for part in 0..parts {
        let name: AsciiMetadataKey = format!("x-part-{part}").parse().unwrap();
        let letters = ('0'..='9').chain('A'..='Z').chain('a'..='z').cycle().skip(part);
        let value: String = letters.take(bytes / parts).collect();
        with_metadata.metadata_mut().insert(name, value.parse().unwrap());
    }
    with_metadata
}

#[tokio::test]
async fn oversized_metadata_fails_only_its_own_call() {
    let gate = Arc::new(Semaphore::new(0));
    let door = gate.clone();
    let stub = Stub::new().verify(move || {
        let door = door.clone();
        let later = async move {
            door.acquire().await.unwrap().forget();
            Ok(VerifyResponse::default())
        };
        stream::iter([Ok(VerifyResponse::default())]).chain(stream::once(later)).boxed()
    });
    let server = Server::start(stub.service(), config());
    // All calls share one connection.
    let mut client = server.client();
    let mut watch = client.verify(VerifyRequest::default()).await.unwrap().into_inner();
    watch.next().await.unwrap().unwrap();
    let too_large = (Code::ResourceExhausted, "ERROR_REASON_METADATA_TOO_LARGE".to_owned());
    for bytes in [17_000, 20_000, 100_000, 130_000] {
        for parts in [1, 40] {
            let answer = client.get_user_by_name(with_metadata(bytes, parts)).await;
            assert_eq!(code_and_reason(&answer.unwrap_err()), too_large, "{bytes} in {parts}");
            // Metadata within the limit is accepted.
            client.get_user_by_name(with_metadata(14_000, parts)).await.unwrap();
        }
    }
    gate.add_permits(1);
    watch.next().await.unwrap().unwrap();
    assert!(watch.next().await.is_none(), "the stream ends as its handler ends it");

    // Above a certain size, HTTP/2 itself rejects the call without a gRPC status. Other calls still
    // succeed.
    let mut watch = client.verify(VerifyRequest::default()).await.unwrap().into_inner();
    watch.next().await.unwrap().unwrap();
    let status = client.get_user_by_name(with_metadata(170_000, 1)).await.unwrap_err();
    assert_eq!(code_and_reason(&status), (Code::Unknown, "none".to_owned()));
    gate.add_permits(1);
    watch.next().await.unwrap().unwrap();
}

#[tokio::test]
async fn malformed_message_is_invalid_argument() {
    let server = Server::start(Stub::new().service(), config());
    let mut client = Grpc::new(server.channel());
    client.ready().await.unwrap();
    // An integer field instead of a string.
    let wrong_type = Request::new(GetUserRequest { user_id: 5 });
    let codec = ProstCodec::<GetUserRequest, GetUserByNameResponse>::default();
    let path = "/microblog.user.v1.UserService/GetUserByName".parse().unwrap();
    let status = client.unary(wrong_type, path, codec).await.unwrap_err();
    let expected = (Code::InvalidArgument, "ERROR_REASON_MALFORMED_MESSAGE".to_owned());
    assert_eq!(code_and_reason(&status), expected);
}

#[tokio::test]
async fn panic_fails_only_its_own_call() {
    let stub = Stub::new()
        .get(|request| async move {
            assert_ne!(request.into_inner().name, "alice", "a bug");
            Ok("fine".to_owned())
        })
        .verify(|| {
            let first = stream::iter([Ok(VerifyResponse::default())]);
            let panic = async {
                // The first response is sent before.
                tokio::task::yield_now().await;
                panic!("a bug")
            };
            first.chain(stream::once(panic)).boxed()
        });
    let peer = Peer::local(&stub.clone().service(), &config());
    let server = Server::start(stub.service(), config());
    let internal = |status: &Status| {
        let expected = (Code::Internal, "ERROR_REASON_INTERNAL".to_owned());
        assert_eq!(code_and_reason(status), expected);
    };
    let mut client = server.client();
    internal(&client.get_user_by_name(request(None)).await.unwrap_err());
    let mut answers = client.verify(VerifyRequest::default()).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
    internal(&answers.next().await.unwrap().unwrap_err());
    internal(&get(peer.clone(), "alice").await.unwrap_err());
    // The same connection.
    let bob = GetUserByNameRequest { name: "bob".to_owned() };
    client.get_user_by_name(bob).await.unwrap();
    assert_eq!(get(peer, "bob").await.unwrap(), "fine");
}

#[tokio::test]
async fn unknown_method_is_unimplemented() {
    let server = Server::start(Stub::new().service(), config());
    for path in ["/microblog.user.v1.UserService/Invented", "/no.such.Service/Get"] {
        let mut client = Grpc::new(server.channel());
        client.ready().await.unwrap();
        let codec = ProstCodec::<GetUserRequest, GetUserByNameResponse>::default();
        let request = Request::new(GetUserRequest { user_id: 5 });
        let status = client.unary(request, path.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn cancelled_call_releases_its_slot() {
    let (stub, gate, in_flight) = gated();
    let mut limited = config();
    limited.max_calls = 1;
    let server = Server::start(stub.service(), limited);
    let mut client = server.client();
    let call = tokio::spawn(async move { client.get_user_by_name(request(None)).await });
    eventually("the call is in flight", async || in_flight.load(SeqCst) == 1).await;
    call.abort();
    gate.add_permits(100);
    eventually("another call is admitted", async || {
        let second = server.client().get_user_by_name(request(Some(Duration::from_secs(5)))).await;
        second.is_ok()
    })
    .await;
}

#[tokio::test]
async fn unread_response_releases_its_slot() {
    let (stub, gate, in_flight) = gated();
    let mut limited = config();
    limited.max_calls = 1;
    let server = Server::start(stub.service(), limited);
    let mut reader = UserServiceClient::new(server.unread_channel(0));
    let unread = tokio::spawn(async move { reader.get_user_by_name(request(None)).await });
    eventually("the call is in flight", async || in_flight.load(SeqCst) == 1).await;
    gate.add_permits(100);
    let mut client = server.client();
    eventually("another call is admitted", async || {
        client.get_user_by_name(request(None)).await.is_ok()
    })
    .await;
    assert!(!unread.is_finished(), "the answer was read");
    unread.abort();
}

#[tokio::test]
async fn unread_stream_ends_at_its_deadline() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let stub = Stub::new().verify(move || {
        let handler = Count(count.clone());
        let endless = stream::repeat_with(move || {
            let _ = &handler;
            Ok(VerifyResponse::default())
        });
        endless.boxed()
    });
    let mut limited = config();
    limited.max_calls = 1;
    let server = Server::start(stub.service(), limited);
    let mut request = Request::new(VerifyRequest::default());
    request.set_timeout(Duration::from_secs(2));
    let mut reader = UserServiceClient::new(server.unread_channel(1000));
    let mut answers = reader.verify(request).await.unwrap().into_inner();
    eventually("the handler is dropped", async || dropped.load(SeqCst) == 1).await;
    let mut client = server.client();
    client.get_user_by_name(support::request(None)).await.unwrap();
    let end = async { while answers.next().await.unwrap().is_ok() {} };
    // A reader that continues gets the status.
    tokio::time::timeout(PATIENCE, end).await.expect("the stream ends");
}
