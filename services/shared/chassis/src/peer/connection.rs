//! A connection to one address of a peer.

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
    HeaderValue, Method, Request, Response, Version,
    header::{CONTENT_TYPE, TE},
    uri::PathAndQuery,
};
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
    retryable_request::{RequestBody, uri},
};
use crate::tls::HandshakeError;

// Longer than any handshake inside a data centre takes, that of TLS with it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Longer than a server takes that is busy, but not stuck.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
// A connection that a partition cut off is found out within the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const PROBE_PATH: &str = "/grpc.health.v1.Health/Check";
// A message without fields: not compressed, no bytes long.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

/// RetryReason there is no connection.
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
    // A server with TLS says in its own way that this is none.
    #[error("the response is not HTTP/2: its address may be one of https")]
    NotHttp2,
    #[error("the HTTP/2 connection failed")]
    Http2(#[source] hyper::Error),
}

impl ConnectError {
    fn http2(error: hyper::Error) -> Self {
        if failure::is_not_http2(&error) { Self::NotHttp2 } else { Self::Http2(error) }
    }
}

/// A connection on which the server has answered.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Mutex<SendRequest<RequestBody>>,
    in_flight: AtomicUsize,
    /// Whether the server takes no more requests on it, so that it ends with what is under way.
    is_draining: AtomicBool,
    opened_at: Instant,
}

impl Connection {
    /// Connects to an address, and waits for an answer: the system takes connections in the name of a
    /// server that is stuck, or stops. Notifies `closed` when the connection ends.
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
        // What it answers does not matter. A service whose store is away is one to be asked, too: it
        // says so.
        let probed = timeout(PROBE_TIMEOUT, sender.send_request(probe(origin))).await;
        probed.map_err(|_elapsed| ConnectError::ProbeTimeout)?.map_err(ConnectError::http2)?;
        Ok(Self {
            sender: Mutex::new(sender),
            in_flight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            opened_at: Instant::now(),
        })
    }

    /// Returns whether it takes requests, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.is_draining.load(Relaxed) && !self.sender().is_closed()
    }

    /// Takes no more requests. Returns whether that is news.
    pub(super) fn drain(&self) -> bool {
        !self.is_draining.swap(true, Relaxed)
    }

    /// Returns how many calls are under way.
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

    /// Sends a request. What was not sent is given back with the error.
    pub(super) fn send(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + use<>
    {
        self.sender().try_send_request(request)
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, SendRequest<RequestBody>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins HTTP/2 on a connection, which lasts as long as it does.
async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    closed: Arc<Notify>,
) -> Result<SendRequest<RequestBody>, ConnectError> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connected = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(ConnectError::http2)?;
    tokio::spawn(async move {
        // Who has a request on it is told why it ended.
        let _ = connection.await;
        closed.notify_one();
    });
    Ok(sender)
}

fn probe(origin: &Origin) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::buffered(EMPTY_MESSAGE));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri(origin, PathAndQuery::from_static(PROBE_PATH));
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}
