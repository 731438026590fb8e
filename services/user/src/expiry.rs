//! Removes rows that have expired: sessions, failed guesses, and names that are not held any more. Nothing
//! relies on it: what has expired counts for nothing.

use microblog_record::{
    Database, Error,
    sql::{number, statement},
};
use microblog_storage::{Lease, Tables, transaction::database_now_ms};

/// The most rows that a statement removes.
const ROWS: u64 = 500;

/// How long a name stays after its hold, in ms. One that is made again has a later revision, by the clock:
/// this is longer than a clock is wrong.
const NAME_KEPT_MS: u64 = 24 * 3600 * 1000;

/// The statements that remove rows which expired some time ago. Their parameters are a time, in Unix ms, and
/// the number of rows.
pub(crate) const REMOVALS: [(&str, u64, &str); 3] = [
    (
        "DELETE sessions",
        0,
        "DELETE FROM sessions WHERE (account, token) IN \
         (SELECT account, token FROM sessions WHERE expires < $1 ORDER BY expires LIMIT $2)",
    ),
    (
        "DELETE guesses",
        0,
        "DELETE FROM guesses WHERE expires < $1 AND digest IN \
         (SELECT digest FROM guesses WHERE expires < $1 ORDER BY expires LIMIT $2)",
    ),
    (
        "DELETE identifiers",
        NAME_KEPT_MS,
        "DELETE FROM identifiers \
         WHERE account = 0 AND held_until > 0 AND held_until < $1 AND digest IN \
         (SELECT digest FROM identifiers WHERE account = 0 AND held_until > 0 AND held_until < $1 \
         ORDER BY held_until LIMIT $2)",
    ),
];

/// Removes what has expired, if this replica is the one that does.
pub(crate) async fn remove_expired(tables: &Tables, lease: &Lease) -> Result<(), Error> {
    let database = tables.database().await?;
    let now_ms = database_now_ms(database).await?;
    for (operation, kept_ms, text) in REMOVALS {
        let before_ms = now_ms.saturating_sub(kept_ms);
        while lease.take(database).await? {
            if remove(database, operation, text, before_ms).await? < ROWS {
                break;
            }
        }
    }
    Ok(())
}

async fn remove(
    database: &Database,
    operation: &'static str,
    text: &str,
    before_ms: u64,
) -> Result<u64, Error> {
    let query = statement(text.to_owned()).bind(number(before_ms)).bind(number(ROWS));
    let work = async { query.execute(database.writers()).await };
    Ok(database.write(operation, work).await?.rows_affected())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::{
        accounts::unix_ms,
        tables::{MIGRATIONS, open_for_test},
    };

    async fn execute(database: &Database, text: &str) {
        let statements = AssertSqlSafe(text.to_owned());
        sqlx::raw_sql(statements).execute(database.writers()).await.unwrap();
    }

    async fn count(database: &Database, table: &str) -> i64 {
        let count = statement(format!("SELECT count(*) FROM {table}"));
        count.fetch_one(database.readers()).await.unwrap().try_get(0).unwrap()
    }

    /// What has expired is of more rows than a statement removes.
    #[tokio::test]
    async fn what_has_expired_is_removed_and_nothing_else() {
        for server in microblog_testkit::Database::both().await {
            let database = open_for_test(&server.url()).await;
            let tables = Tables::new(database.clone(), &MIGRATIONS);
            let (now, hour) = (unix_ms(SystemTime::now()), 3_600_000);
            let (gone, kept) = (now - NAME_KEPT_MS - hour, now - hour);
            let rows = |count: u64| {
                let last = count - 1;
                format!(
                    "WITH RECURSIVE rows (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM rows \
                     WHERE n < {last})"
                )
            };
            for (first, count, expired) in [(0, 1_200, now - 1), (2_000, 7, now + hour)] {
                let rows = rows(count);
                execute(
                    &database,
                    &format!(
                        "INSERT INTO sessions (account, token, made, used, expires) \
                         {rows} SELECT 4, 'token' || ({first} + n), 1, 1, {expired} FROM rows; \
                         INSERT INTO guesses (digest, failures, delayed_until, expires) \
                         {rows} SELECT {first} + n, 1, 1, {expired} FROM rows"
                    ),
                )
                .await;
            }
            // Names: of which the hold is long over, just over, not over, and those of accounts.
            for (first, count, account, held) in [
                (0, 1_200, 0, gone),
                (2_000, 5, 0, kept),
                (3_000, 6, 0, now + hour),
                (4_000, 7, 4, 0),
            ] {
                let rows = rows(count);
                execute(
                    &database,
                    &format!(
                        "INSERT INTO identifiers (digest, value, account, held_until, revision) \
                         {rows} SELECT {first} + n, 'name', {account}, {held}, 1 FROM rows"
                    ),
                )
                .await;
            }
            let counts = async || {
                [
                    count(&database, "sessions").await,
                    count(&database, "guesses").await,
                    count(&database, "identifiers").await,
                ]
            };
            let (lease, other) = (Lease::new("expiry"), Lease::new("expiry"));
            if !database.is_embedded() {
                // A file has one process.
                assert!(other.take(&database).await.unwrap());
                remove_expired(&tables, &lease).await.unwrap();
                assert_eq!(counts().await, [1_207, 1_207, 1_218], "another replica removes it");
            }
            remove_expired(&tables, &other).await.unwrap();
            assert_eq!(counts().await, [7, 7, 18], "{}", server.kind());
            remove_expired(&tables, &other).await.unwrap();
            assert_eq!(counts().await, [7, 7, 18]);
        }
    }
}
