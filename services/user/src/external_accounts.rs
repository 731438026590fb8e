//! Accounts that other systems identify: found or made by an external id.

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    accounts::{Accounts, ClaimStatus, write},
    address::{Address, ExternalId},
    error::Error,
    identifier::Identifier,
    name::Name,
    password::Hash,
    profile::{Draft, State, User},
    registration::Outcome,
};

// An external id or a name with a running registration is tried again in rounds, with this delay.
const ROUNDS_MAX: usize = 20;
const ROUND_DELAY: Duration = Duration::from_millis(100);

/// A request to find or make an account.
#[derive(Clone, Debug)]
pub struct EnsureRequest {
    /// The external id.
    pub external: ExternalId,
    /// The name of a new account.
    pub name: Name,
    /// The display name of a new account; may be empty.
    pub display_name: String,
}

/// An account that was found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The account.
    pub user: User,
    /// Whether this call made it.
    pub is_new: bool,
}

/// The result of a round.
enum Round {
    Done(Ensured),
    /// Another registration of the id or name is running.
    Running,
}

impl Accounts {
    /// Returns the account of an external id, and makes it if there is none. Of concurrent calls, one
    /// makes it. [`Error::NameTaken`] if there is none and another account has the name;
    /// [`Error::RegistrationInProgress`] if a concurrent registration does not end in time.
    pub async fn ensure(&self, request: EnsureRequest) -> Result<Ensured, Error> {
        let accounts = self.clone();
        write(async move {
            for _ in 0..ROUNDS_MAX {
                if let Round::Done(ensured) = accounts.ensure_once(&request).await? {
                    return Ok(ensured);
                }
                tokio::time::sleep(ROUND_DELAY).await;
            }
            Err(Error::RegistrationInProgress)
        })
        .await
    }

    async fn ensure_once(&self, request: &EnsureRequest) -> Result<Round, Error> {
        let EnsureRequest { external, name, display_name } = request;
        let address = Address::External(external.clone());
        let claims = [Identifier::Address(&address), Identifier::Name(name)];
        let [by_address, by_name] = self.claim_statuses(claims).await?;
        match by_address {
            ClaimStatus::OwnedBy(record) if record.state == State::Active => {
                // Another call may have made it a moment ago: this one is as durable.
                self.store.require_complete([record.user.id]).await?;
                return Ok(Round::Done(Ensured { user: record.user, is_new: false }));
            }
            ClaimStatus::OwnedBy(_pending) => return Ok(Round::Running),
            ClaimStatus::Free | ClaimStatus::Held => {}
        }
        match by_name {
            ClaimStatus::OwnedBy(record) if record.state == State::Active => {
                // Of a call that has made the account meanwhile, or of another account.
                return match record.has_address(&address) {
                    true => Ok(Round::Running),
                    false => Err(Error::NameTaken),
                };
            }
            ClaimStatus::Held => return Err(Error::NameTaken),
            ClaimStatus::OwnedBy(_pending) => return Ok(Round::Running),
            ClaimStatus::Free => {}
        }
        let draft = Draft {
            name: name.clone(),
            address,
            password: Hash::none(),
            display_name: display_name.clone(),
            request: uuid::Uuid::new_v4().to_string(),
        };
        match self.run_registration(draft).await? {
            Outcome::Registered(user) => Ok(Round::Done(Ensured { user, is_new: true })),
            // The next round finds whose they are.
            Outcome::Conflict(..) | Outcome::Held | Outcome::Aborted => Ok(Round::Running),
        }
    }

    /// Returns the accounts of external ids, in their order; `None` for those without one. Two round
    /// trips; one if none has an account.
    pub async fn resolve_external(&self, ids: &[ExternalId]) -> Result<Vec<Option<UserId>>, Error> {
        let addresses: Vec<_> = ids.iter().cloned().map(Address::External).collect();
        let claims: Vec<_> = addresses.iter().map(Identifier::Address).collect();
        let statuses = self.claim_statuses_of(&claims).await?;
        let account = |status| match status {
            ClaimStatus::OwnedBy(record) if record.state == State::Active => Some(record.user.id),
            ClaimStatus::OwnedBy(_) | ClaimStatus::Free | ClaimStatus::Held => None,
        };
        Ok(statuses.into_iter().map(account).collect())
    }
}
