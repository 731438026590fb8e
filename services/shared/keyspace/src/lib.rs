//! How a service reaches Redis: a single server, a Sentinel group or a cluster behind one type,
//! with the service's functions loaded. Knows no key names and no service.
//!
//! Ordinary commands share a few connections, each of which carries many calls at once; what
//! blocks gets one of its own. Everything recovers by itself after Redis restarts, fails over or
//! freezes; meanwhile each call ends in time with [`Error::Unavailable`].

mod account_deletions;
mod address;
mod backlog;
mod batch;
mod call;
mod certificates;
mod clients;
mod clock;
mod cluster;
mod config;
mod connected;
mod connection;
mod doorkeeper;
mod endpoint;
mod error;
mod exclusive;
mod key;
mod keyspace;
mod library;
mod links;
mod lock;
mod outage;
mod outbox;
mod page;
mod recall;
mod remembered;
mod resp;
mod route;
mod stream;
mod token;
mod trip;
mod waiting;
mod wire;

pub use account_deletions::AccountDeletions;
pub use backlog::Backlog;
pub use batch::Batch;
pub use call::Call;
pub use clock::Mended;
pub use config::Config;
pub use error::Error;
pub use exclusive::Exclusive;
pub use key::{key, number_behind};
pub use keyspace::{Keyspace, decode};
pub use library::Library;
pub use outbox::{OUTBOX_PAGE_MAX, Outbox};
pub use page::{Entry, Order, Page, Range};
pub use recall::{Id, Kind, Recall};
/// Commands are built with `keyspace::redis::cmd`, so that there is one version of it.
pub use redis;
pub use waiting::BacklogMetrics;
