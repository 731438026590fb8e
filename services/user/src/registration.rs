//! Registering: unique names and addresses under any race, and nothing taken by those who died on
//! the way.
//!
//! 1. The profile is written as *pending*, so that whatever follows is found again.
//! 2. The name is claimed, then the address. Always in this order: of any number of registrations
//!    of the same name and address, the one that gets the name gets the address.
//! 3. The pending profile becomes an account. From then on the claims are its own for good.
//!
//! Who does not get a claim gives back what it has. Who dies is swept up ([`crate::sweeper`]): the
//! sweeper aborts what stays pending for longer than any write may take, and of abortion and
//! activation only one can win, whenever they come. The invariants are those of [`crate::store`].

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    Accounts, Claim, Draft, Email, Error, Holder, Kind, Name, Password, Record, Registration,
    State, User,
    accounts::{Standing, write},
};

// A worthless claim that I could not take over was taken by somebody else in that moment. This often
// in a row, others are to come to an end first.
const TAKE_OVER_TRIES: usize = 3;

/// A request to register.
#[derive(Debug)]
pub struct Application {
    /// Made by the caller, the same when it repeats the call.
    pub request: String,
    /// The name.
    pub name: Name,
    /// The address.
    pub email: Email,
    /// The password.
    pub password: Password,
    /// A name to show; may be empty.
    pub display_name: String,
}

/// What came of a claim.
#[derive(Clone, Debug)]
pub(crate) enum Claimed {
    /// It is mine.
    Mine,
    /// It is this account's, or this registration's.
    By(Box<Record>),
    /// It is a name that is kept from all for some time.
    Held,
    /// It is somebody's, who came in between.
    Contested,
}

enum Outcome {
    Registered(User),
    Lost(Kind, Box<Record>),
    /// Its name is kept from all for some time.
    Held,
    /// Given up by the sweeper, or by itself since others kept coming in between: who they are is
    /// unknown, and may be the same request.
    Aborted,
}

impl Accounts {
    /// Registers an account, or returns the one that the same request has registered before.
    pub async fn register(&self, application: Application) -> Result<User, Error> {
        let claims = [Claim::Name(&application.name), Claim::Email(&application.email)];
        let [name, email] = self.standings(claims).await?;
        // Asked before hashing, which is dear.
        for (kind, standing) in [(Kind::Name, name), (Kind::Email, email)] {
            match standing {
                Standing::Free => {}
                Standing::Held => return Err(taken(kind)),
                Standing::By(rival) => return self.replay(&application, kind, &rival).await,
            }
        }
        let draft = Draft {
            name: application.name.clone(),
            email: application.email.clone(),
            password: self.hasher.permit().await?.hash(application.password.clone()).await?,
            display_name: application.display_name.clone(),
            request: application.request.clone(),
        };
        let accounts = self.clone();
        match write(async move { accounts.carry_out(draft).await }).await? {
            Outcome::Registered(user) => Ok(user),
            Outcome::Lost(kind, rival) => self.replay(&application, kind, &rival).await,
            Outcome::Held => Err(Error::NameTaken),
            Outcome::Aborted => Err(Error::RegistrationInProgress),
        }
    }

    /// Answers a registration whose name or address somebody has: with that account, if it is what
    /// the same request has made.
    async fn replay(
        &self,
        application: &Application,
        kind: Kind,
        rival: &Record,
    ) -> Result<User, Error> {
        let same = rival.request == application.request
            && rival.has_name(&application.name)
            && rival.has_email(&application.email);
        if !same {
            return Err(taken(kind));
        }
        if rival.state == State::Pending {
            return Err(Error::RegistrationInProgress);
        }
        let permit = self.hasher.permit().await?;
        let known = permit.verify(&application.password, Some(&rival.password)).await?;
        if known { Ok(rival.user.clone()) } else { Err(taken(kind)) }
    }

    async fn carry_out(&self, draft: Draft) -> Result<Outcome, Error> {
        let drafts = [draft];
        let registrations = self.store.create(&drafts).await?;
        for kind in [Kind::Name, Kind::Email] {
            let claimed = self.acquire(kind, &registrations).await?.pop();
            let outcome = match claimed {
                Some(Claimed::Mine) => continue,
                Some(Claimed::By(rival)) => Outcome::Lost(kind, rival),
                Some(Claimed::Held) => Outcome::Held,
                Some(Claimed::Contested) | None => Outcome::Aborted,
            };
            self.discard(&registrations).await?;
            return Ok(outcome);
        }
        let ids: Vec<_> = registrations.iter().map(|registration| registration.id).collect();
        if self.store.activate(&ids).await?.as_slice() != [true] {
            self.discard(&registrations).await?;
            return Ok(Outcome::Aborted);
        }
        let [draft] = drafts;
        let [id] = ids.as_slice() else { return Err(Error::Damaged("an answer")) };
        Ok(Outcome::Registered(User {
            id: *id,
            name: draft.name.as_str().to_owned(),
            display_name: draft.display_name,
            bio: String::new(),
            avatar_url: String::new(),
            location: String::new(),
        }))
    }

    /// Claims something for each registration: what is free, and what somebody holds who is gone.
    pub(crate) async fn acquire(
        &self,
        kind: Kind,
        registrations: &[Registration],
    ) -> Result<Vec<Claimed>, Error> {
        let mut claimed = vec![Claimed::Mine; registrations.len()];
        let holders = self.store.claim(kind, registrations).await?;
        let mut open: Vec<_> = holders.into_iter().enumerate().collect();
        for _ in 0..TAKE_OVER_TRIES {
            let rivals = self.others(&mut claimed, registrations, open).await?;
            let mut worthless = Vec::new();
            for (i, holder, rival) in rivals {
                match self.standing(Claim::of(&registrations[i], kind), rival) {
                    Standing::Free => worthless.push((i, holder)),
                    Standing::Held => claimed[i] = Claimed::Held,
                    Standing::By(rival) => claimed[i] = Claimed::By(rival),
                }
            }
            if worthless.is_empty() {
                return Ok(claimed);
            }
            let wants: Vec<_> =
                worthless.iter().map(|&(i, from)| (&registrations[i], Holder::Of(from))).collect();
            let taken = self.store.take(kind, &wants).await?;
            open = worthless.iter().zip(taken).map(|(&(i, _), holder)| (i, holder)).collect();
        }
        for (i, holder) in open {
            match holder {
                Holder::Of(id) if id == registrations[i].id => {}
                Holder::Of(_) => claimed[i] = Claimed::Contested,
                Holder::Freed(_) => claimed[i] = Claimed::Held,
            }
        }
        Ok(claimed)
    }

    /// Returns of the claims that others hold who these are, each with its place; notes those that
    /// are held for nobody. One round trip, where there are any.
    async fn others(
        &self,
        claimed: &mut [Claimed],
        registrations: &[Registration],
        holders: Vec<(usize, Holder)>,
    ) -> Result<Vec<(usize, UserId, Option<Record>)>, Error> {
        let mut others = Vec::new();
        for (i, holder) in holders {
            match holder {
                Holder::Of(id) if id == registrations[i].id => {}
                Holder::Of(id) => others.push((i, id)),
                Holder::Freed(_) => claimed[i] = Claimed::Held,
            }
        }
        if others.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = others.iter().map(|&(_, id)| id).collect();
        let records = self.store.read(&ids).await?;
        Ok(others.into_iter().zip(records).map(|((i, id), record)| (i, id, record)).collect())
    }

    /// Gives back what registrations hold and forgets them. They must not be going on elsewhere.
    pub(crate) async fn discard(&self, registrations: &[Registration]) -> Result<(), Error> {
        let ids: Vec<_> = registrations.iter().map(|registration| registration.id).collect();
        // Nobody has ever had these names.
        self.store.release(registrations, Duration::ZERO).await?;
        self.store.drop_registrations(&ids).await
    }
}

const fn taken(kind: Kind) -> Error {
    match kind {
        Kind::Name => Error::NameTaken,
        Kind::Email => Error::EmailTaken,
    }
}
