//! The recovery of a partition from SQL: its clock, its deletions and accounts, and the claims on
//! names and addresses that lie in it, whose accounts may be in other partitions.
//!
//! Deletions come first: nothing that is deleted must show meanwhile. Then come accounts, before the
//! registrations that Redis has are aborted: an older copy may have the registration of an account.
//! Claims come last, since the profiles of their owners decide.
//!
//! Sessions of accounts that Redis does not have are lost. Those of an account that lacks an end of a
//! session end, since it is not known which one ended.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use microblog_domain::{Partition, Stamp, UserId};
use microblog_keyspace::{self as keyspace, Recovery};
use microblog_record::{Damaged, Database, Error as DatabaseError, RecordError, sql::next_page};

use super::{
    PAGE, redis_failed,
    rows::{self, Stored},
};
use crate::{
    accounts::Accounts,
    error::Error,
    identifier::{Identifier, IdentifierKind},
    name::Name,
    profile::{Record, Registration, State},
    store::{ClaimOwner, ClaimToRestore, Store, StoredAccount, StoredDeletion, unix_ms},
};

/// How far ahead of the time ids may be. Those beyond are from a clock that was wrong.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// The start of the first page: damaged rows may have negative ids.
const FIRST: Option<i64> = Some(i64::MIN);

/// The columns with the partition of a row, and with those of its claims.
const OWN: &str = "partition";
const NAME: &str = "name_partition";
const EMAIL: &str = "email_partition";

/// Brings a partition back.
pub(super) async fn restore(
    accounts: &Accounts,
    database: &Database,
    recovery: Recovery,
    damaged: &Damaged,
) -> Result<(), RecordError> {
    let (store, partition) = (&accounts.store, recovery.partition);
    let restore = Restore { store, database, recovery, partition, damaged };
    restore.raise_clock().await?;
    restore.restore_profiles().await?;
    restore.abort_registrations().await?;
    restore.restore_claims().await
}

struct Restore<'a> {
    store: &'a Store,
    database: &'a Database,
    recovery: Recovery,
    partition: Partition,
    damaged: &'a Damaged,
}

/// The claim that an account has by the database, and the end of its hold in Unix ms, or 0.
type Rightful<'a> = (Identifier<'a>, ClaimOwner, u64);

/// What becomes of a claim.
enum Verdict {
    /// It is right as it is.
    Keep,
    /// The rightful owner gets it.
    Restore,
    /// The rightful owner gets it, unless this registration becomes an account.
    RestoreFrom(UserId),
    /// It belongs to another account.
    Conflict(UserId),
}

impl Restore<'_> {
    async fn raise_clock(&self) -> Result<(), RecordError> {
        let limit = Stamp::first_at(SystemTime::now() + AHEAD_MAX, self.partition).get();
        let newest = rows::newest_id(self.database.writers(), self.partition, limit);
        let newest = self.database.write("SELECT accounts", newest).await?;
        Ok(self.store.raise_clock(self.partition, newest).await?)
    }

    async fn restore_profiles(&self) -> Result<(), RecordError> {
        let mut next = FIRST;
        while let Some(after) = next {
            let deletions: Vec<(UserId, StoredDeletion)>;
            (deletions, next) = self.page(OWN, after).await?;
            self.store.restore_deletions(self.recovery, &deletions).await?;
        }
        let mut next = FIRST;
        while let Some(after) = next {
            let accounts: Vec<(UserId, StoredAccount)>;
            (accounts, next) = self.page(OWN, after).await?;
            self.store.restore_accounts(self.recovery, &accounts).await?;
        }
        Ok(())
    }

    // Meanwhile the partition starts none. None was acknowledged, and their names may belong to
    // others.
    async fn abort_registrations(&self) -> Result<(), RecordError> {
        loop {
            let ids = self.store.registrations_in(self.partition).await.map_err(redis_failed)?;
            if ids.is_empty() {
                return Ok(());
            }
            self.abort(&ids).await?;
        }
    }

    /// Aborts and deletes registrations. Returns those that are no accounts.
    async fn abort(&self, ids: &[UserId]) -> Result<Vec<UserId>, RecordError> {
        let aborted = self.store.abort_unchecked(ids).await.map_err(redis_failed)?;
        match self.store.release(&aborted, Duration::ZERO).await {
            // In a partition that is being recovered, a claim stays. It is void without a profile.
            Ok(()) | Err(Error::Store(keyspace::Error::Recovering(_))) => {}
            Err(error) => return Err(redis_failed(error)),
        }
        self.store.drop_registrations(ids).await.map_err(redis_failed)?;
        Ok(aborted.into_iter().map(|registration| registration.id).collect())
    }

    async fn restore_claims(&self) -> Result<(), RecordError> {
        for (column, kind) in [(NAME, IdentifierKind::Name), (EMAIL, IdentifierKind::Address)] {
            let mut next = FIRST;
            while let Some(after) = next {
                let accounts: Vec<(UserId, StoredAccount)>;
                (accounts, next) = self.page(column, after).await?;
                let claims = accounts.iter().filter_map(|(id, account)| account.claims(*id));
                let claims: Vec<Registration> = claims.collect();
                let rightful = claims.iter().map(|claims| {
                    (Identifier::of(claims, kind), ClaimOwner::Account(claims.id), 0)
                });
                self.settle(&rightful.collect::<Vec<_>>()).await?;
            }
        }
        self.restore_holds().await
    }

    async fn restore_holds(&self) -> Result<(), RecordError> {
        let mut next = FIRST;
        while let Some(after) = next {
            let deletions: Vec<(UserId, StoredDeletion)>;
            (deletions, next) = self.page(NAME, after).await?;
            let now = unix_ms(SystemTime::now());
            let held = deletions.iter().filter(|(_, deletion)| deletion.held_until_ms > now);
            let name = |(id, deletion): &(UserId, StoredDeletion)| {
                Some((*id, deletion.name(*id)?, deletion.held_until_ms))
            };
            let names: Vec<(UserId, Name, u64)> = held.filter_map(name).collect();
            let rightful = names
                .iter()
                .map(|(id, name, until)| (Identifier::Name(name), ClaimOwner::Hold(*id), *until));
            self.settle(&rightful.collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// Restores claims, where they are not right.
    async fn settle(&self, rightful: &[Rightful<'_>]) -> Result<(), RecordError> {
        let claims: Vec<_> = rightful.iter().map(|(identifier, ..)| *identifier).collect();
        let owners = self.store.claim_owners(&claims).await.map_err(redis_failed)?;
        let differs =
            |(rightful, seen): &(&Rightful<'_>, Option<ClaimOwner>)| *seen != Some(rightful.1);
        let differing: Vec<_> = rightful.iter().zip(owners).filter(differs).collect();
        let owners: Vec<UserId> = differing
            .iter()
            .flat_map(|(rightful, seen)| [Some(rightful.1), *seen])
            .flatten()
            .map(ClaimOwner::account)
            .collect();
        let profiles = self.profiles(&owners).await?;
        let (mut restored, mut pending) = (Vec::new(), Vec::new());
        for (&(identifier, owner, held_until_ms), seen) in differing {
            match verdict(identifier, owner, seen, &profiles) {
                Verdict::Keep => continue,
                Verdict::Restore => {}
                Verdict::RestoreFrom(registration) => pending.push(registration),
                Verdict::Conflict(other) => {
                    let (id, other) = (owner.account().get(), other.get());
                    let problem = format!("account {other} has the same name or address");
                    self.damaged.add("accounts", format!("account={id}"), problem);
                    continue;
                }
            }
            restored.push(ClaimToRestore { identifier, seen, owner, held_until_ms });
        }
        let aborted = self.abort(&pending).await?;
        let became_account = |id: UserId| pending.contains(&id) && !aborted.contains(&id);
        restored.retain(|claim| !claim.seen.is_some_and(|seen| became_account(seen.account())));
        Ok(self.store.restore_claims(self.recovery, &restored).await?)
    }

    /// Returns profiles, without damaged ones, and without accounts that are deleted by the database:
    /// their partitions may not be recovered yet.
    async fn profiles(&self, ids: &[UserId]) -> Result<HashMap<UserId, Record>, RecordError> {
        let profiles = self.store.read_each(ids).await.map_err(redis_failed)?;
        let profile = |(&id, profile): (&UserId, Result<Option<Record>, Error>)| {
            Some((id, profile.ok().flatten()?))
        };
        let mut profiles: HashMap<_, _> = ids.iter().zip(profiles).filter_map(profile).collect();
        let found: Vec<UserId> = profiles.keys().copied().collect();
        let deleted = rows::deleted_among(self.database.writers(), &found);
        for id in self.database.write("SELECT deleted_accounts", deleted).await? {
            profiles.remove(&id);
        }
        Ok(profiles)
    }

    /// Returns a page of rows, and the start of the next one, if there may be one.
    async fn page<T: Stored + Send>(
        &self,
        column: &'static str,
        after: i64,
    ) -> Result<(Vec<(UserId, T)>, Option<i64>), DatabaseError> {
        let page = rows::page::<T>(self.database, column, self.partition, after, PAGE);
        let rows = self.database.write("SELECT accounts", page).await?;
        Ok((self.damaged.decode(T::TABLE, 1, &rows, rows::decode), next_page(&rows, PAGE)))
    }
}

/// Returns what becomes of a claim that is not the rightful owner's.
fn verdict(
    identifier: Identifier<'_>,
    owner: ClaimOwner,
    seen: Option<ClaimOwner>,
    profiles: &HashMap<UserId, Record>,
) -> Verdict {
    let is_deleted = |id| profiles.get(id).is_some_and(|profile| profile.state == State::Deleted);
    match (owner, seen) {
        // Its deletion is not recorded yet.
        (ClaimOwner::Account(id), _) if is_deleted(&id) => Verdict::Keep,
        (_, None) | (ClaimOwner::Account(_), Some(ClaimOwner::Hold(_))) => Verdict::Restore,
        (ClaimOwner::Hold(_), Some(ClaimOwner::Hold(_))) => Verdict::Keep,
        // Released by then.
        (ClaimOwner::Hold(id), Some(ClaimOwner::Account(of))) if id == of => Verdict::Restore,
        (_, Some(ClaimOwner::Account(id))) => match profiles.get(&id) {
            Some(profile) if !identifier.is_valid(profile) => Verdict::Restore,
            Some(profile) if profile.state == State::Pending => Verdict::RestoreFrom(id),
            Some(_) => Verdict::Conflict(id),
            None => Verdict::Restore,
        },
    }
}
