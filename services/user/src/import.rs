//! Importing many accounts by name: registrations like all others, but each step taken for all of
//! them at once.

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    Accounts, Claim, Draft, Email, Error, Hash, Kind, Name, Password, Registration, State,
    accounts::{Standing, write},
    registration::Claimed,
};

// Names that somebody is just registering are looked at again, so often and after such a pause.
const ROUNDS: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// What came of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The account of each name; `None` where the address is another account's, and where the name
    /// was a deleted account's until lately.
    pub ids: Vec<Option<UserId>>,
    /// How many accounts this call has made.
    pub created: usize,
}

/// A name to import, with its address.
#[derive(Clone, Debug)]
pub struct Person {
    /// The name.
    pub name: Name,
    /// The address.
    pub email: Email,
}

enum Row {
    /// To be looked at (again).
    Open,
    /// The name's account, or `None` where its address is another's or the name is held.
    Settled(Option<UserId>),
}

struct Import {
    accounts: Accounts,
    people: Vec<Person>,
    password: Hash,
    request: String,
    rows: Vec<Row>,
    created: usize,
}

impl Accounts {
    /// Makes an account for each name that has none. Without a password, nobody can log in to them.
    /// Safe to repeat, and beside registrations of the same names. Fails with
    /// [`Error::RegistrationInProgress`] if such a registration does not come to an end meanwhile;
    /// what was made until then stays.
    pub async fn import(
        &self,
        people: Vec<Person>,
        password: Option<Password>,
    ) -> Result<Imported, Error> {
        let password = match password {
            Some(password) => self.hasher.permit().await?.hash(password).await?,
            None => Hash::none(),
        };
        let mut import = Import {
            accounts: self.clone(),
            rows: people.iter().map(|_| Row::Open).collect(),
            people,
            password,
            request: uuid::Uuid::new_v4().to_string(),
            created: 0,
        };
        write(async move {
            for _ in 0..ROUNDS {
                if let Some(imported) = import.round().await? {
                    return Ok(imported);
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(Error::RegistrationInProgress)
        })
        .await
    }
}

impl Import {
    /// Takes every open name through all steps; returns the result when none is open any more.
    async fn round(&mut self) -> Result<Option<Imported>, Error> {
        let free = self.settle_existing().await?;
        let drafts: Vec<Draft> = free.iter().map(|&row| self.draft(row)).collect();
        let registrations = self.accounts.store.create(&drafts).await?;
        let begun: Vec<_> = free.into_iter().zip(registrations).collect();
        let named = self.claim(Kind::Name, begun).await?;
        let addressed = self.claim(Kind::Email, named).await?;
        self.activate(addressed).await?;

        let settled = self.rows.iter().map(|row| match row {
            Row::Open => None,
            Row::Settled(id) => Some(*id),
        });
        let ids: Option<Vec<_>> = settled.collect();
        Ok(ids.map(|ids| Imported { ids, created: self.created }))
    }

    /// Settles the open names that have accounts, and returns those that are free.
    async fn settle_existing(&mut self) -> Result<Vec<usize>, Error> {
        let is_open = |&row: &usize| matches!(self.rows[row], Row::Open);
        let open: Vec<_> = (0..self.rows.len()).filter(is_open).collect();
        let claims: Vec<_> = open.iter().map(|&row| Claim::Name(&self.people[row].name)).collect();
        let standings = self.accounts.standings_of(&claims).await?;
        let mut free = Vec::with_capacity(open.len());
        for (row, standing) in open.into_iter().zip(standings) {
            match standing {
                Standing::Free => free.push(row),
                Standing::Held => self.rows[row] = Row::Settled(None),
                Standing::By(record) if record.state == State::Active => {
                    self.rows[row] = Row::Settled(Some(record.user.id));
                }
                Standing::By(_pending) => {}
            }
        }
        Ok(free)
    }

    fn draft(&self, row: usize) -> Draft {
        Draft {
            name: self.people[row].name.clone(),
            email: self.people[row].email.clone(),
            password: self.password.clone(),
            display_name: String::new(),
            request: self.request.clone(),
        }
    }

    /// Claims names or addresses and returns the registrations that got theirs. The others are
    /// given up; their rows are settled if an account has what they wanted.
    async fn claim(
        &mut self,
        kind: Kind,
        begun: Vec<(usize, Registration)>,
    ) -> Result<Vec<(usize, Registration)>, Error> {
        let (rows, registrations): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        let claimed = self.accounts.acquire(kind, &registrations).await?;
        let (mut kept, mut lost) = (Vec::with_capacity(rows.len()), Vec::new());
        for ((row, registration), claimed) in rows.into_iter().zip(registrations).zip(claimed) {
            match claimed {
                Claimed::Mine => {
                    kept.push((row, registration));
                    continue;
                }
                Claimed::By(rival) if rival.state == State::Active => {
                    self.rows[row] = Row::Settled((kind == Kind::Name).then_some(rival.user.id));
                }
                Claimed::Held => self.rows[row] = Row::Settled(None),
                Claimed::By(_) | Claimed::Contested => {}
            }
            lost.push(registration);
        }
        self.accounts.discard(&lost).await?;
        Ok(kept)
    }

    async fn activate(&mut self, begun: Vec<(usize, Registration)>) -> Result<(), Error> {
        let ids: Vec<_> = begun.iter().map(|(_, registration)| registration.id).collect();
        let done = self.accounts.store.activate(&ids).await?;
        let mut aborted = Vec::new();
        for ((row, registration), done) in begun.into_iter().zip(done) {
            if done {
                self.created += 1;
                self.rows[row] = Row::Settled(Some(registration.id));
            } else {
                aborted.push(registration);
            }
        }
        self.accounts.discard(&aborted).await
    }
}
