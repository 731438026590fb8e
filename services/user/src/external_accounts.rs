//! Accounts that other systems identify: found or made by an external id.

use microblog_domain::UserId;

use crate::{
    accounts::Accounts,
    address::{Address, ExternalId},
    error::Error,
    identifier::{Identifier, IdentifierKind},
    name::Name,
    password::Hash,
    profile::User,
    steps::{Call, Draft, Outcome},
};

/// How often an account is looked for that is made or deleted meanwhile.
const ATTEMPTS: usize = 3;

/// A request to find or make an account.
#[derive(Clone, Debug)]
pub(crate) struct EnsureRequest {
    /// The external id.
    pub(crate) external: ExternalId,
    /// The name of a new account.
    pub(crate) name: Name,
    /// The display name of a new account; may be empty.
    pub(crate) display_name: String,
}

/// An account that was found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ensured {
    /// The account.
    pub(crate) user: User,
    /// Whether this call made it.
    pub(crate) is_new: bool,
}

impl Accounts {
    /// Returns the account of an external id, and makes it if there is none. Of concurrent calls, one
    /// makes it. [`Error::NameTaken`] if there is none and another account has the name.
    pub(crate) async fn ensure(&self, request: EnsureRequest) -> Result<Ensured, Error> {
        let draft = Draft {
            name: request.name,
            address: Address::External(request.external),
            password: Hash::none(),
            display_name: request.display_name,
            request: String::new(),
        };
        let identifier = Identifier::from(&draft.address);
        for _ in 0..ATTEMPTS {
            if let Some(account) = self.owner(&identifier).await? {
                return Ok(Ensured { user: account.user, is_new: false });
            }
            match self.write(Call::Register(Box::new(draft.clone()))).await? {
                Outcome::Account(user) => return Ok(Ensured { user, is_new: true }),
                // It was made just now.
                Outcome::Taken(IdentifierKind::External, Some(_)) => {}
                _ => break,
            }
        }
        Err(Error::NameTaken)
    }

    /// Returns the accounts of external ids, in their order; `None` for those without one.
    pub(crate) async fn resolve_external(
        &self,
        ids: &[ExternalId],
    ) -> Result<Vec<Option<UserId>>, Error> {
        let identifiers: Vec<Identifier> =
            ids.iter().map(|id| Identifier::from(&Address::External(id.clone()))).collect();
        let found = self.identified(&identifiers).await?;
        Ok(identifiers.iter().map(|identifier| found.get(identifier.as_str())?.account).collect())
    }
}
