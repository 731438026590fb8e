//! Prometheus endpoint: `GET /metrics` over HTTP/1.1 in the text format, with names by
//! OpenTelemetry's rules
//! (<https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>). Runs on
//! a dedicated thread with low priority.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use opentelemetry_prometheus::PrometheusExporter;
use prometheus::TextEncoder;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::jobs::run_on_dedicated_thread;

/// The path of the metrics.
pub(crate) const PATH: &str = "/metrics";

// Scrapers are few; more connections wait in the backlog.
const CONNECTIONS_MAX: usize = 16;
// Above the interval between two scrapes of a kept-alive connection, a minute or less.
const HEADER_TIMEOUT: Duration = Duration::from_secs(90);
// Out of file descriptors, accept fails until a connection closes.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
// Maximum age of a connection, against slow readers.
const CONNECTION_MAX: Duration = Duration::from_secs(3600);

/// Returns the SDK's Prometheus reader, which is in the default registry.
pub(super) fn reader() -> Result<PrometheusExporter, prometheus::Error> {
    let exporter = opentelemetry_prometheus::exporter();
    let exporter = exporter.with_registry(prometheus::default_registry().clone());
    // The instrumentation scope would only add a label to each series.
    exporter.scope_info_enabled(false).build().map_err(|error| {
        // Fails only for a second reader in the process.
        prometheus::Error::Msg(error.to_string())
    })
}

/// Binds, and returns the future that serves until dropped. Must be called inside a runtime, which
/// it does not use.
pub(super) fn serve(
    address: SocketAddr,
) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let work = async move {
        // Returns only on error.
        let Err(error) = accept(listener).await;
        tracing::error!(%error, "metrics endpoint failed");
    };
    Ok((address, run_on_dedicated_thread("metrics", work)))
}

async fn accept(listener: std::net::TcpListener) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let permit = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((connection, _)) => {
                tokio::spawn(async move {
                    let _permit = permit;
                    // Errors of a scraper's connection are ignored.
                    let _ = timeout(CONNECTION_MAX, answer(connection)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a metrics connection");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

async fn answer(connection: TcpStream) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(request.method(), request.uri().path());
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    http.serve_connection(TokioIo::new(connection), service).await
}

/// Returns the response to a request of metrics.
pub(crate) fn respond(method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (path, method) {
        (PATH, &Method::GET | &Method::HEAD) => {
            match TextEncoder::new().encode_to_string(&prometheus::gather()) {
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
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_paths_and_methods_are_rejected() {
        let status = |method, path| respond(&method, path).status();
        assert_eq!(status(Method::GET, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::HEAD, "/metrics"), StatusCode::OK);
        assert_eq!(status(Method::POST, "/metrics"), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(status(Method::GET, "/"), StatusCode::NOT_FOUND);
    }
}
