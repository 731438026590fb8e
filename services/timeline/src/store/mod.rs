//! The only part of the timeline service that speaks Redis: the atomic steps and the reads, one
//! method each. Knows nothing of what the steps are good for together.

mod homes;
mod streams;
mod users;

use std::time::{Duration, SystemTime};

use microblog_domain::UserId;
use microblog_keyspace::{self as keyspace, Keyspace, Library, redis::cmd};

use crate::keys;

pub use homes::{Begun, Head, Home, Replacement};
pub use streams::Step;
pub(crate) use streams::{ABANDONED_AFTER, RENEWAL_PERIOD, STEPS_MAX};
pub use users::{Published, State, Tail};

/// The service's atomic steps.
const LIBRARY: Library = Library {
    name: "timeline",
    source: concat!(
        include_str!("../functions.lua"),
        include_str!("../functions/homes.lua"),
        include_str!("../functions/users.lua"),
        include_str!("../functions/streams.lua"),
    ),
};

/// How long a home timeline is kept after it was last read.
pub(crate) const LIFETIME: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// The timeline service's keyspace.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
}

impl Store {
    /// Opens the store, without waiting for it: it may be away now and come back later.
    pub fn open(config: &keyspace::Config) -> Result<Self, keyspace::Error> {
        Ok(Self { keyspace: Keyspace::open(config, LIBRARY)? })
    }

    /// Returns whether the store answers and knows the service's functions.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }

    /// Drops a user's timelines.
    pub async fn forget(&self, user: UserId) -> Result<(), keyspace::Error> {
        let keys = [keys::user(user), keys::home(user), keys::pulls(user)];
        self.keyspace.query(cmd("UNLINK").arg(&keys).take()).await
    }
}

/// Returns the hours since 1970: fine enough to tell when something was last read.
fn hours() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() / 3600) as u32
}

fn malformed(what: &'static str) -> keyspace::Error {
    keyspace::Error::Malformed(what.into())
}
