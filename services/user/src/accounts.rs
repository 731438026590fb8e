//! Accounts: finding, changing and deleting them. The rules of this service are methods of
//! [`Accounts`], one file for each group. They know the store's steps, but no key and no wire type.

use std::{collections::HashSet, future::Future, time::Duration};

use microblog_domain::UserId;

use crate::{
    Claim, Error, Hasher, Holder, Name, Part, Password, Record, State, Store, User, store::intact,
};

/// The rules, and what they work with.
#[derive(Clone)]
pub struct Accounts {
    pub(crate) store: Store,
    pub(crate) hasher: Hasher,
    pub(crate) session_ttl: Duration,
    /// For how long the name of a deleted account is kept from others.
    pub(crate) freed_name_hold: Duration,
}

/// How a name or address stands.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// Nobody's, also where a claim is worth nothing.
    Free,
    /// A deleted account's name, which nobody may have yet.
    Held,
    /// This account's, or this registration's under way.
    By(Box<Record>),
}

impl Accounts {
    /// Returns the rules over a store. Sessions last for `session_ttl`, and names of deleted accounts
    /// are kept from others for `freed_name_hold`.
    pub const fn new(
        store: Store,
        hasher: Hasher,
        session_ttl: Duration,
        freed_name_hold: Duration,
    ) -> Self {
        Self { store, hasher, session_ttl, freed_name_hold }
    }

    /// Returns what everybody may see of an account.
    pub async fn get(&self, id: UserId) -> Result<User, Error> {
        self.store.users(&[id]).await?.pop().ok_or(Error::UserNotFound)
    }

    /// Returns what everybody may see of those ids that are accounts, each once, in their order.
    pub async fn get_many(&self, mut ids: Vec<UserId>) -> Result<Vec<User>, Error> {
        let mut seen = HashSet::with_capacity(ids.len());
        ids.retain(|&id| seen.insert(id));
        self.store.users(&ids).await
    }

    /// Returns what everybody may see of the account with this name.
    pub async fn get_by_name(&self, name: &Name) -> Result<User, Error> {
        let [holder] = self.standings([Claim::Name(name)]).await?;
        match holder {
            Standing::By(record) if record.state == State::Active => Ok(record.user),
            _ => Err(Error::UserNotFound),
        }
    }

    /// Returns those names that accounts have, each once, in their order, and whose they are. Two
    /// round trips; one where nobody claims any of them.
    pub async fn resolve(&self, mut names: Vec<Name>) -> Result<Vec<(Name, UserId)>, Error> {
        let mut seen = HashSet::with_capacity(names.len());
        names.retain(|name| seen.insert(name.clone()));
        let claims: Vec<_> = names.iter().map(Claim::Name).collect();
        let holders = self.store.holders(&claims).await?;
        let holders: Vec<_> = holders.into_iter().map(|one| one.and_then(Holder::id)).collect();
        let mut ids: Vec<UserId> = holders.iter().copied().flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        let users = self.store.users(&ids).await?;
        // What a claim is worth, the profile says.
        let is_worth = |holder: &UserId, name: &Name| {
            let found = users.binary_search_by_key(holder, |user| user.id);
            found.is_ok_and(|at| users[at].has_name(name))
        };
        let named = |(name, holder): (Name, Option<UserId>)| {
            holder.filter(|holder| is_worth(holder, &name)).map(|id| (name, id))
        };
        Ok(names.into_iter().zip(holders).filter_map(named).collect())
    }

    /// Returns an account with what only its owner may see.
    pub async fn get_own(&self, id: UserId) -> Result<Record, Error> {
        let record = self.store.read(&[id]).await?.pop().flatten();
        record.filter(|record| record.state == State::Active).ok_or(Error::UserNotFound)
    }

    /// Returns whether a name is free to register.
    pub async fn is_free(&self, name: &Name) -> Result<bool, Error> {
        let [standing] = self.standings([Claim::Name(name)]).await?;
        Ok(matches!(standing, Standing::Free))
    }

    /// Changes parts of a profile, and returns it.
    pub async fn update(&self, id: UserId, changes: Vec<(Part, String)>) -> Result<User, Error> {
        if !changes.is_empty() {
            let store = self.store.clone();
            let update = async move { store.update(id, &changes).await };
            if !write(update).await? {
                return Err(Error::UserNotFound);
            }
        }
        self.get(id).await
    }

    /// Deletes an account, once its password is checked: its address is free again, and its name will
    /// be.
    pub async fn delete(&self, id: UserId, password: &Password) -> Result<(), Error> {
        let permit = self.hasher.permit().await?;
        let record = self.check_password(&permit, id, password).await?;
        drop(permit);
        let accounts = self.clone();
        write(async move {
            if !accounts.store.delete(id, &record.password).await? {
                return Err(Error::BadCredentials);
            }
            let deleted = intact(record.claims(), "an account")?;
            let hold = accounts.freed_name_hold;
            accounts.store.release(std::slice::from_ref(&deleted), hold).await?;
            accounts.store.forget_attempts(&deleted.email).await
        })
        .await
    }

    /// Returns deleted accounts that are not confirmed.
    pub async fn deletions(&self, max: usize) -> Result<Vec<UserId>, Error> {
        self.store.deletions(max).await
    }

    /// Forgets a deleted account for good, whatever is left of it. Its claims are released and its
    /// failed log-ins forgotten before, in case the deletion was cut short. Accounts are left alone.
    pub async fn confirm_deletion(&self, id: UserId) -> Result<(), Error> {
        let (store, hold) = (self.store.clone(), self.freed_name_hold);
        write(async move {
            match store.deleted(id).await {
                Ok(Some(deleted)) => {
                    store.release(std::slice::from_ref(&deleted), hold).await?;
                    store.forget_attempts(&deleted.email).await?;
                }
                Ok(None) => {}
                // Its claims cannot be told, but are worth nothing: whoever wants them takes them.
                Err(Error::Damaged(what)) => tracing::error!(id = id.get(), "{what} is damaged"),
                Err(error) => return Err(error),
            }
            store.confirm_deletion(id).await
        })
        .await
    }

    /// Returns how each claim stands. Two round trips at most.
    pub(crate) async fn standings<const N: usize>(
        &self,
        claims: [Claim<'_>; N],
    ) -> Result<[Standing; N], Error> {
        let found = self.standings_of(&claims).await?;
        found.try_into().map_err(|_| Error::Damaged("an answer"))
    }

    /// The same for any number of claims.
    pub(crate) async fn standings_of(&self, claims: &[Claim<'_>]) -> Result<Vec<Standing>, Error> {
        let holders = self.store.holders(claims).await?;
        let ids: Vec<_> = holders.iter().filter_map(|one| one.and_then(Holder::id)).collect();
        let mut records = match ids.is_empty() {
            true => Vec::new().into_iter(),
            false => self.store.read(&ids).await?.into_iter(),
        };
        let standing = |(holder, &claim): (Option<Holder>, &Claim<'_>)| match holder {
            None => Standing::Free,
            Some(Holder::Freed(_)) => Standing::Held,
            Some(Holder::Of(_)) => self.standing(claim, records.next().flatten()),
        };
        Ok(holders.into_iter().zip(claims).map(standing).collect())
    }

    /// Returns how a claim stands that this profile holds, if there is one.
    pub(crate) fn standing(&self, claim: Claim<'_>, holder: Option<Record>) -> Standing {
        match holder {
            Some(record) if claim.is_worth(&record) => Standing::By(Box::new(record)),
            // What releases the name will hold it: until then it is not free either.
            Some(record) if !self.freed_name_hold.is_zero() && claim.is_to_be_held(&record) => {
                Standing::Held
            }
            _ => Standing::Free,
        }
    }
}

impl Claim<'_> {
    /// Returns whether a claim held by this profile is worth something.
    pub(crate) fn is_worth(self, record: &Record) -> bool {
        matches!(record.state, State::Active | State::Pending)
            && match self {
                Self::Name(name) => record.has_name(name),
                Self::Email(email) => record.has_email(email),
            }
    }

    /// Returns whether it is the name of a deleted account.
    fn is_to_be_held(self, record: &Record) -> bool {
        let Self::Name(name) = self else { return false };
        record.state == State::Deleted && record.has_name(name)
    }
}

/// Runs a write to its end, though the caller may hang up.
pub(crate) async fn write<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let done = microblog_chassis::mutate(async move { Ok(work.await) }).await;
    done.map_err(|status| Error::Cut(Box::new(status)))?
}
