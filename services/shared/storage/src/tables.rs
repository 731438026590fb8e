//! The database of a service, once it has the service's tables.

use std::sync::{Arc, Mutex, PoisonError};

use microblog_record::{Database, Error, Migration};
use tokio::{
    sync::OnceCell,
    time::{Duration, Instant},
};

use crate::transaction;

/// The database of a service. Creates or upgrades the tables before its first use, as soon as it is
/// available. Cheap to clone.
#[derive(Clone)]
pub struct Tables {
    database: Database,
    migrations: &'static [Migration],
    /// Initialized once the tables are there.
    created: Arc<OnceCell<()>>,
    /// When the last attempt failed.
    failed: Arc<Mutex<Option<Instant>>>,
}

/// How long no other attempt is made after one that failed: those that wait for it would make one after the
/// other.
const PAUSE: Duration = Duration::from_millis(500);

impl Tables {
    /// Returns the database of a service, with its migrations, one of which is the
    /// [`feed`](crate::feed::feed).
    pub fn new(database: Database, migrations: &'static [Migration]) -> Self {
        Self { database, migrations, created: Arc::default(), failed: Arc::default() }
    }

    /// Returns the database with its tables. Fails while it is unavailable.
    pub async fn database(&self) -> Result<&Database, Error> {
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let create = async || {
            if failed().is_some_and(|failed| failed.elapsed() < PAUSE) {
                return Err(Error::Unavailable(None));
            }
            let created = async {
                self.database.migrate(self.migrations).await?;
                transaction::make_history(&self.database).await
            };
            let created = created.await;
            if created.is_err() {
                *failed() = Some(Instant::now());
            }
            created
        };
        self.created.get_or_try_init(create).await?;
        Ok(&self.database)
    }
}
