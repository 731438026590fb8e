//! A request to a peer that can be replayed for a retry.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context as Waker, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri, Version, header::USER_AGENT, uri::PathAndQuery,
};
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::address::Origin;
use crate::call::metadata;

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("microblog/", env!("CARGO_PKG_VERSION")));

/// Path, headers and body of a call, independent of the endpoint.
pub(super) struct RetryableRequest {
    path: PathAndQuery,
    headers: HeaderMap,
    body: RequestBody,
}

impl RetryableRequest {
    pub(super) fn new(request: Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        let path = head.uri.into_parts().path_and_query;
        let mut headers = head.headers;
        headers.entry(USER_AGENT).or_insert(USER_AGENT_VALUE);
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        Self { path, headers, body: RequestBody::from_body(body) }
    }

    /// Returns the request of one attempt; `None` if its body was consumed by another one.
    pub(super) fn next_attempt(
        &mut self,
        origin: &Origin,
        deadline: Option<Instant>,
    ) -> Option<Request<RequestBody>> {
        let message = self.body.replay()?;
        let mut request = Request::new(message);
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri(origin, self.path.clone());
        *request.headers_mut() = self.headers.clone();
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            metadata::set_timeout(request.headers_mut(), left);
        }
        Some(request)
    }

    /// Returns whether the body is still available.
    pub(super) fn can_be_sent(&self) -> bool {
        !matches!(self.body, RequestBody::Consumed)
    }

    /// Restores a request that was not sent.
    pub(super) fn restore(&mut self, request: Request<RequestBody>) {
        self.body = request.into_body();
    }
}

/// Returns the URI of a method at an origin.
pub(super) fn uri(origin: &Origin, path: PathAndQuery) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(origin.scheme());
    parts.authority = Some(origin.authority.clone());
    parts.path_and_query = Some(path);
    // Fails only if a part is missing.
    Uri::from_parts(parts).unwrap_or_default()
}

/// Request body. A unary one, which all of ours are, is buffered: it can be replayed, and ends with
/// its last data frame instead of an extra empty one.
pub(super) enum RequestBody {
    Buffered(Option<Bytes>),
    /// The frames already read from a longer or pending body, and the rest.
    Stream(VecDeque<FrameResult>, Body),
    Consumed,
}

type FrameResult = Result<Frame<Bytes>, Status>;

impl RequestBody {
    /// A single message.
    pub(super) const fn buffered(bytes: Bytes) -> Self {
        Self::Buffered(Some(bytes))
    }

    fn from_body(mut body: Body) -> Self {
        // The next reader registers its own waker.
        let mut waker = Waker::from_waker(std::task::Waker::noop());
        let mut poll = || Pin::new(&mut body).poll_frame(&mut waker);
        let first = match poll() {
            Poll::Ready(None) => return Self::Buffered(None),
            Poll::Ready(Some(first)) => first,
            Poll::Pending => return Self::Stream(VecDeque::new(), body),
        };
        match (first.map(Frame::into_data), poll()) {
            (Ok(Ok(bytes)), Poll::Ready(None)) => Self::Buffered(Some(bytes)),
            (first, second) => {
                let first = first.map(|frame| frame.map_or_else(|other| other, Frame::data));
                let second = match second {
                    Poll::Ready(second) => second,
                    Poll::Pending => None,
                };
                Self::Stream([first].into_iter().chain(second).collect(), body)
            }
        }
    }

    fn replay(&mut self) -> Option<Self> {
        match self {
            Self::Buffered(bytes) => Some(Self::Buffered(bytes.clone())),
            Self::Stream(..) => Some(std::mem::replace(self, Self::Consumed)),
            Self::Consumed => None,
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Option<FrameResult>> {
        match self.get_mut() {
            Self::Buffered(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Self::Stream(read, rest) => match read.pop_front() {
                Some(read) => Poll::Ready(Some(read)),
                None => Pin::new(rest).poll_frame(waker),
            },
            Self::Consumed => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Buffered(bytes) => bytes.is_none(),
            Self::Stream(read, rest) => read.is_empty() && rest.is_end_stream(),
            Self::Consumed => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn request(parts: Vec<&'static str>) -> RetryableRequest {
        let frames = parts.into_iter().map(|part| Ok::<_, Status>(Frame::data(part.into())));
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        RetryableRequest::new(Request::post("http://elsewhere/a/b").body(body).unwrap())
    }

    fn origin() -> Origin {
        Origin { authority: http::uri::Authority::from_static("host:1"), tls: None }
    }

    async fn sent(request: &mut RetryableRequest) -> Option<(String, Bytes)> {
        let (head, message) = request.next_attempt(&origin(), None)?.into_parts();
        Some((head.uri.to_string(), message.collect().await.unwrap().to_bytes()))
    }

    #[tokio::test]
    async fn unary_request_can_be_replayed() {
        for part in ["one", ""] {
            let mut request = request(vec![part]);
            for _ in 0..2 {
                let expected = ("http://host:1/a/b".to_owned(), Bytes::from(part));
                assert_eq!(sent(&mut request).await, Some(expected));
            }
        }
    }

    #[tokio::test]
    async fn streamed_request_is_sent_once_unless_restored() {
        let mut request = request(vec!["one", "two", "three"]);
        let unsent = request.next_attempt(&origin(), None).unwrap();
        request.restore(unsent);
        assert_eq!(sent(&mut request).await.unwrap().1, "onetwothree");
        assert_eq!(sent(&mut request).await, None);
    }

    #[test]
    fn buffered_body_ends_with_its_last_byte() {
        let mut message = RequestBody::buffered(Bytes::from("one"));
        let mut waker = Waker::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut message).poll_frame(&mut waker).is_ready());
        assert!(message.is_end_stream());
    }
}
