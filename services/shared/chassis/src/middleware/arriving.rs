//! The message of a call that has a slot. While it is incomplete, the call waits in a slot of another
//! kind, so that callers who send slowly, or never, keep no call out whose message is there.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::overloaded;
use crate::call::admission::{Kind, Permit};

/// A request body, observed to its end.
pub(crate) struct ArrivingBody {
    body: Body,
    permit: Arc<Permit>,
    /// Whether it was pending before.
    has_waited: bool,
}

impl ArrivingBody {
    pub(crate) fn new(body: Body, permit: Arc<Permit>) -> Self {
        Self { body, permit, has_waited: false }
    }

    fn exchange(&self, kind: Kind) -> Result<(), Status> {
        if self.permit.exchange(kind) { Ok(()) } else { Err(overloaded()) }
    }
}

impl http_body::Body for ArrivingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(waker) {
            Poll::Pending => {
                if self.has_waited {
                    if let Err(status) = self.exchange(Kind::Arriving) {
                        return Poll::Ready(Some(Err(status)));
                    }
                } else {
                    // HTTP/1.1 reads a message only after it was asked for, even one that is there.
                    self.has_waited = true;
                    waker.waker().wake_by_ref();
                }
                Poll::Pending
            }
            Poll::Ready(Some(Ok(frame))) if !self.body.is_end_stream() => {
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => match self.exchange(Kind::Call) {
                Ok(()) => Poll::Ready(end),
                Err(status) => Poll::Ready(Some(Err(status))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
