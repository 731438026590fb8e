//! Takes traces and metrics as an OpenTelemetry collector does, and keeps all of it as text.

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

/// Where senders say who they are.
pub(crate) const KEY_HEADER: &str = "x-api-key";

/// A collector.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    spans: Arc<Mutex<String>>,
    metrics: Arc<Mutex<String>>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// Starts it on a free port, until the task is ended.
    pub(crate) fn start() -> (Self, SocketAddr, JoinHandle<()>) {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = incoming.local_addr().unwrap();
        let receiver = Self::default();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(receiver.clone()))
            .add_service(MetricsServiceServer::new(receiver.clone()))
            .serve_with_incoming(incoming);
        (receiver, address, tokio::spawn(async { server.await.unwrap() }))
    }

    /// Returns the spans that came so far, with whose they are.
    pub(crate) fn spans(&self) -> String {
        self.spans.lock().unwrap().clone()
    }

    /// Returns the metrics that came so far, with whose they are.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.lock().unwrap().clone()
    }

    /// Returns whether anybody sent this key.
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
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.keep(&self.spans, &request);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.keep(&self.metrics, &request);
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
