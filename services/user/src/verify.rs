//! Checks the invariants of accounts; read-only unless a repair (`repair.rs`) is requested. Reports
//! ids, never addresses.
//!
//! Checked without concurrent writes: each id in `accounts` has an active, readable profile; it
//! owns both its claims; the clock that issues ids is not ahead of the time. Registrations that are
//! pending are reported apart from violations, since they are under way. Not checked, since no index lists them: stale claims, holds, and profiles outside all
//! lists. They do not affect accounts.

use microblog_domain::{Partition, Repairs, UserId, Violations};

use crate::{
    accounts::Accounts,
    error::Error,
    identifier::Identifier,
    profile::{Registration, State},
    store::ClaimOwner,
};

const ACCOUNTS_PER_BATCH: usize = 500;

/// The result of a check of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of accounts checked.
    pub checked: u64,
    /// The violations; after a repair, those that remain.
    pub violations: Violations,
    /// What is under way.
    pub pending: Violations,
    /// The repairs made.
    pub repairs: Repairs,
}

impl Accounts {
    /// Checks one partition, and repairs violations.
    pub async fn verify_and_repair(&self, partition: Partition) -> Result<Report, Error> {
        let report = self.verify(partition).await?;
        if report.violations.is_empty() && report.pending.is_empty() {
            return Ok(report);
        }
        let repairs = self.repair(partition).await?;
        Ok(Report { repairs, ..self.verify(partition).await? })
    }

    /// Sets back the clocks of all partitions that are ahead of the time.
    pub async fn repair_clocks(&self) -> Result<Repairs, Error> {
        self.store.repair_clocks().await
    }

    /// Checks one partition.
    pub async fn verify(&self, partition: Partition) -> Result<Report, Error> {
        let mut report = Report::default();
        let mut cursor = 0;
        loop {
            let page = self.store.accounts(partition, cursor).await?;
            for ids in page.ids.chunks(ACCOUNTS_PER_BATCH) {
                report.checked += ids.len() as u64;
                report.violations.add(self.verify_accounts(ids).await?);
            }
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        if let Some(violation) = self.store.clock_violation(partition).await? {
            report.violations.check(false, || violation);
        }
        for id in self.store.registrations_in(partition).await? {
            report.pending.check(false, || format!("registration {id} is pending"));
        }
        Ok(report)
    }

    async fn verify_accounts(&self, ids: &[UserId]) -> Result<Violations, Error> {
        let mut violations = Violations::default();
        let mut valid: Vec<Registration> = Vec::new();
        for (id, record) in ids.iter().zip(self.store.read_each(ids).await?) {
            let violation = match record {
                Ok(Some(record)) if record.state == State::Active => match record.claims() {
                    Some(claims) => {
                        valid.push(claims);
                        continue;
                    }
                    None => "has an invalid name or e-mail address",
                },
                Ok(Some(_)) => "is not active",
                Ok(None) => "has no profile",
                Err(_) => "has a damaged card",
            };
            violations.check(false, || format!("account {id} {violation}"));
        }
        let both = |r: &Registration| [(r.id, "name"), (r.id, "address")];
        let claims: Vec<_> = valid
            .iter()
            .flat_map(|r| [Identifier::Name(&r.name), Identifier::Address(&r.address)])
            .collect();
        let owners = self.store.claim_owners(&claims).await?;
        for ((id, what), owner) in valid.iter().flat_map(both).zip(owners) {
            violations.check(owner == Some(ClaimOwner::Account(id)), || match owner {
                Some(ClaimOwner::Account(other)) => {
                    format!("the {what} of account {id} is claimed by {other}")
                }
                Some(ClaimOwner::Hold(_)) => {
                    format!("the {what} of account {id} is held")
                }
                None => format!("the {what} of account {id} is not claimed"),
            });
        }
        Ok(violations)
    }
}
