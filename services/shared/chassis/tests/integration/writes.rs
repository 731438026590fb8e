//! Writes continue without their callers. The drain waits for them, and for nothing longer than
//! necessary.

use std::{
    io::{Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use microblog_chassis::{Peer, ServeError, context, mutate, serve};
use microblog_testkit::PATIENCE;
use tokio::{io::AsyncReadExt as _, sync::Semaphore};
use tonic::{Code, Status};

use crate::support::{Server, Stub, code_and_reason, config, eventually, get, request};

/// A service whose writes wait for a semaphore permit.
fn writer() -> (Stub, Arc<Semaphore>, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (gate, begun, done) = (Arc::new(Semaphore::new(0)), Arc::default(), Arc::default());
    let (door, first, last) = (gate.clone(), Arc::clone(&begun), Arc::clone(&done));
    let stub = Stub::new().get(move |_| {
        let (door, begun, done): (_, Arc<AtomicUsize>, Arc<AtomicUsize>) =
            (door.clone(), Arc::clone(&first), Arc::clone(&last));
        mutate(async move {
            begun.fetch_add(1, SeqCst);
            door.acquire().await.unwrap().forget();
            done.fetch_add(1, SeqCst);
            Ok(context::trace().expect("the call's trace").id().to_string())
        })
    });
    (stub, gate, begun, done)
}

#[tokio::test]
async fn write_continues_after_its_caller_disconnects() {
    let (stub, gate, begun, done) = writer();
    let server = Server::start(stub.service(), config());
    let mut client = server.client();
    let call = tokio::spawn(async move { client.get_user_by_name(request(None)).await });
    eventually("the write has begun", async || begun.load(SeqCst) == 1).await;
    call.abort();
    let _ = call.await;
    gate.add_permits(1);
    eventually("the write is done", async || done.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn abandoned_write_counts_toward_max_calls() {
    let (stub, gate, begun, done) = writer();
    let inner = Peer::local(&stub.clone().service(), &config());
    let relay = Stub::new().get(move |_| get(inner.clone(), "inner").boxed());
    let mut limited = config();
    limited.max_calls = 1;
    for (writes, stub) in [stub, relay].into_iter().enumerate() {
        let server = Server::start(stub.service(), limited.clone());
        let mut client = server.client();
        let call = tokio::spawn(async move { client.get_user_by_name(request(None)).await });
        eventually("the write has begun", async || begun.load(SeqCst) == writes + 1).await;
        call.abort();
        let _ = call.await;
        // On other connections, often enough for the reset to arrive.
        for _ in 0..20 {
            let status = server.client().get_user_by_name(request(None)).await.unwrap_err();
            assert_eq!(code_and_reason(&status).1, "ERROR_REASON_OVERLOADED");
        }
        gate.add_permits(1);
        eventually("the write is done", async || done.load(SeqCst) == writes + 1).await;
    }
}

#[tokio::test]
async fn caller_gets_deadline_exceeded_while_the_write_continues() {
    let (stub, gate, _, done) = writer();
    let mut short = config();
    short.default_timeout_ms = 50;
    let server = Server::start(stub.service(), short);
    let status = server.client().get_user_by_name(request(None)).await.unwrap_err();
    let expected = (Code::DeadlineExceeded, "ERROR_REASON_DEADLINE_EXCEEDED".to_owned());
    assert_eq!(code_and_reason(&status), expected);
    assert_eq!(done.load(SeqCst), 0);
    gate.add_permits(1);
    eventually("the write is done", async || done.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn write_belongs_to_the_callers_trace() {
    let (stub, gate, ..) = writer();
    let server = Server::start(stub.service(), config());
    gate.add_permits(1);
    let mut request = request(None);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    request.metadata_mut().insert("traceparent", trace.parse().unwrap());
    let answer = server.client().get_user_by_name(request).await.unwrap().into_inner();
    assert_eq!(answer.user.unwrap().name, "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[tokio::test]
async fn write_has_its_own_deadline_and_its_panic_is_internal() {
    let stub = Stub::new().get(|request| {
        mutate(async move {
            assert_ne!(request.into_inner().name, "panic", "a bug");
            assert!(context::remaining().unwrap() <= Duration::from_millis(50));
            futures::future::pending::<Result<String, Status>>().await
        })
    });
    let mut short = config();
    short.write_budget_ms = 50;
    let server = Server::start(stub.service(), short);
    let status = get(server.peer(), "stuck").await.unwrap_err();
    assert_eq!(code_and_reason(&status).1, "ERROR_REASON_DEADLINE_EXCEEDED");
    let status = get(server.peer(), "panic").await.unwrap_err();
    assert_eq!(code_and_reason(&status).1, "ERROR_REASON_INTERNAL");
}

async fn drain_waits_for_write(server: &mut Server, gate: &Semaphore, begun: &AtomicUsize) {
    let mut client = server.client();
    let call = tokio::spawn(async move { client.get_user_by_name(request(None)).await });
    eventually("the write has begun", async || begun.load(SeqCst) == 1).await;
    call.abort();
    server.stop();
    eventually("no new connection is accepted", async || {
        tokio::net::TcpStream::connect(server.address).await.is_err()
    })
    .await;
    assert!(server.ended().now_or_never().is_none(), "the server does not wait");
    gate.add_permits(1);
    server.ended().await;
}

#[tokio::test]
async fn drain_waits_for_an_abandoned_write() {
    let (stub, gate, begun, done) = writer();
    let mut server = Server::start(stub.service(), config());
    drain_waits_for_write(&mut server, &gate, &begun).await;
    assert_eq!(done.load(SeqCst), 1);
}

#[tokio::test]
async fn drain_waits_for_a_write_at_a_local_peer() {
    let (stub, gate, begun, done) = writer();
    let peer = Peer::local(&stub.service(), &config());
    let outer = Stub::new().get(move |_| get(peer.clone(), "inner").boxed());
    let mut server = Server::start(outer.service(), config());
    drain_waits_for_write(&mut server, &gate, &begun).await;
    assert_eq!(done.load(SeqCst), 1);
}

#[tokio::test]
async fn call_in_flight_completes_while_draining() {
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (door, count) = (gate.clone(), begun.clone());
    let stub = Stub::new().get(move |_| {
        let (door, count) = (door.clone(), count.clone());
        async move {
            count.fetch_add(1, SeqCst);
            door.acquire().await.unwrap().forget();
            Ok("done".to_owned())
        }
    });
    let mut server = Server::start(stub.service(), config());
    let mut client = server.client();
    let call = tokio::spawn(async move { client.get_user_by_name(request(None)).await });
    eventually("the call is in flight", async || begun.load(SeqCst) == 1).await;
    server.stop();
    eventually("no new connection is accepted", async || {
        tokio::net::TcpStream::connect(server.address).await.is_err()
    })
    .await;
    gate.add_permits(1);
    assert_eq!(call.await.unwrap().unwrap().into_inner().user.unwrap().name, "done");
    tokio::time::timeout(PATIENCE, server.ended()).await.expect("the drain ends");
}

#[tokio::test]
async fn silent_connections_are_closed_and_block_no_other() {
    let server = Server::start(Stub::new().service(), config());
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    let started = Instant::now();
    server.client().get_user_by_name(request(None)).await.unwrap();
    // The limit for silent connections: the call would otherwise wait for it.
    assert!(started.elapsed() < Duration::from_secs(5), "the call had to wait");
    for connection in &mut silent {
        let mut byte = [0];
        let received = tokio::time::timeout(PATIENCE, connection.read(&mut byte)).await;
        assert_eq!(received.expect("it is closed").unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn silent_connection_does_not_delay_the_drain() {
    let mut server = Server::start(Stub::new().service(), config());
    let _silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    // Accepted after the silent connection.
    server.client().get_user_by_name(request(None)).await.unwrap();
    server.stop();
    // Below the five seconds that a connection may be silent.
    let limit = Duration::from_millis(4_500);
    tokio::time::timeout(limit, server.ended()).await.expect("the drain ends");
}

#[tokio::test]
async fn unresponsive_connection_does_not_block_the_drain() {
    let mut bounded = config();
    bounded.drain_timeout_ms = 300;
    let mut server = Server::start(Stub::new().service(), bounded);
    let mut silent = std::net::TcpStream::connect(server.address).unwrap();
    // HTTP/2 preface and empty SETTINGS; the client never answers.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let received = tokio::task::spawn_blocking(move || {
        let mut settings = [0; 9];
        silent.read_exact(&mut settings).map(|()| silent)
    });
    let _silent = received.await.unwrap().unwrap();
    let started = Instant::now();
    server.stop();
    tokio::time::timeout(PATIENCE, server.ended()).await.expect("the drain ends");
    assert!(started.elapsed() >= Duration::from_millis(300), "the connection was not open");
}

#[tokio::test]
async fn background_job_that_ends_or_panics_fails_the_server() {
    for ends in [true, false] {
        let mut service = Stub::new().service();
        service.background.push(futures::future::pending().boxed());
        service.background.push(async move { assert!(ends, "a bug") }.boxed());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = config();
        let server = serve(listener, service, &config, futures::future::pending());
        let result = tokio::time::timeout(PATIENCE, server).await;
        let error = result.expect("the server ends").unwrap_err();
        assert!(matches!(error, ServeError::Background), "{error}");
    }
}

#[tokio::test]
async fn drain_drops_background_jobs_and_waits_for_their_writes() {
    let (dropped, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let (guard, gate) = (Count(dropped.clone()), Arc::new(Semaphore::new(0)));
    let (door, finished, begun) = (gate.clone(), done.clone(), Arc::new(AtomicUsize::new(0)));
    let started = begun.clone();
    let mut service = Stub::new().service();
    service.background.push(
        async move {
            let _guard = guard;
            let write = mutate(async move {
                started.fetch_add(1, SeqCst);
                door.acquire().await.unwrap().forget();
                finished.fetch_add(1, SeqCst);
                Ok(())
            });
            let _ = write.await;
        }
        .boxed(),
    );
    let mut server = Server::start(service, config());
    eventually("the write has begun", async || begun.load(SeqCst) == 1).await;
    server.stop();
    eventually("the job is dropped", async || dropped.load(SeqCst) == 1).await;
    assert_eq!(done.load(SeqCst), 0);
    gate.add_permits(1);
    server.ended().await;
    assert_eq!(done.load(SeqCst), 1);
}
