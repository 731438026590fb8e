//! The SQL database of a service, SQLite or PostgreSQL by its URL, with the same statements and
//! tables. A service has its own database, or its own user and schema in a shared one.

mod change_stream;
mod circuit_breaker;
mod config;
mod connections;
mod database;
mod error;
pub mod json_rows;
mod login;
pub mod number_rows;
mod operation;
pub mod sql;
mod start_check;

pub use change_stream::{
    ChangeFeed, ChangeRow, ExistingPage, FeedPosition, RowKey, stream_changes,
};
pub use config::Config;
pub use connections::Connections;
pub use database::{Database, Migration, WriteTransaction};
pub use error::{Error, OpenError, Unusable};
pub use operation::{Failure, Operation};
