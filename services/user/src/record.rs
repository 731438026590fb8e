//! The record of accounts in SQL: the accounts, and the deleted ones. Claims follow from them.
//!
//! Journal entries have no texts, so the recorder reads each changed account as it is now. Versions
//! of an account only grow, so a row never goes back, however often and late it is written. A
//! deletion is for ever, and replaces the account.
//!
//! Sessions are not recorded. The last end of one is: a recovery must not bring an ended one back.

mod recovery;
mod rows;

use std::collections::BTreeSet;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Journals, Recovery};
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Damaged, Database, Error as DatabaseError, ExistingPage, Migration, POSITIONS, RecordError,
    Recorder, Replace, RowKey, Tables, Work, WriteTransaction, change_feed,
};

use crate::{
    accounts::Accounts,
    changes,
    error::Error,
    journal::JournalEntry,
    keys,
    store::{Store, StoredDeletion, StoredState},
};

/// The change journals of the service.
const JOURNALS: Journals = Journals { key: keys::journal };

/// The most accounts that are read at once.
const PAGE: usize = 500;

/// The tables of the service.
pub struct AccountTables {
    accounts: Accounts,
}

/// Returns the recorder of the service.
pub fn recorder(accounts: Accounts, database: Database) -> Recorder<AccountTables> {
    let accounts = accounts.ignoring_closed();
    let keyspace = accounts.store.keyspace().clone();
    Recorder::new("user record", database, keyspace, JOURNALS, AccountTables { accounts })
}

impl Tables for AccountTables {
    const MIGRATIONS: &[Migration] =
        &[POSITIONS, (2, "accounts", include_str!("record/0002_accounts.sql")), change_feed(3)];

    fn accounts_key(partition: Partition) -> String {
        keys::accounts(partition)
    }

    type Entry = JournalEntry;

    fn parse(entry: &str) -> Option<JournalEntry> {
        JournalEntry::parse(entry)
    }

    const CHANGE_KINDS: &[ChangeKind] = &[ChangeKind::Account];

    fn change(entry: &JournalEntry) -> Option<pb::Change> {
        changes::change(entry)
    }

    fn existing<'a>(
        &'a self,
        database: &'a Database,
        _: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'a, Result<ExistingPage, DatabaseError>> {
        changes::existing(database, after).boxed()
    }

    // Versions guard the rows.
    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [JournalEntry],
        replace: Replace,
    ) -> Work<'a> {
        Box::pin(self.write_changed(transaction, changes, replace))
    }

    // A deletion stays true in any copy.
    fn clear<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partition: Partition,
    ) -> Work<'a> {
        Box::pin(async move { Ok(rows::delete_accounts_of(transaction, partition).await?) })
    }

    fn restore<'a>(
        &'a self,
        database: &'a Database,
        recovery: Recovery,
        damaged: &'a Damaged,
    ) -> Work<'a> {
        Box::pin(recovery::restore(&self.accounts, database, recovery, damaged))
    }

    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> Work<'a> {
        Box::pin(async move {
            for &partition in partitions {
                self.fill_accounts(transaction, partition).await?;
                self.fill_deletions(transaction, partition).await?;
            }
            Ok(())
        })
    }
}

impl AccountTables {
    fn store(&self) -> &Store {
        &self.accounts.store
    }

    // Claims are not rows: their entries only show whether Redis has lost some.
    async fn write_changed(
        &self,
        transaction: &mut WriteTransaction,
        changes: &[JournalEntry],
        replace: Replace,
    ) -> Result<(), RecordError> {
        let (mut changed, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        for &change in changes {
            match change {
                JournalEntry::Registration(id, _)
                | JournalEntry::Update(id, _)
                | JournalEntry::Credentials(id) => changed.insert(id),
                JournalEntry::Deletion(id, _) | JournalEntry::Confirmation(id) => {
                    changed.insert(id) | deleted.insert(id)
                }
                JournalEntry::Claim(_) => continue,
            };
        }
        let changed: Vec<_> = changed.into_iter().collect();
        for ids in changed.chunks(PAGE) {
            let stored = self.store().stored(ids).await?;
            write(transaction, ids, stored, &deleted, replace).await?;
        }
        let partitions: BTreeSet<_> = deleted.into_iter().map(UserId::partition).collect();
        for partition in partitions {
            rows::forget_freed_names(transaction, partition).await?;
        }
        Ok(())
    }

    async fn fill_accounts(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let mut cursor = 0;
        loop {
            let page = self.store().accounts(partition, cursor).await.map_err(redis_failed)?;
            // A scan may return an account twice, but a statement must not write a row twice.
            let ids: BTreeSet<_> = page.ids.into_iter().collect();
            let ids: Vec<_> = ids.into_iter().collect();
            for ids in ids.chunks(PAGE) {
                let stored = self.store().stored(ids).await?;
                write(transaction, ids, stored, &BTreeSet::new(), Replace::Older).await?;
            }
            if page.cursor == 0 {
                return Ok(());
            }
            cursor = page.cursor;
        }
    }

    async fn fill_deletions(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let mut rank = 0;
        loop {
            let ids = self.store().deleted_in(partition, rank, PAGE).await?;
            // One that was just confirmed may be in both lists.
            let ids: BTreeSet<_> = ids.into_iter().collect();
            let ids: Vec<_> = ids.into_iter().collect();
            if ids.is_empty() {
                return Ok(());
            }
            let stored = self.store().stored(&ids).await?;
            write(transaction, &ids, stored, &BTreeSet::new(), Replace::Older).await?;
            rank += PAGE;
        }
    }
}

/// Writes what Redis has of some ids. Of `deleted` ones it may have nothing any more.
async fn write(
    transaction: &mut WriteTransaction,
    ids: &[UserId],
    stored: Vec<Option<StoredState>>,
    deleted: &BTreeSet<UserId>,
    replace: Replace,
) -> Result<(), sqlx::Error> {
    let (mut accounts, mut deletions) = (Vec::new(), Vec::new());
    for (&id, stored) in ids.iter().zip(stored) {
        match stored {
            Some(StoredState::Account(account)) => accounts.push((id, account)),
            Some(StoredState::Deletion(deletion)) => deletions.push((id, deletion)),
            None if deleted.contains(&id) => {
                deletions.push((id, StoredDeletion { is_confirmed: true, ..Default::default() }));
            }
            None => {}
        }
    }
    rows::upsert_deletions(transaction, &deletions).await?;
    rows::upsert_accounts(transaction, &accounts, replace).await?;
    rows::delete_deleted(transaction, ids).await
}

/// Converts an error of the store.
fn redis_failed(error: Error) -> RecordError {
    RecordError::Redis(match error {
        Error::Store(error) => error,
        error => keyspace::Error::Malformed(error.into()),
    })
}
