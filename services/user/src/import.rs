//! Bulk import of accounts by name: registrations in batches.

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    accounts::{Accounts, ClaimStatus, write},
    email::Email,
    error::Error,
    identifier::{Identifier, IdentifierKind},
    name::Name,
    password::{Hash, Password},
    profile::{Draft, Registration, State},
    registration::ClaimResult,
};

// Names with a running registration are retried in rounds, with this delay.
const ROUNDS_MAX: usize = 20;
const ROUND_DELAY: Duration = Duration::from_millis(100);

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportResult {
    /// The account of each name; `None` if another account has the address, or if the name is
    /// reserved after a deletion.
    pub ids: Vec<Option<UserId>>,
    /// The number of accounts created.
    pub created: usize,
}

/// A name to import, with its address.
#[derive(Clone, Debug)]
pub struct ImportEntry {
    /// The name.
    pub name: Name,
    /// The address.
    pub email: Email,
}

enum Row {
    /// To be processed in the next round.
    Pending,
    /// The name's account; `None` if another account has its address, or the name is reserved.
    Done(Option<UserId>),
}

struct Import {
    accounts: Accounts,
    entries: Vec<ImportEntry>,
    password: Hash,
    request: String,
    rows: Vec<Row>,
    created: usize,
    /// Accounts that others have created.
    existing: Vec<UserId>,
}

impl Accounts {
    /// Creates an account for each name that has none. Without a password, no log-in is possible.
    /// Idempotent, and safe with concurrent registrations of the same names. Fails with
    /// [`Error::RegistrationInProgress`] if such a registration does not end in time; accounts
    /// created before stay.
    pub async fn import(
        &self,
        entries: Vec<ImportEntry>,
        password: Option<Password>,
    ) -> Result<ImportResult, Error> {
        let password = match password {
            Some(password) => self.hasher.permit().await?.hash(password).await?,
            None => Hash::none(),
        };
        let mut import = Import {
            accounts: self.clone(),
            rows: entries.iter().map(|_| Row::Pending).collect(),
            entries,
            password,
            request: uuid::Uuid::new_v4().to_string(),
            created: 0,
            existing: Vec::new(),
        };
        write(async move {
            for _ in 0..ROUNDS_MAX {
                if let Some(imported) = import.round().await? {
                    return Ok(imported);
                }
                tokio::time::sleep(ROUND_DELAY).await;
            }
            Err(Error::RegistrationInProgress)
        })
        .await
    }
}

impl Import {
    /// Takes each pending name through all steps. Returns the result when none is left.
    async fn round(&mut self) -> Result<Option<ImportResult>, Error> {
        let free = self.resolve_existing().await?;
        let drafts: Vec<Draft> = free.iter().map(|&row| self.draft(row)).collect();
        let registrations = self.accounts.store.create(&drafts).await?;
        let begun: Vec<_> = free.into_iter().zip(registrations).collect();
        let named = self.claim(IdentifierKind::Name, begun).await?;
        let addressed = self.claim(IdentifierKind::Address, named).await?;
        self.activate(addressed).await?;

        let settled = self.rows.iter().map(|row| match row {
            Row::Pending => None,
            Row::Done(id) => Some(*id),
        });
        let Some(ids) = settled.collect::<Option<Vec<_>>>() else { return Ok(None) };
        // Another call may have made them a moment ago: this one is as durable.
        self.accounts.store.require_complete(self.existing.drain(..)).await?;
        Ok(Some(ImportResult { ids, created: self.created }))
    }

    /// Resolves pending names that have accounts, and returns the free ones.
    async fn resolve_existing(&mut self) -> Result<Vec<usize>, Error> {
        let is_open = |&row: &usize| matches!(self.rows[row], Row::Pending);
        let open: Vec<_> = (0..self.rows.len()).filter(is_open).collect();
        let claims: Vec<_> =
            open.iter().map(|&row| Identifier::Name(&self.entries[row].name)).collect();
        let claim_statuses = self.accounts.claim_statuses_of(&claims).await?;
        let mut free = Vec::with_capacity(open.len());
        for (row, claim_status) in open.into_iter().zip(claim_statuses) {
            match claim_status {
                ClaimStatus::Free => free.push(row),
                ClaimStatus::Held => self.rows[row] = Row::Done(None),
                ClaimStatus::OwnedBy(record) if record.state == State::Active => {
                    self.rows[row] = Row::Done(Some(record.user.id));
                    self.existing.push(record.user.id);
                }
                ClaimStatus::OwnedBy(_pending) => {}
            }
        }
        Ok(free)
    }

    fn draft(&self, row: usize) -> Draft {
        Draft {
            name: self.entries[row].name.clone(),
            address: self.entries[row].email.clone().into(),
            password: self.password.clone(),
            display_name: String::new(),
            request: self.request.clone(),
        }
    }

    /// Claims names or addresses, and returns the registrations that got their claims. Aborts the
    /// others, and resolves those whose claim belongs to an account.
    async fn claim(
        &mut self,
        kind: IdentifierKind,
        begun: Vec<(usize, Registration)>,
    ) -> Result<Vec<(usize, Registration)>, Error> {
        let (rows, registrations): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        let claimed = self.accounts.acquire_claims(kind, &registrations).await?;
        let (mut kept, mut lost) = (Vec::with_capacity(rows.len()), Vec::new());
        for ((row, registration), claimed) in rows.into_iter().zip(registrations).zip(claimed) {
            match claimed {
                ClaimResult::Acquired => {
                    kept.push((row, registration));
                    continue;
                }
                ClaimResult::OwnedBy(existing) if existing.state == State::Active => {
                    let id = (kind == IdentifierKind::Name).then_some(existing.user.id);
                    self.rows[row] = Row::Done(id);
                    self.existing.extend(id);
                }
                ClaimResult::Held => self.rows[row] = Row::Done(None),
                ClaimResult::OwnedBy(_) | ClaimResult::Contested => {}
            }
            lost.push(registration);
        }
        self.accounts.roll_back(&lost).await?;
        Ok(kept)
    }

    async fn activate(&mut self, begun: Vec<(usize, Registration)>) -> Result<(), Error> {
        let ids: Vec<_> = begun.iter().map(|(_, registration)| registration.id).collect();
        let done = self.accounts.store.activate(&ids).await?;
        let mut aborted = Vec::new();
        for ((row, registration), done) in begun.into_iter().zip(done) {
            if done {
                self.created += 1;
                self.rows[row] = Row::Done(Some(registration.id));
            } else {
                aborted.push(registration);
            }
        }
        self.accounts.roll_back(&aborted).await
    }
}
