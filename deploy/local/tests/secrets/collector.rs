//! A test OpenTelemetry collector that stores traces and metrics as text.

use std::{
    fmt::Debug,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::collector::{
    metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
};
use tokio::task::JoinHandle;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

/// The metadata key of the senders' credentials.
pub(crate) const KEY_HEADER: &str = "x-api-key";

/// A collector.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    spans: Arc<Mutex<String>>,
    metrics: Arc<Mutex<String>>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    /// Starts a collector on a free port. It runs until the task ends.
    pub(crate) fn start() -> (Self, SocketAddr, JoinHandle<()>) {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let collector = Self::default();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .add_service(MetricsServiceServer::new(collector.clone()))
            .serve_with_incoming(incoming);
        (collector, address, tokio::spawn(async { server.await.unwrap() }))
    }

    /// Returns the spans received so far, by service.
    pub(crate) fn spans(&self) -> String {
        self.spans.lock().unwrap().clone()
    }

    /// Returns the metrics received so far, by service.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.lock().unwrap().clone()
    }

    /// Returns whether a sender used this key.
    pub(crate) fn was_sent(&self, key: &str) -> bool {
        self.keys.lock().unwrap().iter().any(|sent| sent == key)
    }

    fn keep<M: Debug>(&self, place: &Mutex<String>, request: &Request<M>) {
        place.lock().unwrap().push_str(&format!("{:?}\n", request.get_ref()));
        let key = request.metadata().get(KEY_HEADER).and_then(|key| key.to_str().ok());
        self.keys.lock().unwrap().extend(key.map(str::to_owned));
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.keep(&self.spans, &request);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.keep(&self.metrics, &request);
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
