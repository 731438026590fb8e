//! The body of an answer: ends at the call's deadline, and with it the call.

use std::{
    future::Future as _,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};
use tonic::{Status, body::Body};

use super::running::Running;
use crate::status;

pin_project! {
    /// What a handler answers, watched to its end.
    pub(crate) struct CallBody {
        // Dropped before the call, whose context its destructor may still use.
        inner: Option<Body>,
        // Of a stream only: a unary answer is there as a whole. Polled, and so registered with the
        // runtime's timer, only while the handler has nothing.
        #[pin]
        timer: Option<Sleep>,
        running: Option<Running>,
    }
}

impl CallBody {
    pub(super) fn new(inner: Body, running: Running) -> Self {
        let timer = running.deadline.filter(|_| running.method.streaming).map(sleep_until);
        Self { inner: Some(inner), timer, running: Some(running) }
    }

    /// The body of an answer that is all in its headers.
    pub(super) fn empty(running: Running) -> Self {
        Self { inner: None, timer: None, running: Some(running) }
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        let (Some(inner), Some(running)) = (this.inner.as_mut(), this.running.as_mut()) else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| poll_handler(inner, running, waker)));
        let frame = match polled {
            Ok(Poll::Ready(frame)) => frame,
            Ok(Poll::Pending) => {
                let Some(timer) = this.timer.as_pin_mut() else { return Poll::Pending };
                std::task::ready!(timer.poll(waker));
                *this.inner = None;
                trailers(&status::deadline_exceeded())
            }
            Err(_panic) => {
                *this.inner = None;
                trailers(&status::internal())
            }
        };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    running.note(trailers);
                }
            }
            Some(Err(status)) => running.code = Some(status.code()),
            None => running.note_end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// Lets the handler's stream work, which for a unary call is done already.
fn poll_handler(
    inner: &mut Body,
    running: &Running,
    waker: &mut Waker<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
    if !running.method.streaming {
        return Pin::new(inner).poll_frame(waker);
    }
    let _entered = running.span.enter();
    running.context().enter(|| Pin::new(inner).poll_frame(waker))
}

fn trailers(status: &Status) -> Option<Result<Frame<Bytes>, Status>> {
    let mut trailers = HeaderMap::new();
    Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
}
