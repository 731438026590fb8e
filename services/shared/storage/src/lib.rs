//! Items: what a service keeps in its database, and caches in Redis.
//!
//! An item is a row with a revision, which each transaction that changes the item raises by one. Its
//! copy in Redis is an entry. Redis may vanish, be full or go back in time at any moment: an entry is
//! never needed, and what it tells is never trusted without a reason.
//!
//! - A **write** is a transaction. After its commit, and before its answer, the change is applied to the
//!   entry: put in place, or the entry is deleted. If that is not confirmed, the entry is removed; if that
//!   is not possible either, the verifier deletes it. A new item may be installed at once, under a lease that
//!   was taken before the commit.
//! - A **load** takes a lease, reads the database, and installs the entry if the lease is still its own.
//!   A change that is applied meanwhile ends the lease, or is collected by it.
//!
//! `tests/protocol` searches the interleavings of these steps.

pub mod cache;
pub mod changes;
mod client_side;
pub mod entry;
pub mod feed;
mod keeper;
mod lease;
mod mark;
mod metrics;
pub mod reader;
mod rows;
mod status;
mod tables;
pub mod transaction;
pub mod trust;
pub mod verifier;
pub mod writer;
mod writes;

pub use cache::{Applied, Cache, Change, Created, Patch, Token, library};
pub use entry::{Contents, EntryKeys, EntryLimits, Head, History, Record};
pub use feed::{FeedRow, ItemRevision};
pub use lease::Lease;
pub use reader::{Found, Item, Loaded, Part, ReadError, Reader, View, Whole};
pub use rows::Rows;
pub use status::of_database;
pub use tables::Tables;
pub use transaction::Transaction;
pub use trust::{Trust, Trusted};
pub use verifier::{Round, Verifier, VerifyError};
pub use writer::{Decided, Group, WriteError, Writer};
pub use writes::Writes;
