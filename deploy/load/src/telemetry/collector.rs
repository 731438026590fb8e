//! A collector of OpenTelemetry data that counts and drops them, in a process of its own.

use std::{
    convert::Infallible,
    marker::PhantomData,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context as Waker, Poll},
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use http::uri::PathAndQuery;
use microblog_chassis::{self as chassis, Listening, Worker};
use microblog_local::remote;
use tonic::{Request, Response, Status, body::Body, server::NamedService, service::Routes};
use tower::Service;

use crate::{
    raw::{self, Raw},
    server::{Server, bare_service, end_with_parent},
    services::told,
};

/// The subcommand that serves.
const COLLECT: &str = "collect";

/// Takes telemetry and drops it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    #[command(flatten)]
    chassis: chassis::Config,
}

/// Serves until it is told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    end_with_parent()?;
    let (traces, metrics) = (Arc::default(), Arc::default());
    let listen = move |_: Worker| {
        let traces: Taker<Traces> = Taker::new(&traces);
        let metrics: Taker<Metrics> = Taker::new(&metrics);
        let routes = Routes::new(traces).add_service(metrics);
        let service = bare_service(Taker::<Traces>::NAME, routes);
        future::ready(Ok::<_, Infallible>(vec![Listening { address: args.listen, service }]))
    };
    Ok(chassis::run(&args.chassis, listen))
}

/// One that was started here.
pub(crate) struct Collector(Server);

impl Collector {
    /// Starts it.
    pub(super) fn start() -> anyhow::Result<Self> {
        Server::start(COLLECT, &["--threads=1".to_owned()], &[]).map(Self)
    }

    /// Returns where it listens.
    pub(super) fn url(&self) -> &str {
        self.0.url()
    }

    /// Returns how many bytes of traces and of metrics came so far.
    pub(super) async fn taken(&self) -> anyhow::Result<[u64; 2]> {
        Ok([self.ask(Traces::NAME).await?, self.ask(Metrics::NAME).await?])
    }

    async fn ask(&self, service: &str) -> anyhow::Result<u64> {
        let path: PathAndQuery = format!("/{service}/{TAKEN}").parse()?;
        let request = Request::new(Bytes::new());
        let answer = told(raw::call(remote::channel(self.url())?, path, request).await)?;
        let answer = <[u8; 8]>::try_from(&*answer).ok().context("not a number of bytes")?;
        Ok(u64::from_be_bytes(answer))
    }
}

/// The method of each service that is none of OpenTelemetry's: how many bytes came.
const TAKEN: &str = "Taken";

/// What is sent to a collector.
trait Signal: Clone + Send + Sync + 'static {
    /// The service that takes it.
    const NAME: &'static str;
}

#[derive(Clone)]
struct Traces;

impl Signal for Traces {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

#[derive(Clone)]
struct Metrics;

impl Signal for Metrics {
    const NAME: &'static str = "opentelemetry.proto.collector.metrics.v1.MetricsService";
}

/// A service that takes one kind of telemetry.
#[derive(Clone)]
struct Taker<S> {
    bytes: Arc<AtomicU64>,
    signal: PhantomData<S>,
}

impl<S> Taker<S> {
    fn new(bytes: &Arc<AtomicU64>) -> Self {
        Self { bytes: Arc::clone(bytes), signal: PhantomData }
    }
}

impl<S: Signal> NamedService for Taker<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Signal> Service<http::Request<Body>> for Taker<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bytes = Arc::clone(&self.bytes);
        let is_asked = request.uri().path().rsplit_once('/').is_some_and(|(_, name)| name == TAKEN);
        let handler = tower::service_fn(move |request: Request<Bytes>| {
            let length = request.into_inner().len() as u64;
            let before = bytes.fetch_add(length, Ordering::Relaxed);
            // The answer to what was taken has nothing in it.
            let answer = if is_asked { before.to_be_bytes().to_vec() } else { Vec::new() };
            future::ready(Ok::<_, Status>(Response::new(Bytes::from(answer))))
        });
        async move { Ok(tonic::server::Grpc::new(Raw).unary(handler, request).await) }.boxed()
    }
}
