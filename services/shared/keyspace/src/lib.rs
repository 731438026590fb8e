//! Access of a service to Redis: a single server, a Sentinel group or a cluster behind one type,
//! with the function library of the service loaded. Contains no key names of a service.
//!
//! Ordinary commands are multiplexed over a shared pool of a few connections. Blocking commands use
//! dedicated connections. Connections recover by themselves after a restart, a failover or a freeze
//! of Redis. Until then, each call fails with [`Error::Unavailable`] within its timeout.

mod account_deletions;
mod address;
mod admission_filter;
mod backlog;
mod backlog_metrics;
mod batch;
mod cache;
mod cache_metrics;
mod call;
mod certificates;
mod clients;
mod clock;
mod cluster;
mod config;
mod connection_metrics;
mod dedicated_pool;
mod durability;
mod endpoint;
mod error;
mod journal;
mod key;
mod keyspace;
mod library;
mod lock;
mod log_throttle;
mod multiplexed;
mod node_connection;
mod outbox;
mod page;
mod partition_states;
mod replication;
mod reply;
mod resp;
mod round_trip_metrics;
mod route;
mod server_pool;
mod shared_pool;
mod slots;
mod stream;
mod token;

pub use account_deletions::AccountDeletions;
pub use backlog::Backlog;
pub use backlog_metrics::BacklogMetrics;
pub use batch::Batch;
pub use cache::{ClientSideCache, Id, Kind, TrackedRead};
pub use call::Call;
pub use clock::ClockRepair;
pub use config::Config;
pub use dedicated_pool::DedicatedConnection;
pub use durability::{Durability, RelevantChange, Waiter, Waiters, Waits};
pub use error::Error;
pub use journal::{Change, Journals, MalformedVersion, Recovery, Version};
pub use key::{key, number_behind};
pub use keyspace::Keyspace;
pub use library::Library;
pub use outbox::{OUTBOX_PAGE_MAX, Outbox};
pub use page::{Entry, Order, Page, Range};
pub use partition_states::{Comparison, PartitionStates, ServingState};
/// Build commands with `keyspace::redis::cmd`: all crates then use the same version of the library.
pub use redis;
pub use reply::decode;
