//! Kinds of Redis keys and their memory.

use std::collections::BTreeMap;

use serde::Serialize;

/// Keys of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Kind {
    pub(super) keys: u64,
    /// The sum of `MEMORY USAGE`.
    pub(super) bytes: u64,
}

impl Kind {
    pub(super) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }
}

/// Keys by service and type.
pub(super) type Kinds = BTreeMap<String, Kind>;

/// Returns the service and type of a key: `service:{partition}:type`, optionally with an owner.
pub(super) fn kind(key: &str) -> String {
    let mut parts = key.split(':');
    match (parts.next(), parts.nth(1)) {
        (Some(service), Some(kind)) => format!("{service} {kind}"),
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_key_is_its_service_and_type() {
        assert_eq!(kind("rel:{7}:following_ids:123"), "rel following_ids");
        assert_eq!(kind("user:{1023}:email:{1}:a@b.invalid"), "user email");
        assert_eq!(kind("post:{0}:clock"), "post clock");
        assert_eq!(kind("other"), "other");
    }
}
