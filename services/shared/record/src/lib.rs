//! The SQL database of a service, SQLite or PostgreSQL by its URL, with the same statements and
//! tables. A service has its own database, or its own user and schema in a shared one.

mod change_feed;
mod change_stream;
mod circuit_breaker;
mod config;
mod connections;
mod damaged;
mod database;
mod divergence;
mod durability;
mod error;
pub mod json_rows;
mod login;
pub mod number_rows;
mod operation;
mod positions;
mod recorder;
mod recovery;
mod rpc;
pub mod sql;
mod start_check;
mod tables;
mod unknown_changes;
mod wait_limit;

pub use change_feed::{RecordedChanges, append_changes, change_feed};
pub use change_stream::{ChangeFeed, ChangeRow, FeedPosition, no_change_feed, stream_changes};
pub use config::Config;
pub use connections::Connections;
pub use damaged::Damaged;
pub use database::{Database, Migration};
pub use durability::{DurabilityConfig, Level};
pub use error::{Error, OpenError, RecordError, Unusable};
pub use positions::POSITIONS;
pub use recorder::{Recorded, Recorder, WAITING_MAX};
pub use recovery::{Restore, Source};
pub use rpc::restore;
pub use tables::{ExistingPage, Replace, RowKey, Tables, Work, WriteTransaction};
