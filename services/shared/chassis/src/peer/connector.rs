//! Connections to the host of a peer: a failure is soon known, and known to all who wait.
//!
//! A channel tells the failure of a connection to one of the calls that wait for it, and makes
//! another attempt for the next one. Where a host is gone, and its silence has to be waited for
//! each time, the others would wait to their deadlines. So there is a pause after a failure, in
//! which attempts fail at once, and with them all the calls that wait.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context as Waker, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tower::{BoxError, Service};

// Longer than any handshake inside a data centre takes, resolving the name included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Long enough for all who wait to be told, and not noticed by who calls a peer that is back.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the host does not answer in {} ms", CONNECT_TIMEOUT.as_millis())]
    Silent,
    #[error("a connection failed a moment ago")]
    Paused,
}

/// Opens the connections to one peer.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    http: HttpConnector,
    /// When a connection last failed. `None` after a success.
    failed: Arc<Mutex<Option<Instant>>>,
}

impl Connector {
    pub(super) fn new() -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        Self { http, failed: Arc::default() }
    }

    fn is_paused(&self) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < PAUSE)
    }

    fn note(&self, failed: Option<Instant>) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, waker: &mut Waker<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(waker).map_err(BoxError::from)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if self.is_paused() {
            return Box::pin(async { Err(ConnectError::Paused.into()) });
        }
        let connecting = timeout(CONNECT_TIMEOUT, self.http.call(uri));
        let this = self.clone();
        Box::pin(async move {
            let connected = match connecting.await {
                Ok(connected) => connected.map_err(BoxError::from),
                Err(_elapsed) => Err(ConnectError::Silent.into()),
            };
            this.note(connected.is_err().then(Instant::now));
            connected
        })
    }
}
