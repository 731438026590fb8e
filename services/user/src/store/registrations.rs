//! The steps of a registration, from the id to the account, or to its abort.

use microblog_domain::{Partition, Repairs, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, redis};

use super::{Store, StoredClaims, by_partition, card, claims, intact};
use crate::{
    error::Error,
    keys,
    profile::{Draft, Registration},
};

// The accounts per partition and call: fewer calls, but still evenly spread.
const DRAFTS_PER_CALL_MAX: usize = 16;
// The registrations per partition that one read returns.
const PENDING_PER_PARTITION_MAX: isize = 100;

impl Store {
    /// Starts registrations: issues ids in random partitions and writes pending profiles, without
    /// claims. One round trip.
    pub async fn create(&self, drafts: &[Draft]) -> Result<Vec<Registration>, Error> {
        let mut batch = Batch::new();
        for chunk in drafts.chunks(DRAFTS_PER_CALL_MAX) {
            let partition = Partition::new(rand::random());
            batch.call(partition, create(partition, chunk));
        }
        let mut ids = Vec::with_capacity(drafts.len());
        for answer in self.keyspace.send(batch).await? {
            ids.extend(keyspace::decode::<Vec<u64>>(answer)?);
        }
        let begun = |(draft, id): (&Draft, u64)| {
            let id = intact(UserId::new(id), "an issued id")?;
            Ok(Registration { id, name: draft.name.clone(), address: draft.address.clone() })
        };
        drafts.iter().zip(ids).map(begun).collect()
    }

    /// Activates pending registrations, which must own both their claims. Returns for each whether
    /// it is an account now; if not, it was aborted, or its draft is damaged. One round trip.
    pub async fn activate(&self, ids: &[UserId]) -> Result<Vec<bool>, Error> {
        let groups = by_partition(ids.iter().copied(), UserId::partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            let call = Call::new("user_activate")
                .journal(*partition, keys::journal(*partition))
                .key(keys::registrations(*partition))
                .key(keys::accounts(*partition));
            batch.call(*partition, with_profiles(call, group));
        }
        let mut done = vec![false; ids.len()];
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let states: Vec<u64> = keyspace::decode(answer)?;
            for ((place, _), state) in group.iter().zip(states) {
                done[*place] = state == 1;
            }
        }
        Ok(done)
    }

    /// Aborts registrations, which then cannot be activated. Returns those whose claims must be
    /// released before `drop_registrations`. One round trip. Logs and skips damaged ones, so that
    /// they do not block others.
    pub async fn abort(&self, ids: &[UserId]) -> Result<Vec<Registration>, Error> {
        self.abort_by(ids, |partition| {
            Call::new("user_abort").journal(partition, keys::journal(partition))
        })
        .await
    }

    /// As `abort`, also in a partition that is being recovered.
    pub(crate) async fn abort_unchecked(&self, ids: &[UserId]) -> Result<Vec<Registration>, Error> {
        self.abort_by(ids, |_| Call::new("user_abort_unchecked")).await
    }

    async fn abort_by(
        &self,
        ids: &[UserId],
        call: impl Fn(Partition) -> Call,
    ) -> Result<Vec<Registration>, Error> {
        let groups = by_partition(ids.iter().copied(), UserId::partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            let call = call(*partition).key(keys::registrations(*partition));
            batch.call(*partition, with_profiles(call, group));
        }
        let mut aborted = Vec::new();
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let found: Vec<Option<StoredClaims>> = keyspace::decode(answer)?;
            for ((_, id), stored) in group.iter().zip(found) {
                let Some(stored) = stored else { continue };
                match claims(*id, stored) {
                    Some(registration) => aborted.push(registration),
                    None => tracing::error!(id = id.get(), "damaged registration"),
                }
            }
        }
        Ok(aborted)
    }

    /// Deletes aborted registrations after the release of their claims. Skips accounts. One round
    /// trip.
    pub async fn drop_registrations(&self, ids: &[UserId]) -> Result<(), Error> {
        let mut batch = Batch::new();
        for (partition, group) in by_partition(ids.iter().copied(), UserId::partition) {
            let call = Call::new("user_drop").key(keys::registrations(partition));
            batch.call(partition, with_profiles(call, &group));
        }
        for answer in self.keyspace.send(batch).await? {
            keyspace::decode::<u64>(answer)?;
        }
        Ok(())
    }

    /// Removes ids that are not accounts from their partitions' lists of accounts. Returns those
    /// removed. One round trip.
    pub async fn unlist(&self, ids: &[UserId]) -> Result<Vec<UserId>, Error> {
        let groups = by_partition(ids.iter().copied(), UserId::partition);
        let mut batch = Batch::new();
        for (partition, group) in &groups {
            let call = Call::new("user_unlist").key(keys::accounts(*partition));
            batch.call(*partition, with_profiles(call, group));
        }
        let mut unlisted = Vec::new();
        let answers = self.keyspace.send(batch).await?;
        for ((_, group), answer) in groups.iter().zip(answers) {
            let done: Vec<bool> = keyspace::decode(answer)?;
            let group = group.iter().map(|&(_, id)| id).zip(done);
            unlisted.extend(group.filter(|&(_, done)| done).map(|(id, _)| id));
        }
        Ok(unlisted)
    }

    /// Returns the oldest 100 registrations of each partition, except those that lack changes. One
    /// round trip.
    pub async fn registrations(&self) -> Result<Vec<UserId>, Error> {
        let mut batch = Batch::with_capacity(usize::from(Partition::COUNT));
        let states = self.keyspace.states();
        for partition in Partition::all().filter(|&at| !states.is_closed(at)) {
            batch.query(partition, pending(partition));
        }
        self.ids(batch).await
    }

    /// Returns the oldest 100 registrations of one partition. One command.
    pub async fn registrations_in(&self, partition: Partition) -> Result<Vec<UserId>, Error> {
        let mut batch = Batch::new();
        batch.query(partition, pending(partition));
        self.ids(batch).await
    }

    /// Measures how far the partitions' clocks are ahead of this process's clock. One batch.
    pub async fn measure_clocks(&self) -> Result<(), Error> {
        Ok(self.keyspace.measure_clocks(keys::clock).await?)
    }

    /// Returns the violation of a partition's clock, if any.
    pub async fn clock_violation(&self, at: Partition) -> Result<Option<String>, Error> {
        Ok(self.keyspace.clock_violation(at, keys::clock).await?)
    }

    /// Sets back all clocks that are too far ahead to issue stamps. Returns the repairs.
    pub async fn repair_clocks(&self) -> Result<Repairs, Error> {
        Ok(self.keyspace.repair_clocks("user_repair_clock", keys::clock).await?)
    }

    /// Returns all ids in the responses of a batch.
    pub(super) async fn ids(&self, batch: Batch) -> Result<Vec<UserId>, Error> {
        let mut ids = Vec::new();
        for answer in self.keyspace.send(batch).await? {
            let found: Vec<u64> = keyspace::decode(answer)?;
            ids.extend(found.into_iter().filter_map(UserId::new));
        }
        Ok(ids)
    }
}

fn pending(partition: Partition) -> redis::Cmd {
    let mut range = redis::cmd("ZRANGE");
    range.arg(keys::registrations(partition)).arg(0).arg(PENDING_PER_PARTITION_MAX - 1);
    range
}

fn create(partition: Partition, drafts: &[Draft]) -> Call {
    let call = Call::new("user_create")
        .journal(partition, keys::journal(partition))
        .key(keys::clock(partition))
        .key(keys::registrations(partition))
        .key(keys::profile_prefix(partition))
        .issuing(partition);
    drafts.iter().fold(call, |call, draft| {
        call.arg(card::write(draft))
            .arg(draft.address.as_str())
            .arg(draft.password.as_str())
            .arg(&draft.request)
    })
}

fn with_profiles(call: Call, group: &[(usize, UserId)]) -> Call {
    group.iter().fold(call, |call, &(_, id)| call.key(keys::profile(id)).arg(id.get()))
}
