//! A call until its response begins.

use std::{
    convert::Infallible,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context as Waker, Poll},
};

use http::{HeaderMap, HeaderValue, Request, Response};
use microblog_proto::common::ErrorReason;
use pin_project_lite::pin_project;
use tokio::{
    task::futures::TaskLocalFuture,
    time::{Sleep, sleep_until},
};
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service;

use super::{
    body::CallBody,
    in_flight::{GRPC_STATUS, InFlightCall},
};
use crate::{call::context::Context, status};

// The future of tonic's `Routes`, which has no public name.
type HandlerFuture = <Routes as Service<Request<Body>>>::Future;

pin_project! {
    /// Resolves with the handler's response or rejection, at the deadline, or after a panic.
    pub(crate) struct CallFuture {
        #[pin]
        work: Option<TaskLocalFuture<Context, HandlerFuture>>,
        // Deadline. Polled, and so registered with the timer, only while the handler is pending.
        #[pin]
        timer: Option<Sleep>,
        rejection: Option<Status>,
        call: Option<InFlightCall>,
    }
}

impl CallFuture {
    pub(super) fn handling(
        work: TaskLocalFuture<Context, HandlerFuture>,
        call: InFlightCall,
    ) -> Self {
        let timer = call.deadline.map(sleep_until);
        Self { work: Some(work), timer, rejection: None, call: Some(call) }
    }

    pub(super) fn rejected(status: Status, call: InFlightCall) -> Self {
        Self { work: None, timer: None, rejection: Some(status), call: Some(call) }
    }
}

impl Future for CallFuture {
    type Output = Result<Response<CallBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let entered = this.call.as_ref().map(|call| call.span.enter());
        let polled = match this.work.as_mut().as_pin_mut() {
            Some(work) => catch_unwind(AssertUnwindSafe(|| work.poll(waker))),
            None => Ok(Poll::Pending),
        };
        let mut finished_context = None;
        let result = match polled {
            Ok(Poll::Ready(Ok(response))) => {
                finished_context =
                    this.work.as_mut().as_pin_mut().and_then(TaskLocalFuture::take_value);
                Ok(response)
            }
            Ok(Poll::Pending) => match (this.rejection.take(), this.timer.as_pin_mut()) {
                (Some(status), _) => Err(status),
                (None, Some(timer)) => {
                    std::task::ready!(timer.poll(waker));
                    Err(status::deadline_exceeded())
                }
                (None, None) => return Poll::Pending,
            },
            Err(_panic) => Err(status::internal()),
        };
        // Drop the handler before its call.
        this.work.set(None);
        drop(entered);
        match this.call.take() {
            Some(mut call) => {
                // The handler may have set the identity. A stream that it returns keeps it.
                if let Some(context) = finished_context {
                    call.identity = context.identity.get();
                }
                Poll::Ready(Ok(respond(result, call)))
            }
            // Polled after completion, which violates the contract of `Future`.
            None => Poll::Pending,
        }
    }
}

fn respond(result: Result<Response<Body>, Status>, mut call: InFlightCall) -> Response<CallBody> {
    let result = result.and_then(|response| match map_transport_error(response.headers()) {
        Some(status) => Err(status),
        None => Ok(response),
    });
    match result {
        Ok(response) => {
            call.record_status(response.headers());
            response.map(|body| CallBody::new(body, call))
        }
        Err(status) => {
            call.code = Some(status.code());
            status.into_http::<()>().map(|()| CallBody::empty(call))
        }
    }
}

/// Transport error mapping: returns the replacement, with this project's code and reason, for a
/// status that tonic created before it called a handler. Such a status has no details; every status
/// of this project has.
fn map_transport_error(headers: &HeaderMap) -> Option<Status> {
    let code = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes).map(Code::from_bytes)?;
    if headers.contains_key("grpc-status-details-bin") {
        return None;
    }
    match code {
        Code::OutOfRange => {
            let text = "the message is larger than the server takes";
            Some(status::with_reason(Code::ResourceExhausted, ErrorReason::MessageTooLarge, text))
        }
        Code::Internal => {
            let text = "the request is not a valid message of its type";
            Some(status::with_reason(Code::InvalidArgument, ErrorReason::MalformedMessage, text))
        }
        _ => None,
    }
}
