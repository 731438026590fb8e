//! Mends what a check finds wrong of accounts. May run while writes are under way: each step is a
//! compare-and-set against what is there at that moment.
//!
//! Left as it is: an account that cannot be read, since nobody can tell what it was, and a name or
//! address that two accounts have, of which the repair must not choose one.

use microblog_domain::{Partition, Repairs, UserId};

use crate::{Accounts, Claim, Error, Holder, Kind, Registration, State, accounts::write};

const ACCOUNTS_PER_BATCH: usize = 500;

/// How often registrations under way are looked for, of which new ones come in meanwhile.
const ROUNDS_MAX: usize = 1_000;

impl Accounts {
    /// Mends one partition.
    pub(crate) async fn repair(&self, partition: Partition) -> Result<Repairs, Error> {
        let mut repairs = Repairs::default();
        for _ in 0..ROUNDS_MAX {
            let ids = self.store.registrations_in(partition).await?;
            if ids.is_empty() {
                break;
            }
            let (accounts, given_up) = (self.clone(), ids.clone());
            write(async move {
                accounts.give_up(&given_up).await?;
                // One that is damaged has no claims that can be told.
                accounts.store.drop_registrations(&given_up).await
            })
            .await?;
            ids.iter().for_each(|id| repairs.add(format!("registration {id} is given up")));
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
        let (mut sound, mut gone) = (Vec::new(), Vec::new());
        for (&id, record) in ids.iter().zip(self.store.read_each(ids).await?) {
            match record {
                Ok(Some(record)) if record.state == State::Active => sound.extend(record.claims()),
                Ok(_) => gone.push(id),
                Err(_) => {}
            }
        }
        for id in self.store.unlist(&gone).await? {
            repairs.add(format!("account {id} is no account any more, and is not listed as one"));
        }
        for (kind, what) in [(Kind::Name, "name"), (Kind::Email, "e-mail address")] {
            let claims: Vec<_> = sound.iter().map(|account| Claim::of(account, kind)).collect();
            let holders = self.store.holders(&claims).await?;
            for (account, holder) in sound.iter().zip(holders) {
                let is_own = holder == Some(Holder::Of(account.id));
                if !is_own && self.claim_again(kind, account, holder).await? {
                    repairs.add(format!("the {what} of account {} is claimed by it", account.id));
                }
            }
        }
        Ok(repairs)
    }

    // Claims for an account what nobody has, somebody whose claim is worth nothing, or what is held
    // since another account was deleted: since its own, it is being deleted now. Returns whether it
    // has it then.
    async fn claim_again(
        &self,
        kind: Kind,
        account: &Registration,
        holder: Option<Holder>,
    ) -> Result<bool, Error> {
        let Some(holder) = holder else {
            let holders = self.store.claim(kind, std::slice::from_ref(account)).await?;
            return Ok(holders == [Holder::Of(account.id)]);
        };
        match holder {
            Holder::Freed(of) if of == account.id => return Ok(false),
            Holder::Freed(_) => {}
            Holder::Of(other) => {
                let record = self.store.read(&[other]).await?.pop().flatten();
                if record.is_some_and(|record| Claim::of(account, kind).is_worth(&record)) {
                    return Ok(false);
                }
            }
        }
        let holders = self.store.take(kind, &[(account, holder)]).await?;
        Ok(holders == [Holder::Of(account.id)])
    }
}
