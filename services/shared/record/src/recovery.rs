//! The recovery of partitions: of Redis from the database, and of the database from Redis.
//!
//! What must hold:
//!   * while a partition is being recovered, its functions reject changes;
//!   * what one store alone has is written to the other, unless the other has something newer;
//!   * an interrupted recovery is repeated, by any process;
//!   * a recovery writes nothing to Redis after another one has begun. The lease only keeps them from
//!     beginning: it may end during a pause of the process. So the functions that write compare the
//!     version of the entry that began the recovery.

use std::{future::Future, pin::pin, time::Duration};

use futures::{StreamExt as _, stream};
use microblog_domain::Partition;
use microblog_keyspace::{self as keyspace, Change, Recovery, Version};
use microblog_proto::common::DamagedRow;
use uuid::Uuid;

use crate::{
    Damaged, RecordError, Replace, Tables, WriteTransaction, change_feed, damaged,
    database::WRITE_TIMEOUT,
    positions::{self, LockWait, Positions},
    recorder::{PAGE, Recorder, about_the_journal, decode, is_recovering, known, repeat_stopped},
    wait_limit::limit_waits,
};

/// The partitions that a process recovers at once.
pub(crate) const RECOVERED_TOGETHER: usize = 8;

/// How often a lease is renewed: three times before it ends.
const LEASE_RENEWAL: Duration = Duration::from_secs(3);

/// How often a lease that another process has is tried again.
const LEASE_RETRY: Duration = Duration::from_millis(200);

/// The store that another one is restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Redis is restored from the database.
    Database,
    /// The database is written anew from Redis.
    Redis,
}

/// A restore of all partitions.
#[derive(Clone, Debug)]
pub struct Restore {
    source: Source,
    force: bool,
    /// The last recorded changes before.
    positions: Positions,
}

impl Restore {
    /// Returns the last change of a partition that was recorded before; an empty one if none was.
    pub fn position(&self, partition: Partition) -> Change {
        self.positions.get(&partition).cloned().unwrap_or_default()
    }
}

impl<T: Tables> Recorder<T> {
    /// Recovers the partitions that the recorder has found to lack changes. Skips those that another
    /// process recovers.
    pub async fn recover_lost(&self) -> Result<(), RecordError> {
        let lost: Vec<_> = self.lost().iter().copied().collect();
        let recover = async |partition| {
            // Never closed.
            let _permit = self.recoveries.acquire().await;
            let holder = Uuid::new_v4().to_string();
            if self.journals.lease(&self.keyspace, partition, &holder, false).await? {
                self.holding(partition, &holder, self.recover(partition, false)).await?;
                self.keyspace.states().open_recovered(partition);
                self.lost().remove(&partition);
            }
            Ok(())
        };
        let mut recovered =
            pin!(stream::iter(lost).map(recover).buffer_unordered(RECOVERED_TOGETHER));
        let mut done = Ok(());
        while let Some(recovered) = recovered.next().await {
            done = done.and(recovered);
        }
        done
    }

    /// Begins a restore. It is rejected if the other store has data and Redis is not the recorded one,
    /// unless `force` is set. Then of what both have, the newer data win in Redis; the database loses
    /// what Redis does not have.
    pub async fn begin_restore(&self, source: Source, force: bool) -> Result<Restore, RecordError> {
        self.identity().await?;
        let positions = positions::all(&self.database).await?;
        if source == Source::Database {
            if !force {
                self.check_restorable().await?;
            }
            self.database.analyze().await?;
        } else if !force {
            let recorded: Vec<_> = positions.keys().copied().collect();
            self.check_erasable(&recorded).await?;
        }
        Ok(Restore { source, force, positions })
    }

    /// Restores a partition of one store from the other. May be repeated, also after a crash. Returns
    /// whether it was restored since the restore began, by any process; if not, the stores agreed.
    /// A partition that was lost before it was ever recorded begins with what Redis has.
    pub async fn restore(
        &self,
        restore: &Restore,
        partition: Partition,
    ) -> Result<bool, RecordError> {
        if restore.source == Source::Redis {
            return self.leased(partition, self.rewrite(partition, restore.force)).await;
        }
        if !restore.positions.contains_key(&partition) {
            if restore.positions.is_empty() {
                return Err(RecordError::NotRecorded);
            }
            tracing::warn!(%partition, "the database has never recorded this partition");
            self.leased(partition, self.fill_unrecorded(partition)).await?;
            return Ok(false);
        }
        // They may be mended.
        let is_damaged = !self.damaged_rows(partition).await?.is_empty();
        let is_recovered = self.leased(partition, self.recover(partition, is_damaged)).await?;
        self.keyspace.states().open_recovered(partition);
        // Each recovery begins an epoch.
        let epoch = |change: &Change| change.version.epoch();
        let is_newer = |now: &Change| epoch(now) > epoch(&restore.position(partition));
        Ok(is_recovered || is_newer(&self.position(partition).await?))
    }

    /// Returns the damaged rows that the last recovery of a partition, by any process, has left out:
    /// the first thousand.
    pub async fn damaged_rows(&self, partition: Partition) -> Result<Vec<DamagedRow>, RecordError> {
        Ok(damaged::rows_of(&self.database, partition).await?)
    }

    async fn position(&self, partition: Partition) -> Result<Change, RecordError> {
        let (_, positions) = positions::lock(&self.database, &[partition], LockWait::Long).await?;
        positions.into_values().next().ok_or(RecordError::NotRecorded)
    }

    // Records what a partition's journal has. Returns whether Redis lacks no recorded change.
    async fn is_recorded(&self, partition: Partition) -> Result<bool, RecordError> {
        loop {
            let recorded = self.record_waiting(&[partition], LockWait::Long).await?;
            if !recorded.diverged.is_empty() {
                return Ok(false);
            }
            if recorded.more.is_empty() {
                return Ok(true);
            }
        }
    }

    // Does work under the lease of a partition. Waits for another holder.
    async fn leased<R>(
        &self,
        partition: Partition,
        work: impl Future<Output = Result<R, RecordError>>,
    ) -> Result<R, RecordError> {
        // Never closed.
        let _permit = self.recoveries.acquire().await;
        let holder = Uuid::new_v4().to_string();
        while !self.journals.lease(&self.keyspace, partition, &holder, false).await? {
            tokio::time::sleep(LEASE_RETRY).await;
        }
        self.holding(partition, &holder, work).await
    }

    async fn holding<R>(
        &self,
        partition: Partition,
        holder: &str,
        work: impl Future<Output = Result<R, RecordError>>,
    ) -> Result<R, RecordError> {
        let renew = async {
            loop {
                tokio::time::sleep(LEASE_RENEWAL).await;
                let renewed = self.journals.lease(&self.keyspace, partition, holder, true).await;
                if matches!(renewed, Ok(false)) {
                    break;
                }
            }
        };
        tokio::select! {
            // After a pause of the process, another one may have the lease.
            biased;
            () = renew => Err(RecordError::Contended(partition)),
            // Another process takes over if the database goes silent.
            done = limit_waits(WRITE_TIMEOUT, work) => {
                self.journals.end_lease(&self.keyspace, partition, holder).await?;
                done
            }
        }
    }

    /// Recovers a partition of which Redis lacks recorded changes, or all of it. Ends with a new
    /// epoch of its journal. Until then, changes of the partition are rejected. Returns whether there
    /// was anything to recover. With `again`, there always is.
    ///
    /// If the database is older than what Redis has, as after it was restored from a copy, the
    /// partition is written to it anew.
    async fn recover(&self, partition: Partition, again: bool) -> Result<bool, RecordError> {
        repeat_stopped(|| self.try_recover(partition, again)).await
    }

    async fn try_recover(&self, partition: Partition, again: bool) -> Result<bool, RecordError> {
        // A partition that is behind has lost nothing; another process may have recovered it.
        if self.is_recorded(partition).await? && !again {
            return Ok(false);
        }
        let newest = self.journals.newest(&self.keyspace, &[partition]).await?;
        let newest = newest.into_iter().flatten().next().unwrap_or_default().version;
        // Held until the database has what only Redis has.
        let (transaction, mut positions) =
            positions::lock(&self.database, &[partition], LockWait::Long).await?;
        let position = positions.remove(&partition).unwrap_or_default().version;
        // The process may have seen lost changes that were not recorded.
        let last = newest.max(position).max(self.keyspace.states().newest(partition));
        let [begin, end] = [("recovering", 0), ("recovered", 1)].map(|(kind, number)| Change {
            version: last.in_next_epoch(number),
            text: about_the_journal(kind, partition),
        });
        let is_database_old = self.is_newer(partition, position).await?;
        if !self.journals.append(&self.keyspace, partition, &begin).await? {
            return Err(RecordError::Contended(partition));
        }
        self.journals.set_identity(&self.keyspace, &[partition], self.identity().await?).await?;
        let recovery = Recovery { partition, version: begin.version };
        let damaged = Damaged::new(self.name);
        self.merge(transaction, partition, is_database_old, begin, &damaged).await?;
        self.tables.restore(&self.database, recovery, &damaged).await?;
        let damaged = damaged.into_rows();
        let left_out = damaged.len();
        let (mut transaction, _) =
            positions::lock(&self.database, &[partition], LockWait::Long).await?;
        damaged::replace(&mut transaction, partition, damaged).await?;
        self.database.write("INSERT damaged_rows", transaction.commit()).await?;
        if !self.journals.append(&self.keyspace, partition, &end).await? {
            return Err(RecordError::Contended(partition));
        }
        tracing::info!(%partition, left_out, "redis recovered from the database");
        Ok(true)
    }

    // Returns whether Redis has trimmed the entry at the position, since it had been recorded, or was
    // too long unrecorded: then the database is older. A recovery that was not completed does not
    // count.
    async fn is_newer(
        &self,
        partition: Partition,
        position: Version,
    ) -> Result<bool, keyspace::Error> {
        let oldest = [(partition, Version::default())];
        let pages = self.journals.pages(&self.keyspace, &oldest, PAGE).await?;
        let page = pages.into_iter().next().unwrap_or_default();
        Ok(page.first().is_some_and(|oldest| oldest.version > position)
            && !page.iter().all(is_recovering))
    }

    // Writes what only Redis has. Its journal may have changes that took the versions of lost ones.
    // The position becomes the entry that begins the recovery.
    async fn merge(
        &self,
        mut transaction: WriteTransaction,
        partition: Partition,
        is_database_old: bool,
        begin: Change,
        damaged: &Damaged,
    ) -> Result<(), RecordError> {
        if is_database_old {
            self.tables.clear(&mut transaction, partition).await?;
        }
        self.tables.fill(&mut transaction, &[partition]).await?;
        let mut from = Version::default();
        loop {
            let pages = self.journals.pages(&self.keyspace, &[(partition, from)], PAGE + 1).await?;
            let page = pages.into_iter().next().unwrap_or_default();
            let (changes, next) = page.split_at(page.len().min(PAGE));
            let changes = known::<T>(changes, changes.iter().map(decode::<T>), damaged);
            self.tables.apply(&mut transaction, &changes, Replace::Older).await?;
            let Some(next) = next.first() else { break };
            from = next.version;
        }
        let write = async {
            positions::set(&mut transaction, &[(partition, begin)]).await?;
            change_feed::restart(&mut transaction).await?;
            transaction.commit().await
        };
        Ok(self.database.write("INSERT journal_positions", write).await?)
    }

    // Writes a partition to the database anew. Redis serves meanwhile: later changes have entries.
    async fn rewrite(&self, partition: Partition, force: bool) -> Result<bool, RecordError> {
        let (transaction, mut positions) =
            positions::lock(&self.database, &[partition], LockWait::Long).await?;
        drop(transaction);
        let is_guarded = !force && positions.contains_key(&partition);
        if is_guarded {
            // It may have been lost since the restore began.
            self.check_erasable(&[partition]).await?;
        }
        // Processes reject changes at versions below the position that they have seen.
        let position = positions.remove(&partition).unwrap_or_default().version;
        let newest = self.journals.newest(&self.keyspace, &[partition]).await?;
        let newest = newest.into_iter().flatten().next().unwrap_or_default().version;
        let version = newest.max(position).in_next_epoch(0);
        let opened = Change { version, text: about_the_journal("opened", partition) };
        let appended = match is_guarded {
            true => self.journals.append_to_existing(&self.keyspace, partition, &opened).await?,
            false => self.journals.append(&self.keyspace, partition, &opened).await?,
        };
        if !appended {
            return Err(RecordError::Contended(partition));
        }
        self.journals.set_identity(&self.keyspace, &[partition], self.identity().await?).await?;
        let mut transaction = self.database.write("BEGIN", self.database.begin()).await?;
        let end = [(partition, opened)];
        positions::set(&mut transaction, &end).await?;
        self.tables.clear(&mut transaction, partition).await?;
        self.tables.fill(&mut transaction, &[partition]).await?;
        damaged::replace(&mut transaction, partition, Vec::new()).await?;
        self.check_not_lost(&end).await?;
        let commit = async {
            change_feed::restart(&mut transaction).await?;
            transaction.commit().await
        };
        self.database.write("INSERT journal_positions", commit).await?;
        tracing::info!(%partition, "database written anew from redis");
        Ok(true)
    }
}
