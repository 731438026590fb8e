//! Registration. A name and an address are unique, since each has one row, which the transaction of a
//! registration locks.

use std::time::SystemTime;

use crate::{
    accounts::{Accounts, unix_ms},
    address::Address,
    email::Email,
    error::Error,
    identifier::{Identifier, IdentifierKind},
    name::Name,
    password::Password,
    profile::User,
    steps::{AccountRow, Call, Draft, Outcome},
};

/// A request to register.
#[derive(Debug)]
pub(crate) struct RegistrationRequest {
    /// The idempotency key, equal in repeated calls.
    pub(crate) request: String,
    /// The name.
    pub(crate) name: Name,
    /// The address.
    pub(crate) email: Email,
    /// The password.
    pub(crate) password: Password,
    /// The display name; may be empty.
    pub(crate) display_name: String,
}

impl Accounts {
    /// Registers an account, or returns the account that the same request registered before.
    pub(crate) async fn register(&self, request: RegistrationRequest) -> Result<User, Error> {
        let address = Address::from(request.email.clone());
        let identifiers = [Identifier::from(&request.name), Identifier::from(&address)];
        // Before hashing, which is expensive.
        let rows = self.identified(&identifiers).await?;
        let now_ms = unix_ms(SystemTime::now());
        let mut existing = None;
        for identifier in &identifiers {
            let Some(row) = rows.get(identifier.as_str()) else { continue };
            let Some(owner) = row.account else {
                match row.is_free(now_ms) {
                    true => continue,
                    false => return Err(taken(identifier.kind)),
                }
            };
            // It may just have been deleted.
            let Some(account) = self.find_own(owner).await? else { continue };
            if !self.is_replay(&request, &identifiers, &account).await? {
                return Err(taken(identifier.kind));
            }
            existing = Some(account);
            break;
        }
        let password = match &existing {
            Some(account) => account.password.clone(),
            None => self.hasher.permit().await?.hash(request.password.clone()).await?,
        };
        let draft = Draft {
            name: request.name.clone(),
            address,
            password,
            display_name: request.display_name.clone(),
            request: request.request.clone(),
        };
        // Also if it exists: then all readers know of it.
        match self.write(Call::Register(Box::new(draft))).await? {
            Outcome::Account(user) => Ok(user),
            Outcome::Taken(kind, owner) => {
                if let Some(account) = existing.filter(|account| Some(account.user.id) == owner) {
                    return Ok(account.user);
                }
                let owner = owner.ok_or(taken(kind))?;
                let account = self.find_own(owner).await?.ok_or(taken(kind))?;
                let is_replay = self.is_replay(&request, &identifiers, &account).await?;
                is_replay.then_some(account.user).ok_or(taken(kind))
            }
            _ => Err(Error::UserNotFound),
        }
    }

    // Returns whether the same request registered an account that has its name or address.
    async fn is_replay(
        &self,
        request: &RegistrationRequest,
        identifiers: &[Identifier; 2],
        account: &AccountRow,
    ) -> Result<bool, Error> {
        if account.request != request.request
            || !account.identifiers().eq(identifiers.iter().cloned())
        {
            return Ok(false);
        }
        let permit = self.hasher.permit().await?;
        Ok(permit.verify(&request.password, Some(&account.password)).await?)
    }
}

/// Returns the error of an identifier that another account has.
pub(crate) const fn taken(kind: IdentifierKind) -> Error {
    match kind {
        IdentifierKind::Name => Error::NameTaken,
        IdentifierKind::Email | IdentifierKind::External => Error::EmailTaken,
    }
}
