//! Library of the launcher and the load generator: starting microblog on this machine, services in
//! one process, edge lists, imports, retried calls, and progress output.

pub mod edges;
pub mod graph;
pub mod input;
pub mod keys;
pub mod launch;
pub mod progress;
pub mod raw_call;
pub mod remote;
pub mod serve;
pub mod services;
pub mod tls;
pub mod up;
