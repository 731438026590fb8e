//! Error classification: why a request failed, and whether the server may have processed it.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
};

use hyper::client::conn::TrySendError;
use tonic::Status;

const REFUSED_STREAM: h2::Reason = h2::Reason::REFUSED_STREAM;
const FRAME_SIZE_ERROR: h2::Reason = h2::Reason::FRAME_SIZE_ERROR;

/// A failed request.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) cause: String,
    /// Whether the connection must not be used again.
    pub(super) ends_connection: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No endpoint is available.
    Unavailable,
    /// No handler has seen the request, and none will.
    Unsent,
    /// The connection was reset or closed: as a rule, the server has ended, and its handlers with it.
    Reset,
    /// The outcome is unknown. The handler may still be running.
    TimedOut,
}

impl Failure {
    /// A request without a response.
    pub(super) fn of_request<T>(error: &TrySendError<T>) -> Self {
        let is_unsent = error.message().is_some();
        let error = error.error();
        let kind = if is_unsent { Kind::Unsent } else { kind(error) };
        Self { kind, cause: describe(error), ends_connection: !is_stream_reset(error) }
    }

    /// A truncated response. Its handler had already completed.
    pub(super) fn of_response(error: &hyper::Error) -> Self {
        Self { kind: Kind::Reset, cause: describe(error), ends_connection: !is_stream_reset(error) }
    }

    /// A call without a reply, since its stream of batches failed. `is_closed` is whether the server
    /// has closed the connection: to h2, one that the client itself gives up is a broken pipe, too.
    pub(super) fn of_batches(error: &Status, is_closed: bool) -> Self {
        let transport = causes(error).find_map(|cause| cause.downcast_ref::<hyper::Error>());
        let is_given_up = |error| {
            !is_closed && io_error(error).is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        };
        let kind = match transport.map(|error| (kind(error), is_given_up(error))) {
            // The call itself may have been sent.
            Some((Kind::Unsent | Kind::Reset, false)) => Kind::Reset,
            _ => Kind::TimedOut,
        };
        Self { kind, cause: describe(error), ends_connection: true }
    }

    /// A call whose reply is missing or invalid, against the protocol.
    pub(super) const fn of_protocol(cause: String) -> Self {
        Self { kind: Kind::TimedOut, cause, ends_connection: true }
    }

    /// A request for which no connection could be opened.
    pub(super) const fn unsent(cause: String) -> Self {
        Self { kind: Kind::Unsent, cause, ends_connection: false }
    }

    /// A request for which no endpoint was available.
    pub(super) const fn unavailable(cause: String) -> Self {
        Self { kind: Kind::Unavailable, cause, ends_connection: false }
    }
}

fn kind(error: &hyper::Error) -> Kind {
    // Either the connection closed before taking the request; or, as the only user error that hyper
    // reports for requests, the request was queued for a stream, and so sent no body.
    if error.is_canceled() || error.is_user() {
        return Kind::Unsent;
    }
    match protocol_error(error) {
        // RFC 9113, section 8.7: both guarantee that the server has not processed the request.
        Some(error) if error.is_remote() && error.is_go_away() => return Kind::Unsent,
        Some(error) if error.is_remote() && error.reason() == Some(REFUSED_STREAM) => {
            return Kind::Unsent;
        }
        _ => {}
    }
    if io_error(error).is_some_and(is_connection_closed) { Kind::Reset } else { Kind::TimedOut }
}

fn io_error(error: &hyper::Error) -> Option<&io::Error> {
    let source = causes(error).find_map(|cause| cause.downcast_ref());
    // Of a body, h2 does not state it as the source.
    source.or_else(|| protocol_error(error)?.get_io())
}

/// Returns whether the error concerns a single stream.
fn is_stream_reset(error: &hyper::Error) -> bool {
    protocol_error(error).is_some_and(h2::Error::is_reset)
}

/// Returns whether the server's bytes are not HTTP/2 frames.
pub(super) fn is_not_http2(error: &hyper::Error) -> bool {
    let is_of = |error: &h2::Error| error.is_library() && error.reason() == Some(FRAME_SIZE_ERROR);
    protocol_error(error).is_some_and(is_of)
}

fn protocol_error(error: &hyper::Error) -> Option<&h2::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns whether the peer or its kernel closed the connection.
pub(super) fn is_connection_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof]
        .contains(&error.kind())
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Formats an error with its sources.
pub(super) fn describe(error: &(dyn StdError + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
