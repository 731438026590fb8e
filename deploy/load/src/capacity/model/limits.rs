//! The limits that do not move with more machines, and how near a plan is to each.

use std::time::{Duration, SystemTime};

use clap::Parser as _;
use microblog_domain::{Partition, Stamp};
use microblog_timeline::STREAMS;
use serde::Serialize;

use super::{Assumptions, Inputs, KINDS, Plan};

/// PostgreSQL's limit for a table: 2^32 pages of 8 KiB
/// (<https://www.postgresql.org/docs/current/limits.html>).
const SQL_TABLE_BYTES: f64 = (1_u64 << 45) as f64;

/// A limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    pub(crate) limit: f64,
    /// The value relative to the limit.
    pub(crate) ratio: f64,
    /// The number of accounts at which the value is the limit.
    pub(crate) accounts: f64,
}

/// Returns the limits.
pub(super) fn limits(inputs: &Inputs, assumed: &Assumptions, plan: &Plan) -> Vec<Limit> {
    let partitions = f64::from(Partition::COUNT);
    let usable = assumed.redis_gb * 1e9 * assumed.redis_share;
    let limit = |name: String, unit, value: f64, limit: f64| {
        let accounts = plan.accounts as f64 * limit / value;
        Limit { name, unit, value, limit, ratio: value / limit, accounts }
    };
    let peak = &plan.peak;
    let stamps = (peak.posts + peak.comments) / f64::from(Partition::COUNT);
    let mut limits = vec![
        limit("stamps a second in a partition of post".to_owned(), "", stamps, stamps_a_second()),
        limit(
            "SQL server of post: cores busy".to_owned(),
            "",
            plan.sql.busy,
            assumed.sql_cores * assumed.utilization,
        ),
    ];
    if let Some((kind, &bytes)) =
        plan.sql.bytes.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))
    {
        let name = format!("SQL table of {}, with its indexes", KINDS[kind].0);
        limits.push(limit(name, "bytes", bytes, SQL_TABLE_BYTES));
    }
    for keyspace in &plan.keyspaces {
        let name = format!("Redis memory of a mean partition of {}", keyspace.name);
        limits.push(limit(name, "bytes", keyspace.bytes / partitions, usable));
    }
    // The jobs of a stream cost at most what Redis does for a post without followers.
    let redis = inputs.layouts.iter().flat_map(|layout| &layout.processes);
    let redis = redis.filter(|process| process.name == "redis-server");
    let publish_us = redis.map(|redis| redis.publish_us).fold(0.0, f64::max);
    limits.push(limit(
        format!("Redis: core of one of {STREAMS} fan-out streams, at most"),
        "",
        peak.posts / f64::from(STREAMS) * publish_us / 1e6,
        assumed.utilization,
    ));
    limits
}

/// Returns how many stamps a partition can issue a second, by the format of stamps.
fn stamps_a_second() -> f64 {
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_millis(Stamp::EPOCH_MS);
    let at = |ms| Stamp::first_at(epoch + Duration::from_millis(ms), Partition::new(0)).get();
    (at(1) - at(0)) as f64 / f64::from(Partition::COUNT) * 1_000.0
}

/// Returns the year in which the ids end.
pub(crate) fn last_year_of_ids() -> u64 {
    let last = Stamp::new(Stamp::END - 1).map(Stamp::time).unwrap_or(SystemTime::UNIX_EPOCH);
    let since = last.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    1970 + since.as_secs() / 31_556_952
}

/// Returns the followers above which posts of an author are not pushed.
pub(crate) fn largest_push() -> u64 {
    microblog_timeline::Config::parse_from(["microblog-timeline"]).pull_threshold
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            plan,
            tests::{assumed, inputs},
        },
        *,
    };

    #[test]
    fn constants_of_the_code() {
        assert_eq!(stamps_a_second(), 4_000.0);
        assert_eq!(last_year_of_ids(), 2075);
        assert_eq!(largest_push(), 10_000);
    }

    #[test]
    fn each_limit_is_reached_at_its_number_of_accounts() {
        let (inputs, assumed) = (inputs(), assumed(&[]));
        let largest = plan(&inputs, &assumed, 500_000_000);
        for (index, limit) in largest.limits.iter().enumerate() {
            assert!((limit.ratio - limit.value / limit.limit).abs() < 1e-12);
            let there = plan(&inputs, &assumed, limit.accounts as u64);
            let ratio = there.limits[index].ratio;
            assert!((ratio - 1.0).abs() < 1e-6, "{}: {ratio}", limit.name);
        }
    }
}
