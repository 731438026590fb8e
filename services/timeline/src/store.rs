//! The store: the only module that calls Redis. One method for each atomic step or read.

mod checkpoints;
mod homes;
mod streams;
mod users;

use std::time::{Duration, SystemTime};

use microblog_domain::UserId;
use microblog_keyspace::{self as keyspace, Call, Keyspace, Library};

use crate::keys;

pub(crate) use checkpoints::{Checkpoint, ServerState};
pub(crate) use homes::UNPUSHED_MAX;
pub use homes::{BuildLease, Head, Home, Replacement};
pub use streams::Step;
pub(crate) use streams::{ABANDONED_AFTER, RENEWAL_PERIOD, STEPS_MAX};
pub use users::{FanoutState, Published, Tail};

/// The Redis functions of the service.
const LIBRARY: Library = Library {
    name: "timeline",
    source: concat!(
        include_str!("functions.lua"),
        include_str!("functions/homes.lua"),
        include_str!("functions/users.lua"),
        include_str!("functions/streams.lua"),
        include_str!("functions/checkpoints.lua"),
    ),
};

/// The lifetime of a cached home timeline after its last read.
pub(crate) const HOME_TTL: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The timeline service's Redis store.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
}

impl Store {
    /// Opens the store without waiting for Redis.
    pub fn open(config: &keyspace::Config) -> Result<Self, keyspace::Error> {
        Ok(Self { keyspace: Keyspace::open(config, LIBRARY)? })
    }

    /// Returns whether Redis responds and has the functions loaded.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }

    /// Deletes a user's timelines. What late reads and deliveries store afterwards expires.
    pub async fn forget(&self, user: UserId) -> Result<(), keyspace::Error> {
        let keys = [keys::user(user), keys::home(user), keys::pulls(user)];
        self.keyspace.call(Call::new("tl_forget").keys(keys)).await
    }
}

/// Returns the hours since 1970.
fn hours() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() / 3600) as u32
}

fn malformed(what: &'static str) -> keyspace::Error {
    keyspace::Error::Malformed(what.into())
}
