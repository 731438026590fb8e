//! Claims on names and addresses. Does not know what a claim is worth: that depends on the profile
//! of who holds it.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, redis};

use super::{Store, by_partition, intact};
use crate::{Email, Error, Name, Registration, keys};

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name.
    Name,
    /// An e-mail address.
    Email,
}

/// A name or address, whoever claims it.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// A name.
    Name(&'a Name),
    /// An e-mail address.
    Email(&'a Email),
}

impl<'a> Claim<'a> {
    /// Returns what a registration claims.
    pub const fn of(registration: &'a Registration, kind: Kind) -> Self {
        match kind {
            Kind::Name => Self::Name(&registration.name),
            Kind::Email => Self::Email(&registration.email),
        }
    }

    fn key(self) -> String {
        match self {
            Self::Name(name) => keys::name(name),
            Self::Email(email) => keys::email(email),
        }
    }

    fn partition(self) -> Partition {
        match self {
            Self::Name(name) => name.partition(),
            Self::Email(email) => email.partition(),
        }
    }
}

impl Store {
    /// Returns who holds each claim. One round trip.
    pub async fn holders(&self, claims: &[Claim<'_>]) -> Result<Vec<Option<UserId>>, Error> {
        let mut batch = Batch::new();
        for claim in claims {
            let mut get = redis::cmd("GET");
            get.arg(claim.key());
            batch.query(claim.partition(), get);
        }
        let answers = self.keyspace.send(batch).await?;
        let read = |answer| match keyspace::decode::<Option<u64>>(answer)? {
            None => Ok(None),
            Some(id) => intact(UserId::new(id), "a claim").map(Some),
        };
        answers.into_iter().map(read).collect()
    }

    /// Claims for each registration what is free, and returns who holds it then. One round trip.
    pub async fn claim(
        &self,
        kind: Kind,
        registrations: &[Registration],
    ) -> Result<Vec<UserId>, Error> {
        let call = |group: &[(usize, (Claim<'_>, UserId))]| {
            let call = Call::new("user_claim");
            group.iter().fold(call, |call, (_, (claim, id))| call.key(claim.key()).arg(id.get()))
        };
        let wants = registrations.iter().map(|r| (Claim::of(r, kind), r.id));
        self.change_claims(wants, |(claim, _)| claim.partition(), call).await
    }

    /// Takes claims over from accounts or registrations that are gone, each from the one given, and
    /// returns who holds them then. One round trip.
    pub async fn take(
        &self,
        kind: Kind,
        registrations: &[(&Registration, UserId)],
    ) -> Result<Vec<UserId>, Error> {
        let call = |group: &[(usize, (Claim<'_>, UserId, UserId))]| {
            group.iter().fold(Call::new("user_take"), |call, (_, (claim, from, to))| {
                call.key(claim.key()).arg(from.get()).arg(to.get())
            })
        };
        let wants = registrations.iter().map(|&(r, from)| (Claim::of(r, kind), from, r.id));
        self.change_claims(wants, |(claim, ..)| claim.partition(), call).await
    }

    /// Gives back what registrations claim, where they still hold it. One round trip.
    pub async fn release(&self, registrations: &[Registration]) -> Result<(), Error> {
        let both = |r| [(Claim::of(r, Kind::Name), r.id), (Claim::of(r, Kind::Email), r.id)];
        let claims = registrations.iter().flat_map(both);
        let mut batch = Batch::new();
        for (partition, group) in by_partition(claims, |(claim, _)| claim.partition()) {
            let call = group.iter().fold(Call::new("user_release"), |call, (_, (claim, id))| {
                call.key(claim.key()).arg(id.get())
            });
            batch.call(partition, call);
        }
        for answer in self.keyspace.send(batch).await? {
            keyspace::decode::<u64>(answer)?;
        }
        Ok(())
    }

    async fn change_claims<T: Copy>(
        &self,
        items: impl ExactSizeIterator<Item = T>,
        partition: impl Fn(T) -> Partition,
        call: impl Fn(&[(usize, T)]) -> Call,
    ) -> Result<Vec<UserId>, Error> {
        let mut holders = vec![None; items.len()];
        let groups = by_partition(items, partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            batch.call(*partition, call(group));
        }
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let ids: Vec<u64> = keyspace::decode(answer)?;
            for ((place, _), id) in group.iter().zip(ids) {
                holders[*place] = UserId::new(id);
            }
        }
        holders.into_iter().map(|holder| intact(holder, "a claim")).collect()
    }
}
