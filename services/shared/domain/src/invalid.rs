//! Validation errors of request fields.

/// An invalid field and its problem. Servers return it as `google.rpc.BadRequest`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field's path as in the proto: `user_id`, `user_ids[3]`, `user.name`.
    pub field: String,
    /// The problem, without the value, which may be secret or large.
    pub problem: String,
}

impl Invalid {
    /// Returns the error of a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// Collects the errors of all fields, to report them together.
#[derive(Debug, Default)]
pub struct FieldErrors(Vec<Invalid>);

impl FieldErrors {
    /// Returns the parsed value, or records the error.
    pub fn read<T>(&mut self, parsed: Result<T, Invalid>) -> Option<T> {
        parsed.map_err(|invalid| self.0.push(invalid)).ok()
    }

    /// Returns the result if no field was invalid, or all errors.
    pub fn finish<T>(self, made: Option<T>) -> Result<T, Vec<Invalid>> {
        made.filter(|_| self.0.is_empty()).ok_or(self.0)
    }
}
