//! The hot store: the only part of the post service that accesses Redis. Each method is one atomic
//! step or read. [`Posts`](crate::Posts) and [`Comments`](crate::Comments) combine them into sagas,
//! so a test can stop between any two steps.

mod archive_outbox;
mod backlog;
mod body;
mod client;
mod comments;
mod decode;
mod erasure;
mod eviction;
mod leases;
mod likes;
mod lists;
mod outcome;
mod post_hash;
mod posts;
mod repair;
mod reposts;
mod restore;
mod verify;
mod watermark;

pub use archive_outbox::{OutboxEntry, OutboxPage};
pub use client::Store;
pub use comments::{AddedComment, CommentAdmission};
pub(crate) use decode::post_ids;
pub(crate) use erasure::{ErasureRun, ErasureStage, Fence};
pub(crate) use eviction::ARCHIVE_MARKER;
pub use eviction::PostCount;
pub use leases::Job;
pub use lists::{List, Presence};
pub use posts::{PostDeletion, Published};
pub use restore::RestoreOutcome;
