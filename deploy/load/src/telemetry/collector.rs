//! An OpenTelemetry collector that counts and discards data, in its own process.

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
use microblog_chassis::{self as chassis, ServiceListener, Worker};
use microblog_local::remote;
use tonic::{Request, Response, Status, body::Body, server::NamedService, service::Routes};
use tower::Service;

use crate::{
    raw_call::{self, RawCodec},
    server_process::{ServerProcess, always_ready_service, end_with_parent},
    service_clients::status_to_error,
};

/// The subcommand of the collector process.
const COLLECT: &str = "collect";

/// Receives telemetry and discards it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    #[command(flatten)]
    chassis: chassis::Config,
}

/// Serves until the process is stopped.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    end_with_parent()?;
    let (traces, metrics) = (Arc::default(), Arc::default());
    let listen = move |_: Worker| {
        let traces: CountingService<Traces> = CountingService::new(&traces);
        let metrics: CountingService<Metrics> = CountingService::new(&metrics);
        let routes = Routes::new(traces).add_service(metrics);
        let service = always_ready_service(CountingService::<Traces>::NAME, routes);
        future::ready(Ok::<_, Infallible>(vec![ServiceListener { address: args.listen, service }]))
    };
    Ok(chassis::run(&args.chassis, listen))
}

/// A started collector process.
pub(crate) struct Collector(ServerProcess);

impl Collector {
    /// Starts the collector.
    pub(super) fn start() -> anyhow::Result<Self> {
        ServerProcess::start(COLLECT, &["--threads=1".to_owned()], &[]).map(Self)
    }

    /// Returns the collector's URL.
    pub(super) fn url(&self) -> &str {
        self.0.url()
    }

    /// Returns the bytes of traces and metrics received so far.
    pub(super) async fn bytes_received(&self) -> anyhow::Result<[u64; 2]> {
        Ok([self.count(Traces::NAME).await?, self.count(Metrics::NAME).await?])
    }

    async fn count(&self, service: &str) -> anyhow::Result<u64> {
        let path: PathAndQuery = format!("/{service}/{BYTES_RECEIVED}").parse()?;
        let request = Request::new(Bytes::new());
        let answer =
            status_to_error(raw_call::unary(remote::channel(self.url())?, path, request).await)?;
        let answer = <[u8; 8]>::try_from(&*answer).ok().context("invalid response")?;
        Ok(u64::from_be_bytes(answer))
    }
}

/// A method of this program, beside those of OTLP: returns the number of bytes received.
const BYTES_RECEIVED: &str = "BytesReceived";

/// A kind of telemetry.
trait Signal: Clone + Send + Sync + 'static {
    /// The OTLP service that receives it.
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

/// A service that counts and discards one kind of telemetry.
#[derive(Clone)]
struct CountingService<S> {
    bytes: Arc<AtomicU64>,
    signal: PhantomData<S>,
}

impl<S> CountingService<S> {
    fn new(bytes: &Arc<AtomicU64>) -> Self {
        Self { bytes: Arc::clone(bytes), signal: PhantomData }
    }
}

impl<S: Signal> NamedService for CountingService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Signal> Service<http::Request<Body>> for CountingService<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bytes = Arc::clone(&self.bytes);
        let is_query =
            request.uri().path().rsplit_once('/').is_some_and(|(_, name)| name == BYTES_RECEIVED);
        let handler = tower::service_fn(move |request: Request<Bytes>| {
            let length = request.into_inner().len() as u64;
            let before = bytes.fetch_add(length, Ordering::Relaxed);
            // OTLP export responses are empty.
            let answer = if is_query { before.to_be_bytes().to_vec() } else { Vec::new() };
            future::ready(Ok::<_, Status>(Response::new(Bytes::from(answer))))
        });
        async move { Ok(tonic::server::Grpc::new(RawCodec).unary(handler, request).await) }.boxed()
    }
}
