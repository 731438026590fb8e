//! Claims on names and addresses. Does not know what a claim is worth: that depends on the profile
//! of who holds it.

use std::time::Duration;

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

/// Who holds a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This account or registration, if it is one.
    Of(UserId),
    /// Nobody: a name that is kept from others for some time, since this account was deleted.
    Freed(UserId),
}

impl Holder {
    /// Reads what is kept: an id, or one with a minus sign.
    pub(super) fn decode(value: i64) -> Option<Self> {
        let id = UserId::new(value.unsigned_abs())?;
        Some(if value < 0 { Self::Freed(id) } else { Self::Of(id) })
    }

    /// Returns what is kept.
    fn encode(self) -> String {
        match self {
            Self::Of(id) => id.to_string(),
            Self::Freed(id) => format!("-{id}"),
        }
    }

    /// Returns the account or registration.
    pub(crate) const fn id(self) -> Option<UserId> {
        match self {
            Self::Of(id) => Some(id),
            Self::Freed(_) => None,
        }
    }
}

impl<'a> Claim<'a> {
    /// Returns what a registration claims.
    pub const fn of(registration: &'a Registration, kind: Kind) -> Self {
        match kind {
            Kind::Name => Self::Name(&registration.name),
            Kind::Email => Self::Email(&registration.email),
        }
    }

    pub(crate) fn partition(self) -> Partition {
        match self {
            Self::Name(name) => name.partition(),
            Self::Email(email) => email.partition(),
        }
    }
}

impl Store {
    /// Returns who holds each claim. One round trip.
    pub async fn holders(&self, claims: &[Claim<'_>]) -> Result<Vec<Option<Holder>>, Error> {
        let mut batch = Batch::new();
        for claim in claims {
            let mut get = redis::cmd("GET");
            get.arg(keys::claim(*claim));
            batch.query(claim.partition(), get);
        }
        let answers = self.keyspace.send(batch).await?;
        let read = |answer| match keyspace::decode::<Option<i64>>(answer)? {
            None => Ok(None),
            Some(value) => intact(Holder::decode(value), "a claim").map(Some),
        };
        answers.into_iter().map(read).collect()
    }

    /// Claims for each registration what is free, and returns who holds it then. One round trip.
    pub async fn claim(
        &self,
        kind: Kind,
        registrations: &[Registration],
    ) -> Result<Vec<Holder>, Error> {
        let call = |group: &[(usize, (Claim<'_>, UserId))]| {
            let call = Call::new("user_claim");
            group
                .iter()
                .fold(call, |call, &(_, (claim, id))| call.key(keys::claim(claim)).arg(id.get()))
        };
        let wants = registrations.iter().map(|r| (Claim::of(r, kind), r.id));
        self.change_claims(wants, |(claim, _)| claim.partition(), call).await
    }

    /// Takes claims over from holders that have no right to them any more, each from the one given,
    /// and returns who holds them then. One round trip.
    pub async fn take(
        &self,
        kind: Kind,
        registrations: &[(&Registration, Holder)],
    ) -> Result<Vec<Holder>, Error> {
        let call = |group: &[(usize, (Claim<'_>, Holder, UserId))]| {
            group.iter().fold(Call::new("user_take"), |call, &(_, (claim, from, to))| {
                call.key(keys::claim(claim)).arg(from.encode()).arg(to.get())
            })
        };
        let wants = registrations.iter().map(|&(r, from)| (Claim::of(r, kind), from, r.id));
        self.change_claims(wants, |(claim, ..)| claim.partition(), call).await
    }

    /// Gives back what registrations claim, where they still hold it; names are kept from others for
    /// so long. One round trip.
    pub async fn release(
        &self,
        registrations: &[Registration],
        hold: Duration,
    ) -> Result<(), Error> {
        let hold_ms = hold.as_millis() as u64;
        let claims = registrations.iter().flat_map(|r| {
            [(Claim::of(r, Kind::Name), r.id, hold_ms), (Claim::of(r, Kind::Email), r.id, 0)]
        });
        let mut batch = Batch::new();
        for (partition, group) in by_partition(claims, |(claim, ..)| claim.partition()) {
            let call = Call::new("user_release");
            let call = group.iter().fold(call, |call, &(_, (claim, id, hold_ms))| {
                call.key(keys::claim(claim)).arg(id.get()).arg(hold_ms)
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
    ) -> Result<Vec<Holder>, Error> {
        let mut holders = vec![None; items.len()];
        let groups = by_partition(items, partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            batch.call(*partition, call(group));
        }
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let found: Vec<i64> = keyspace::decode(answer)?;
            for ((place, _), value) in group.iter().zip(found) {
                holders[*place] = Holder::decode(value);
            }
        }
        holders.into_iter().map(|holder| intact(holder, "a claim")).collect()
    }
}
