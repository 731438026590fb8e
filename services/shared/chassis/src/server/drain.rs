//! Connections during a drain. Over HTTP/1.1, each answer closes its connection. A connection whose
//! client does not answer is ended: HTTP/2 asks the client whether it has got the announcement of the
//! end, and would wait for the answer until the drain times out.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as Waker, Poll, ready},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either},
};
use http::{HeaderValue, Request, Response, Version, header::CONNECTION};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use crate::call::{connection_calls::ConnectionCalls, context::ServerState};

/// How long a connection without a call in flight may be silent in a drain. It is ended between one
/// and two of these times after the last call or byte. Longer than a client rests that is still reading an
/// answer: its call has ended once HTTP/2 has the whole answer.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A connection that is ended when it is silent in a drain. Below TLS, where each byte that moves counts.
pub(super) struct SilenceLimit {
    stream: TcpStream,
    calls: ConnectionCalls,
    /// Whether a byte was read or written since it was last reset.
    has_progress: Arc<AtomicBool>,
    /// Completes when the connection is to be ended; `None` after that.
    end: Option<BoxFuture<'static, ()>>,
}

impl SilenceLimit {
    /// Returns a new connection with its limit, which begins when the server closes.
    pub(super) fn new(stream: TcpStream, closing: CancellationToken) -> Self {
        let (calls, has_progress) = (ConnectionCalls::default(), Arc::<AtomicBool>::default());
        let end = {
            let (calls, has_progress) = (calls.clone(), has_progress.clone());
            async move {
                closing.cancelled().await;
                is_silent(&calls, &has_progress).await;
            }
        };
        Self { stream, calls, has_progress, end: Some(end.boxed()) }
    }

    /// Waits for the first byte. Returns `false` if the client closes instead. Exclusive, so that its
    /// future may change threads.
    pub(super) async fn has_first_byte(&mut self) -> bool {
        matches!(self.stream.peek(&mut [0]).await, Ok(1..))
    }

    /// Returns the calls in flight on the connection.
    pub(super) fn calls(&self) -> &ConnectionCalls {
        &self.calls
    }

    /// Returns the result of a read or write of the connection, or an error after its end.
    fn transferred<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        waker: &mut Waker<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.has_progress.store(true, Ordering::Relaxed);
        }
        self.limit(polled, waker)
    }

    /// Returns the result of another operation, which is no progress, or an error after the end of the
    /// connection.
    fn limit<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        waker: &mut Waker<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            return polled;
        }
        if let Some(end) = &mut self.end {
            ready!(end.poll_unpin(waker));
            self.end = None;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "silent while the server drains")))
    }
}

impl AsyncRead for SilenceLimit {
    fn poll_read(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_read(waker, buffer);
        this.transferred(polled, waker)
    }
}

impl AsyncWrite for SilenceLimit {
    fn poll_write(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(waker, bytes);
        this.transferred(polled, waker)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(waker, parts);
        this.transferred(polled, waker)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(waker);
        this.limit(polled, waker)
    }

    fn poll_shutdown(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_shutdown(waker);
        this.limit(polled, waker)
    }
}

/// Waits until a connection has been silent, without a call in flight.
async fn is_silent(calls: &ConnectionCalls, has_progress: &AtomicBool) {
    loop {
        let was_idle = calls.is_idle();
        has_progress.store(false, Ordering::Relaxed);
        sleep(SILENCE_MAX).await;
        if was_idle && calls.is_idle() && !has_progress.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Closes connections of HTTP/1.1 with their next answer once the server drains. HTTP/2 announces the
/// end of a connection by itself.
#[derive(Clone)]
pub(super) struct CloseHttp1<S> {
    served: S,
    server_state: Arc<ServerState>,
}

impl<S> CloseHttp1<S> {
    pub(super) fn new(served: S, server_state: Arc<ServerState>) -> Self {
        Self { served, server_state }
    }
}

impl<S, B> Service<Request<Body>> for CloseHttp1<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<B>, Infallible>>>;

    fn poll_ready(&mut self, waker: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        self.served.poll_ready(waker)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let version = request.version();
        let answered = self.served.call(request);
        if version >= Version::HTTP_2 {
            return Either::Left(answered);
        }
        let server_state = self.server_state.clone();
        let closes = async move {
            let Ok(mut response) = answered.await;
            if server_state.draining.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        };
        Either::Right(closes.boxed())
    }
}
