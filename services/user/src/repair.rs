//! Repairs the violations that a check finds. May run concurrently with writes: each step is a
//! compare-and-set.
//!
//! Not repaired: a damaged account, whose content is lost, and an identifier of two accounts, since
//! either may be right.

use microblog_domain::{Partition, Repairs, UserId};

use crate::{
    accounts::{Accounts, write},
    error::Error,
    identifier::{Identifier, IdentifierKind},
    profile::{Registration, State},
    store::ClaimOwner,
};

const ACCOUNTS_PER_BATCH: usize = 500;

/// The most rounds of aborting registrations, since new ones may arrive.
const ROUNDS_MAX: usize = 1_000;

impl Accounts {
    /// Repairs one partition.
    pub(crate) async fn repair(&self, partition: Partition) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        for _ in 0..ROUNDS_MAX {
            let ids = self.store.registrations_in(partition).await?;
            if ids.is_empty() {
                break;
            }
            let (accounts, aborted) = (self.clone(), ids.clone());
            write(async move {
                accounts.abort_registrations(&aborted).await?;
                // The claims of a damaged registration are unknown.
                accounts.store.drop_registrations(&aborted).await
            })
            .await?;
            ids.iter().for_each(|id| repairs.add(format!("registration {id} aborted")));
        }
        let mut cursor = 0;
        loop {
            let page = self.store.accounts(partition, cursor).await?;
            for ids in page.ids.chunks(ACCOUNTS_PER_BATCH) {
                repairs.extend(self.repair_accounts(ids).await?);
            }
            cursor = page.cursor;
            if cursor == 0 {
                return Ok(repairs);
            }
        }
    }

    async fn repair_accounts(&self, ids: &[UserId]) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        let (mut valid, mut inactive) = (Vec::new(), Vec::new());
        for (&id, record) in ids.iter().zip(self.store.read_each(ids).await?) {
            match record {
                Ok(Some(record)) if record.state == State::Active => valid.extend(record.claims()),
                Ok(_) => inactive.push(id),
                Err(_) => {}
            }
        }
        for id in self.store.unlist(&inactive).await? {
            repairs.add(format!("account {id} is not active, removed from the list of accounts"));
        }
        for (kind, what) in [(IdentifierKind::Name, "name"), (IdentifierKind::Address, "address")] {
            let claims: Vec<_> =
                valid.iter().map(|account| Identifier::of(account, kind)).collect();
            let owners = self.store.claim_owners(&claims).await?;
            for (account, owner) in valid.iter().zip(owners) {
                let is_own = owner == Some(ClaimOwner::Account(account.id));
                if !is_own && self.restore_claim(kind, account, owner).await? {
                    repairs.add(format!("the {what} of account {}: claim restored", account.id));
                }
            }
        }
        Ok(repairs)
    }

    // Restores an account's claim if it is missing, stale, or held after another account's
    // deletion. A hold after its own deletion means that it is being deleted. Returns whether the
    // account owns the claim.
    async fn restore_claim(
        &self,
        kind: IdentifierKind,
        account: &Registration,
        owner: Option<ClaimOwner>,
    ) -> Result<bool, Error> {
        let Some(owner) = owner else {
            let owners = self.store.claim(kind, std::slice::from_ref(account)).await?;
            return Ok(owners == [ClaimOwner::Account(account.id)]);
        };
        match owner {
            ClaimOwner::Hold(of) if of == account.id => return Ok(false),
            ClaimOwner::Hold(_) => {}
            ClaimOwner::Account(other) => {
                let record = self.store.read(&[other]).await?.pop().flatten();
                if record.is_some_and(|record| Identifier::of(account, kind).is_valid(&record)) {
                    return Ok(false);
                }
            }
        }
        let owners = self.store.take_over(kind, &[(account, owner)]).await?;
        Ok(owners == [ClaimOwner::Account(account.id)])
    }
}
