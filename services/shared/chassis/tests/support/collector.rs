//! A fake OpenTelemetry collector.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::Config;
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse},
        trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    },
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{HistogramDataPoint, NumberDataPoint, metric::Data, number_data_point},
    trace::v1::Span,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::{Request, Response, Status, body::Body, server::NamedService, service::Routes};
use tonic_prost::ProstCodec;

use super::{Server, Stub};

/// A service of a collector.
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

struct ExportService<S: Signals>(UnboundedSender<S::Request>);

impl<S: Signals> Clone for ExportService<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Signals> NamedService for ExportService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Signals> tower::Service<http::Request<Body>> for ExportService<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let sender = self.0.clone();
        async move {
            let handler = tower::service_fn(|request: Request<S::Request>| {
                sender.send(request.into_inner()).unwrap();
                futures::future::ready(Ok::<_, Status>(Response::new(S::Response::default())))
            });
            let codec = ProstCodec::<S::Response, S::Request>::default();
            Ok(tonic::server::Grpc::new(codec).unary(handler, request).await)
        }
        .boxed()
    }
}

/// A fake OpenTelemetry collector.
pub(crate) struct Collector {
    server: Server,
    pub(crate) traces: UnboundedReceiver<ExportTraceServiceRequest>,
    pub(crate) metrics: UnboundedReceiver<ExportMetricsServiceRequest>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::start_with(super::config())
    }

    pub(crate) fn start_with(config: Config) -> Self {
        let (spans, traces) = unbounded_channel();
        let (numbers, metrics) = unbounded_channel();
        let mut service = Stub::new().service();
        service.routes = Routes::new(ExportService::<Traces>(spans))
            .add_service(ExportService::<Metrics>(numbers));
        Self { server: Server::start(service, config), traces, metrics }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn secure_url(&self) -> String {
        format!("https://{}", self.server.address)
    }

    /// Returns all spans received.
    pub(crate) fn spans(&mut self) -> Vec<Span> {
        let requests = std::iter::from_fn(|| self.traces.try_recv().ok());
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Returns the last metrics received.
    pub(crate) fn numbers(&mut self) -> Numbers {
        let last = std::iter::from_fn(|| self.metrics.try_recv().ok()).last();
        Numbers(last.expect("no metrics came"))
    }
}

pub(crate) struct Numbers(pub(crate) ExportMetricsServiceRequest);

impl Numbers {
    pub(crate) fn of(&self, name: &str) -> Option<Data> {
        let scopes = self.0.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        let mut metrics = scopes.flat_map(|scope| &scope.metrics);
        metrics.find(|metric| metric.name == name)?.data.clone()
    }

    pub(crate) fn count(&self, name: &str) -> i64 {
        let Some(Data::Sum(sum)) = self.of(name) else { panic!("no {name}: {:#?}", self.0) };
        let value = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsInt(value)) => value,
            _ => panic!("no number: {point:?}"),
        };
        sum.data_points.iter().map(value).sum()
    }

    /// Returns count and total duration of calls, by method and status code.
    pub(crate) fn calls(&self) -> BTreeMap<String, (u64, f64)> {
        let durations = self.of("rpc.server.call.duration");
        let Some(Data::Histogram(histogram)) = durations else { panic!("{:#?}", self.0) };
        let call = |point: &HistogramDataPoint| {
            let texts = ["rpc.system.name", "rpc.method", "rpc.response.status_code"];
            let texts = texts.map(|key| text(&point.attributes, key));
            (texts.join(" "), (point.count, point.sum()))
        };
        histogram.data_points.iter().map(call).collect()
    }

    pub(crate) fn resource(&self, attribute: &str) -> String {
        let resource = self.0.resource_metrics[0].resource.as_ref().unwrap();
        text(&resource.attributes, attribute)
    }
}

pub(crate) fn text(attributes: &[KeyValue], key: &str) -> String {
    let attribute = attributes.iter().find(|attribute| attribute.key == key);
    match attribute.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}
