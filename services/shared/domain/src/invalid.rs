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

/// The parsed fields of a request, as a tuple of results.
pub trait Fields {
    /// The values, as a tuple.
    type Values;

    /// Returns the values, or the errors of all invalid fields.
    fn all(self) -> Result<Self::Values, Vec<Invalid>>;
}

macro_rules! fields {
    ($($value:ident)+) => {
        #[expect(non_snake_case, reason = "each value has the name of its type")]
        impl<$($value),+> Fields for ($(Result<$value, Invalid>),+) {
            type Values = ($($value),+);

            fn all(self) -> Result<Self::Values, Vec<Invalid>> {
                match self {
                    ($(Ok($value)),+) => Ok(($($value),+)),
                    ($($value),+) => Err([$($value.err()),+].into_iter().flatten().collect()),
                }
            }
        }
    };
}

fields!(A B);
fields!(A B C);
fields!(A B C D);
fields!(A B C D E);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_invalid_fields_are_reported_at_once() {
        let invalid = |field: &str| Err::<u64, _>(Invalid::new(field, "is missing"));
        assert_eq!((Ok('a'), Ok(2)).all(), Ok(('a', 2)));
        let errors = (invalid("user"), Ok('a'), invalid("page_size")).all().unwrap_err();
        let fields: Vec<_> = errors.iter().map(|invalid| invalid.field.as_str()).collect();
        assert_eq!(fields, ["user", "page_size"]);
    }
}
