//! For tests only: real redis-servers (single, cluster, behind Sentinels), PostgreSQL servers and
//! processes of ours, on free ports of 127.0.0.1, each with a directory of its own, gone when the
//! test is, however it ends; and certificates. Knows no service.
//!
//! What does not work panics with the reason: a test without its server is no test.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "only tests use it")]

pub mod acl;
mod authority;
mod child;
mod cluster;
mod port;
mod postgres_server;
mod process;
mod redis_server;
mod sentinels;
mod settings;
mod store;
mod wait;

pub use authority::{Authority, Certificate, Files};
pub use cluster::RedisCluster;
pub use port::free_port;
pub use postgres_server::PostgresServer;
pub use process::Process;
pub use redis;
pub use redis_server::{RedisServer, connect};
pub use sentinels::{LoneSentinel, Sentinels};
pub use settings::{ADMIN, password};
pub use store::{Store, Topology};
pub use wait::{PATIENCE, eventually};
