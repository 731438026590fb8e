//! Checks what must hold of every account at a quiet moment. Read-only. Speaks of ids, never of
//! addresses.
//!
//! Checked: each id in `accounts` has an active profile; both its claims are its own; nothing is
//! being registered. Not checked, since nothing lists them: worthless claims, which harm nobody, and
//! profiles that nothing lists.

use microblog_domain::{Partition, UserId};

use crate::{Accounts, Claim, Error, Registration, State};

// So many violations of a partition are told; there may be more.
const VIOLATIONS_MAX: usize = 100;
const ACCOUNTS_PER_BATCH: usize = 500;

/// What was found in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// How many accounts were checked.
    pub checked: u64,
    /// What is wrong, in words.
    pub violations: Vec<String>,
}

impl Accounts {
    /// Checks one partition.
    pub async fn verify(&self, partition: Partition) -> Result<Findings, Error> {
        let mut findings = Findings::default();
        let mut cursor = 0;
        loop {
            let page = self.store.accounts(partition, cursor).await?;
            for ids in page.ids.chunks(ACCOUNTS_PER_BATCH) {
                findings.checked += ids.len() as u64;
                findings.violations.extend(self.verify_accounts(ids).await?);
            }
            cursor = page.cursor;
            if cursor == 0 || findings.violations.len() >= VIOLATIONS_MAX {
                break;
            }
        }
        for id in self.store.registrations_in(partition).await? {
            findings.violations.push(format!("registration {id} is still under way"));
        }
        findings.violations.truncate(VIOLATIONS_MAX);
        Ok(findings)
    }

    async fn verify_accounts(&self, ids: &[UserId]) -> Result<Vec<String>, Error> {
        let mut violations = Vec::new();
        let mut sound: Vec<Registration> = Vec::new();
        for (id, record) in ids.iter().zip(self.store.read(ids).await?) {
            match record.as_ref().map(|record| (record.state, record.claims())) {
                Some((State::Active, Some(claims))) => sound.push(claims),
                Some((State::Active, None)) => {
                    violations.push(format!("account {id} has a bad name or e-mail address"));
                }
                Some(_) => violations.push(format!("account {id} is no account any more")),
                None => violations.push(format!("account {id} has no profile")),
            }
        }
        let both = |r: &Registration| [(r.id, "name"), (r.id, "e-mail address")];
        let claims: Vec<_> =
            sound.iter().flat_map(|r| [Claim::Name(&r.name), Claim::Email(&r.email)]).collect();
        let holders = self.store.holders(&claims).await?;
        for ((id, what), holder) in sound.iter().flat_map(both).zip(holders) {
            match holder {
                Some(holder) if holder == id => {}
                Some(holder) => {
                    violations.push(format!("the {what} of account {id} is claimed by {holder}"));
                }
                None => violations.push(format!("the {what} of account {id} is not claimed")),
            }
        }
        Ok(violations)
    }
}
