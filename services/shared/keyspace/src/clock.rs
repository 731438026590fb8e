//! The clocks of partitions, which issue ids and versions: what calls tell them, how far they are
//! ahead, and how they are set back. `prelude.lua` has the rest.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, Repairs};
use opentelemetry::{KeyValue, global};
use redis::cmd;

use crate::{Batch, Call, Error, Keyspace, decode};

/// How far ahead of the time a clock issues stamps.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// The code of a function that would have issued a stamp too far ahead.
pub(crate) const CLOCK_AHEAD: &str = "CLOCK_AHEAD";

/// 2024-01-01T00:00:00Z in milliseconds since the Unix epoch, where ticks begin.
const EPOCH_MS: u64 = 1_704_067_200_000;

/// How many ticks a second has.
const TICKS: u64 = 4_000;

/// What became of a clock that was to be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// It was not ahead.
    NotAhead,
    /// It was set back by so much.
    By(Duration),
    /// It is not known when it jumped: only time mends it.
    Unknown,
}

impl Call {
    /// Adds the argument `issuer` of a function that issues stamps of a partition: the partition,
    /// and the time of this process.
    #[must_use]
    pub fn issuing(self, partition: Partition) -> Self {
        self.issuing_at(partition, SystemTime::now())
    }

    /// Adds the same with another time.
    #[must_use]
    pub fn issuing_at(self, partition: Partition, now: SystemTime) -> Self {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let partitions = u64::from(Partition::COUNT);
        self.arg(now.as_millis() as u64 * partitions + u64::from(partition.number()))
    }
}

impl Keyspace {
    /// Returns how far the clocks of some partitions are ahead of this process's, in their order;
    /// zero where they are not. `key` names a partition's clock.
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
        let ahead = |answer| Ok(ahead(decode::<Option<String>>(answer)?.as_deref(), now));
        self.send(batch).await?.into_iter().map(ahead).collect()
    }

    /// Measures how far the furthest clock of all partitions is ahead of this process's. One batch.
    pub async fn measure_clocks(&self, key: impl Fn(Partition) -> String) -> Result<(), Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let ahead = self.clocks_ahead(&partitions, key).await?.into_iter().max();
        global::meter("microblog-keyspace")
            .f64_gauge("microblog.clock.ahead")
            .with_unit("s")
            .with_description("How far the furthest partition's clock is ahead of the process's")
            .build()
            .record(
                ahead.unwrap_or_default().as_secs_f64(),
                &[KeyValue::new("microblog.keyspace", self.name())],
            );
        Ok(())
    }

    /// Returns what `verify` says of a partition's clock: nothing unless it is too far ahead to issue
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

    /// Sets all clocks back that are too far ahead to issue stamps; what a repair does first, since it
    /// issues stamps in any partition. `function` is the library's own `mend_clock`.
    pub async fn mend_clocks(
        &self,
        function: &'static str,
        key: impl Fn(Partition) -> String,
    ) -> Result<Repairs, Error> {
        let partitions: Vec<_> = Partition::all().collect();
        let ahead = self.clocks_ahead(&partitions, &key).await?;
        let mut repairs = Repairs::default();
        for (&partition, _) in partitions.iter().zip(ahead).filter(|&(_, by)| by > AHEAD_MAX) {
            let mended = self.mend_clock(function, partition, key(partition)).await?;
            mended.text(partition).into_iter().for_each(|text| repairs.add(text));
        }
        Ok(repairs)
    }

    /// Sets a partition's clock back if it is ahead. `function` is the library's own `mend_clock`.
    pub async fn mend_clock(
        &self,
        function: &'static str,
        partition: Partition,
        key: String,
    ) -> Result<Mended, Error> {
        let seconds: i64 = self.call(Call::new(function).key(key).issuing(partition)).await?;
        Ok(match u64::try_from(seconds) {
            Ok(0) => Mended::NotAhead,
            Ok(seconds) => Mended::By(Duration::from_secs(seconds)),
            Err(_) => Mended::Unknown,
        })
    }
}

impl Mended {
    /// Returns what `verify --repair` says of it: nothing where nothing was done.
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

// A clock that cannot be read is none: the functions say what is wrong with it.
fn ahead(clock: Option<&str>, now: Duration) -> Duration {
    let tick: u64 = clock.and_then(|clock| clock.parse().ok()).unwrap_or_default();
    let at = Duration::from_millis(EPOCH_MS) + Duration::from_secs_f64(tick as f64 / TICKS as f64);
    at.saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_ahead_of_the_process() {
        let now = Duration::from_millis(EPOCH_MS) + Duration::from_secs(10);
        assert_eq!(ahead(None, now), Duration::ZERO);
        assert_eq!(ahead(Some("40000"), now), Duration::ZERO);
        assert_eq!(ahead(Some("0044000"), now), Duration::from_secs(1));
    }
}
