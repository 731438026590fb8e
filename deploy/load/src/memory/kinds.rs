//! Which kinds of keys there are, and what they take.

use std::collections::BTreeMap;

use serde::Serialize;

/// Keys of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Kind {
    pub(super) keys: u64,
    /// What Redis says of them by `MEMORY USAGE`.
    pub(super) bytes: u64,
}

impl Kind {
    pub(super) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
    }
}

/// Keys by the service that they belong to and what they hold.
pub(super) type Kinds = BTreeMap<String, Kind>;

/// Returns whose key this is, and what it holds: `service:{partition}:kind` and perhaps an owner.
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
    fn keys_of_a_kind_are_counted_together_whoever_owns_them() {
        assert_eq!(kind("rel:{7}:following_ids:123"), "rel following_ids");
        assert_eq!(kind("user:{1023}:email:{1}:a@b.invalid"), "user email");
        assert_eq!(kind("post:{0}:clock"), "post clock");
        assert_eq!(kind("other"), "other");
    }
}
