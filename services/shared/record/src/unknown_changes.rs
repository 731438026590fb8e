//! Changes of kinds that this version does not know. During an upgrade or a rollback, a process of the
//! other version may record them: so their partition waits. After a minute they are left out and named
//! among the damaged rows, so that one entry does not stop its partition for ever.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::Version;
use tokio::time::Instant;

/// Longer than a process takes to start during an upgrade.
const WAIT: Duration = Duration::from_secs(60);

/// The first unknown change of each partition, and since when it has been known to be there.
#[derive(Debug, Default)]
pub(crate) struct UnknownChanges(Mutex<BTreeMap<Partition, (Version, Instant)>>);

impl UnknownChanges {
    /// Returns whether a change is to be left out: it was the first unknown one of its partition for a
    /// minute.
    pub(crate) fn is_due(&self, partition: Partition, version: Version) -> bool {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, since) = first.entry(partition).or_insert((version, Instant::now()));
        if *known != version {
            (*known, *since) = (version, Instant::now());
        }
        since.elapsed() >= WAIT
    }
}
