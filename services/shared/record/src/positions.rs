//! The positions of a recorder: the newest recorded entry of the journal of each partition. A writer
//! of a partition's journal to the database locks its position first.

use std::collections::BTreeMap;

use microblog_domain::Partition;
use microblog_keyspace::{Change, Version};
use sqlx::{Row as _, any::AnyRow};

use crate::{
    Database, Error, Migration, WriteTransaction,
    sql::{ROWS_MAX, list, number, read, read_partition, rows, statement},
};

/// The first migration of a database with a recorder.
pub const POSITIONS: Migration = (1, "journal positions", include_str!("positions.sql"));

/// The newest recorded entries.
pub(crate) type Positions = BTreeMap<Partition, Change>;

/// Returns the identity of the record: `new`, if it has none yet.
pub(crate) async fn identity(database: &Database, new: &str) -> Result<String, Error> {
    let work = async {
        let insert = "INSERT INTO record_identity (one, id) VALUES (1, $1) ON CONFLICT DO NOTHING";
        sqlx::query(insert).bind(new.to_owned()).execute(database.writers()).await?;
        let select = sqlx::query("SELECT id FROM record_identity");
        select.fetch_one(database.writers()).await?.try_get(0)
    };
    database.write("INSERT record_identity", work).await
}

/// Returns the positions of all partitions.
pub(crate) async fn all(database: &Database) -> Result<Positions, Error> {
    let all = "SELECT partition, version, entry FROM journal_positions";
    let work = async {
        let rows = sqlx::query(all).fetch_all(database.readers()).await?;
        rows.iter().map(position).collect()
    };
    database.read("SELECT journal_positions", work).await
}

/// How long a transaction waits for a lock that another one has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockWait {
    /// As a step of the recorder does: for 1.5 seconds.
    Short,
    /// As a recovery does: for as long as a write may take.
    Long,
}

/// Begins a transaction, and locks the positions of some partitions, in ascending order.
pub(crate) async fn lock(
    database: &Database,
    partitions: &[Partition],
    wait: LockWait,
) -> Result<(WriteTransaction, Positions), Error> {
    let work = async {
        let mut transaction = match wait {
            LockWait::Short => database.begin_with_lock_timeout().await?,
            LockWait::Long => database.begin().await?,
        };
        let lock = if database.is_embedded() { "" } else { "FOR UPDATE" };
        let text = format!(
            "SELECT partition, version, entry FROM journal_positions WHERE partition IN ({}) \
             ORDER BY partition {lock}",
            list(1, partitions.len())
        );
        let query = partitions
            .iter()
            .fold(statement(text), |query, partition| query.bind(i64::from(partition.number())));
        let rows = query.fetch_all(&mut *transaction).await?;
        let positions = rows.iter().map(position).collect::<Result<_, _>>()?;
        Ok((transaction, positions))
    };
    database.write("SELECT journal_positions", work).await
}

/// Inserts positions of partitions that have none, and returns these partitions.
pub(crate) async fn insert(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
) -> Result<Vec<Partition>, sqlx::Error> {
    let rows = write(transaction, positions, "NOTHING RETURNING partition").await?;
    rows.iter().map(|row| read_partition(row, 0)).collect()
}

/// Sets positions.
pub(crate) async fn set(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
) -> Result<(), sqlx::Error> {
    let update = "UPDATE SET version = excluded.version, entry = excluded.entry";
    write(transaction, positions, update).await.map(|_| ())
}

async fn write(
    transaction: &mut WriteTransaction,
    positions: &[(Partition, Change)],
    on_conflict: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut written = Vec::new();
    for positions in positions.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO journal_positions (partition, version, entry) VALUES {} \
             ON CONFLICT (partition) DO {on_conflict}",
            rows(transaction.backend_name(), positions.len(), 3)
        );
        let query = positions.iter().fold(statement(text), |query, (partition, at)| {
            query
                .bind(i64::from(partition.number()))
                .bind(number(at.version.get()))
                .bind(at.text.clone())
        });
        written.extend(query.fetch_all(&mut **transaction).await?);
    }
    Ok(written)
}

fn position(row: &AnyRow) -> Result<(Partition, Change), sqlx::Error> {
    let version = Version::from_number(read(row, 1)?);
    Ok((read_partition(row, 0)?, Change { version, text: row.try_get(2)? }))
}
