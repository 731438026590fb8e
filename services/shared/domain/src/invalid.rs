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

/// Collects what is wrong with the fields of a request, so that all of it is told at once.
#[derive(Debug, Default)]
pub struct Fields(Vec<Invalid>);

impl Fields {
    /// Returns what was read from a field, or keeps what is wrong with it.
    pub fn read<T>(&mut self, parsed: Result<T, Invalid>) -> Option<T> {
        parsed.map_err(|invalid| self.0.push(invalid)).ok()
    }

    /// Returns what was made of all fields, which is there if none was wrong.
    pub fn finish<T>(self, made: Option<T>) -> Result<T, Vec<Invalid>> {
        made.filter(|_| self.0.is_empty()).ok_or(self.0)
    }
}
