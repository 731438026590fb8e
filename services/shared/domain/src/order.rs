//! The order of a list.

/// The order of a list by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The newest first.
    Newest,
    /// The oldest first.
    Oldest,
}
