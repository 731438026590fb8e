//! The check of a database before a service uses it: that it is what the statements of this crate rely
//! on. It takes the place of a list of supported engines and versions, and costs some statements.
//!
//! Of PostgreSQL alone: SQLite is part of the program.

use sqlx::{Any, AssertSqlSafe, Executor as _, Row as _, Transaction};
use uuid::Uuid;

use crate::{Database, Unusable, error};

/// A step of the check fails with a reason, or because the database is unavailable.
enum Failure {
    Unusable(Unusable),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(rejected) if error::is_fault(&**rejected) => {
                Self::Unusable(Unusable::Statement(error))
            }
            _ => Self::Database(error),
        }
    }
}

/// How long the second connection waits for the lock of the first one.
const LOCK_WAIT: &str = "; SET LOCAL lock_timeout = '100ms'";

/// Serializes the creation of the table below: CREATE TABLE IF NOT EXISTS fails for one of two at a
/// time.
const CREATION_LOCK: u64 = 0x6d62_6c6f_675f_6373;

/// Checks a database. The outer error is one of the database; the inner one is a reason.
pub(crate) async fn check(database: &Database) -> Result<Result<(), Unusable>, sqlx::Error> {
    match check_all(database).await {
        Ok(()) => Ok(Ok(())),
        Err(Failure::Unusable(reason)) => Ok(Err(reason)),
        Err(Failure::Database(error)) => Err(error),
    }
}

async fn check_all(database: &Database) -> Result<(), Failure> {
    // A number of this check: others run at the same time. Positive, and exact in each type.
    let number = Uuid::new_v4().as_u64_pair().0 >> 11;
    let mut reader = database.readers().begin().await?;
    check_encoding(&mut reader).await?;
    lock(&mut reader, number).await?;
    check_lock(database, number).await?;
    write(database, number).await?;
    let seen = format!("SELECT COUNT(*) FROM start_checks WHERE number = {number}");
    let seen: i64 = reader.fetch_one(AssertSqlSafe(seen)).await?.try_get(0)?;
    reader.rollback().await?;
    let delete = AssertSqlSafe(format!("DELETE FROM start_checks WHERE number = {number}"));
    database.writers().execute(delete).await?;
    match seen {
        1 => Ok(()),
        _ => Err(Failure::Unusable(Unusable::OldSnapshot)),
    }
}

async fn check_encoding(transaction: &mut Transaction<'static, Any>) -> Result<(), Failure> {
    let encoding: String = transaction.fetch_one("SHOW server_encoding").await?.try_get(0)?;
    match &*encoding {
        "UTF8" => Ok(()),
        _ => Err(Failure::Unusable(Unusable::Encoding(encoding))),
    }
}

/// Sees that a second connection waits for the lock.
async fn check_lock(database: &Database, number: u64) -> Result<(), Failure> {
    let mut second = database.writers().begin_with(LOCK_WAIT).await?;
    match lock(&mut second, number).await {
        Ok(()) => Err(Failure::Unusable(Unusable::NoLock)),
        Err(error) if error::is_locked(&error) => Ok(second.rollback().await?),
        Err(error) => Err(error.into()),
    }
}

/// Commits a row.
async fn write(database: &Database, number: u64) -> Result<(), Failure> {
    let mut writer = database.writers().begin().await?;
    let written = async {
        // Not one of another schema of the search path.
        const MISSING: &str =
            "SELECT to_regclass(quote_ident(current_schema()) || '.start_checks') IS NULL";
        if writer.fetch_one(MISSING).await?.try_get(0)? {
            lock(&mut writer, CREATION_LOCK).await?;
            const CREATE: &str =
                "CREATE TABLE IF NOT EXISTS start_checks (number BIGINT NOT NULL PRIMARY KEY)";
            writer.execute(CREATE).await?;
        }
        let insert = format!("INSERT INTO start_checks (number) VALUES ({number})");
        writer.execute(AssertSqlSafe(insert)).await?;
        writer.commit().await
    };
    match written.await {
        Err(error) if error::is_denied(&error) => Err(Failure::Unusable(Unusable::NoRights(error))),
        done => Ok(done?),
    }
}

async fn lock(transaction: &mut Transaction<'static, Any>, key: u64) -> Result<(), sqlx::Error> {
    let lock = AssertSqlSafe(format!("SELECT pg_advisory_xact_lock({key})"));
    transaction.execute(lock).await.map(|_| ())
}
