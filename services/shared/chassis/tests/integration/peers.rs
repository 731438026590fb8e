//! Unavailable, recovering and invalid peers.

use std::{
    collections::HashSet,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use microblog_chassis::{Connection, Peer};
use microblog_proto::{
    PEER_RESPONSE_BYTES_MAX,
    user::{
        GetUserByNameRequest, UserServicePeer, VerifyRequest, VerifyResponse,
        user_service_client::UserServiceClient,
    },
};
use microblog_testkit::PATIENCE;
use socket2::{Domain, Socket, Type};
use tonic::{Code, Request, Status};

use crate::support::{Port, Server, Stub, code_and_reason, config, eventually, get, request};

fn assert_unavailable(status: &Status) {
    let expected = (Code::Unavailable, "ERROR_REASON_PEER_UNAVAILABLE".to_owned());
    assert_eq!(code_and_reason(status), expected, "{status:?}");
}

#[tokio::test]
async fn peer_is_unavailable_while_down_and_recovers() {
    let port = Port::take();
    let peer = Peer::remote(&format!("http://{}", port.address()), &config()).unwrap();
    let mut soonest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        assert_unavailable(&get(peer.clone(), "").await.unwrap_err());
        soonest = soonest.min(started.elapsed());
    }
    // Below the three seconds that a call may wait for a connection. A busy machine may delay some.
    assert!(soonest < Duration::from_secs(2), "{soonest:?}");
    for _ in 0..2 {
        let mut server = Server::start_on(port.listen(), Stub::new().service(), config());
        eventually("the peer answers", async || get(peer.clone(), "").await.is_ok()).await;
        server.stop();
        server.ended().await;
        eventually("the peer is unavailable", async || get(peer.clone(), "").await.is_err()).await;
        assert_unavailable(&get(peer.clone(), "").await.unwrap_err());
    }
}

#[tokio::test]
async fn peer_unavailable_reaches_the_outer_caller() {
    let unused = Port::take();
    let peer = Peer::remote(&format!("http://{}", unused.address()), &config()).unwrap();
    let outer = Stub::new().get(move |_| {
        let peer = peer.clone();
        async move { get(peer, "").await }
    });
    let outer = Server::start(outer.service(), config());
    assert_unavailable(&outer.client().get_user_by_name(request(None)).await.unwrap_err());
}

#[tokio::test]
async fn a_peer_accepts_larger_responses_than_other_clients() {
    let name = "x".repeat(PEER_RESPONSE_BYTES_MAX - 10);
    let stub = Stub::new().get(move |_| std::future::ready(Ok(name.clone())));
    let server = Server::start(stub.service(), config());
    let peer = Peer::remote(&server.url(), &config()).unwrap();
    let request = GetUserByNameRequest::default();
    let answer = UserServicePeer::new(peer.clone()).get_user_by_name(request.clone()).await;
    assert_eq!(answer.unwrap().into_inner().user.unwrap().name.len(), PEER_RESPONSE_BYTES_MAX - 10);
    let rejected = UserServiceClient::new(peer).get_user_by_name(request).await.unwrap_err();
    assert_eq!(rejected.code(), Code::OutOfRange, "{rejected:?}");
}

/// A port of an unreachable host: its backlog is full, so that the kernel drops SYN packets.
async fn silent_port() -> (TcpListener, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let attempt = || tokio::net::TcpStream::connect(address);
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(900), attempt()).await {
        waiting.push(connected.unwrap().into_std().unwrap());
    }
    (listener, waiting)
}

#[tokio::test]
async fn calls_to_an_unreachable_host_fail_fast_and_recover() {
    let (listener, waiting) = silent_port().await;
    let address = listener.local_addr().unwrap();
    let mut long_timeout = config();
    long_timeout.default_timeout_ms = 60_000;
    let peer = Peer::remote(&format!("http://{address}"), &long_timeout).unwrap();
    let started = Instant::now();
    let calls = join_all((0..60).map(|_| get(peer.clone(), ""))).await;
    for result in calls {
        assert_unavailable(&result.unwrap_err());
    }
    // In sequence they would take a second each.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let _server = Server::start_on(listener, Stub::new().service(), config());
    drop(waiting);
    eventually("the peer answers", async || get(peer.clone(), "").await.is_ok()).await;
}

#[tokio::test]
async fn unresponsive_peer_ends_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut short = config();
    short.default_timeout_ms = 100;
    let address = format!("http://{}", silent.local_addr().unwrap());
    let peer = Peer::remote(&address, &short).unwrap();
    // A longer deadline would return UNAVAILABLE.
    let status = get(peer, "").await.unwrap_err();
    assert_eq!(code_and_reason(&status).1, "ERROR_REASON_DEADLINE_EXCEEDED");
}

/// The connections of the calls to a stub, and the number of calls that do not end.
type Seen = (Arc<Mutex<Vec<SocketAddr>>>, Arc<AtomicUsize>);

/// Returns a stub on which calls of the name "slow" never end.
fn slow_stub() -> (Stub, Seen) {
    let (callers, slow) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let seen = (callers.clone(), slow.clone());
    let stub = Stub::new().get(move |request: Request<GetUserByNameRequest>| {
        callers
            .lock()
            .unwrap()
            .push(request.extensions().get::<Connection>().unwrap().remote_addr.unwrap());
        let slow = slow.clone();
        async move {
            if request.into_inner().name == "slow" {
                slow.fetch_add(1, SeqCst);
                futures::future::pending::<()>().await;
            }
            Ok(String::new())
        }
    });
    (stub, seen)
}

#[tokio::test]
async fn slow_calls_do_not_block_others() {
    let (stub, (_, slow)) = slow_stub();
    let mut limited = config();
    limited.max_streams = 10;
    // The slow calls do not end by themselves.
    limited.default_timeout_ms = 10 * PATIENCE.as_millis() as u64;
    let server = Server::start(stub.service(), limited.clone());
    let peer = Peer::remote(&server.url(), &limited).unwrap();
    // The first responses imply that the client has the server's settings on each connection.
    for _ in 0..4 {
        get(peer.clone(), "").await.unwrap();
    }
    let calls = join_all((0..10).map(|_| get(peer.clone(), "slow")));
    let calls = tokio::spawn(calls);
    eventually("the slow calls are in flight", async || slow.load(SeqCst) == 10).await;
    for _ in 0..4 {
        let fast = tokio::time::timeout(PATIENCE, get(peer.clone(), "")).await;
        fast.expect("it is not blocked").unwrap();
    }
    calls.abort();
}

#[tokio::test]
async fn calls_share_a_connection_until_half_of_its_streams_are_in_use() {
    let (stub, (seen, slow)) = slow_stub();
    let mut limited = config();
    (limited.max_streams, limited.peer_connections) = (10, 2);
    let server = Server::start(stub.service(), limited.clone());
    let peer = Peer::remote(&server.url(), &limited).unwrap();
    for _ in 0..20 {
        get(peer.clone(), "").await.unwrap();
    }
    let connections = || -> HashSet<_> { seen.lock().unwrap().iter().copied().collect() };
    assert_eq!(connections().len(), 1);
    let mut calls = Vec::new();
    // The second connection may open later.
    eventually("the sixth call uses another connection", async || {
        seen.lock().unwrap().clear();
        let before = slow.load(SeqCst);
        calls.push(tokio::spawn(join_all((0..6).map({
            let peer = peer.clone();
            move |_| get(peer.clone(), "slow")
        }))));
        eventually("the calls are in flight", async || slow.load(SeqCst) == before + 6).await;
        let used = connections().len();
        calls.drain(..).for_each(|calls| calls.abort());
        used == 2
    })
    .await;
}

#[tokio::test]
async fn long_streams_block_neither_calls_nor_each_other() {
    let first = || stream::iter([Ok(VerifyResponse::default())]);
    let stub = Stub::new().verify(move || first().chain(stream::pending()).boxed());
    let mut limited = config();
    (limited.max_streams, limited.peer_connections) = (10, 1);
    let server = Server::start(stub.service(), limited.clone());
    let peer = Peer::remote(&server.url(), &limited).unwrap();
    // Twice: the streams of the first round have released their slots.
    for _ in 0..2 {
        let mut lasting = Vec::new();
        for _ in 0..35 {
            let mut client = UserServiceClient::new(peer.clone());
            let opened = async {
                let mut answers =
                    client.verify(VerifyRequest::default()).await.unwrap().into_inner();
                answers.next().await.unwrap().unwrap();
                answers
            };
            let opened = tokio::time::timeout(PATIENCE, opened).await;
            lasting.push(opened.expect("a stream is blocked"));
        }
        let call = tokio::time::timeout(PATIENCE, get(peer.clone(), "")).await;
        call.expect("a call is blocked").unwrap();
    }
}

#[tokio::test]
async fn max_connection_age_fails_no_call() {
    let mut brief = config();
    brief.max_connection_age_s = 1;
    let server = Server::start(Stub::new().service(), brief);
    let peer = server.peer();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(3_500) {
        for called in join_all((0..5).map(|_| get(peer.clone(), ""))).await {
            called.unwrap();
        }
    }
}

#[tokio::test]
async fn peer_statuses_pass_through_unchanged() {
    let reject = || Status::not_found("no such account");
    let stub = Stub::new().get(move |_| async move { Err(reject()) });
    let server = Server::start(stub.clone().service(), config());
    for peer in [server.peer(), Peer::local(&stub.service(), &config())] {
        let status = get(peer, "").await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no such account"));
    }
}

#[tokio::test]
async fn peer_streams_pass_through() {
    let three = || stream::iter((0..3).map(|_| Ok(VerifyResponse::default()))).boxed();
    let stub = Stub::new().verify(three);
    let server = Server::start(stub.clone().service(), config());
    for peer in [server.peer(), Peer::local(&stub.service(), &config())] {
        let answers = UserServiceClient::new(peer).verify(VerifyRequest::default()).await.unwrap();
        assert_eq!(answers.into_inner().map(Result::unwrap).count().await, 3);
    }
}

#[tokio::test]
async fn invalid_peer_urls_are_rejected() {
    for address in ["", "127.0.0.1:50051", "redis://127.0.0.1", "http://", "https://", "/a"] {
        let error = Peer::remote(address, &config()).err().unwrap();
        assert!(error.to_string().starts_with("invalid peer URL"), "{address}");
    }
    let untrusted = Peer::remote("https://host", &config()).err().unwrap().to_string();
    assert!(untrusted.contains("--peer-ca-file"), "{untrusted}");
}
