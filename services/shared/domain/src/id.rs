//! Ids: a newtype over a stamp per kind of entity.

use std::{fmt, num::NonZeroU64, time::SystemTime};

use crate::{Invalid, Partition, Stamp};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// Returns the id with this value, or `None` for 0 and from 2^53 up.
            pub const fn new(value: u64) -> Option<Self> {
                match NonZeroU64::new(value) {
                    Some(id) if value < Stamp::END => Some(Self(id)),
                    _ => None,
                }
            }

            /// Parses the id in a request's field.
            pub fn parse(field: &str, value: u64) -> Result<Self, Invalid> {
                Self::new(value).ok_or_else(|| Self::invalid(field))
            }

            /// Parses up to `max` ids in a request's field.
            pub fn parse_list(
                field: &str,
                values: &[u64],
                max: usize,
            ) -> Result<Vec<Self>, Invalid> {
                if values.len() > max {
                    let problem = format!("must have at most {max} items, has {}", values.len());
                    return Err(Invalid::new(field, problem));
                }
                let mut ids = Vec::with_capacity(values.len());
                for (i, &value) in values.iter().enumerate() {
                    let invalid = || Self::invalid(&format!("{field}[{i}]"));
                    ids.push(Self::new(value).ok_or_else(invalid)?);
                }
                Ok(ids)
            }

            fn invalid(field: &str) -> Invalid {
                Invalid::new(field, concat!("must be ", $what, " id: from 1 to 2^53 - 1"))
            }

            /// Returns the number.
            pub const fn get(self) -> u64 {
                self.0.get()
            }

            /// Returns the partition that stores the entity and its data.
            pub const fn partition(self) -> Partition {
                Partition::of_id(self.get())
            }

            /// Returns the creation time, to the millisecond.
            pub fn created_at(self) -> SystemTime {
                Stamp::of_id(self.0).time()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id! {
    /// Id of an account: a stamp, never 0.
    UserId, "an account"
}
id! {
    /// Id of a post: a stamp of its author's partition, never 0.
    PostId, "a post"
}
id! {
    /// Id of a comment: a stamp of its post's partition, never 0.
    CommentId, "a comment"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_range_from_1_to_2_pow_53_minus_1() {
        assert!(UserId::new(0).is_none());
        assert!(UserId::new(1).is_some());
        assert!(UserId::new((1 << 53) - 1).is_some());
        assert!(UserId::new(1 << 53).is_none());
        assert!(UserId::new(1 << 63).is_none());
    }

    #[test]
    fn invalid_id_in_a_list_is_named() {
        let error = UserId::parse_list("user_ids", &[1, 0], 500).unwrap_err();
        assert_eq!(error.field, "user_ids[1]");
        let error = UserId::parse_list("user_ids", &[1; 501], 500).unwrap_err();
        assert_eq!(error.problem, "must have at most 500 items, has 501");
    }
}
