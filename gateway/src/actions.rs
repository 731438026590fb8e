//! The actions: calls that write.
//!
//! Except for DeleteAccount, each is one call that writes, after calls that only read. A caller
//! that disconnects leaves it done or not done, but never half done.

pub(crate) mod accounts;
pub(crate) mod deletions;
pub(crate) mod external_accounts;
pub(crate) mod notices;
pub(crate) mod posts;
pub(crate) mod relations;
