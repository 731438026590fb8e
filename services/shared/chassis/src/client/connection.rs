//! An HTTP/2 connection to one endpoint of a peer.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, Uri, Version,
    header::{CONTENT_TYPE, TE},
};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http2::{Builder, SendRequest},
    },
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    address::{ClientTls, Origin},
    failure,
    request::{BufferedRequest, set_origin},
    tls::HandshakeError,
};

// Above the duration of TCP connect and TLS handshake within a data centre.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Above the response time of a busy server.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
// HTTP/2 keepalive: detects a network partition within the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const PROBE_PATH: &str = "/grpc.health.v1.Health/Check";
// A gRPC message without fields: not compressed, of length 0.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("connecting timed out after {} ms", CONNECT_TIMEOUT.as_millis())]
    ConnectTimeout,
    #[error("no response to a health check in {} ms", PROBE_TIMEOUT.as_millis())]
    ProbeTimeout,
    #[error("cannot connect")]
    Tcp(#[source] io::Error),
    #[error("cannot connect")]
    Tls(#[source] HandshakeError),
    // A TLS server answers plaintext with a TLS alert.
    #[error("the server does not speak HTTP/2: its address may be one of https")]
    NotHttp2,
    #[error("the HTTP/2 connection failed")]
    Http2(#[source] hyper::Error),
}

impl ConnectError {
    fn http2(error: hyper::Error) -> Self {
        if failure::is_not_http2(&error) { Self::NotHttp2 } else { Self::Http2(error) }
    }
}

/// An open connection whose server has answered a health check.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Mutex<SendRequest<Full<Bytes>>>,
    in_flight: AtomicUsize,
    /// Whether it accepts no more requests; calls in flight complete.
    is_draining: AtomicBool,
    opened_at: Instant,
}

impl Connection {
    /// Connects, and waits for the response to a health check: the kernel accepts connections for a
    /// server that is stuck or stopping. Notifies `closed` when the connection ends.
    pub(super) async fn open(
        address: SocketAddr,
        origin: &Origin,
        closed: Arc<Notify>,
    ) -> Result<Self, ConnectError> {
        let connect = async {
            let stream = TcpStream::connect(address).await.map_err(ConnectError::Tcp)?;
            stream.set_nodelay(true).map_err(ConnectError::Tcp)?;
            match &origin.tls {
                None => handshake(stream, closed).await,
                Some(ClientTls { server_name, connector }) => {
                    let stream = connector.connect(server_name.clone(), stream).await;
                    handshake(stream.map_err(ConnectError::Tls)?, closed).await
                }
            }
        };
        let connected = timeout(CONNECT_TIMEOUT, connect).await;
        let mut sender = connected.map_err(|_elapsed| ConnectError::ConnectTimeout)??;
        // Every response is accepted: a service that is not ready still answers UNAVAILABLE itself.
        let probed = timeout(PROBE_TIMEOUT, sender.send_request(probe(origin))).await;
        probed.map_err(|_elapsed| ConnectError::ProbeTimeout)?.map_err(ConnectError::http2)?;
        Ok(Self {
            sender: Mutex::new(sender),
            in_flight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            opened_at: Instant::now(),
        })
    }

    /// Returns whether it accepts requests, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.is_draining.load(Relaxed) && !self.sender().is_closed()
    }

    /// Stops accepting requests. Returns `false` if it already had.
    pub(super) fn drain(&self) -> bool {
        !self.is_draining.swap(true, Relaxed)
    }

    /// Returns the number of calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub(super) fn acquire(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub(super) fn release(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    pub(super) fn age(&self) -> Duration {
        self.opened_at.elapsed()
    }

    /// Sends a request. The error returns a request that was not sent.
    pub(super) fn send(
        &self,
        request: BufferedRequest,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<BufferedRequest>>> + use<>
    {
        self.sender().try_send_request(request)
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, SendRequest<Full<Bytes>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Performs the HTTP/2 handshake, and spawns the task that drives the connection.
async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    closed: Arc<Notify>,
) -> Result<SendRequest<Full<Bytes>>, ConnectError> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connected = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(ConnectError::http2)?;
    tokio::spawn(async move {
        // The error also reaches the requests of the connection.
        let _ = connection.await;
        closed.notify_one();
    });
    Ok(sender)
}

fn probe(origin: &Origin) -> BufferedRequest {
    let mut request = Request::new(Full::new(EMPTY_MESSAGE));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = Uri::from_static(PROBE_PATH);
    set_origin(&mut request, origin);
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}
