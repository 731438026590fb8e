//! Accounts: reads, changes and deletion. The rules of the service are methods of [`Accounts`], one
//! file per group. They use the store's steps, but neither keys nor wire types.

use std::{collections::HashSet, future::Future, time::Duration};

use microblog_domain::{Invalid, UserId};

use crate::{
    address::Address,
    error::Error,
    identifier::Identifier,
    name::Name,
    password::{Hasher, Password},
    profile::{ProfileField, Record, State, User},
    store::{ClaimOwner, DeletedAccount, Store, intact},
};

/// The rules of the service, with their dependencies.
#[derive(Clone)]
pub struct Accounts {
    pub(crate) store: Store,
    pub(crate) hasher: Hasher,
    pub(crate) session_ttl: Duration,
    /// How long the name of a deleted account is held.
    pub(crate) freed_name_hold: Duration,
}

/// The status of a claim on a name or address.
#[derive(Clone, Debug)]
pub(crate) enum ClaimStatus {
    /// Free, or a stale claim.
    Free,
    /// A deleted account's name that is held.
    Held,
    /// Owned by this account or pending registration.
    OwnedBy(Box<Record>),
}

impl Accounts {
    /// Returns the rules on a store. `session_ttl` is the lifetime of sessions; names of deleted
    /// accounts are held for `freed_name_hold`.
    pub const fn new(
        store: Store,
        hasher: Hasher,
        session_ttl: Duration,
        freed_name_hold: Duration,
    ) -> Self {
        Self { store, hasher, session_ttl, freed_name_hold }
    }

    /// Returns the rules on a store whose calls closed partitions accept.
    pub(crate) fn ignoring_closed(&self) -> Self {
        Self { store: self.store.ignoring_closed(), ..self.clone() }
    }

    /// Returns the public part of an account.
    pub async fn get(&self, id: UserId) -> Result<User, Error> {
        self.store.users(&[id]).await?.pop().ok_or(Error::UserNotFound)
    }

    /// Returns the public parts of the ids that are accounts, deduplicated, in their order.
    pub async fn get_many(&self, mut ids: Vec<UserId>) -> Result<Vec<User>, Error> {
        let mut seen = HashSet::with_capacity(ids.len());
        ids.retain(|&id| seen.insert(id));
        self.store.users(&ids).await
    }

    /// Returns the public part of the account with this name.
    pub async fn get_by_name(&self, name: &Name) -> Result<User, Error> {
        let [owner] = self.claim_statuses([Identifier::Name(name)]).await?;
        match owner {
            ClaimStatus::OwnedBy(record) if record.state == State::Active => Ok(record.user),
            _ => Err(Error::UserNotFound),
        }
    }

    /// Resolves names to accounts, deduplicated, in their order; skips unknown ones. Two round
    /// trips; one if there is no claim.
    pub async fn resolve(&self, mut names: Vec<Name>) -> Result<Vec<(Name, UserId)>, Error> {
        let mut seen = HashSet::with_capacity(names.len());
        names.retain(|name| seen.insert(name.clone()));
        let claims: Vec<_> = names.iter().map(Identifier::Name).collect();
        let owners = self.store.claim_owners(&claims).await?;
        let owners: Vec<_> = owners.into_iter().map(|one| one.and_then(ClaimOwner::id)).collect();
        let mut ids: Vec<UserId> = owners.iter().copied().flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        let users = self.store.users(&ids).await?;
        // The profile decides whether a claim is valid.
        let is_valid = |owner: &UserId, name: &Name| {
            let found = users.binary_search_by_key(owner, |user| user.id);
            found.is_ok_and(|at| users[at].has_name(name))
        };
        let named = |(name, owner): (Name, Option<UserId>)| {
            owner.filter(|owner| is_valid(owner, &name)).map(|id| (name, id))
        };
        Ok(names.into_iter().zip(owners).filter_map(named).collect())
    }

    /// Returns an account with its private part.
    pub async fn get_own(&self, id: UserId) -> Result<Record, Error> {
        let record = self.store.read(&[id]).await?.pop().flatten();
        record.filter(|record| record.state == State::Active).ok_or(Error::UserNotFound)
    }

    /// Returns whether a name is free to register.
    pub async fn is_free(&self, name: &Name) -> Result<bool, Error> {
        let [claim_status] = self.claim_statuses([Identifier::Name(name)]).await?;
        Ok(matches!(claim_status, ClaimStatus::Free))
    }

    /// Changes fields of a profile, and returns it.
    pub async fn update(
        &self,
        id: UserId,
        changes: Vec<(ProfileField, String)>,
    ) -> Result<User, Error> {
        if !changes.is_empty() {
            let store = self.store.clone();
            let update = async move { store.update(id, &changes).await };
            if !write(update).await? {
                return Err(Error::UserNotFound);
            }
        }
        self.get(id).await
    }

    /// Deletes an account after checking its password; an account with an external id has none. Frees
    /// its address at once, its name after the hold.
    pub async fn delete(&self, id: UserId, password: Option<&Password>) -> Result<(), Error> {
        let record = match password {
            Some(password) => {
                let permit = self.hasher.permit().await?;
                self.check_password(&permit, id, password).await?
            }
            None => {
                let record = self.get_own(id).await?;
                if !matches!(record.address(), Some(Address::External(_))) {
                    return Err(Invalid::new("password", "must not be empty").into());
                }
                record
            }
        };
        let accounts = self.clone();
        write(async move {
            let hold = accounts.freed_name_hold;
            if !accounts.store.delete(id, &record.password, hold).await? {
                return Err(Error::BadCredentials);
            }
            let deleted = intact(record.claims(), "an account")?;
            accounts.store.release(std::slice::from_ref(&deleted), hold).await?;
            accounts.store.reset_attempts(&deleted.address).await
        })
        .await
    }

    /// Returns deleted accounts that are not confirmed.
    pub async fn deletions(&self, max: usize) -> Result<Vec<UserId>, Error> {
        self.store.deletions(max).await
    }

    /// Deletes the rest of a deleted account. First releases its claims and deletes its failure
    /// counter, in case the deletion was interrupted. Skips active accounts.
    pub async fn confirm_deletion(&self, id: UserId) -> Result<(), Error> {
        let store = self.store.clone();
        write(async move {
            match store.deleted(id).await {
                Ok(Some(DeletedAccount { claims, hold })) => {
                    store.release(std::slice::from_ref(&claims), hold).await?;
                    store.reset_attempts(&claims.address).await?;
                }
                Ok(None) => {}
                // Its claims are unknown, but stale: they can be taken over.
                Err(Error::Damaged(what)) => tracing::error!(id = id.get(), "{what} is damaged"),
                Err(error) => return Err(error),
            }
            store.confirm_deletion(id).await
        })
        .await
    }

    /// Returns the status of each claim. At most two round trips.
    pub(crate) async fn claim_statuses<const N: usize>(
        &self,
        claims: [Identifier<'_>; N],
    ) -> Result<[ClaimStatus; N], Error> {
        let found = self.claim_statuses_of(&claims).await?;
        found.try_into().map_err(|_| Error::Damaged("a response"))
    }

    /// As `claim_statuses`, for any number of claims.
    pub(crate) async fn claim_statuses_of(
        &self,
        claims: &[Identifier<'_>],
    ) -> Result<Vec<ClaimStatus>, Error> {
        let owners = self.store.claim_owners(claims).await?;
        let ids: Vec<_> = owners.iter().filter_map(|one| one.and_then(ClaimOwner::id)).collect();
        let mut records = match ids.is_empty() {
            true => Vec::new().into_iter(),
            false => self.store.read(&ids).await?.into_iter(),
        };
        let claim_status = |(owner, &claim): (Option<ClaimOwner>, &Identifier<'_>)| match owner {
            None => ClaimStatus::Free,
            Some(ClaimOwner::Hold(_)) => ClaimStatus::Held,
            Some(ClaimOwner::Account(_)) => self.claim_status(claim, records.next().flatten()),
        };
        Ok(owners.into_iter().zip(claims).map(claim_status).collect())
    }

    /// Returns the status of a claim from its owner's profile, if there is one.
    pub(crate) fn claim_status(&self, claim: Identifier<'_>, owner: Option<Record>) -> ClaimStatus {
        match owner {
            Some(record) if claim.is_valid(&record) => ClaimStatus::OwnedBy(Box::new(record)),
            // The release will hold the name, so it is not free before either.
            Some(record) if !self.freed_name_hold.is_zero() && claim.is_hold_due(&record) => {
                ClaimStatus::Held
            }
            _ => ClaimStatus::Free,
        }
    }
}

impl Identifier<'_> {
    /// Returns whether a claim owned by this profile is valid.
    pub(crate) fn is_valid(self, record: &Record) -> bool {
        matches!(record.state, State::Active | State::Pending)
            && match self {
                Self::Name(name) => record.has_name(name),
                Self::Address(address) => record.has_address(address),
            }
    }

    /// Returns whether this is the name of a deleted account.
    fn is_hold_due(self, record: &Record) -> bool {
        let Self::Name(name) = self else { return false };
        record.state == State::Deleted && record.has_name(name)
    }
}

/// Runs a write to completion, even if the caller disconnects.
pub(crate) async fn write<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let done = microblog_chassis::mutate(async move { Ok(work.await) }).await;
    done.map_err(|status| Error::Interrupted(Box::new(status)))?
}
