//! The error type of a round trip.

use redis::Value;

use crate::Error;

/// The code of "consumer group already exists". Not an error: each process creates the group when
/// it starts.
const GROUP_EXISTS: &str = "BUSYGROUP";

/// The attribute `error.type`.
pub(super) enum ErrorType<'a> {
    /// The code of an error reply.
    Redis(&'a str),
    /// `timeout`, `unavailable` or `malformed`.
    Other(&'a str),
}

impl<'a> ErrorType<'a> {
    /// Returns the type of the first error reply.
    pub(super) fn of_replies(replies: &'a [Value]) -> Option<Self> {
        replies.iter().find_map(error_code).map(Self::Redis)
    }

    /// Returns the type of an error without replies.
    pub(super) fn of_error(error: &'a Error) -> Self {
        match error.redis_code() {
            Some(code) => Self::Redis(code),
            None => Self::Other(error.error_type()),
        }
    }

    pub(super) fn name(&self) -> &str {
        let (Self::Redis(name) | Self::Other(name)) = self;
        name
    }
}

/// Returns the code of an error reply.
fn error_code(reply: &Value) -> Option<&str> {
    match reply {
        Value::ServerError(error) => Some(error.code()).filter(|code| *code != GROUP_EXISTS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_type(replies: &[&str]) -> Option<String> {
        let parse = |reply: &&str| redis::parse_redis_value(reply.as_bytes()).unwrap();
        let replies: Vec<_> = replies.iter().map(parse).collect();
        ErrorType::of_replies(&replies).map(|error| error.name().to_owned())
    }

    #[test]
    fn busygroup_is_no_error() {
        assert_eq!(error_type(&["+OK\r\n", "-BUSYGROUP already exists\r\n"]), None);
        let several = ["-BUSYGROUP already exists\r\n", "-OOM is full\r\n", "-ERR bad\r\n"];
        assert_eq!(error_type(&several).as_deref(), Some("OOM"));
    }
}
