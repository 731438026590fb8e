//! Checks what must hold of every account at a quiet moment: read-only, or has what is wrong mended
//! (`repair.rs`). Speaks of ids, never of addresses.
//!
//! Checked: each id in `accounts` has an active profile that can be read; both its claims are its
//! own; the clock that issues ids is not ahead of the time; nothing is being registered. Not checked,
//! since nothing lists them: worthless claims and names held for nobody, which harm no account, and
//! profiles that nothing lists.

use microblog_domain::{Partition, Repairs, UserId, Violations};

use crate::{Accounts, Claim, Error, Holder, Registration, State};

const ACCOUNTS_PER_BATCH: usize = 500;

/// What was found in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// How many accounts were checked.
    pub checked: u64,
    /// What is wrong; after a repair, what still is.
    pub violations: Violations,
    /// What was mended.
    pub repairs: Repairs,
}

impl Accounts {
    /// Checks one partition, and mends what is wrong.
    pub async fn verify_and_repair(&self, partition: Partition) -> Result<Findings, Error> {
        let findings = self.verify(partition).await?;
        if findings.violations.is_empty() {
            return Ok(findings);
        }
        let repairs = self.repair(partition).await?;
        Ok(Findings { repairs, ..self.verify(partition).await? })
    }

    /// Sets the clocks of all partitions back that are ahead of the time.
    pub async fn mend_clocks(&self) -> Result<Repairs, Error> {
        self.store.mend_clocks().await
    }

    /// Checks one partition.
    pub async fn verify(&self, partition: Partition) -> Result<Findings, Error> {
        let mut findings = Findings::default();
        let mut cursor = 0;
        loop {
            let page = self.store.accounts(partition, cursor).await?;
            for ids in page.ids.chunks(ACCOUNTS_PER_BATCH) {
                findings.checked += ids.len() as u64;
                findings.violations.add(self.verify_accounts(ids).await?);
            }
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        if let Some(violation) = self.store.clock_violation(partition).await? {
            findings.violations.check(false, || violation);
        }
        for id in self.store.registrations_in(partition).await? {
            let violation = || format!("registration {id} is still under way");
            findings.violations.check(false, violation);
        }
        Ok(findings)
    }

    async fn verify_accounts(&self, ids: &[UserId]) -> Result<Violations, Error> {
        let mut violations = Violations::default();
        let mut sound: Vec<Registration> = Vec::new();
        for (id, record) in ids.iter().zip(self.store.read_each(ids).await?) {
            let violation = match record {
                Ok(Some(record)) if record.state == State::Active => match record.claims() {
                    Some(claims) => {
                        sound.push(claims);
                        continue;
                    }
                    None => "has a bad name or e-mail address",
                },
                Ok(Some(_)) => "is no account any more",
                Ok(None) => "has no profile",
                Err(_) => "has a damaged card",
            };
            violations.check(false, || format!("account {id} {violation}"));
        }
        let both = |r: &Registration| [(r.id, "name"), (r.id, "e-mail address")];
        let claims: Vec<_> =
            sound.iter().flat_map(|r| [Claim::Name(&r.name), Claim::Email(&r.email)]).collect();
        let holders = self.store.holders(&claims).await?;
        for ((id, what), holder) in sound.iter().flat_map(both).zip(holders) {
            violations.check(holder == Some(Holder::Of(id)), || match holder {
                Some(Holder::Of(other)) => {
                    format!("the {what} of account {id} is claimed by {other}")
                }
                Some(Holder::Freed(_)) => format!("the {what} of account {id} is held for nobody"),
                None => format!("the {what} of account {id} is not claimed"),
            });
        }
        Ok(violations)
    }
}
