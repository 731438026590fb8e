//! Replies of Redis: error replies become errors, others are decoded.

use redis::{FromRedisValue, Value};

use crate::Error;

/// Decodes a reply of a batch.
pub fn decode<T: FromRedisValue>(value: Value) -> Result<T, Error> {
    Ok(redis::from_redis_value(check(value)?)?)
}

// Turns an error reply into an error. Ignores nested error replies, which only transactions have.
pub(crate) fn check(value: Value) -> Result<Value, Error> {
    match value {
        Value::ServerError(error) => Err(Error::refused(error)),
        value => Ok(value),
    }
}

/// Returns whether a reply is an error reply with the generic code ERR, as for an unknown function.
pub(crate) fn is_generic_error(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "ERR")
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn decoding_error_does_not_contain_the_reply() {
        let reply = Value::Array(vec![Value::BulkString(b"ann@example.org".to_vec())]);
        let error = decode::<Vec<u64>>(reply).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)));
        assert_eq!(error.source().unwrap().to_string(), "the reply has an unexpected type");
        assert_eq!(error.error_type(), "malformed");
    }
}
