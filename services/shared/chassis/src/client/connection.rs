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
use http::{Request, Response};
use http_body_util::{Either, Full};
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
    call_stream::CallStream,
    failure,
    request::{self, BufferedRequest, RequestBody},
    tls::HandshakeError,
    watched::Watched,
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

/// An open connection whose server has responded.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Mutex<SendRequest<RequestBody>>,
    /// Carries unary calls. `None` for a connection for streams, or if the server takes no batches.
    calls: Option<CallStream>,
    in_flight: AtomicUsize,
    /// Whether it accepts no more requests; calls in flight complete.
    is_draining: AtomicBool,
    opened_at: Instant,
}

impl Connection {
    /// Opens a connection for unary calls. Notifies `closed` when it takes no more.
    pub(super) async fn open_for_calls(
        address: SocketAddr,
        origin: &Origin,
        closed: Arc<Notify>,
    ) -> Result<Self, ConnectError> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let mut sender = Self::connect(address, origin, is_closed.clone(), closed.clone()).await?;
        let calls = CallStream::open(&mut sender, origin, is_closed, closed);
        let calls = responded(calls).await?;
        Ok(Self::new(sender, calls))
    }

    /// Opens a connection for streaming calls, and waits for the response to a health check: the
    /// kernel accepts connections for a server that is stuck or stopping. Notifies `closed` when it
    /// ends.
    pub(super) async fn open_for_streams(
        address: SocketAddr,
        origin: &Origin,
        closed: Arc<Notify>,
    ) -> Result<Self, ConnectError> {
        let mut sender = Self::connect(address, origin, Arc::default(), closed).await?;
        // Every response is accepted: a service that is not ready still answers UNAVAILABLE itself.
        let probe = request::new(PROBE_PATH, origin, Either::Left(Full::new(EMPTY_MESSAGE)));
        responded(sender.send_request(probe)).await?;
        Ok(Self::new(sender, None))
    }

    fn new(sender: SendRequest<RequestBody>, calls: Option<CallStream>) -> Self {
        Self {
            sender: Mutex::new(sender),
            calls,
            in_flight: AtomicUsize::new(0),
            is_draining: AtomicBool::new(false),
            opened_at: Instant::now(),
        }
    }

    async fn connect(
        address: SocketAddr,
        origin: &Origin,
        is_closed: Arc<AtomicBool>,
        closed: Arc<Notify>,
    ) -> Result<SendRequest<RequestBody>, ConnectError> {
        let connect = async {
            let stream = TcpStream::connect(address).await.map_err(ConnectError::Tcp)?;
            stream.set_nodelay(true).map_err(ConnectError::Tcp)?;
            match &origin.tls {
                None => handshake(stream, is_closed, closed).await,
                Some(ClientTls { server_name, connector }) => {
                    let stream = connector.connect(server_name.clone(), stream).await;
                    handshake(stream.map_err(ConnectError::Tls)?, is_closed, closed).await
                }
            }
        };
        let connected = timeout(CONNECT_TIMEOUT, connect).await;
        connected.map_err(|_elapsed| ConnectError::ConnectTimeout)?
    }

    /// Returns whether it accepts requests, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.is_draining.load(Relaxed)
            && self.calls.as_ref().map_or_else(|| !self.sender().is_closed(), CallStream::is_open)
    }

    /// Returns whether the server takes no more calls on it.
    pub(super) fn is_closing(&self) -> bool {
        self.calls.as_ref().is_some_and(CallStream::is_closing)
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

    /// Returns the stream that carries a unary call; `None` if the call needs a request of its own.
    pub(super) fn call_stream(&self, request: &BufferedRequest) -> Option<&CallStream> {
        self.calls.as_ref().filter(|_| CallStream::takes(request))
    }

    /// Sends a request. The error has the request if it was not sent.
    pub(super) fn send(
        &self,
        request: BufferedRequest,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + use<>
    {
        self.sender().try_send_request(request.map(|body| Either::Left(Full::new(body))))
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, SendRequest<RequestBody>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Performs the HTTP/2 handshake, and spawns the task that drives the connection. Sets `is_closed`
/// when the server closes the connection.
async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_closed: Arc<AtomicBool>,
    closed: Arc<Notify>,
) -> Result<SendRequest<RequestBody>, ConnectError> {
    let stream = Watched::new(stream, is_closed);
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

/// Waits for the first response of a server.
async fn responded<T>(response: impl Future<Output = hyper::Result<T>>) -> Result<T, ConnectError> {
    let response = timeout(PROBE_TIMEOUT, response).await;
    response.map_err(|_elapsed| ConnectError::ProbeTimeout)?.map_err(ConnectError::http2)
}
