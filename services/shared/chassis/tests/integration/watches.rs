//! Watches: a separate concurrency limit, and no delay of the drain.

use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _, stream, stream::BoxStream};
use microblog_chassis::{Config, Peer, context};
use microblog_proto::user::{
    VerifyRequest, VerifyResponse, user_service_client::UserServiceClient,
};
use microblog_testkit::PATIENCE;
use tonic::{Code, Status, Streaming};

use crate::support::{Server, Stub, code_and_reason, config, eventually, request};

type Answers = BoxStream<'static, Result<VerifyResponse, Status>>;

/// A watch that sends one message, and then waits.
fn open_watch() -> Answers {
    match context::watch() {
        Ok(()) => stream::iter([Ok(VerifyResponse::default())]).chain(stream::pending()).boxed(),
        Err(status) => stream::once(async { Err(status) }).boxed(),
    }
}

fn watch_stub() -> Stub {
    Stub::new().verify(open_watch)
}

/// A watch that relays that of a local service, as the gateway does.
fn relay(declares_watch: bool) -> Stub {
    let peer = Peer::local(&watch_stub().service(), &config());
    Stub::new().verify(move || {
        if declares_watch && let Err(status) = context::watch() {
            return stream::once(async { Err(status) }).boxed();
        }
        let mut client = UserServiceClient::new(peer.clone());
        let answers =
            async move { client.verify(VerifyRequest::default()).await.unwrap().into_inner() };
        answers.flatten_stream().boxed()
    })
}

fn limited(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

async fn watch(server: &Server) -> Result<Streaming<VerifyResponse>, Status> {
    let mut answers = server.client().verify(VerifyRequest::default()).await?.into_inner();
    answers.next().await.unwrap().map(|_begun| answers)
}

fn assert_stopping(status: &Status) {
    let expected = (Code::Unavailable, "ERROR_REASON_PEER_UNAVAILABLE".to_owned());
    assert_eq!(code_and_reason(status), expected, "{status:?}");
}

#[tokio::test]
async fn watches_do_not_count_toward_max_calls() {
    for stub in [watch_stub(), relay(true), relay(false)] {
        let server = Server::start(stub.service(), limited(|config| config.max_calls = 1));
        let _watches = [watch(&server).await.unwrap(), watch(&server).await.unwrap()];
        server.client().get_user_by_name(request(None)).await.unwrap();
    }
}

#[tokio::test]
async fn max_watches_limits_the_process() {
    // The relay and the relayed watch count as one.
    for stub in [watch_stub(), relay(true), relay(false)] {
        let server = Server::start(stub.service(), limited(|config| config.max_watches = 1));
        let first = watch(&server).await.unwrap();
        let overloaded = (Code::ResourceExhausted, "ERROR_REASON_OVERLOADED".to_owned());
        assert_eq!(code_and_reason(&watch(&server).await.unwrap_err()), overloaded);
        drop(first);
        eventually("the next is admitted", async || watch(&server).await.is_ok()).await;
    }
}

#[tokio::test]
async fn rejected_watch_releases_its_slot() {
    let config = limited(|config| (config.max_calls, config.max_watches) = (1, 1));
    let server = Server::start(watch_stub().service(), config);
    let _first = watch(&server).await.unwrap();
    watch(&server).await.unwrap_err();
    eventually("another call is admitted", async || {
        server.client().get_user_by_name(request(None)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn watch_outside_a_call_is_not_limited() {
    let none = limited(|config| config.max_watches = 1);
    let peer = Peer::local(&watch_stub().service(), &none);
    let mut client = UserServiceClient::new(peer);
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut answers = client.verify(VerifyRequest::default()).await.unwrap().into_inner();
        answers.next().await.unwrap().unwrap();
        watches.push(answers);
    }
}

/// A watch that is always ready.
fn always_ready() -> Stub {
    Stub::new().verify(|| {
        context::watch().unwrap();
        stream::repeat_with(|| Ok(VerifyResponse::default())).boxed()
    })
}

/// A watch that is declared only while the stream is polled.
fn declared_late() -> Stub {
    Stub::new().verify(|| stream::once(async { open_watch() }).flatten().boxed())
}

#[tokio::test]
async fn drain_ends_watches() {
    for stub in [watch_stub(), relay(true), relay(false), always_ready(), declared_late()] {
        let mut server = Server::start(stub.service(), config());
        let mut answers = watch(&server).await.unwrap();
        server.stop();
        let end = async {
            loop {
                if let Err(status) = answers.next().await.expect("a status at the end") {
                    return status;
                }
            }
        };
        let drained = async { futures::join!(end, server.ended()).0 };
        assert_stopping(&tokio::time::timeout(PATIENCE, drained).await.expect("the drain ends"));
    }
}

#[tokio::test]
async fn watches_stay_open_for_the_drain_delay() {
    let delay = Duration::from_millis(300);
    let config = limited(|config| config.drain_delay_ms = 300);
    let mut server = Server::start(watch_stub().service(), config);
    let mut answers = watch(&server).await.unwrap();
    let started = Instant::now();
    server.stop();
    assert_stopping(&answers.next().await.unwrap().unwrap_err());
    assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
    server.ended().await;
}
