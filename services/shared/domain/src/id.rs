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
                let problem = concat!("must be ", $what, " id: from 1 to 2^53 - 1");
                Self::new(value).ok_or_else(|| Invalid::new(field, problem))
            }

            /// Parses up to `max` ids in a request's field. Leaves out numbers that are no ids: a read
            /// finds as little for them as for ids that nothing has.
            pub fn parse_list(
                field: &str,
                values: &[u64],
                max: usize,
            ) -> Result<Vec<Self>, Invalid> {
                if values.len() > max {
                    let problem = format!("must have at most {max} items, has {}", values.len());
                    return Err(Invalid::new(field, problem));
                }
                Ok(values.iter().copied().filter_map(Self::new).collect())
            }

            /// Returns an answer for each number of a list, in order. `answers` has one for each of
            /// the ids that [`Self::parse_list`] returned; the others get `unknown`.
            pub fn answers<T>(
                values: &[u64],
                answers: impl IntoIterator<Item = T>,
                unknown: impl Fn(u64) -> T,
            ) -> Vec<T> {
                let mut answers = answers.into_iter();
                let mut answer = |value| Self::new(value).and_then(|_id| answers.next());
                values.iter().map(|&value| answer(value).unwrap_or_else(|| unknown(value))).collect()
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
    fn a_list_is_read_without_what_is_no_id() {
        let values = [1, 0, 7, 1 << 53, 7, u64::MAX];
        let ids = UserId::parse_list("user_ids", &values, 6).unwrap();
        assert_eq!(ids, [1, 7, 7].map(|value| UserId::new(value).unwrap()));
        let error = UserId::parse_list("user_ids", &values, 5).unwrap_err();
        assert_eq!(error.field, "user_ids");
        assert_eq!(error.problem, "must have at most 5 items, has 6");
        let answers = UserId::answers(&values, ids, |_| UserId::new(9).unwrap());
        assert_eq!(answers.iter().map(|id| id.get()).collect::<Vec<_>>(), [1, 9, 7, 9, 7, 9]);
    }
}
