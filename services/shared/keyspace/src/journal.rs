//! Change journals: a stream for each partition with every change of its state, which
//! `prelude/journal.lua` writes. This file has the versions, and the reads of consumers.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use microblog_domain::Partition;
use redis::{Cmd, Value, cmd};

use crate::{
    Batch, Error, Keyspace, PartitionStates,
    reply::{check, decode},
};

/// The bits of the number within an epoch: a million changes a second for twelve days.
const NUMBER_BITS: u32 = 40;

/// The version of a change, which is the id of its journal entry: an epoch, which begins with each
/// recovery, and a number. Versions of a partition grow. The number format keeps their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Returns the version as a number below 2^63.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the version with a number in the next epoch.
    #[must_use]
    pub const fn in_next_epoch(self, number: u64) -> Self {
        Self((self.epoch() + 1) << NUMBER_BITS | number)
    }

    /// Returns the epoch.
    pub const fn epoch(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// Converts from the number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the version with another number in the same epoch.
    #[must_use]
    pub const fn with_number(self, number: u64) -> Self {
        Self(self.epoch() << NUMBER_BITS | number)
    }

    /// Returns the number within the epoch.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

/// A malformed version.
#[derive(Debug, thiserror::Error)]
#[error("the version of a change is malformed")]
pub struct MalformedVersion;

impl FromStr for Version {
    type Err = MalformedVersion;

    fn from_str(text: &str) -> Result<Self, MalformedVersion> {
        let (epoch, number) = text.split_once('-').ok_or(MalformedVersion)?;
        let parse = |digits: &str| digits.parse::<u64>().map_err(|_| MalformedVersion);
        let (epoch, number) = (parse(epoch)?, parse(number)?);
        if epoch >> (63 - NUMBER_BITS) > 0 || number >> NUMBER_BITS > 0 {
            return Err(MalformedVersion);
        }
        Ok(Self(epoch << NUMBER_BITS | number))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch(), self.number())
    }
}

/// What calls with a journal are sent with: the newest versions that the process has seen, and whether
/// they wait until changes are durable.
pub(crate) struct SeenVersions {
    states: PartitionStates,
    waits: AtomicBool,
}

impl SeenVersions {
    pub(crate) fn new(states: PartitionStates) -> Self {
        Self { states, waits: AtomicBool::new(false) }
    }

    /// Returns what the process knows of the partitions.
    pub(crate) fn states(&self) -> &PartitionStates {
        &self.states
    }

    /// Makes calls ask for the change that their results rely on.
    pub(crate) fn set_waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Returns the last arguments of a call that changes a partition: the epoch and the number of the
    /// newest version, and whether the call waits.
    pub(crate) fn arguments(&self, partition: Partition, waits: bool) -> [u64; 3] {
        let newest = self.states.newest(partition);
        [newest.epoch(), newest.number(), waits.into()]
    }

    /// Returns whether calls wait until changes are durable.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns the result in the reply of such a call, and the change that it relies on, if the call
    /// waits. Notes the version.
    pub(crate) fn take_result(
        &self,
        partition: Partition,
        reply: Value,
    ) -> Result<(Value, Option<Change>), Error> {
        let (result, version, text): (Value, Option<String>, Option<String>) =
            redis::from_redis_value(check(reply)?)?;
        let Some(version) = version else { return Ok((result, None)) };
        let version = version.parse().map_err(|error| Error::Malformed(Box::new(error)))?;
        self.states.require(partition, version);
        Ok((result, text.map(|text| Change { version, text })))
    }
}

/// An entry of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Its version.
    pub version: Version,
    /// The kind of change, the ids of its subject and a stamp, separated by spaces.
    pub text: String,
}

/// A recovery of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// The partition.
    pub partition: Partition,
    /// The version of the entry that began it. Functions of the recovery reject another one.
    pub version: Version,
}

/// The journals of a service.
#[derive(Clone, Copy, Debug)]
pub struct Journals {
    /// Returns the key of a partition's journal.
    pub key: fn(Partition) -> String,
}

impl Journals {
    /// Appends an entry with a version, and creates the journal if there is none. Returns whether
    /// the version was above all others; else nothing is appended.
    pub async fn append(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        change: &Change,
    ) -> Result<bool, Error> {
        let appended = self.add(keyspace, partition, change, None).await?;
        Ok(appended.is_some())
    }

    /// Appends an entry likewise, but does not create the journal.
    pub async fn append_to_existing(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        change: &Change,
    ) -> Result<bool, Error> {
        let appended = self.add(keyspace, partition, change, Some("NOMKSTREAM")).await?;
        Ok(appended.is_some_and(|id| id != Value::Nil))
    }

    // Returns the reply; `None` if the version was not above all others.
    async fn add(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        change: &Change,
        option: Option<&str>,
    ) -> Result<Option<Value>, Error> {
        let mut add = cmd("XADD");
        add.arg((self.key)(partition)).arg(option).arg(change.version.to_string());
        match keyspace.query::<Value>(add.arg("c").arg(&change.text).take()).await {
            Err(Error::Refused { code, .. }) if code == "ERR" => Ok(None),
            appended => appended.map(Some),
        }
    }

    /// Returns the newest entry of each of some journals; `None` if there is no journal.
    pub async fn newest(
        &self,
        keyspace: &Keyspace,
        partitions: &[Partition],
    ) -> Result<Vec<Option<Change>>, Error> {
        let read = |&partition: &Partition| {
            let mut read = cmd("XREVRANGE");
            read.arg((self.key)(partition)).arg("+").arg("-").arg("COUNT").arg(1);
            (partition, read)
        };
        let replies = send(keyspace, partitions.iter().map(read)).await?;
        replies.into_iter().map(|reply| Ok(changes(reply)?.pop())).collect()
    }

    /// Returns up to `count` entries of each of some journals from a version on, including it.
    pub async fn pages(
        &self,
        keyspace: &Keyspace,
        from: &[(Partition, Version)],
        count: usize,
    ) -> Result<Vec<Vec<Change>>, Error> {
        let read = |&(partition, version): &(Partition, Version)| {
            let mut read = cmd("XRANGE");
            read.arg((self.key)(partition)).arg(version.to_string()).arg("+");
            (partition, read.arg("COUNT").arg(count).take())
        };
        send(keyspace, from.iter().map(read)).await?.into_iter().map(changes).collect()
    }

    /// Removes the entries before a version from each of some journals. Keeps some more, since
    /// Redis removes whole nodes of a stream.
    pub async fn trim(
        &self,
        keyspace: &Keyspace,
        before: &[(Partition, Version)],
    ) -> Result<(), Error> {
        let trim = |&(partition, version): &(Partition, Version)| {
            let mut trim = cmd("XTRIM");
            trim.arg((self.key)(partition)).arg("MINID").arg("~").arg(version.to_string());
            (partition, trim)
        };
        send(keyspace, before.iter().map(trim)).await.map(|_| ())
    }

    /// Removes the oldest entries of some journals beyond `count`.
    pub async fn cap(
        &self,
        keyspace: &Keyspace,
        partitions: &[Partition],
        count: u64,
    ) -> Result<(), Error> {
        let trim = |&partition: &Partition| {
            let mut trim = cmd("XTRIM");
            trim.arg((self.key)(partition)).arg("MAXLEN").arg("~").arg(count);
            (partition, trim)
        };
        send(keyspace, partitions.iter().map(trim)).await.map(|_| ())
    }
}

// Sends a command to each of some partitions, and returns the replies.
async fn send(
    keyspace: &Keyspace,
    commands: impl Iterator<Item = (Partition, Cmd)>,
) -> Result<Vec<Value>, Error> {
    let mut batch = Batch::new();
    commands.for_each(|(partition, command)| batch.query(partition, command));
    keyspace.send(batch).await
}

/// How long a lease on the recovery of a partition lasts without renewal.
const LEASE: Duration = Duration::from_secs(10);

impl Journals {
    // The keys beside a journal, in its slot.
    fn beside(&self, partition: Partition, what: &str) -> String {
        format!("{}:{what}", (self.key)(partition))
    }

    /// Returns the identities of the records of some partitions; `None` if one is not recorded.
    pub async fn identities(
        &self,
        keyspace: &Keyspace,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let read = |&at: &Partition| (at, cmd("GET").arg(self.beside(at, "record")).take());
        let replies = send(keyspace, partitions.iter().map(read)).await?;
        replies.into_iter().map(decode).collect()
    }

    /// Sets the identity of the record of some partitions.
    pub async fn set_identity(
        &self,
        keyspace: &Keyspace,
        partitions: &[Partition],
        identity: &str,
    ) -> Result<(), Error> {
        let set = |&partition: &Partition| {
            (partition, cmd("SET").arg(self.beside(partition, "record")).arg(identity).take())
        };
        send(keyspace, partitions.iter().map(set)).await.map(|_| ())
    }

    /// Takes the lease on the recovery of a partition for ten seconds, unless another holder has it.
    /// The holder renews it, with `is_held`, unless another one has taken it meanwhile.
    pub async fn lease(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        holder: &str,
        is_held: bool,
    ) -> Result<bool, Error> {
        if is_held && !self.is_held(keyspace, partition, holder).await? {
            return Ok(false);
        }
        let mut set = cmd("SET");
        set.arg(self.beside(partition, "lease")).arg(holder);
        set.arg(if is_held { "XX" } else { "NX" }).arg("PX").arg(LEASE.as_millis() as u64);
        Ok(keyspace.query::<Option<String>>(set).await?.is_some())
    }

    async fn is_held(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        holder: &str,
    ) -> Result<bool, Error> {
        let get = cmd("GET").arg(self.beside(partition, "lease")).take();
        Ok(keyspace.query::<Option<String>>(get).await?.as_deref() == Some(holder))
    }

    /// Ends a lease, unless another holder has it.
    pub async fn end_lease(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
        holder: &str,
    ) -> Result<(), Error> {
        if !self.is_held(keyspace, partition, holder).await? {
            return Ok(());
        }
        let mut set = cmd("SET");
        // A time in the past: the key expires at once.
        set.arg(self.beside(partition, "lease")).arg("").arg("PXAT").arg(1);
        keyspace.query::<Option<String>>(set).await.map(|_| ())
    }
}

/// Returns the entries in the reply to a read of a journal.
pub(crate) fn changes(reply: Value) -> Result<Vec<Change>, Error> {
    let entries: Vec<(String, Vec<String>)> = decode(reply)?;
    let change = |(id, mut fields): (String, Vec<String>)| {
        let version =
            id.parse().map_err(|error: MalformedVersion| Error::Malformed(Box::new(error)))?;
        let text = fields.pop().ok_or(Error::Malformed("journal entry".into()))?;
        Ok(Change { version, text })
    };
    entries.into_iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_keep_the_order_of_the_stream() {
        let texts = ["0-1", "1-0", "1-9", "1-10", "2-0", "10-0", "8388607-1099511627775"];
        let versions: Vec<Version> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert!(versions.is_sorted());
        for (version, text) in versions.iter().zip(texts) {
            assert_eq!(version.to_string(), text);
            assert!(i64::try_from(version.get()).is_ok());
        }
    }

    #[test]
    fn malformed_versions_are_rejected() {
        for text in ["", "1", "-", "1-", "-1", "a-1", "8388608-0", "0-1099511627776"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn fuzz_versions() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(version) = text.parse::<Version>() {
                assert_eq!(version.to_string().parse::<Version>().unwrap(), version);
            }
        });
    }
}
