//! What a service has of its record: its tables, and what it writes to them and to Redis.

use std::collections::BTreeSet;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_domain::Partition;
use microblog_keyspace::Recovery;
use microblog_proto::common::{self as pb, ChangeKind};
use sqlx::{Any, Transaction};

use crate::{Damaged, Database, Error, Migration, RecordError};

/// A database transaction.
pub type WriteTransaction = Transaction<'static, Any>;

/// Which rows a change replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// All: changes arrive in order.
    All,
    /// Those that are not newer.
    Older,
}

/// The key of a row, behind which a page begins.
pub type RowKey = [i64; 3];

/// A page of what exists, and where the next one begins, if there may be one.
pub type ExistingPage = (Vec<pb::Change>, Option<RowKey>);

/// Work on the stores.
pub type Work<'a> = BoxFuture<'a, Result<(), RecordError>>;

/// The tables of a service.
pub trait Tables: Send + Sync {
    /// The migrations, beginning with [`POSITIONS`](crate::POSITIONS). One of them is the
    /// [`change_feed`](crate::change_feed()).
    const MIGRATIONS: &[Migration];

    /// Returns the key of the set of all accounts that have data in a partition.
    fn accounts_key(partition: Partition) -> String;

    /// An entry of a journal that changes rows.
    type Entry: Send + Sync;

    /// Decodes an entry; `None` if this version does not know it.
    fn parse(entry: &str) -> Option<Self::Entry>;

    /// The kinds of changes in the change feed.
    const CHANGE_KINDS: &[ChangeKind];

    /// Returns what an entry is in the change feed; `None` if it is not in the feed.
    fn change(entry: &Self::Entry) -> Option<pb::Change>;

    /// Returns a page of what exists of a kind of changes, behind the key of a row.
    fn existing<'a>(
        &'a self,
        database: &'a Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'a, Result<ExistingPage, Error>>;

    /// Returns the indices of those changes that change nothing recorded. They are not in the change
    /// feed. Called before the changes are written.
    fn unchanged<'a>(
        &'a self,
        _: &'a mut WriteTransaction,
        _: &'a [Self::Entry],
    ) -> BoxFuture<'a, Result<BTreeSet<usize>, RecordError>> {
        async { Ok(BTreeSet::new()) }.boxed()
    }

    /// Writes changes of any partitions, those of each partition in order.
    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [Self::Entry],
        replace: Replace,
    ) -> Work<'a>;

    /// Deletes the rows of a partition.
    fn clear<'a>(&'a self, transaction: &'a mut WriteTransaction, partition: Partition)
    -> Work<'a>;

    /// Writes the rows of a partition to Redis, where Redis has nothing newer. May be repeated. What
    /// would undo a later change is written by functions of the recovery. Leaves damaged rows out.
    fn restore<'a>(
        &'a self,
        database: &'a Database,
        recovery: Recovery,
        damaged: &'a Damaged,
    ) -> Work<'a>;

    /// Writes what Redis has of some partitions, where the tables have nothing newer.
    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> Work<'a>;
}
