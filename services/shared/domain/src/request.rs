//! Request ids: deduplicate retried writes.

use std::fmt;

use uuid::Uuid;

use crate::Invalid;

/// Idempotency key of a write: a UUID that the caller creates, and repeats with each retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(Uuid);

impl RequestId {
    /// Parses the id in a request's field. Rejects the nil UUID, which clients send if they forget
    /// to create one.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let id = Uuid::parse_str(text).ok().filter(|id| !id.is_nil());
        id.map(Self).ok_or_else(|| Invalid::new(field, "must be a UUID"))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_uuid_are_one_request() {
        let written = ["7c2d9b1e-53a4-4f0e-9a7e-0d5c1b7f2a01", "7C2D9B1E53A44F0E9A7E0D5C1B7F2A01"];
        let [a, b] = written.map(|text| RequestId::parse("request_id", text).unwrap());
        assert_eq!(a, b);
        assert_eq!(a.to_string(), written[0]);
    }

    #[test]
    fn invalid_uuids_are_rejected() {
        for text in ["", "7", "00000000-0000-0000-0000-000000000000", "not-a-uuid"] {
            assert_eq!(RequestId::parse("request_id", text).unwrap_err().field, "request_id");
        }
    }
}
