//! Local calls: direct, with the same deadlines, traces and isolation as remote ones.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::FutureExt as _;
use microblog_chassis::{Peer, Service, context, mutate};
use microblog_proto::Peer as _;
use microblog_testkit::PATIENCE;
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Code, Request, Response, Status};

use crate::support::{Server, Stub, code_and_reason, config, eventually, request};

const PATH: &str = "/microblog.user.v1.UserService/GetUserByName";

/// A handler, as a service passes it to the chassis.
#[derive(Clone)]
struct Handler(Arc<AtomicUsize>);

fn peer() -> Peer {
    Peer::local(&Stub::new().service(), &config())
}

/// Calls as generated peers do.
async fn call<A: Send, F>(
    peer: &Peer,
    timeout: Option<Duration>,
    work: impl FnOnce() -> F + Send,
) -> Result<A, Status>
where
    F: Future<Output = Result<A, Status>> + Send,
{
    let mut request = Request::new(());
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    let call = |_: Request<()>| async { work().await.map(Response::new) };
    peer.call_inside(PATH, request, call).await.map(Response::into_inner)
}

#[tokio::test]
async fn handler_is_available_only_to_local_peers() {
    let count = Arc::new(AtomicUsize::new(7));
    let handler = Some(Arc::new(Handler(count)) as microblog_chassis::Handler);
    let service = Service { handler, ..Stub::new().service() };
    let found: Handler = Peer::local(&service, &config()).handler().unwrap();
    assert_eq!(found.0.load(SeqCst), 7);
    assert!(Peer::local(&service, &config()).handler::<String>().is_none());
    assert!(peer().handler::<Handler>().is_none());
    let server = Server::start(service, config());
    assert!(server.peer().handler::<Handler>().is_none());
}

#[tokio::test]
async fn a_peer_whose_service_has_not_started_is_unavailable() {
    let unbound = Peer::unbound(&config());
    let clone = unbound.clone();
    let status = call(&clone, None, || async { Ok(1) }).await.unwrap_err();
    assert_eq!(
        code_and_reason(&status),
        (Code::Unavailable, "ERROR_REASON_PEER_UNAVAILABLE".to_owned())
    );
    unbound.bind(&Stub::new().service(), &config());
    assert_eq!(call(&clone, None, || async { Ok(1) }).await.unwrap(), 1);
}

#[tokio::test]
async fn responses_and_statuses_pass_through_unchanged() {
    let answer: Arc<str> = "as it is".into();
    let same = call(&peer(), None, || async { Ok(answer.clone()) }).await.unwrap();
    assert!(Arc::ptr_eq(&same, &answer));
    let not_found = Status::with_details(Code::NotFound, "nobody", vec![1, 2, 3].into());
    let rejected = call::<(), _>(&peer(), None, || async { Err(not_found) }).await.unwrap_err();
    assert_eq!((rejected.code(), rejected.message()), (Code::NotFound, "nobody"));
    assert_eq!(rejected.details(), [1, 2, 3]);
}

#[tokio::test]
async fn panic_is_internal() {
    let panicking = || async {
        tokio::task::yield_now().await;
        panic!("a mistake")
    };
    let status = call::<(), _>(&peer(), None, panicking).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(!status.message().contains("mistake"));
    call(&peer(), None, || async { Ok(()) }).await.unwrap();
}

#[tokio::test]
async fn local_call_ends_at_its_deadline() {
    let never = std::future::pending::<Result<(), Status>>;
    let mut short = config();
    short.default_timeout_ms = 50;
    let peer = Peer::local(&Stub::new().service(), &short);
    let ended = timeout(PATIENCE, call(&peer, None, never)).await.expect("an end");
    assert_eq!(ended.unwrap_err().code(), Code::DeadlineExceeded);
    let own = Some(Duration::from_millis(20));
    let ended = timeout(PATIENCE, call(&self::peer(), own, never)).await;
    assert_eq!(ended.expect("an end").unwrap_err().code(), Code::DeadlineExceeded);
    let late = call(&self::peer(), Some(Duration::ZERO), || async { Ok(()) }).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

/// Serves a stub whose handler makes a local call, with a short deadline.
fn relay<F>(work: impl Fn() -> F + Clone + Send + Sync + 'static) -> Server
where
    F: Future<Output = Result<String, Status>> + Send + 'static,
{
    let peer = peer();
    let outer = Stub::new().get(move |_| {
        let (peer, work) = (peer.clone(), work.clone());
        async move { call(&peer, None, work).await }
    });
    let mut short = config();
    short.default_timeout_ms = 500;
    Server::start(outer.service(), short)
}

#[tokio::test]
async fn local_call_is_cancelled_with_its_parent() {
    struct DropCounter(Arc<AtomicUsize>);
    impl Drop for DropCounter {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let server = relay(move || {
        let dropped = DropCounter(count.clone());
        async move {
            let _gone = dropped;
            std::future::pending().await
        }
    });
    let late = server.client().get_user_by_name(request(None)).await;
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    eventually("the inner call is dropped", async || dropped.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn local_call_inherits_trace_and_deadline() {
    let peer = peer();
    let outer = Stub::new().get(move |_| {
        let peer = peer.clone();
        async move {
            let here = || (context::trace().unwrap().id().to_string(), context::deadline());
            let outside = here();
            let inside = call(&peer, None, || async move { Ok(here()) }).await?;
            assert_eq!(inside, outside);
            let sooner =
                call(&peer, Some(Duration::from_millis(100)), || async move { Ok(here()) });
            assert!(sooner.await?.1 < outside.1);
            Ok("the same".to_owned())
        }
    });
    let server = Server::start(outer.service(), config());
    let answer = server.client().get_user_by_name(request(None)).await.unwrap();
    assert_eq!(answer.into_inner().user.unwrap().name, "the same");
}

#[tokio::test]
async fn drain_waits_for_a_local_write_after_its_deadline() {
    let (gate, done) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (door, count) = (gate.clone(), done.clone());
    let mut server = relay(move || {
        let (door, done) = (door.clone(), count.clone());
        mutate(async move {
            door.acquire().await.unwrap().forget();
            done.fetch_add(1, SeqCst);
            Ok("written".to_owned())
        })
        .boxed()
    });
    let late = server.client().get_user_by_name(request(None)).await;
    assert_eq!(code_and_reason(&late.unwrap_err()).0, Code::DeadlineExceeded);
    server.stop();
    assert!(timeout(Duration::from_millis(300), server.ended()).await.is_err());
    gate.add_permits(1);
    timeout(PATIENCE, server.ended()).await.expect("the drain ends");
    assert_eq!(done.load(SeqCst), 1);
}
