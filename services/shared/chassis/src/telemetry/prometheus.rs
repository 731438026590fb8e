//! Where Prometheus asks for metrics: `GET /metrics` over HTTP/1.1, in Prometheus' text format, with
//! names as OpenTelemetry's rules make them
//! (<https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>). In a
//! thread of its own, behind the calls.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use opentelemetry_prometheus::PrometheusExporter;
use prometheus::{Registry, TextEncoder};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::run_on_dedicated_thread;

const PATH: &str = "/metrics";

// Whoever asks for metrics is few: more connections wait.
const CONNECTIONS_MAX: usize = 16;
// A connection that says nothing between two scrapes, which are a minute apart or less.
const HEADER_TIMEOUT: Duration = Duration::from_secs(90);
// When the process is out of file descriptors, accepting fails until a connection ends.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
// A scrape is a page of text; who takes it that slowly is no Prometheus.
const CONNECTION_MAX: Duration = Duration::from_secs(3600);

/// Returns what the SDK is read by, and the registry that has what was read.
pub(super) fn reader() -> Result<(PrometheusExporter, Registry), prometheus::Error> {
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
    // Which crate counts something is nothing to tell series apart by.
    let exporter = exporter.scope_info_enabled(false).build();
    exporter.map(|exporter| (exporter, registry)).map_err(|error| {
        // Only what the registry refuses, which is empty.
        prometheus::Error::Msg(error.to_string())
    })
}

/// Listens, and answers until what it returns is dropped. Must be called inside a runtime, which
/// carries nothing of it.
pub(super) fn serve(
    address: SocketAddr,
    registry: Registry,
) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let work = async move {
        // Ends only with an error.
        let Err(error) = accept(listener, registry).await;
        tracing::error!(%error, "metrics endpoint failed");
    };
    Ok((address, run_on_dedicated_thread("metrics", work)))
}

async fn accept(listener: std::net::TcpListener, registry: Registry) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed.
        let permit = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((connection, _)) => {
                let registry = registry.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    // Who takes no part in it any more is nobody's concern.
                    let _ = timeout(CONNECTION_MAX, answer(connection, registry)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a metrics connection");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

async fn answer(connection: TcpStream, registry: Registry) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path(), &registry);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    http.serve_connection(TokioIo::new(connection), service).await
}

fn respond(method: &Method, path: &str, registry: &Registry) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (path, method) {
        (PATH, &Method::GET | &Method::HEAD) => {
            match TextEncoder::new().encode_to_string(&registry.gather()) {
                Ok(text) => (StatusCode::OK, prometheus::TEXT_FORMAT, text),
                Err(error) => {
                    tracing::error!(%error, "cannot encode metrics");
                    (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", String::new())
                }
            }
        }
        (PATH, _) => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", String::new()),
        _ => (StatusCode::NOT_FOUND, "text/plain", format!("metrics are at {PATH}\n")),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_paths_and_methods_are_rejected() {
        let registry = Registry::new();
        let status = |method, path| respond(&method, path, &registry).status();
        assert_eq!(status(Method::GET, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::HEAD, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::POST, "/metrics"), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(status(Method::GET, "/"), StatusCode::NOT_FOUND);
    }
}
