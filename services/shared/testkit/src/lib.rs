//! Real servers for tests and benchmarks: redis-server (single, cluster, behind Sentinels), PostgreSQL,
//! PgBouncer, and processes of this project; and certificates. They listen on free ports of 127.0.0.1 and store
//! their data in temporary directories. They end with the test, even if it is killed. Does not
//! depend on any service.
//!
//! Errors panic with the reason.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "only tests use it")]

pub mod acl;
mod certificates;
mod child_process;
mod cluster;
mod cost;
mod database;
mod http;
mod item_reads;
mod model;
mod pg_bouncer;
mod port;
mod postgres_server;
mod process;
mod proxy;
mod redis_config;
mod redis_server;
mod sent;
mod sentinels;
mod store;
mod wait;
mod write_bench;

pub use certificates::{Authority, Certificate, Files};
pub use cluster::RedisCluster;
pub use cost::{Cost, CostMeter};
pub use database::Database;
pub use http::{http, http_stream};
pub use item_reads::item_reads;
pub use model::model_runs;
pub use pg_bouncer::{PgBouncer, PoolMode};
pub use port::{free_port, free_ports, listen_again};
pub use postgres_server::{PostgresServer, TableLocks};
pub use process::Process;
pub use proxy::Proxy;
pub use redis;
pub use redis_config::{ADMIN, password};
pub use redis_server::{RedisServer, connect};
pub use sent::{Sent, SentMeter};
pub use sentinels::{LoneSentinel, Sentinels};
pub use store::{Store, Topology};
pub use wait::{PATIENCE, at_daytime, eventually, next_millisecond};
pub use write_bench::{WriteBench, WriteSetting};
