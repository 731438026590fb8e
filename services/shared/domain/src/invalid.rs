//! What is wrong with a field of a request.

/// A field that is wrong, and why. Receivers of requests make it; the chassis puts it on the wire
/// as `google.rpc.BadRequest`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field's path as in the proto: `user_id`, `user_ids[3]`, `user.name`.
    pub field: String,
    /// What is wrong with it, without the value itself: it may be secret or huge.
    pub problem: String,
}

impl Invalid {
    /// Says what is wrong with a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}
