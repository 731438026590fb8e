//! Partition clocks, which issue ids and versions: the issuer argument of calls, the clock skew, and
//! its repair. `prelude/id_generator.lua` implements them.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, Repairs};
use opentelemetry::{KeyValue, global};
use redis::cmd;

use crate::{Batch, Call, Error, Keyspace, decode};

/// The greatest clock skew at which a clock issues stamps.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// The epoch of ticks, 2024-01-01T00:00:00Z, in milliseconds since the Unix epoch.
const EPOCH_MS: u64 = 1_704_067_200_000;

/// Ticks per second.
const TICKS_PER_SECOND: u64 = 4_000;

/// The outcome of setting a clock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockRepair {
    /// The clock was not ahead.
    NotAhead,
    /// The clock was set back by this duration.
    By(Duration),
    /// The clock is ahead, but the time of its jump is unknown: it cannot be set back.
    Unknown,
}

impl Call {
    /// Adds the argument `issuer` of a function that issues stamps: the partition, and the time of
    /// this process.
    #[must_use]
    pub fn issuing(self, partition: Partition) -> Self {
        self.issuing_at(partition, SystemTime::now())
    }

    /// Adds the argument `issuer` with another time.
    #[must_use]
    pub fn issuing_at(self, partition: Partition, now: SystemTime) -> Self {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let partitions = u64::from(Partition::COUNT);
        self.arg(now.as_millis() as u64 * partitions + u64::from(partition.number()))
    }
}

impl Keyspace {
    /// Returns how far the clocks of `partitions` are ahead of the process, in their order, or zero.
    /// `key` returns the key of a partition's clock.
    pub async fn clocks_ahead(
        &self,
        partitions: &[Partition],
        key: impl Fn(Partition) -> String,
    ) -> Result<Vec<Duration>, Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            batch.query(partition, cmd("GET").arg(key(partition)).take());
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let ahead = |reply| Ok(ahead(decode::<Option<String>>(reply)?.as_deref(), now));
        self.send(batch).await?.into_iter().map(ahead).collect()
    }

    /// Records how far the most advanced partition clock is ahead of the process. One batch.
    pub async fn measure_clocks(&self, key: impl Fn(Partition) -> String) -> Result<(), Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let ahead = self.clocks_ahead(&partitions, key).await?.into_iter().max();
        global::meter("microblog-keyspace")
            .f64_gauge("microblog.clock.ahead")
            .with_unit("s")
            .with_description("Skew of the most advanced partition clock against the process")
            .build()
            .record(
                ahead.unwrap_or_default().as_secs_f64(),
                &[KeyValue::new("microblog.keyspace", self.name())],
            );
        Ok(())
    }

    /// Returns the violation that `verify` reports if a partition clock is too far ahead to issue
    /// stamps.
    pub async fn clock_violation(
        &self,
        partition: Partition,
        key: impl Fn(Partition) -> String,
    ) -> Result<Option<String>, Error> {
        let ahead = self.clocks_ahead(&[partition], key).await?.pop().unwrap_or_default();
        let text = || {
            let seconds = ahead.as_secs();
            format!("the clock of partition {partition} is {seconds} seconds ahead")
        };
        Ok((ahead > AHEAD_MAX).then(text))
    }

    /// Sets back all clocks that are too far ahead to issue stamps. A repair does this first, because
    /// it issues stamps in any partition. `function` is the name of the library's `repair_clock`.
    pub async fn repair_clocks(
        &self,
        function: &'static str,
        key: impl Fn(Partition) -> String,
    ) -> Result<Repairs, Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let ahead = self.clocks_ahead(&partitions, &key).await?;
        let mut repairs = Repairs::default();
        for (&partition, _) in partitions.iter().zip(ahead).filter(|&(_, by)| by > AHEAD_MAX) {
            let repair = self.repair_clock(function, partition, key(partition)).await?;
            repair.text(partition).into_iter().for_each(|text| repairs.add(text));
        }
        Ok(repairs)
    }

    /// Sets a partition clock back if it is ahead. `function` is the name of the library's
    /// `repair_clock`.
    pub async fn repair_clock(
        &self,
        function: &'static str,
        partition: Partition,
        key: String,
    ) -> Result<ClockRepair, Error> {
        let seconds: i64 = self.call(Call::new(function).key(key).issuing(partition)).await?;
        Ok(match u64::try_from(seconds) {
            Ok(0) => ClockRepair::NotAhead,
            Ok(seconds) => ClockRepair::By(Duration::from_secs(seconds)),
            Err(_) => ClockRepair::Unknown,
        })
    }
}

impl ClockRepair {
    /// Returns the repair that `verify --repair` reports, if the clock was set back.
    pub fn text(self, partition: Partition) -> Option<String> {
        match self {
            Self::By(duration) => {
                let seconds = duration.as_secs();
                Some(format!("the clock of partition {partition} is set back by {seconds} seconds"))
            }
            Self::NotAhead | Self::Unknown => None,
        }
    }
}

// Ignores a malformed clock: the functions report it.
fn ahead(clock: Option<&str>, now: Duration) -> Duration {
    let tick: u64 = clock.and_then(|clock| clock.parse().ok()).unwrap_or_default();
    let at = Duration::from_millis(EPOCH_MS)
        + Duration::from_secs_f64(tick as f64 / TICKS_PER_SECOND as f64);
    at.saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_the_clock_minus_the_time_of_the_process() {
        let now = Duration::from_millis(EPOCH_MS) + Duration::from_secs(10);
        assert_eq!(ahead(None, now), Duration::ZERO);
        assert_eq!(ahead(Some("40000"), now), Duration::ZERO);
        assert_eq!(ahead(Some("0044000"), now), Duration::from_secs(1));
    }
}
