//! Registration: a saga that keeps names and addresses unique under races and crashes.
//!
//! 1. The profile is written as *pending*, so that a crash leaves a trace.
//! 2. The name is claimed, then the address. The order is fixed: of concurrent registrations of the
//!    same name and address, the one that gets the name also gets the address.
//! 3. The pending profile becomes an active account, which then owns its claims.
//!
//! A registration that does not get a claim rolls back. After a crash, the sweeper
//! ([`crate::sweeper`]) aborts profiles that stay pending for longer than any write may take. Abort
//! and activation exclude each other. [`crate::store`] has the invariants.

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    accounts::{Accounts, ClaimStatus, write},
    address::Address,
    email::Email,
    error::Error,
    identifier::{Identifier, IdentifierKind},
    name::Name,
    password::Password,
    profile::{Draft, Record, Registration, State, User},
    store::ClaimOwner,
};

// The most attempts to take over stale claims. A failed attempt means that another registration
// took the claim at the same moment; after several, that one should end first.
const TAKE_OVER_ATTEMPTS_MAX: usize = 3;

/// A request to register.
#[derive(Debug)]
pub struct RegistrationRequest {
    /// The idempotency key, equal in repeated calls.
    pub request: String,
    /// The name.
    pub name: Name,
    /// The address.
    pub email: Email,
    /// The password.
    pub password: Password,
    /// The display name; may be empty.
    pub display_name: String,
}

/// The result of a claim.
#[derive(Clone, Debug)]
pub(crate) enum ClaimResult {
    /// The registration owns the claim.
    Acquired,
    /// Another account or registration owns the claim.
    OwnedBy(Box<Record>),
    /// The name is reserved after a deletion.
    Held,
    /// A concurrent registration took the claim.
    Contested,
}

/// The result of a registration.
pub(crate) enum Outcome {
    /// The new account.
    Registered(User),
    /// Another account or registration has the name or address.
    Conflict(IdentifierKind, Box<Record>),
    /// The name is reserved after a deletion.
    Held,
    /// Aborted by the sweeper, or after repeated conflicts with unknown registrations, which may be
    /// of the same request.
    Aborted,
}

impl Accounts {
    /// Registers an account, or returns the account that the same request registered before.
    pub async fn register(&self, request: RegistrationRequest) -> Result<User, Error> {
        let address = Address::Email(request.email.clone());
        let claims = [Identifier::Name(&request.name), Identifier::Address(&address)];
        let [name, email] = self.claim_statuses(claims).await?;
        // Checked before hashing, which is expensive.
        for (kind, claim_status) in [(IdentifierKind::Name, name), (IdentifierKind::Address, email)]
        {
            match claim_status {
                ClaimStatus::Free => {}
                ClaimStatus::Held => return Err(taken(kind)),
                ClaimStatus::OwnedBy(existing) => {
                    return self.replay(&request, kind, &existing).await;
                }
            }
        }
        let draft = Draft {
            name: request.name.clone(),
            address,
            password: self.hasher.permit().await?.hash(request.password.clone()).await?,
            display_name: request.display_name.clone(),
            request: request.request.clone(),
        };
        let accounts = self.clone();
        match write(async move { accounts.run_registration(draft).await }).await? {
            Outcome::Registered(user) => Ok(user),
            Outcome::Conflict(kind, existing) => self.replay(&request, kind, &existing).await,
            Outcome::Held => Err(Error::NameTaken),
            Outcome::Aborted => Err(Error::RegistrationInProgress),
        }
    }

    /// Resolves a conflict: returns the existing account if the same request created it (idempotent
    /// replay).
    async fn replay(
        &self,
        request: &RegistrationRequest,
        kind: IdentifierKind,
        existing: &Record,
    ) -> Result<User, Error> {
        let same = existing.request == request.request
            && existing.has_name(&request.name)
            && existing.has_address(&request.email.clone().into());
        if !same {
            return Err(taken(kind));
        }
        if existing.state == State::Pending {
            return Err(Error::RegistrationInProgress);
        }
        let permit = self.hasher.permit().await?;
        if !permit.verify(&request.password, Some(&existing.password)).await? {
            return Err(taken(kind));
        }
        // The request may have failed for not being durable: this answer is as durable.
        self.store.require_complete([existing.user.id]).await?;
        Ok(existing.user.clone())
    }

    /// Runs a registration through all steps.
    pub(crate) async fn run_registration(&self, draft: Draft) -> Result<Outcome, Error> {
        let drafts = [draft];
        let registrations = self.store.create(&drafts).await?;
        for kind in [IdentifierKind::Name, IdentifierKind::Address] {
            let claimed = self.acquire_claims(kind, &registrations).await?.pop();
            let outcome = match claimed {
                Some(ClaimResult::Acquired) => continue,
                Some(ClaimResult::OwnedBy(existing)) => Outcome::Conflict(kind, existing),
                Some(ClaimResult::Held) => Outcome::Held,
                Some(ClaimResult::Contested) | None => Outcome::Aborted,
            };
            self.roll_back(&registrations).await?;
            return Ok(outcome);
        }
        let ids: Vec<_> = registrations.iter().map(|registration| registration.id).collect();
        if self.store.activate(&ids).await?.as_slice() != [true] {
            self.roll_back(&registrations).await?;
            return Ok(Outcome::Aborted);
        }
        let [draft] = drafts;
        let [id] = ids.as_slice() else { return Err(Error::Damaged("a response")) };
        Ok(Outcome::Registered(draft.into_user(*id)))
    }

    /// Claims an identifier for each registration, and takes over stale claims.
    pub(crate) async fn acquire_claims(
        &self,
        kind: IdentifierKind,
        registrations: &[Registration],
    ) -> Result<Vec<ClaimResult>, Error> {
        let mut claimed = vec![ClaimResult::Acquired; registrations.len()];
        let owners = self.store.claim(kind, registrations).await?;
        let mut unresolved: Vec<_> = owners.into_iter().enumerate().collect();
        for _ in 0..TAKE_OVER_ATTEMPTS_MAX {
            let conflicts =
                self.conflicting_owners(&mut claimed, registrations, unresolved).await?;
            let mut stale = Vec::new();
            for (i, owner, existing) in conflicts {
                match self.claim_status(Identifier::of(&registrations[i], kind), existing) {
                    ClaimStatus::Free => stale.push((i, owner)),
                    ClaimStatus::Held => claimed[i] = ClaimResult::Held,
                    ClaimStatus::OwnedBy(existing) => claimed[i] = ClaimResult::OwnedBy(existing),
                }
            }
            if stale.is_empty() {
                return Ok(claimed);
            }
            let wants: Vec<_> = stale
                .iter()
                .map(|&(i, from)| (&registrations[i], ClaimOwner::Account(from)))
                .collect();
            self.store.require_complete(stale.iter().map(|&(_, from)| from)).await?;
            let taken = self.store.take_over(kind, &wants).await?;
            unresolved = stale.iter().zip(taken).map(|(&(i, _), owner)| (i, owner)).collect();
        }
        for (i, owner) in unresolved {
            match owner {
                ClaimOwner::Account(id) if id == registrations[i].id => {}
                ClaimOwner::Account(_) => claimed[i] = ClaimResult::Contested,
                ClaimOwner::Hold(_) => claimed[i] = ClaimResult::Held,
            }
        }
        Ok(claimed)
    }

    /// Returns the profiles of other owners of the claims, with their positions. Records claims
    /// that are held. One round trip, if there are any.
    async fn conflicting_owners(
        &self,
        claimed: &mut [ClaimResult],
        registrations: &[Registration],
        owners: Vec<(usize, ClaimOwner)>,
    ) -> Result<Vec<(usize, UserId, Option<Record>)>, Error> {
        let mut others = Vec::new();
        for (i, owner) in owners {
            match owner {
                ClaimOwner::Account(id) if id == registrations[i].id => {}
                ClaimOwner::Account(id) => others.push((i, id)),
                ClaimOwner::Hold(_) => claimed[i] = ClaimResult::Held,
            }
        }
        if others.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = others.iter().map(|&(_, id)| id).collect();
        let records = self.store.read(&ids).await?;
        Ok(others.into_iter().zip(records).map(|((i, id), record)| (i, id, record)).collect())
    }

    /// Releases the claims of registrations and deletes these. They must not be running elsewhere.
    pub(crate) async fn roll_back(&self, registrations: &[Registration]) -> Result<(), Error> {
        let ids: Vec<_> = registrations.iter().map(|registration| registration.id).collect();
        // No account ever had these names, so no hold is needed.
        self.store.release(registrations, Duration::ZERO).await?;
        self.store.drop_registrations(&ids).await
    }
}

const fn taken(kind: IdentifierKind) -> Error {
    match kind {
        IdentifierKind::Name => Error::NameTaken,
        IdentifierKind::Address => Error::EmailTaken,
    }
}
