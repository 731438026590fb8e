//! The rows of accounts and deleted accounts.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use microblog_domain::{Partition, Stamp, UserId};
use microblog_record::{
    Connections, Database, Replace, WriteTransaction,
    sql::{
        ROWS_MAX, check_partition, list, number, read, read_id, read_partition, read_text, rows,
        statement, text_column,
    },
};
use sqlx::any::AnyRow;

use crate::{
    password::Hash,
    store::{StoredAccount, StoredDeletion, unix_ms},
};

/// The partition of a claim that is not known.
const NONE: i64 = -1;

/// Writes accounts. Each part of a row is replaced by one that is not older.
///
/// In a recovery, an end of sessions that is newer than the recorded one may not have followed it:
/// another session may have ended, and Redis may have lost that. A yet newer end, which Redis lacks,
/// ends all.
pub(super) async fn upsert_accounts(
    transaction: &mut WriteTransaction,
    accounts: &[(UserId, StoredAccount)],
    replace: Replace,
) -> Result<(), sqlx::Error> {
    let ended = match replace {
        Replace::All => "excluded.sessions_ended",
        Replace::Older => "excluded.sessions_ended + 1",
    };
    let newer = |value: &str, version: &str| {
        format!(
            "{value} = CASE WHEN excluded.{version} >= accounts.{version} \
             THEN excluded.{value} ELSE accounts.{value} END"
        )
    };
    let parts = [
        newer("card", "card_version"),
        newer("card_version", "card_version"),
        newer("password", "password_version"),
        newer("password_version", "password_version"),
        format!(
            "sessions_ended = CASE WHEN excluded.sessions_ended > accounts.sessions_ended \
             THEN {ended} ELSE accounts.sessions_ended END"
        ),
    ];
    for accounts in accounts.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO accounts (account, partition, card, email, password, request, \
             name_partition, email_partition, card_version, password_version, sessions_ended) \
             VALUES {} ON CONFLICT (account) DO UPDATE SET {}",
            rows(transaction.backend_name(), accounts.len(), 11),
            parts.join(", ")
        );
        let query = accounts.iter().fold(statement(text), |query, (id, account)| {
            let claims = account.claims(*id);
            let partition = |partition: Option<Partition>| partition.map_or(NONE, of);
            query
                .bind(number(id.get()))
                .bind(of(id.partition()))
                .bind(BASE64.encode(&account.card))
                .bind(account.email.clone())
                .bind(account.password.as_str().to_owned())
                .bind(account.request.clone())
                .bind(partition(claims.as_ref().map(|claims| claims.name.partition())))
                .bind(partition(claims.as_ref().map(|claims| claims.address.partition())))
                .bind(number(account.card_version))
                .bind(number(account.password_version))
                .bind(number(account.sessions_ended))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Writes deleted accounts. One that is not confirmed does not replace a confirmed one.
pub(super) async fn upsert_deletions(
    transaction: &mut WriteTransaction,
    deletions: &[(UserId, StoredDeletion)],
) -> Result<(), sqlx::Error> {
    for deletions in deletions.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO deleted_accounts \
             (account, partition, draft, name_partition, email, held_until, confirmed) VALUES {} \
             ON CONFLICT (account) DO UPDATE SET draft = excluded.draft, \
             name_partition = excluded.name_partition, email = excluded.email, \
             held_until = excluded.held_until, confirmed = excluded.confirmed \
             WHERE deleted_accounts.confirmed <= excluded.confirmed",
            rows(transaction.backend_name(), deletions.len(), 7)
        );
        let query = deletions.iter().fold(statement(text), |query, (id, deletion)| {
            query
                .bind(number(id.get()))
                .bind(of(id.partition()))
                .bind(BASE64.encode(&deletion.draft))
                .bind(deletion.name(*id).map_or(NONE, |name| of(name.partition())))
                .bind(deletion.email.clone())
                .bind(number(deletion.held_until_ms))
                .bind(i64::from(deletion.is_confirmed))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Deletes those of some accounts that are deleted.
pub(super) async fn delete_deleted(
    transaction: &mut WriteTransaction,
    ids: &[UserId],
) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(ROWS_MAX) {
        let text = format!(
            "DELETE FROM accounts WHERE account IN ({}) \
             AND account IN (SELECT account FROM deleted_accounts)",
            list(1, ids.len())
        );
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Deletes all accounts of a partition.
pub(super) async fn delete_accounts_of(
    transaction: &mut WriteTransaction,
    partition: Partition,
) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("DELETE FROM accounts WHERE partition = $1").bind(of(partition));
    delete.execute(&mut **transaction).await.map(|_| ())
}

/// Deletes the names of a partition's deleted accounts that are not held any more.
pub(super) async fn forget_freed_names(
    transaction: &mut WriteTransaction,
    partition: Partition,
) -> Result<(), sqlx::Error> {
    let update = "UPDATE deleted_accounts SET draft = '', name_partition = -1, held_until = 0 \
                  WHERE partition = $1 AND held_until BETWEEN 1 AND $2 AND confirmed = 1";
    let update = sqlx::query(update).bind(of(partition)).bind(number(unix_ms(SystemTime::now())));
    update.execute(&mut **transaction).await.map(|_| ())
}

/// A row that is read in pages.
pub(super) trait Stored: Sized {
    /// The table.
    const TABLE: &str;

    /// The columns after the account and the partition: texts, and others.
    const TEXTS: &[&str];
    const OTHERS: &str;

    /// Decodes the columns.
    fn decode(id: UserId, row: &AnyRow) -> Result<Self, sqlx::Error>;
}

impl Stored for StoredAccount {
    const TABLE: &str = "accounts";
    const TEXTS: &[&str] = &["card", "email", "password", "request"];
    const OTHERS: &str = "card_version, password_version, sessions_ended";

    fn decode(id: UserId, row: &AnyRow) -> Result<Self, sqlx::Error> {
        let account = Self {
            card: card(row, 2)?,
            email: read_text(row, 3)?,
            password: Hash::stored(read_text(row, 4)?),
            request: read_text(row, 5)?,
            card_version: version(row, 6)?,
            password_version: version(row, 7)?,
            sessions_ended: version(row, 8)?,
        };
        match account.claims(id) {
            Some(_) => Ok(account),
            None => Err(sqlx::Error::Decode("card or address".into())),
        }
    }
}

impl Stored for StoredDeletion {
    const TABLE: &str = "deleted_accounts";
    const TEXTS: &[&str] = &["draft", "email"];
    const OTHERS: &str = "held_until, confirmed";

    fn decode(_: UserId, row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            draft: card(row, 2)?,
            email: read_text(row, 3)?,
            held_until_ms: read(row, 4)?,
            is_confirmed: read(row, 5)? == 1,
        })
    }
}

/// Reads a page of rows in the order of their accounts, from behind an account on, where a column
/// has a partition.
pub(super) async fn page<T: Stored>(
    database: &Database,
    column: &'static str,
    partition: Partition,
    after: i64,
    count: usize,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let texts = T::TEXTS.iter().map(|text| text_column(database, text));
    let text = format!(
        "SELECT account, partition, {}, {} FROM {} WHERE {column} = $1 AND account > $2 \
         ORDER BY account LIMIT $3",
        texts.collect::<Vec<_>>().join(", "),
        T::OTHERS,
        T::TABLE
    );
    let query = statement(text).bind(of(partition)).bind(after).bind(count as i64);
    query.fetch_all(database.writers()).await
}

/// Decodes a row of a page.
pub(super) fn decode<T: Stored>(row: &AnyRow) -> Result<(UserId, T), sqlx::Error> {
    let id = read_id(row, 0, UserId::new)?;
    check_partition(read_partition(row, 1)?, id.partition())?;
    Ok((id, T::decode(id, row)?))
}

/// Returns those of some accounts that are deleted.
pub(super) async fn deleted_among(
    connections: &Connections,
    ids: &[UserId],
) -> Result<Vec<UserId>, sqlx::Error> {
    let mut deleted = Vec::new();
    for ids in ids.chunks(ROWS_MAX) {
        let text = format!(
            "SELECT account FROM deleted_accounts WHERE account IN ({})",
            list(1, ids.len())
        );
        let query = ids.iter().fold(statement(text), |query, id| query.bind(number(id.get())));
        for row in query.fetch_all(connections).await? {
            deleted.push(read_id(&row, 0, UserId::new)?);
        }
    }
    Ok(deleted)
}

/// Returns the greatest id of a partition that is recorded, up to a limit; 0 if there is none.
pub(super) async fn newest_id(
    connections: &Connections,
    partition: Partition,
    limit: u64,
) -> Result<u64, sqlx::Error> {
    let mut newest = 0;
    for table in ["accounts", "deleted_accounts"] {
        let text = format!(
            "SELECT COALESCE(MAX(account), 0) FROM {table} WHERE partition = $1 \
             AND account BETWEEN 1 AND $2"
        );
        let query = statement(text).bind(of(partition)).bind(number(limit));
        newest = newest.max(read(&query.fetch_one(connections).await?, 0)?);
    }
    Ok(newest)
}

fn of(partition: Partition) -> i64 {
    partition.number().into()
}

fn version(row: &AnyRow, column: usize) -> Result<u64, sqlx::Error> {
    read_id(row, column, Stamp::new).map(Stamp::get)
}

fn card(row: &AnyRow, column: usize) -> Result<Vec<u8>, sqlx::Error> {
    BASE64.decode(read_text(row, column)?).map_err(|error| sqlx::Error::Decode(error.into()))
}
