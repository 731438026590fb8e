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
    address::{Origin, Proof},
    failure,
    outgoing::{Message, uri},
};
use crate::tls::HandshakeError;

// Longer than any handshake inside a data centre takes, that of TLS with it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Longer than a server takes that is busy, but not stuck.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
// A connection that a partition cut off is found out within the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const GREETING: &str = "/grpc.health.v1.Health/Check";
// A message without fields: not compressed, no bytes long.
const NOTHING: Bytes = Bytes::from_static(&[0; 5]);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("the host does not answer in {} ms", CONNECT_TIMEOUT.as_millis())]
    Silent,
    #[error("the connection is taken, but not answered in {} ms", GREETING_TIMEOUT.as_millis())]
    Unanswered,
    #[error("cannot connect")]
    Refused(#[source] io::Error),
    #[error("cannot connect")]
    Insecure(#[source] HandshakeError),
    // A server with TLS says in its own way that this is none.
    #[error("what the server says is not HTTP/2: its address may be one of https")]
    Foreign,
    #[error("the connection failed")]
    Failed(#[source] hyper::Error),
}

impl OpenError {
    fn failed(error: hyper::Error) -> Self {
        if failure::is_foreign(&error) { Self::Foreign } else { Self::Failed(error) }
    }
}

/// A connection on which the server has answered.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Mutex<SendRequest<Message>>,
    under_way: AtomicUsize,
    /// Whether the server takes no more requests on it, so that it ends with what is under way.
    is_leaving: AtomicBool,
    opened: Instant,
}

impl Connection {
    /// Connects to an address, and waits for an answer: the system takes connections in the name of a
    /// server that is stuck, or stops. Notifies `lost` when the connection ends.
    pub(super) async fn open(
        address: SocketAddr,
        origin: &Origin,
        lost: Arc<Notify>,
    ) -> Result<Self, OpenError> {
        let connect = async {
            let stream = TcpStream::connect(address).await.map_err(OpenError::Refused)?;
            stream.set_nodelay(true).map_err(OpenError::Refused)?;
            match &origin.proof {
                None => speak(stream, lost).await,
                Some(Proof { name, connector }) => {
                    let stream = connector.connect(name.clone(), stream).await;
                    speak(stream.map_err(OpenError::Insecure)?, lost).await
                }
            }
        };
        let connected = timeout(CONNECT_TIMEOUT, connect).await;
        let mut sender = connected.map_err(|_elapsed| OpenError::Silent)??;
        // What it answers does not matter. A service whose store is away is one to be asked, too: it
        // says so.
        let greeted = timeout(GREETING_TIMEOUT, sender.send_request(greeting(origin))).await;
        greeted.map_err(|_elapsed| OpenError::Unanswered)?.map_err(OpenError::failed)?;
        Ok(Self {
            sender: Mutex::new(sender),
            under_way: AtomicUsize::new(0),
            is_leaving: AtomicBool::new(false),
            opened: Instant::now(),
        })
    }

    /// Returns whether it takes requests, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.is_leaving.load(Relaxed) && !self.sender().is_closed()
    }

    /// Takes no more requests. Returns whether that is news.
    pub(super) fn leave(&self) -> bool {
        !self.is_leaving.swap(true, Relaxed)
    }

    /// Returns how many calls are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Relaxed)
    }

    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    pub(super) fn end(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }

    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Sends a request. What was not sent is given back with the error.
    pub(super) fn send(
        &self,
        request: Request<Message>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Message>>>> + use<>
    {
        self.sender().try_send_request(request)
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, SendRequest<Message>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins HTTP/2 on a connection, which lasts as long as it does.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    lost: Arc<Notify>,
) -> Result<SendRequest<Message>, OpenError> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(OpenError::failed)?;
    tokio::spawn(async move {
        // Who has a request on it is told why it ended.
        let _ = connection.await;
        lost.notify_one();
    });
    Ok(sender)
}

fn greeting(origin: &Origin) -> Request<Message> {
    let mut request = Request::new(Message::whole(NOTHING));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri(origin, PathAndQuery::from_static(GREETING));
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}
