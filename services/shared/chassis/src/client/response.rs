//! Responses of remote peers.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE, response::Parts};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use microblog_proto::common::{BatchedReply, ErrorReason};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Code, Status, body::Body};

use super::{endpoint::CallLease, failure::Failure};
use crate::{
    call::{
        batch,
        metadata::{GRPC_RETRY_PUSHBACK, GRPC_STATUS},
    },
    status,
};

// Larger responses are streamed, so that they use no more memory than this before the caller checks
// their length.
const BUFFERED_BYTES_MAX: usize = 1 << 20;

/// A response: buffered if unary, else its beginning and the rest as a stream.
pub(super) struct PeerResponse {
    head: Parts,
    buffered: BufferedFrames,
    rest: Option<(Incoming, CallLease)>,
}

impl PeerResponse {
    /// A streaming response.
    pub(super) fn stream(response: Response<Incoming>, lease: CallLease) -> Self {
        let (head, body) = response.into_parts();
        Self { head, buffered: BufferedFrames::default(), rest: Some((body, lease)) }
    }

    /// The reply to a call of a batch.
    pub(super) fn batched(reply: BatchedReply) -> Result<Self, Failure> {
        let BatchedReply { id: _, code, metadata, body } = reply;
        let invalid = || Failure::of_protocol("a trailer is not valid".to_owned());
        let mut trailers = batch::headers(metadata).ok_or_else(invalid)?;
        trailers.insert(GRPC_STATUS, status_value(code));
        let first = Some(body).filter(|body| !body.is_empty());
        let buffered = BufferedFrames { first, trailers: Some(trailers), ..Default::default() };
        let mut head = Response::new(()).into_parts().0;
        head.headers.insert(CONTENT_TYPE, batch::GRPC_CONTENT_TYPE);
        Ok(Self { head, buffered, rest: None })
    }

    /// Buffers a unary response: until its end, the connection may fail and the call be retried.
    pub(super) async fn unary(
        response: Response<Incoming>,
        lease: CallLease,
    ) -> Result<Self, Failure> {
        let (head, mut body) = response.into_parts();
        let mut buffered = BufferedFrames::default();
        let mut bytes = 0;
        while bytes <= BUFFERED_BYTES_MAX {
            let Some(frame) = body.frame().await else {
                return Ok(Self { head, buffered, rest: None });
            };
            let frame = frame.map_err(|error| {
                let failure = Failure::of_response(&error);
                lease.on_failure(&failure);
                failure
            })?;
            bytes += frame.data_ref().map_or(0, Bytes::len);
            buffered.push(frame);
        }
        Ok(Self { head, buffered, rest: Some((body, lease)) })
    }

    /// Returns whether the status is UNAVAILABLE.
    pub(super) fn is_unavailable(&self) -> bool {
        let code = self.status_header(GRPC_STATUS);
        code.is_some_and(|code| Code::from_bytes(code.as_bytes()) == Code::Unavailable)
    }

    /// Returns whether the server was overloaded, or its store full: it has not begun the call.
    pub(super) fn is_rejected(&self) -> bool {
        let headers = [Some(&self.head.headers), self.buffered.trailers.as_ref()];
        let status = headers.into_iter().flatten().find_map(Status::from_header_map);
        let reason = status.as_ref().and_then(status::reason_of);
        matches!(reason, Some(ErrorReason::Overloaded | ErrorReason::StoreFull))
    }

    /// Returns whether the server says that a retry at once is no use: never, or only after a while, which
    /// is the caller's to wait.
    pub(super) fn forbids_retry(&self) -> bool {
        self.status_header(GRPC_RETRY_PUSHBACK).is_some_and(|delay| delay != "0")
    }

    /// Returns a header that comes with the status.
    fn status_header(&self, name: &str) -> Option<&HeaderValue> {
        let trailers = || self.buffered.trailers.as_ref()?.get(name);
        self.head.headers.get(name).or_else(trailers)
    }

    /// Returns the response for the caller, with its deadline.
    pub(super) fn into_response(self, deadline: Option<Instant>) -> Response<Body> {
        let body = match self.rest {
            None if self.buffered.is_empty() => Body::empty(),
            None => Body::new(self.buffered),
            Some((rest, lease)) => Body::new(ResponseBody {
                buffered: self.buffered,
                rest: Some(rest),
                timer: deadline.map(sleep_until),
                _lease: lease,
            }),
        };
        Response::from_parts(self.head, body)
    }
}

/// Returns the value of `grpc-status`.
fn status_value(code: u32) -> HeaderValue {
    if code == 0 { HeaderValue::from_static("0") } else { code.into() }
}

/// Buffered frames of a response.
#[derive(Default)]
struct BufferedFrames {
    first: Option<Bytes>,
    // Rarely used.
    more: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl BufferedFrames {
    fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(bytes) if self.first.is_none() => self.first = Some(bytes),
            Ok(bytes) => self.more.push_back(bytes),
            Err(other) => self.trailers = other.into_trailers().ok(),
        }
    }

    fn pop(&mut self) -> Option<Frame<Bytes>> {
        let data = self.first.take().or_else(|| self.more.pop_front()).map(Frame::data);
        data.or_else(|| self.trailers.take().map(Frame::trailers))
    }

    fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_empty() && self.trailers.is_none()
    }
}

impl http_body::Body for BufferedFrames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.get_mut().pop().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }
}

pin_project! {
    /// A streamed body: ends at the deadline, and with UNAVAILABLE when the connection fails.
    struct ResponseBody {
        buffered: BufferedFrames,
        rest: Option<Incoming>,
        #[pin]
        timer: Option<Sleep>,
        // Released when the body is dropped.
        _lease: CallLease,
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        if let Some(frame) = this.buffered.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(rest) = this.rest.as_mut() else { return Poll::Ready(None) };
        let failure = match Pin::new(rest).poll_frame(waker) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(_lost))) => status::peer_unavailable(),
            Poll::Pending => {
                let Some(timer) = this.timer.as_pin_mut() else { return Poll::Pending };
                std::task::ready!(timer.poll(waker));
                status::deadline_exceeded()
            }
        };
        *this.rest = None;
        Poll::Ready(Some(Err(failure)))
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.rest.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
}
