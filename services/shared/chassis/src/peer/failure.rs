//! RetryReason a request was not answered, and what its server may have seen of it.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
};

use hyper::client::conn::TrySendError;

const REFUSED_STREAM: h2::Reason = h2::Reason::REFUSED_STREAM;
const FRAME_SIZE_ERROR: h2::Reason = h2::Reason::FRAME_SIZE_ERROR;

/// What went wrong with a request.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) cause: String,
    /// Whether the connection takes no more requests.
    pub(super) ends_connection: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No address answers.
    Unavailable,
    /// No handler has seen the request, and none will.
    Unsent,
    /// The connection ended: what is left of the server knows nothing of the request any more.
    Reset,
    /// Nobody knows. Its handler may still be at work.
    TimedOut,
}

impl Failure {
    /// Of a request that has no answer.
    pub(super) fn of_request<T>(error: &TrySendError<T>) -> Self {
        let is_unsent = error.message().is_some();
        let error = error.error();
        let kind = if is_unsent { Kind::Unsent } else { kind(error) };
        Self { kind, cause: describe(error), ends_connection: !is_stream_reset(error) }
    }

    /// Of an answer that broke off. The handler was done with the request by then.
    pub(super) fn of_response(error: &hyper::Error) -> Self {
        Self { kind: Kind::Reset, cause: describe(error), ends_connection: !is_stream_reset(error) }
    }

    /// Of a request for which no connection could be opened.
    pub(super) const fn unsent(cause: String) -> Self {
        Self { kind: Kind::Unsent, cause, ends_connection: false }
    }

    /// Of a request for which there was no address.
    pub(super) const fn unavailable(cause: String) -> Self {
        Self { kind: Kind::Unavailable, cause, ends_connection: false }
    }
}

fn kind(error: &hyper::Error) -> Kind {
    // Before the connection took it; or, which is the only error of a user that it knows of requests,
    // in the queue of those for which the server had no room, so without its body.
    if error.is_canceled() || error.is_user() {
        return Kind::Unsent;
    }
    match protocol_error(error) {
        // RFC 9113, 8.7: for both the server says that it has done nothing.
        Some(error) if error.is_remote() && error.is_go_away() => return Kind::Unsent,
        Some(error) if error.is_remote() && error.reason() == Some(REFUSED_STREAM) => {
            return Kind::Unsent;
        }
        _ => {}
    }
    let closed = causes(error).find_map(|cause| cause.downcast_ref::<io::Error>());
    if closed.is_some_and(is_connection_closed) { Kind::Reset } else { Kind::TimedOut }
}

/// Returns whether the failure is that of one request alone.
fn is_stream_reset(error: &hyper::Error) -> bool {
    protocol_error(error).is_some_and(h2::Error::is_reset)
}

/// Returns whether what the other side says is no frame at all.
pub(super) fn is_not_http2(error: &hyper::Error) -> bool {
    let is_of = |error: &h2::Error| error.is_library() && error.reason() == Some(FRAME_SIZE_ERROR);
    protocol_error(error).is_some_and(is_of)
}

fn protocol_error(error: &hyper::Error) -> Option<&h2::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns whether the other side closed the connection, or its system did.
fn is_connection_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof]
        .contains(&error.kind())
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns an error with its causes.
pub(super) fn describe(error: &(dyn StdError + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
