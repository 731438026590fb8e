//! The message of a call that has a slot. While it is incomplete, the call waits in a slot of another
//! kind, so that callers who send slowly, or never, keep no call out whose message is there. The call
//! fails when it has waited for too long, when the server shuts down, or when too many bytes of such
//! messages are in memory.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as Waker, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http_body::{Frame, SizeHint};
use microblog_proto::common::ErrorReason;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, body::Body};

use super::overloaded;
use crate::{
    call::{
        admission::{Kind, Permit},
        context::ServerState,
    },
    status,
};

/// How long a message may still arrive when the server shuts down.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// A request body, observed to its end.
pub(crate) struct ArrivingBody {
    body: Body,
    permit: Arc<Permit>,
    server_state: Arc<ServerState>,
    until: Instant,
    /// Why the call does not wait any longer. Created when it waits.
    end: Option<BoxFuture<'static, Status>>,
    /// How many bytes of the incomplete message are there.
    held: usize,
    /// Whether it was pending before.
    has_waited: bool,
}

impl ArrivingBody {
    /// Returns the body of a call whose message must arrive `until` then.
    pub(crate) fn new(
        body: Body,
        permit: Arc<Permit>,
        server_state: Arc<ServerState>,
        until: Instant,
    ) -> Self {
        Self { body, permit, server_state, until, end: None, held: 0, has_waited: false }
    }

    /// Returns why the call does not wait any longer, if so.
    fn wait(&mut self, waker: &mut Waker<'_>) -> Poll<Status> {
        if let Err(status) = self.exchange(Kind::Arriving) {
            return Poll::Ready(status);
        }
        if self.server_state.admission.holds_too_much() {
            let text = "too many incomplete messages";
            let reason = ErrorReason::Overloaded;
            return Poll::Ready(status::with_reason(Code::ResourceExhausted, reason, text));
        }
        let (server_state, until) = (&self.server_state, self.until);
        let end = self.end.get_or_insert_with(|| {
            let closing = server_state.closing.clone();
            let end = async move {
                let closed = async {
                    closing.cancelled().await;
                    sleep(CLOSING_GRACE).await;
                };
                let closed = timeout_at(until, closed).await;
                closed.map_or_else(|_| status::deadline_exceeded(), |()| status::stopping())
            };
            end.boxed()
        });
        let status = ready!(end.poll_unpin(waker));
        // A message that was rejected may be read on, to be discarded.
        self.end = None;
        Poll::Ready(status)
    }

    fn hold(&mut self, bytes: usize) {
        self.held += self.server_state.admission.hold(self.held, bytes);
    }

    fn release(&mut self) {
        self.server_state.admission.release(std::mem::take(&mut self.held));
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
                    if let Poll::Ready(status) = self.wait(waker) {
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
                self.hold(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => {
                self.release();
                match self.exchange(Kind::Call) {
                    Ok(()) => Poll::Ready(end),
                    Err(status) => Poll::Ready(Some(Err(status))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        self.release();
    }
}
