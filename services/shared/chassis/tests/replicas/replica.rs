//! Servers that can be stopped and killed, and a fake resolver.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    thread::JoinHandle,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use microblog_chassis::{Resolve, Service, serve};
use tokio::sync::oneshot;
use tonic::{
    Response, Status,
    body::Body,
    server::{Grpc, NamedService},
    service::Routes,
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::support::{NAME, config};

/// Returns addresses of this test, which share a port.
pub(crate) fn hosts<const COUNT: usize>() -> [SocketAddr; COUNT] {
    static NETWORKS: AtomicU8 = AtomicU8::new(1);
    let network = NETWORKS.fetch_add(1, SeqCst);
    let run = u8::try_from(std::process::id() % 250).unwrap();
    let ip = |host: usize| Ipv4Addr::new(127, network, run, u8::try_from(host + 1).unwrap());
    let port = microblog_testkit::free_port();
    std::array::from_fn(|host| SocketAddr::from((ip(host), port)))
}

/// A resolver for one name, whose addresses a test sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeResolver {
    /// `None`: resolution fails.
    addresses: Arc<Mutex<Option<Vec<SocketAddr>>>>,
    lookups: Arc<AtomicUsize>,
}

impl FakeResolver {
    pub(crate) fn new(addresses: &[SocketAddr]) -> Self {
        let hosts = Self::default();
        hosts.set(Some(addresses));
        hosts
    }

    pub(crate) fn set(&self, addresses: Option<&[SocketAddr]>) {
        *self.addresses.lock().unwrap() = addresses.map(<[_]>::to_vec);
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(SeqCst)
    }
}

impl Resolve for FakeResolver {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        self.lookups.fetch_add(1, SeqCst);
        let found = self.addresses.lock().unwrap().clone();
        async move { found.ok_or_else(|| io::Error::other("no such name")) }.boxed()
    }
}

type Behavior = dyn Fn(String) -> Work + Send + Sync;

/// A handler with the same behavior for all methods.
#[derive(Clone)]
struct Handler {
    behavior: Arc<Behavior>,
    calls: Arc<Mutex<HashMap<String, Vec<String>>>>,
}

impl NamedService for Handler {
    const NAME: &'static str = NAME;
}

impl tower::Service<http::Request<Body>> for Handler {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let call = request.headers().get("call").map(|call| call.to_str().unwrap().to_owned());
        let (behavior, calls) = (self.behavior.clone(), self.calls.clone());
        async move {
            let mut grpc = Grpc::new(ProstCodec::<(), ()>::default());
            let (name, behavior) = (method.clone(), behavior.clone());
            // Runs only for complete requests.
            let work = move || {
                calls.lock().unwrap().entry(name.clone()).or_default().extend(call.clone());
                behavior(name.clone())
            };
            Ok(match method.as_str() {
                "Verify" => {
                    grpc.server_streaming(service_fn(move |_| watch(work())), request).await
                }
                "GetUser" => {
                    grpc.server_streaming(service_fn(move |_| respond_before_work(work())), request)
                        .await
                }
                _ => grpc.unary(service_fn(move |_| respond(work())), request).await,
            })
        }
        .boxed()
    }
}

type Work = BoxFuture<'static, Result<(), Status>>;
type Answer<T> = BoxFuture<'static, Result<Response<T>, Status>>;
type Messages = BoxStream<'static, Result<(), Status>>;

fn respond(work: Work) -> Answer<()> {
    async { Ok(Response::new(work.await?)) }.boxed()
}

/// Responds with one message after the work, and stays open.
fn watch(work: Work) -> Answer<Messages> {
    let first = |()| stream::iter([Ok(())]).chain(stream::pending()).boxed();
    async move { Ok(Response::new(first(work.await?))) }.boxed()
}

/// Responds with one message, and ends after the work.
fn respond_before_work(work: Work) -> Answer<Messages> {
    let end = stream::once(work).filter_map(async |end| end.err().map(Err));
    let messages = stream::iter([Ok(())]).chain(end).boxed();
    async { Ok(Response::new(messages)) }.boxed()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Drain,
    Kill,
}

/// A server on its own thread, like a process.
pub(crate) struct Replica {
    pub(crate) address: SocketAddr,
    handler: Handler,
    running: Option<(oneshot::Sender<End>, JoinHandle<()>)>,
}

impl Replica {
    /// Starts a server that answers every call.
    pub(crate) fn start(address: SocketAddr) -> Self {
        Self::start_with(address, |_| async { Ok(()) })
    }

    /// Starts a server with a behavior by method.
    pub(crate) fn start_with<F>(
        address: SocketAddr,
        behavior: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let behavior = Arc::new(move |method: String| behavior(method).boxed() as BoxFuture<_>);
        let handler = Handler { behavior, calls: Arc::default() };
        let mut replica = Self { address, handler, running: None };
        replica.start_again();
        replica
    }

    pub(crate) fn start_again(&mut self) {
        let listener = microblog_testkit::listen_again(self.address);
        let (end, ended) = oneshot::channel();
        let service = Service {
            name: NAME,
            routes: Routes::new(self.handler.clone()),
            handler: None,
            web: None,
            ready: Arc::new(|| async { true }.boxed()),
            background: Vec::new(),
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let (ended, config) = (ended.shared(), config());
                let drain = async {
                    if ended.clone().await != Ok(End::Drain) {
                        std::future::pending().await
                    }
                };
                let kill = async {
                    if ended.clone().await == Ok(End::Drain) {
                        std::future::pending().await
                    }
                };
                tokio::select! {
                    served = serve(listener, service, &config, drain) => served.unwrap(),
                    () = kill => {}
                }
            });
        });
        self.running = Some((end, thread));
    }

    /// Shuts down gracefully, as on SIGTERM.
    pub(crate) async fn stop(&mut self) {
        self.end(End::Drain).await;
    }

    /// Stops at once, as on SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.end(End::Kill).await;
    }

    async fn end(&mut self, how: End) {
        let (end, thread) = self.running.take().unwrap();
        end.send(how).unwrap();
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
    }

    /// Returns the marks of the calls to a method, in order.
    pub(crate) fn calls_of(&self, method: &str) -> Vec<String> {
        self.handler.calls.lock().unwrap().get(method).cloned().unwrap_or_default()
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> usize {
        self.handler.calls.lock().unwrap().values().map(Vec::len).sum()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Dropping the sender kills the server.
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}
