//! Traces and metrics of a whole process, which a collector takes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use microblog_proto::user::user_service_client::UserServiceClient;
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse},
        trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    },
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{HistogramDataPoint, NumberDataPoint, metric::Data, number_data_point},
    trace::v1::Span,
};
use support::{
    Port, Server, Stub, get,
    process::{Process, get_answered, peer, run_if_started},
    request,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::{
    Request, Response, Status, body::Body, server::NamedService, service::Routes,
    transport::Endpoint,
};
use tonic_prost::ProstCodec;

#[test]
fn the_process_that_the_other_tests_start() {
    run_if_started();
}

/// One of the services of a collector.
trait Signals: Send + Sync + 'static {
    const NAME: &'static str;
    type Request: prost::Message + Default + 'static;
    type Response: prost::Message + Default + 'static;
}

struct Traces;

impl Signals for Traces {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
    type Request = ExportTraceServiceRequest;
    type Response = ExportTraceServiceResponse;
}

struct Metrics;

impl Signals for Metrics {
    const NAME: &'static str = "opentelemetry.proto.collector.metrics.v1.MetricsService";
    type Request = ExportMetricsServiceRequest;
    type Response = ExportMetricsServiceResponse;
}

struct Taker<S: Signals>(UnboundedSender<S::Request>);

impl<S: Signals> Clone for Taker<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Signals> NamedService for Taker<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Signals> tower::Service<http::Request<Body>> for Taker<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let taken = self.0.clone();
        async move {
            let handler = tower::service_fn(|request: Request<S::Request>| {
                taken.send(request.into_inner()).unwrap();
                futures::future::ready(Ok::<_, Status>(Response::new(S::Response::default())))
            });
            let codec = ProstCodec::<S::Response, S::Request>::default();
            Ok(tonic::server::Grpc::new(codec).unary(handler, request).await)
        }
        .boxed()
    }
}

/// Takes spans and metrics as an OpenTelemetry collector does.
struct Collector {
    server: Server,
    traces: UnboundedReceiver<ExportTraceServiceRequest>,
    metrics: UnboundedReceiver<ExportMetricsServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let (spans, traces) = unbounded_channel();
        let (numbers, metrics) = unbounded_channel();
        let mut service = Stub::new().service();
        service.routes = Routes::new(Taker::<Traces>(spans)).add_service(Taker::<Metrics>(numbers));
        Self { server: Server::start(service, support::config()), traces, metrics }
    }

    fn url(&self) -> String {
        self.server.url()
    }

    /// All spans that came.
    fn spans(&mut self) -> Vec<Span> {
        let requests = std::iter::from_fn(|| self.traces.try_recv().ok());
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The metrics that came last.
    fn numbers(&mut self) -> Numbers {
        let last = std::iter::from_fn(|| self.metrics.try_recv().ok()).last();
        Numbers(last.expect("no metrics came"))
    }
}

struct Numbers(ExportMetricsServiceRequest);

impl Numbers {
    fn of(&self, name: &str) -> Option<Data> {
        let scopes = self.0.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        let mut metrics = scopes.flat_map(|scope| &scope.metrics);
        metrics.find(|metric| metric.name == name)?.data.clone()
    }

    fn count(&self, name: &str) -> i64 {
        let Some(Data::Sum(sum)) = self.of(name) else { panic!("no {name}: {:#?}", self.0) };
        let value = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsInt(value)) => value,
            _ => panic!("no number: {point:?}"),
        };
        sum.data_points.iter().map(value).sum()
    }

    /// How many calls took how long in all, by method and status code.
    fn calls(&self) -> BTreeMap<String, (u64, f64)> {
        let durations = self.of("rpc.server.call.duration");
        let Some(Data::Histogram(histogram)) = durations else { panic!("{:#?}", self.0) };
        let call = |point: &HistogramDataPoint| {
            let texts = ["rpc.system.name", "rpc.method", "rpc.response.status_code"];
            let texts = texts.map(|key| text(&point.attributes, key));
            (texts.join(" "), (point.count, point.sum()))
        };
        histogram.data_points.iter().map(call).collect()
    }

    fn service(&self) -> String {
        let resource = self.0.resource_metrics[0].resource.as_ref().unwrap();
        text(&resource.attributes, "service.name")
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let attribute = attributes.iter().find(|attribute| attribute.key == key);
    match attribute.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_calls_are_sent_to_the_collector_at_the_end_at_the_latest() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {} --trace-sampling 0", collector.url());
    let mut process = Process::start("127.0.0.1:0", &flags);
    let address = process.address();
    for flag in ["00", "01"] {
        let mut request = request(None);
        let trace = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flag}");
        request.metadata_mut().insert("traceparent", trace.parse().unwrap());
        let channel = Endpoint::from_shared(format!("http://{address}"));
        let mut client = UserServiceClient::new(channel.unwrap().connect_lazy());
        client.get_user_by_name(request).await.unwrap();
    }
    get_answered(address).await;
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let spans = collector.spans();
    let [span] = &spans[..] else { panic!("one call was sampled: {spans:#?}") };
    assert_eq!(span.name, "microblog.user.v1.UserService/GetUserByName");
    let trace_id = 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes();
    assert_eq!(span.trace_id, trace_id);
    assert_eq!(span.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!(span.kind, 2, "a server's span");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_is_sent_to_the_collector_at_the_end_at_the_latest() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {}", collector.url());
    let name = [("OTEL_SERVICE_NAME", "tested")];
    let mut process = Process::start_in(&name, "127.0.0.1:0", &flags);
    let address = process.address();
    for _ in 0..3 {
        get_answered(address).await;
    }
    get(peer(address), "private").await.unwrap_err();
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let numbers = collector.numbers();
    assert_eq!(numbers.service(), "tested");
    assert_eq!(numbers.count("test.calls"), 4);
    let calls = numbers.calls();
    let get = "grpc microblog.user.v1.UserService/GetUserByName";
    let (answered, took) = calls[&format!("{get} OK")];
    assert!(answered == 3 && took > 0.0 && took < 3.0, "{calls:?}");
    assert_eq!(calls[&format!("{get} INTERNAL")].0, 1);
    assert_eq!(calls.len(), 2, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_is_sent_while_the_process_runs() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {}", collector.url());
    let often = [("OTEL_METRIC_EXPORT_INTERVAL", "50")];
    let process = Process::start_in(&often, "127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    let sent = async {
        while let Some(request) = collector.metrics.recv().await {
            if Numbers(request).of("test.calls").is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), sent).await.expect("it is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_does_not_hold_up_the_end() {
    let nobody = Port::take();
    let flags = format!("--otlp-endpoint http://{}", nobody.address());
    let mut process = Process::start("127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "the last traces and metrics were not sent");
    assert!(process.ended().success());
}
