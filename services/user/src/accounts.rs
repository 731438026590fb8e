//! Accounts: reads, changes and deletion. The rules of calls that write are in [`crate::steps`]; the methods
//! of [`Accounts`] prepare them, one file per group.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    hash::Hash,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_domain::{Invalid, UserId};
use microblog_record::{
    Database,
    sql::{read_id, statement},
};
use microblog_storage::{Contents, Part, Reader, Tables, Whole, Writer};

use crate::{
    address::Address,
    error::Error,
    group::Calls,
    identifier::Identifier,
    items::{AccountItem, read_name, read_profile},
    name::Name,
    password::{Hasher, Password},
    profile::{ProfileField, User},
    sessions::Uses,
    steps::{AccountRow, Call, IdentifierRow, Outcome},
    tables,
    token::Token,
};

/// The rules of the service, with their dependencies. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Accounts {
    pub(crate) reader: Reader<AccountItem>,
    pub(crate) tables: Tables,
    pub(crate) writer: Writer<Calls>,
    /// For calls of many registrations, for which others do not wait.
    pub(crate) bulk_writer: Writer<Calls>,
    pub(crate) hasher: Hasher,
    /// The lifetime of sessions.
    pub(crate) session_ttl: Duration,
    /// How long the name of a deleted account is held.
    pub(crate) freed_name_hold: Duration,
    pub(crate) uses: Arc<Uses>,
}

impl Accounts {
    /// Returns the public part of an account.
    pub(crate) async fn get(&self, id: UserId) -> Result<User, Error> {
        let profile = self.reader.read(&part(AccountItem::Profile, id.get())).await?;
        read_profile(id, &profile.front).ok_or(Error::UserNotFound)
    }

    /// Reads accounts by their ids and by their names, and checks a session, in one read of the cache. Omits
    /// what has no account. Returns the accounts of the ids and of the names, deduplicated, in their order.
    pub(crate) async fn batch(&self, batch: Batch) -> Result<Found, Error> {
        let (ids, names, token) =
            (deduplicated(batch.ids), deduplicated(batch.names), batch.session);
        let identifiers: Vec<Identifier> = names.iter().map(Identifier::from).collect();
        let profiles = ids.iter().map(|id| part(AccountItem::Profile, id.get()));
        let named = identifiers.iter().map(|name| part(AccountItem::Name, name.digest()));
        let sessions = token.iter().map(|token| part(AccountItem::Sessions, token.user().get()));
        let parts: Vec<_> = profiles.chain(named).chain(sessions).collect();
        let found = self.reader.read_all(&parts).await?.into_iter();
        let mut fronts = found.map(|Contents { front, .. }| front);
        let user = |(&id, front): (&UserId, Arc<[u8]>)| read_profile(id, &front);
        let users = ids.iter().zip(fronts.by_ref()).filter_map(user).collect();
        let owner = |identifier: &Identifier, front: &[u8]| row_of(identifier, front)?.account;
        let owned = identifiers.iter().zip(fronts.by_ref());
        let owners: Vec<_> = owned.map(|(identifier, front)| owner(identifier, &front)).collect();
        let named = names.into_iter().zip(owners);
        let named = named.filter_map(|(name, owner)| Some((name, owner?))).collect();
        let session = token.zip(fronts.next());
        let session = session.map(|(token, front)| self.check_session(&token, &front));
        Ok(Found { users, named, session: session.transpose()?.map(|(user, _)| user) })
    }

    /// Returns the public part of the account with this name.
    pub(crate) async fn get_by_name(&self, name: &Name) -> Result<User, Error> {
        let owner = self.name(name).await?.and_then(|row| row.account);
        let owner = owner.ok_or(Error::UserNotFound)?;
        self.get(owner).await
    }

    /// Returns whether a name is free to register.
    pub(crate) async fn is_free(&self, name: &Name) -> Result<bool, Error> {
        let row = self.name(name).await?;
        Ok(row.is_none_or(|row| row.is_free(unix_ms(SystemTime::now()))))
    }

    // Returns the row of a name; `None` if there is none.
    async fn name(&self, name: &Name) -> Result<Option<IdentifierRow>, Error> {
        let identifier = Identifier::from(name);
        let owner = self.reader.read(&part(AccountItem::Name, identifier.digest())).await?;
        Ok(row_of(&identifier, &owner.front))
    }

    /// Returns an account with its private part; `None` if there is none.
    pub(crate) async fn find_own(&self, id: UserId) -> Result<Option<AccountRow>, Error> {
        let read = async |database: &Database| tables::account(database, id).await;
        Ok(self.reader.uncached(read).await?)
    }

    /// Returns an account with its private part.
    pub(crate) async fn get_own(&self, id: UserId) -> Result<AccountRow, Error> {
        self.find_own(id).await?.ok_or(Error::UserNotFound)
    }

    /// Returns the account that has an identifier, with its private part.
    pub(crate) async fn owner(&self, identifier: &Identifier) -> Result<Option<AccountRow>, Error> {
        let read = async |database: &Database| tables::owner(database, identifier).await;
        Ok(self.reader.uncached(read).await?)
    }

    /// Returns the rows of identifiers, by their stored text.
    pub(crate) async fn identified(
        &self,
        identifiers: &[Identifier],
    ) -> Result<HashMap<String, IdentifierRow>, Error> {
        let read = async |database: &Database| tables::identified(database, identifiers).await;
        Ok(self.reader.uncached(read).await?)
    }

    /// Changes fields of a profile, and returns it.
    pub(crate) async fn update(
        &self,
        id: UserId,
        changes: Vec<(ProfileField, String)>,
    ) -> Result<User, Error> {
        if changes.is_empty() {
            return self.get(id).await;
        }
        match self.write(Call::Update(id, changes)).await? {
            Outcome::Account(user) => Ok(user),
            _ => Err(Error::UserNotFound),
        }
    }

    /// Deletes an account after checking its password; an account with an external id has none. Frees
    /// its address at once, its name after the hold.
    pub(crate) async fn delete(
        &self,
        id: UserId,
        password: Option<&Password>,
    ) -> Result<(), Error> {
        let account = match password {
            Some(password) => {
                let permit = self.hasher.permit().await?;
                self.check_password(&permit, id, password).await?
            }
            None => {
                let account = self.get_own(id).await?;
                if !matches!(account.address, Address::External(_)) {
                    return Err(Invalid::new("password", "must not be empty").into());
                }
                account
            }
        };
        let hold_ms = self.freed_name_hold.as_millis() as u64;
        match self.write(Call::Delete { id, checked: account.password, hold_ms }).await? {
            Outcome::Done => Ok(()),
            // The password has changed since, or the account was deleted.
            _ => Err(Error::BadCredentials),
        }
    }

    /// Returns deleted accounts that are not confirmed, the oldest first.
    pub(crate) async fn deletions(&self, max: usize) -> Result<Vec<UserId>, Error> {
        const DELETIONS: &str = "SELECT id FROM deletions ORDER BY id LIMIT $1";
        let read = async |database: &Database| {
            let work = async {
                let query = statement(DELETIONS.to_owned()).bind(max as i64);
                let rows = query.fetch_all(database.readers()).await?;
                rows.iter().map(|row| read_id(row, 0, UserId::new)).collect()
            };
            database.read("SELECT deletions", work).await
        };
        Ok(self.reader.uncached(read).await?)
    }

    /// Notes that the other services have deleted their data of a deleted account.
    pub(crate) async fn confirm_deletion(&self, id: UserId) -> Result<(), Error> {
        self.write(Call::Confirm(id)).await.map(drop)
    }

    /// Writes a call to completion, even if the caller disconnects.
    pub(crate) async fn write(&self, call: Call) -> Result<Outcome, Error> {
        let writer = self.writer.clone();
        complete(async move { Ok(writer.write(call).await?) }).await
    }
}

/// What a batch of reads asks for.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) ids: Vec<UserId>,
    pub(crate) names: Vec<Name>,
    /// A session to check.
    pub(crate) session: Option<Token>,
}

/// What a batch of reads found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) users: Vec<User>,
    /// The accounts that have the names.
    pub(crate) named: Vec<(Name, UserId)>,
    /// The account of the session.
    pub(crate) session: Option<UserId>,
}

fn deduplicated<T: Clone + Eq + Hash>(mut list: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::with_capacity(list.len());
    list.retain(|one| seen.insert(one.clone()));
    list
}

// Returns the row of a name in its entry. Another name may have the same digest.
fn row_of(identifier: &Identifier, front: &[u8]) -> Option<IdentifierRow> {
    Some(read_name(front)).filter(|row| row.text == identifier.as_str())
}

/// Returns an item to read.
pub(crate) const fn part(item: AccountItem, id: u64) -> Part<AccountItem, Whole> {
    Part { item, id, view: Whole }
}

/// Runs a write to completion, even if the caller disconnects.
pub(crate) async fn complete<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let done = microblog_chassis::mutate(async move { Ok(work.await) }).await;
    done.map_err(|status| Error::Interrupted(Box::new(status)))?
}

/// Returns a time in Unix ms.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
