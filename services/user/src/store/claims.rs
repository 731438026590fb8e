//! Claims on names and addresses, which make them unique. The owner's profile decides whether a
//! claim is valid.

use std::time::Duration;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, redis};

use super::{Store, by_partition, intact};
use crate::{
    error::Error,
    identifier::{Identifier, IdentifierKind},
    keys,
    profile::Registration,
};

/// The owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOwner {
    /// This account or registration, if it exists.
    Account(UserId),
    /// A hold: the name of this deleted account is reserved for some time.
    Hold(UserId),
}

impl ClaimOwner {
    /// Decodes a stored claim: an id, or a negated one for a hold.
    pub(super) fn decode(value: i64) -> Option<Self> {
        let id = UserId::new(value.unsigned_abs())?;
        Some(if value < 0 { Self::Hold(id) } else { Self::Account(id) })
    }

    /// Encodes a claim.
    pub(super) fn encode(self) -> String {
        match self {
            Self::Account(id) => id.to_string(),
            Self::Hold(id) => format!("-{id}"),
        }
    }

    /// Returns the account or registration, or the deleted account.
    pub(crate) const fn account(self) -> UserId {
        match self {
            Self::Account(id) | Self::Hold(id) => id,
        }
    }

    /// Returns the account or registration.
    pub(crate) const fn id(self) -> Option<UserId> {
        match self {
            Self::Account(id) => Some(id),
            Self::Hold(_) => None,
        }
    }
}

impl Store {
    /// Returns the owner of each claim. One round trip.
    pub async fn claim_owners(
        &self,
        claims: &[Identifier<'_>],
    ) -> Result<Vec<Option<ClaimOwner>>, Error> {
        let mut batch = Batch::new();
        for claim in claims {
            let mut get = redis::cmd("GET");
            get.arg(keys::claim(*claim));
            batch.query(claim.partition(), get);
        }
        let answers = self.keyspace.send(batch).await?;
        let read = |answer| match keyspace::decode::<Option<i64>>(answer)? {
            None => Ok(None),
            Some(value) => intact(ClaimOwner::decode(value), "a claim").map(Some),
        };
        answers.into_iter().map(read).collect()
    }

    /// Claims free identifiers, and returns the resulting owners. One round trip.
    pub async fn claim(
        &self,
        kind: IdentifierKind,
        registrations: &[Registration],
    ) -> Result<Vec<ClaimOwner>, Error> {
        let call = |call: Call, group: &[(usize, (Identifier<'_>, UserId))]| {
            group
                .iter()
                .fold(call, |call, &(_, (claim, id))| call.key(keys::claim(claim)).arg(id.get()))
        };
        let wants = registrations.iter().map(|r| (Identifier::of(r, kind), r.id));
        self.change_claims("user_claim", wants, |(claim, _)| claim.partition(), call).await
    }

    /// Takes over stale claims by compare-and-set on their owners, and returns the resulting
    /// owners. One round trip.
    pub async fn take_over(
        &self,
        kind: IdentifierKind,
        registrations: &[(&Registration, ClaimOwner)],
    ) -> Result<Vec<ClaimOwner>, Error> {
        let call = |call: Call, group: &[(usize, (Identifier<'_>, ClaimOwner, UserId))]| {
            group.iter().fold(call, |call, &(_, (claim, from, to))| {
                call.key(keys::claim(claim)).arg(from.encode()).arg(to.get())
            })
        };
        let wants = registrations.iter().map(|&(r, from)| (Identifier::of(r, kind), from, r.id));
        self.change_claims("user_take", wants, |(claim, ..)| claim.partition(), call).await
    }

    /// Releases the claims that these registrations own; names are held for `hold`. One round trip.
    pub async fn release(
        &self,
        registrations: &[Registration],
        hold: Duration,
    ) -> Result<(), Error> {
        let hold_ms = hold.as_millis() as u64;
        let claims = registrations.iter().flat_map(|r| {
            [
                (Identifier::of(r, IdentifierKind::Name), r.id, hold_ms),
                (Identifier::of(r, IdentifierKind::Address), r.id, 0),
            ]
        });
        let mut batch = Batch::new();
        for (partition, group) in by_partition(claims, |(claim, ..)| claim.partition()) {
            let call = Call::new("user_release").journal(partition, keys::journal(partition));
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
        function: &'static str,
        items: impl ExactSizeIterator<Item = T>,
        partition: impl Fn(T) -> Partition,
        call: impl Fn(Call, &[(usize, T)]) -> Call,
    ) -> Result<Vec<ClaimOwner>, Error> {
        let mut owners = vec![None; items.len()];
        let groups = by_partition(items, partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            let change = Call::new(function).journal(*partition, keys::journal(*partition));
            batch.call(*partition, call(change, group));
        }
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let found: Vec<i64> = keyspace::decode(answer)?;
            for ((place, _), value) in group.iter().zip(found) {
                owners[*place] = ClaimOwner::decode(value);
            }
        }
        owners.into_iter().map(|owner| intact(owner, "a claim")).collect()
    }
}
