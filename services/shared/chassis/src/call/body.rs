//! The body of an answer: ends at the call's deadline, or that of a watch when the server stops,
//! and with it the call.

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

use super::running::Running;
use crate::{context::Context, status};

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;
type Closed = Pin<Box<WaitForCancellationFutureOwned>>;

pin_project! {
    /// What a handler answers, watched to its end.
    pub(crate) struct CallBody {
        // Dropped before the call, whose context its destructor may still use.
        answer: Answer,
        // Of a stream only. Polled, and so registered with the runtime's timer, only while the
        // handler has nothing.
        #[pin]
        timer: Option<Sleep>,
        // Of a watch only, from when its handler first has nothing.
        closed: Option<Closed>,
        running: Option<Running>,
    }
}

enum Answer {
    /// Of a unary call: there as a whole.
    Whole(Body),
    Stream(Stream),
    Ended,
}

impl Answer {
    fn poll_frame(&mut self, waker: &mut Waker<'_>) -> Polled {
        match self {
            Self::Whole(body) => Pin::new(body).poll_frame(waker),
            Self::Stream(stream) => stream.poll_frame(waker),
            Self::Ended => Poll::Ready(None),
        }
    }

    fn is_watch(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_watch(),
            Self::Whole(_) | Self::Ended => false,
        }
    }
}

impl CallBody {
    pub(super) fn new(body: Body, mut running: Running) -> Self {
        let (answer, timer) = if running.method.streaming {
            let stream = Stream::new(body, &running);
            (Answer::Stream(stream), running.deadline.map(sleep_until))
        } else {
            (Answer::Whole(body), None)
        };
        // Of a unary call the work is done, and a stream has it now: a caller that reads slowly,
        // or not at all, takes nobody's place.
        running.permit = None;
        Self { answer, timer, closed: None, running: Some(running) }
    }

    /// The body of an answer that is all in its headers.
    pub(super) fn empty(running: Running) -> Self {
        Self { answer: Answer::Ended, timer: None, closed: None, running: Some(running) }
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Polled {
        let this = self.project();
        let Some(running) = this.running.as_mut() else { return Poll::Ready(None) };
        // Asked before as well, lest a handler that always has something goes on for ever.
        let stops = this.answer.is_watch() && running.shared.closing.is_cancelled();
        let answer = || if stops { Poll::Pending } else { this.answer.poll_frame(waker) };
        let frame = match catch_unwind(AssertUnwindSafe(answer)) {
            Ok(Poll::Ready(frame)) => frame,
            Ok(Poll::Pending) => {
                let closed = this.answer.is_watch().then_some(this.closed);
                std::task::ready!(poll_end(closed, this.timer.as_pin_mut(), running, waker))
            }
            Err(_panic) => trailers(&status::internal()),
        };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    running.note(trailers);
                    *this.answer = Answer::Ended;
                }
            }
            Some(Err(status)) => running.code = Some(status.code()),
            None => running.note_end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.answer {
            Answer::Whole(body) => body.is_end_stream(),
            Answer::Stream(stream) => stream.is_end_stream(),
            Answer::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.answer {
            Answer::Whole(body) => body.size_hint(),
            Answer::Stream(_) => SizeHint::default(),
            Answer::Ended => SizeHint::with_exact(0),
        }
    }
}

/// A handler that answers with a stream. It is polled only while its caller reads, so its end at
/// the deadline is seen to by a task of its own.
struct Stream {
    handler: Arc<Mutex<Option<Handler>>>,
    _end: Option<AbortOnDropHandle<()>>,
}

struct Handler {
    body: Body,
    context: Context,
    span: Span,
}

impl Stream {
    fn new(body: Body, running: &Running) -> Self {
        let handler = Handler { body, context: running.context(), span: running.span.clone() };
        let handler = Arc::new(Mutex::new(Some(handler)));
        let end = running.deadline.map(|deadline| {
            let end = end_at(deadline, handler.clone());
            AbortOnDropHandle::new(tokio::spawn(end))
        });
        Self { handler, _end: end }
    }

    fn poll_frame(&self, waker: &mut Waker<'_>) -> Polled {
        let mut handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Handler { body, context, span }) = handler.as_mut() else {
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

/// Ends a handler at its deadline, which frees the call's place.
async fn end_at(deadline: Instant, handler: Arc<Mutex<Option<Handler>>>) {
    sleep_until(deadline).await;
    let late = handler.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(late);
}

/// Ends an answer that its handler has nothing for: when the server stops, or at the deadline.
fn poll_end(
    closed: Option<&mut Option<Closed>>,
    timer: Option<Pin<&mut Sleep>>,
    running: &mut Running,
    waker: &mut Waker<'_>,
) -> Polled {
    if let Some(closed) = closed {
        let begin = || Box::pin(running.shared.closing.clone().cancelled_owned());
        if closed.get_or_insert_with(begin).as_mut().poll(waker).is_ready() {
            running.stopped = true;
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
