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

use std::collections::HashMap;

use microblog_domain::UserId;

use crate::{
    Accounts, Claim, Draft, Email, Error, Kind, Name, Password, Record, Registration, State, User,
    accounts::write,
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
    /// It is somebody's, who came in between.
    Contested,
}

enum Outcome {
    Registered(User),
    Lost(Kind, Box<Record>),
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
        if let Some(rival) = name {
            return self.replay(&application, Kind::Name, &rival).await;
        }
        if let Some(rival) = email {
            return self.replay(&application, Kind::Email, &rival).await;
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
        let mut holders = self.store.claim(kind, registrations).await?;
        let mut open: Vec<usize> = (0..registrations.len()).collect();
        for _ in 0..TAKE_OVER_TRIES {
            open.retain(|&i| holders[i] != registrations[i].id);
            if open.is_empty() {
                return Ok(claimed);
            }
            let rivals = self.read_by_id(open.iter().map(|&i| holders[i])).await?;
            open.retain(|&i| {
                let claim = Claim::of(&registrations[i], kind);
                let rival = rivals.get(&holders[i]).filter(|rival| claim.is_worth(rival));
                if let Some(rival) = rival {
                    claimed[i] = Claimed::By(Box::new(rival.clone()));
                }
                rival.is_none()
            });
            let worthless: Vec<_> = open.iter().map(|&i| (&registrations[i], holders[i])).collect();
            let taken = self.store.take(kind, &worthless).await?;
            open.iter().zip(taken).for_each(|(&i, holder)| holders[i] = holder);
        }
        for i in open.into_iter().filter(|&i| holders[i] != registrations[i].id) {
            claimed[i] = Claimed::Contested;
        }
        Ok(claimed)
    }

    /// Gives back what registrations hold and forgets them. They must not be going on elsewhere.
    pub(crate) async fn discard(&self, registrations: &[Registration]) -> Result<(), Error> {
        let ids: Vec<_> = registrations.iter().map(|registration| registration.id).collect();
        self.store.release(registrations).await?;
        self.store.drop_registrations(&ids).await
    }

    async fn read_by_id(
        &self,
        ids: impl Iterator<Item = UserId>,
    ) -> Result<HashMap<UserId, Record>, Error> {
        let ids: Vec<_> = ids.collect();
        let records = self.store.read(&ids).await?;
        Ok(ids.into_iter().zip(records).filter_map(|(id, r)| Some((id, r?))).collect())
    }
}

const fn taken(kind: Kind) -> Error {
    match kind {
        Kind::Name => Error::NameTaken,
        Kind::Email => Error::EmailTaken,
    }
}
