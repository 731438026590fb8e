//! A write transaction. What is set for it holds until it ends, so that it works behind a pooler that
//! gives each transaction another connection.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use microblog_record::{
    Database, number_rows,
    sql::{SQLITE, number, read as read_number, statement},
};
use sha2::{Digest as _, Sha256};
use sqlx::{Any, AnyConnection, AssertSqlSafe, Row as _, any::AnyRow};
use tokio::time::timeout;

use crate::{
    entry::History,
    feed::{self, FeedRow},
};

/// How long a commit may take: longer than a disk that is busy, shorter than a caller waits.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Of PostgreSQL: a lock is waited for, and a silent client keeps its own, for a second at most.
const SETTINGS: &str = "; SET LOCAL lock_timeout = 1000; \
    SET LOCAL idle_in_transaction_session_timeout = 1000; SET LOCAL statement_timeout = 5000";

/// PostgreSQL: the parts of the history. Fails on a standby.
const HISTORY: &str = "(SELECT system_identifier::text FROM pg_control_system()), \
    substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), \
    (SELECT random FROM history WHERE one = 1)";

/// PostgreSQL: the time in milliseconds.
const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A write transaction. Rolled back if it is dropped before its end.
pub struct Transaction {
    inner: sqlx::Transaction<'static, Any>,
    history: History,
    /// Of the history of PostgreSQL: a renewal changes it.
    random: i64,
    now_ms: u64,
}

/// How a commit failed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// The transaction is rolled back.
    Aborted(sqlx::Error),
    /// It may be committed.
    Unknown(Option<sqlx::Error>),
}

impl Transaction {
    /// Begins a transaction. SQLite has one at a time. Makes the rows of some accounts that are missing, with so
    /// many columns.
    pub(crate) async fn begin(
        database: &Database,
        accounts: &BTreeSet<u64>,
        columns: usize,
    ) -> Result<Self, sqlx::Error> {
        let mut inner = database.writers().begin_with(SETTINGS).await?;
        let is_embedded = database.is_embedded();
        let make = || {
            let make = statement(make_accounts_text(is_embedded, columns));
            number_rows::bind_column(make, is_embedded, accounts.iter().copied())
        };
        let (history, random, now_ms) = if is_embedded {
            if !accounts.is_empty() {
                make().execute(&mut *inner).await?;
            }
            (sqlite_history(database), 0, now_ms())
        } else {
            let begin = match accounts.is_empty() {
                true => statement(format!("SELECT {HISTORY}, {NOW_MS}")),
                false => make(),
            };
            let row = begin.fetch_one(&mut *inner).await?;
            (postgres_history(&row, 0)?, row.try_get(2)?, read_number(&row, 3)?)
        };
        Ok(Self { inner, history, random, now_ms })
    }

    /// Returns the connection, for the statements of the transaction.
    pub fn connection(&mut self) -> &mut AnyConnection {
        &mut self.inner
    }

    /// Returns whether the statements are SQLite's, not PostgreSQL's.
    pub fn is_sqlite(&self) -> bool {
        self.inner.backend_name() == SQLITE
    }

    /// Returns the history of the database.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the database's time at the beginning, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Appends rows to the feed, if there are any, and commits. The lock on the feed, the rows and the commit
    /// are one message, so that the lock is held no longer than the commit takes. Fails if the history was renewed
    /// since the transaction began: its changes would be applied to entries that nobody reads, and be
    /// missing from those of the new history.
    pub(crate) async fn commit(mut self, rows: &[FeedRow]) -> Result<(), CommitError> {
        let is_sqlite = self.is_sqlite();
        let append = match rows.is_empty() {
            true => String::new(),
            false => {
                let append = feed::append(rows, self.now_ms, self.random, is_sqlite);
                append.map_err(CommitError::Aborted)? + "; "
            }
        };
        let commit = async {
            if is_sqlite {
                if !rows.is_empty() {
                    sqlx::raw_sql(AssertSqlSafe(append)).execute(self.connection()).await?;
                }
                return self.inner.commit().await;
            }
            let text = format!("{append}COMMIT AND CHAIN");
            // What the driver then rolls back is another transaction, without an effect.
            sqlx::raw_sql(AssertSqlSafe(text)).execute(self.connection()).await.map(drop)
        };
        match timeout(COMMIT_TIMEOUT, commit).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if is_answer(&error) => Err(CommitError::Aborted(error)),
            Ok(Err(error)) => Err(CommitError::Unknown(Some(error))),
            Err(_elapsed) => Err(CommitError::Unknown(None)),
        }
    }
}

/// Returns the statement that makes rows of the table `accounts` which are missing: of some ids, the parameter,
/// and else with zeros. With PostgreSQL, it returns the history and the time, to save a round trip.
pub fn make_accounts_text(is_sqlite: bool, columns: usize) -> String {
    let zeros = ", 0".repeat(columns.saturating_sub(1));
    let ids = number_rows::table(is_sqlite, 1, 1);
    let make = format!(
        "INSERT INTO accounts SELECT column1{zeros} FROM {ids} \
         WHERE (SELECT id FROM accounts WHERE id = column1) IS NULL ORDER BY column1 \
         ON CONFLICT (id) DO NOTHING"
    );
    match is_sqlite {
        true => make,
        false => format!("WITH made AS ({make}) SELECT {HISTORY}, {NOW_MS}"),
    }
}

/// Returns whether an error is the database's answer to a statement, after which the transaction has
/// failed. An answer of class 08 or 57 may come from a server that ends, or from a pooler whose server
/// has: the statement may have been executed.
pub(crate) fn is_answer(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    !error.code().is_some_and(|code| code.starts_with("08") || code.starts_with("57P"))
}

/// Reads the history from the columns of [`HISTORY`], of which `column` is the first.
fn postgres_history(row: &AnyRow, column: usize) -> Result<History, sqlx::Error> {
    let (system, timeline): (String, String) = (row.try_get(column)?, row.try_get(column + 1)?);
    let random: i64 = row.try_get(column + 2)?;
    let digest = Sha256::digest(format!("{system} {timeline} {random}"));
    Ok(History(BASE64_URL_SAFE_NO_PAD.encode(&digest[..6])))
}

/// Returns the columns of a statement that tell the history: three.
pub const fn history_columns(is_embedded: bool) -> &'static str {
    if is_embedded { "'', '', 0" } else { HISTORY }
}

/// Reads the history from a row with [`history_columns`], of which `column` is the first.
pub fn row_history(
    database: &Database,
    row: &AnyRow,
    column: usize,
) -> Result<History, sqlx::Error> {
    match database.is_embedded() {
        true => Ok(sqlite_history(database)),
        false => postgres_history(row, column),
    }
}

/// Reads the history. Fails on a standby.
pub(crate) async fn read_history(database: &Database) -> Result<History, microblog_record::Error> {
    if database.is_embedded() {
        return Ok(sqlite_history(database));
    }
    let work = async {
        let read = sqlx::query(AssertSqlSafe(format!("SELECT {HISTORY}")));
        postgres_history(&read.fetch_one(database.readers()).await?, 0)
    };
    database.read("SELECT history", work).await
}

/// Begins another history: all entries of the cache are of an earlier one, and no read finds them.
/// Between two commits: a transaction fails if its history was renewed meanwhile.
pub(crate) async fn renew_history(database: &Database) -> Result<(), microblog_record::Error> {
    let work = async {
        let renew =
            format!("UPDATE history SET random = {}, position = {NEWEST} WHERE one = 1", random());
        if database.is_embedded() {
            // No other transaction writes before this one ends.
            let mut transaction = database.begin().await?;
            sqlx::raw_sql(AssertSqlSafe(renew)).execute(&mut *transaction).await?;
            sqlite_histories().remove(database.url());
            return transaction.commit().await;
        }
        let renew = format!("SELECT pg_advisory_xact_lock({}); {renew}", feed::LOCK);
        sqlx::raw_sql(AssertSqlSafe(renew)).execute(database.writers()).await.map(drop)
    };
    database.write("UPDATE history", work).await
}

/// The newest position of the feed.
const NEWEST: &str = "(SELECT COALESCE(MAX(position), 0) FROM feed)";

/// Returns the position of the feed at which the history began, or an earlier one.
pub(crate) async fn history_position(database: &Database) -> Result<u64, microblog_record::Error> {
    let work = async {
        let read =
            sqlx::query("SELECT position FROM history WHERE one = 1").fetch_one(database.readers());
        read_number(&read.await?, 0)
    };
    database.read("SELECT history", work).await
}

fn random() -> i64 {
    number(uuid::Uuid::new_v4().as_u64_pair().0 >> 11)
}

/// The history of each SQLite file of this process, by its URL: no other process has the file, and it may
/// have been exchanged before this one began.
static SQLITE_HISTORIES: Mutex<BTreeMap<String, History>> = Mutex::new(BTreeMap::new());

fn sqlite_histories() -> MutexGuard<'static, BTreeMap<String, History>> {
    SQLITE_HISTORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the history of an SQLite file.
pub(crate) fn sqlite_history(database: &Database) -> History {
    let random = || History(BASE64_URL_SAFE_NO_PAD.encode(&uuid::Uuid::new_v4().as_bytes()[..6]));
    sqlite_histories().entry(database.url().to_owned()).or_insert_with(random).clone()
}

/// Returns the database's time, in milliseconds since 1970.
pub async fn database_now_ms(database: &Database) -> Result<u64, microblog_record::Error> {
    if database.is_embedded() {
        return Ok(now_ms());
    }
    let read = async {
        let query = sqlx::query(AssertSqlSafe(format!("SELECT {NOW_MS}")));
        read_number(&query.fetch_one(database.readers()).await?, 0)
    };
    database.read("SELECT clock_timestamp", read).await
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Makes the row of the history, unless it is there. To be called after the migrations. An SQLite file has
/// another history in each process, which begins here.
pub(crate) async fn make_history(database: &Database) -> Result<(), microblog_record::Error> {
    let of_process = match database.is_embedded() {
        true => format!("UPDATE SET position = {NEWEST}"),
        false => "NOTHING".to_owned(),
    };
    let make = format!(
        "INSERT INTO history (one, random, position) SELECT 1, {}, {NEWEST} WHERE 1 = 1 \
         ON CONFLICT (one) DO {of_process}",
        random()
    );
    let work =
        async { sqlx::raw_sql(AssertSqlSafe(make)).execute(database.writers()).await.map(drop) };
    database.write("INSERT history", work).await
}
