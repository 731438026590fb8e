//! Hydration: what a view adds to its skeleton, read in batches, all at once. Each file holds what
//! it reads, the rules for what the viewer must not see, and the presentation. Does not depend on
//! any view.

pub(crate) mod accounts;
pub(crate) mod counts;
pub(crate) mod mentions;
pub(crate) mod notices;
pub(crate) mod posts;
