//! Response body of a call. It ends at the call's deadline; that of a watch, or of reflection, also
//! ends when the server shuts down. Its end is the end of the call.

use std::{
    future::Future as _,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::{sync::WaitForCancellationFutureOwned, task::AbortOnDropHandle};
use tonic::{Status, body::Body};
use tracing::Span;

use super::{
    error::{complete_error, map_begun},
    in_flight::InFlightCall,
};
use crate::{call::context::Context, status};

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;
type Closing = Pin<Box<WaitForCancellationFutureOwned>>;

pin_project! {
    /// A handler's response body, observed to its end.
    pub(crate) struct CallBody {
        // Dropped before `call`: the body's destructor may use the call's context.
        body: ResponseBody,
        // Deadline of a stream. Polled, and so registered with the runtime's timer, only while the
        // handler is pending.
        #[pin]
        timer: Option<Sleep>,
        // Shutdown signal of a watch or of reflection, created when its handler is first pending.
        closing: Option<Closing>,
        call: Option<InFlightCall>,
    }
}

enum ResponseBody {
    /// Of a unary call: complete.
    Unary(Body),
    Stream(Stream),
    Ended,
}

impl ResponseBody {
    fn poll_frame(&mut self, waker: &mut Waker<'_>) -> Polled {
        match self {
            Self::Unary(body) => Pin::new(body).poll_frame(waker),
            Self::Stream(stream) => stream.poll_frame(waker),
            Self::Ended => Poll::Ready(None),
        }
    }

    fn is_watch(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_watch(),
            Self::Unary(_) | Self::Ended => false,
        }
    }
}

impl CallBody {
    pub(super) fn new(body: Body, mut call: InFlightCall) -> Self {
        let (body, timer) = if call.method.streaming {
            let stream = Stream::new(body, &call);
            (ResponseBody::Stream(stream), call.deadline.map(sleep_until))
        } else {
            (ResponseBody::Unary(body), None)
        };
        // The work of a unary call is done, and a stream holds its own reference. A slow reader
        // therefore occupies no slot.
        call.permit = None;
        Self { body, timer, closing: None, call: Some(call) }
    }

    /// A response without a body: its status is in the headers.
    pub(super) fn empty(call: InFlightCall) -> Self {
        Self { body: ResponseBody::Ended, timer: None, closing: None, call: Some(call) }
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Polled {
        let this = self.project();
        let Some(call) = this.call.as_mut() else { return Poll::Ready(None) };
        // Checked before polling the body, or a handler that is always ready would never end.
        let is_closing = this.body.is_watch() && call.server_state.closing.is_cancelled();
        let body = || if is_closing { Poll::Pending } else { this.body.poll_frame(waker) };
        let mut frame = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Poll::Ready(frame)) => frame,
            Ok(Poll::Pending) => {
                let may_last = this.body.is_watch() || call.method.is_infrastructure;
                let closing = may_last.then_some(this.closing);
                std::task::ready!(poll_end(closing, this.timer.as_pin_mut(), call, waker))
            }
            Err(_panic) => trailers(&status::internal()),
        };
        match &mut frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    complete_error(trailers, call.method, map_begun);
                    call.record_status(trailers);
                    *this.body = ResponseBody::Ended;
                }
            }
            Some(Err(status)) => call.code = Some(status.code()),
            None => call.record_end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ResponseBody::Unary(body) => body.is_end_stream(),
            ResponseBody::Stream(stream) => stream.is_end_stream(),
            ResponseBody::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            ResponseBody::Unary(body) => body.size_hint(),
            ResponseBody::Stream(_) => SizeHint::default(),
            ResponseBody::Ended => SizeHint::with_exact(0),
        }
    }
}

/// A handler's stream. hyper polls it only while the caller reads. A separate task therefore drops
/// it at the deadline.
struct Stream {
    handler: Arc<Mutex<Option<HandlerStream>>>,
    _deadline_task: Option<AbortOnDropHandle<()>>,
}

struct HandlerStream {
    body: Body,
    context: Context,
    span: Span,
}

impl Stream {
    fn new(body: Body, call: &InFlightCall) -> Self {
        let handler = HandlerStream { body, context: call.context(), span: call.span.clone() };
        let handler = Arc::new(Mutex::new(Some(handler)));
        let end = call.deadline.map(|deadline| {
            let end = drop_at_deadline(deadline, handler.clone());
            AbortOnDropHandle::new(tokio::spawn(end))
        });
        Self { handler, _deadline_task: end }
    }

    fn poll_frame(&self, waker: &mut Waker<'_>) -> Polled {
        let mut handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(HandlerStream { body, context, span }) = handler.as_mut() else {
            return Poll::Ready(trailers(&status::deadline_exceeded()));
        };
        let _entered = span.enter();
        context.clone().enter(|| Pin::new(body).poll_frame(waker))
    }

    fn is_watch(&self) -> bool {
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        handler.as_ref().is_some_and(|handler| handler.context.is_watch())
    }

    fn is_end_stream(&self) -> bool {
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        handler.as_ref().is_some_and(|handler| handler.body.is_end_stream())
    }
}

/// Drops a handler at its deadline, which frees the call's slot.
async fn drop_at_deadline(deadline: Instant, handler: Arc<Mutex<Option<HandlerStream>>>) {
    sleep_until(deadline).await;
    let late = handler.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(late);
}

/// Ends a pending stream at shutdown or at the deadline.
fn poll_end(
    closing: Option<&mut Option<Closing>>,
    timer: Option<Pin<&mut Sleep>>,
    call: &mut InFlightCall,
    waker: &mut Waker<'_>,
) -> Polled {
    if let Some(closing) = closing {
        let begin = || Box::pin(call.server_state.closing.clone().cancelled_owned());
        if closing.get_or_insert_with(begin).as_mut().poll(waker).is_ready() {
            call.stopped = true;
            return Poll::Ready(trailers(&status::stopping()));
        }
    }
    let Some(timer) = timer else { return Poll::Pending };
    timer.poll(waker).map(|()| trailers(&status::deadline_exceeded()))
}

fn trailers(status: &Status) -> Option<Result<Frame<Bytes>, Status>> {
    let mut trailers = HeaderMap::new();
    Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
}
