//! Jobs that one process of a service at a time does. A process that hangs, or is cut off, loses its lease
//! after seconds, and may go on for a moment: a job must bear that two do it.

use std::time::Duration;

use microblog_record::{
    Database, Error,
    sql::{number, statement},
};
use uuid::Uuid;

/// A lease on a job. Its holder takes it again before it expires.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    name: &'static str,
    /// A random number.
    holder: u64,
}

impl Lease {
    /// How long a lease lasts after it was taken.
    pub const DURATION: Duration = Duration::from_secs(5);

    /// Returns the lease of this process on a job. It is not taken.
    pub fn new(name: &'static str) -> Self {
        Self { name, holder: Uuid::new_v4().as_u64_pair().0 >> 11 }
    }

    /// Takes the lease, or keeps it. Returns whether this process has it. The times are those of the
    /// database. The file of an SQLite database has one process.
    pub async fn take(&self, database: &Database) -> Result<bool, Error> {
        const TAKE: &str = "INSERT INTO leases (name, holder, expires) \
            SELECT $1, $2, now.ms + $3 FROM \
            (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) AS now \
            WHERE NOT EXISTS (SELECT 1 FROM leases WHERE name = $1 AND holder <> $2 AND expires > now.ms) \
            ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires \
            WHERE leases.holder = excluded.holder OR leases.expires <= excluded.expires - $3";
        if database.is_embedded() {
            return Ok(true);
        }
        let take = statement(TAKE.to_owned())
            .bind(self.name)
            .bind(number(self.holder))
            .bind(number(Self::DURATION.as_millis() as u64));
        let work = async { take.execute(database.writers()).await };
        Ok(database.write("INSERT leases", work).await?.rows_affected() == 1)
    }

    /// Gives the lease back, so that another process may take it at once: one that cannot do the job must not
    /// keep others from it. Does nothing if this process does not have it.
    pub async fn give_back(&self, database: &Database) -> Result<(), Error> {
        const GIVE_BACK: &str = "DELETE FROM leases WHERE name = $1 AND holder = $2";
        if database.is_embedded() {
            return Ok(());
        }
        let give_back = statement(GIVE_BACK.to_owned()).bind(self.name).bind(number(self.holder));
        let work = async { give_back.execute(database.writers()).await.map(drop) };
        database.write("DELETE leases", work).await
    }
}
