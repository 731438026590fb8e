//! Access of a service to Redis: a single server, a Sentinel group or a cluster behind one type,
//! with the function library of the service loaded. Contains no key names of a service.
//!
//! Ordinary commands are multiplexed over a shared pool of a few connections. Blocking commands use
//! dedicated connections. Connections recover by themselves after a restart, a failover or a freeze
//! of Redis. Until then, each call fails with [`Error::Unavailable`] within its timeout.

mod address;
mod admission_filter;
mod batch;
mod cache;
mod cache_metrics;
mod call;
mod certificates;
mod clients;
mod cluster;
mod config;
mod connection_metrics;
mod dedicated_pool;
mod endpoint;
mod error;
mod key;
mod keyspace;
mod library;
mod lock;
mod log_throttle;
mod multiplexed;
mod node_connection;
mod primaries;
mod reply;
mod resp;
mod round_trip_metrics;
mod route;
mod server_pool;
mod shared_pool;
mod slots;
mod stream;

pub use batch::Batch;
pub use cache::{ClientSideCache, Id, Kind, TrackedRead};
pub use call::Call;
pub use config::Config;
pub use dedicated_pool::DedicatedConnection;
pub use error::Error;
pub use key::key;
pub use keyspace::Keyspace;
pub use library::Library;
pub use primaries::Primaries;
/// Build commands with `keyspace::redis::cmd`: all crates then use the same version of the library.
pub use redis;
pub use reply::decode;
