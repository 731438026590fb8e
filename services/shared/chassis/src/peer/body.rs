//! The body of a remote answer.

use std::{
    pin::Pin,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body};

use super::connections::Place;
use crate::status;

pin_project! {
    /// A remote answer's body: ends at the deadline, and says so when the connection is lost.
    pub(super) struct PeerBody {
        inner: Option<Body>,
        #[pin]
        timer: Option<Sleep>,
        // Given back when the stream is dropped.
        _place: Option<Place>,
    }
}

impl PeerBody {
    pub(super) fn wrap(inner: Body, deadline: Option<Instant>, place: Option<Place>) -> Body {
        Body::new(Self { inner: Some(inner), timer: deadline.map(sleep_until), _place: place })
    }
}

impl http_body::Body for PeerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_mut() else { return Poll::Ready(None) };
        let failure = match Pin::new(inner).poll_frame(waker) {
            Poll::Ready(Some(Err(_lost))) => status::peer_unavailable(),
            Poll::Ready(frame) => return Poll::Ready(frame),
            Poll::Pending => {
                let Some(timer) = this.timer.as_pin_mut() else { return Poll::Pending };
                std::task::ready!(timer.poll(waker));
                status::deadline_exceeded()
            }
        };
        *this.inner = None;
        Poll::Ready(Some(Err(failure)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
