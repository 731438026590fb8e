//! The computation: pure, from measured inputs and assumptions to what a number of accounts needs.

mod limits;

use microblog_timeline::{HOME_MAX, USER_RECORD};
use serde::{Deserialize, Serialize};

pub(super) use self::limits::{Limit, largest_push, last_year_of_ids};
use crate::scenario::{MIX, Scenario};

const SECONDS_PER_DAY: f64 = 86_400.0;
const DAYS_PER_YEAR: f64 = 365.0;

/// The most posts in a user timeline: `USER_MAX` and `USER_SLACK` of the timeline's `functions.lua`.
const USER_TIMELINE_MAX: f64 = 1_250.0;

/// The kinds of data, with the keyspace of each in Redis.
pub(super) const KINDS: [(&str, &str); 5] = [
    ("accounts", "user"),
    ("follows", "relation"),
    ("posts", "post"),
    ("likes", "post"),
    ("comments", "post"),
];

/// The kind of which Redis has only what readers read. It caches accounts, too, which each count: anyone's
/// page may show them.
const CACHED: &str = "follows";

/// The assumptions.
#[derive(Clone, Debug, clap::Args, Serialize)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(super) struct Assumptions {
    /// Numbers of accounts, separated by commas
    #[arg(
        long,
        value_name = "ACCOUNTS",
        value_delimiter = ',',
        default_value = "10000000,100000000,500000000"
    )]
    pub(super) sizes: Vec<u64>,
    /// Share of accounts that are active on a day
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(super) active: f64,
    /// Share of accounts that Redis has the home timeline and the lists of relation of: those that were
    /// read in the last 14 days, and 7 days
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    pub(super) readers: f64,
    /// Followers of an account, on average
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    pub(super) followers: u32,
    /// Operations of `mixed` of an active account a day
    #[arg(long, value_name = "COUNT", default_value_t = 40.0)]
    pub(super) operations: f64,
    /// Peak load relative to the mean load
    #[arg(long, value_name = "RATIO", default_value_t = 3.0)]
    pub(super) peak: f64,
    /// Posts of an account that are cached, with their likes and comments: those that were read in the last
    /// week
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(super) kept_posts: u32,
    /// Likes of a post
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(super) likes: u32,
    /// Comments on a post
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub(super) comments: u32,
    /// Years of posts in SQL and in user timelines
    #[arg(long, value_name = "YEARS", default_value_t = 1.0)]
    pub(super) years: f64,
    /// Target utilization of a core
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub(super) utilization: f64,
    /// Memory of a Redis primary in GB
    #[arg(long, value_name = "GB", default_value_t = 32.0)]
    pub(super) redis_gb: f64,
    /// Share of that memory for data
    #[arg(long, value_name = "SHARE", default_value_t = 0.6)]
    pub(super) redis_share: f64,
    /// Replicas of a Redis primary
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(super) replicas: u32,
    /// Cores of the SQL server of a service
    #[arg(long, value_name = "COUNT", default_value_t = 64.0)]
    pub(super) sql_cores: f64,
}

/// The measured inputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Inputs {
    pub(super) layouts: Vec<LayoutTimes>,
    /// In the order of [`KINDS`].
    pub(super) costs: [Cost; 5],
    pub(super) home_entry_bytes: f64,
}

/// Processor time in a layout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LayoutTimes {
    pub(super) layout: String,
    /// Share of the accounts that have a home timeline in Redis.
    pub(super) readers: f64,
    /// Followers of an author in `mixed`, on average.
    pub(super) followers: f64,
    /// Followers of an author, on average, in the two measurements of deliveries.
    pub(super) followers_few: f64,
    pub(super) followers_many: f64,
    pub(super) processes: Vec<ProcessTime>,
}

/// Processor time of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessTime {
    pub(super) name: String,
    /// Per call of `mixed`.
    pub(super) mixed_us: f64,
    /// Per call of `like`.
    pub(super) like_us: f64,
    /// Per post of an author without followers.
    pub(super) publish_us: f64,
    /// Per post and follower.
    pub(super) delivery_us: f64,
}

/// What an entry of a kind of data costs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    /// The number of measured entries.
    pub(super) measured: u64,
    pub(super) redis_bytes: f64,
    /// Rows that stay.
    pub(super) sql_rows: f64,
    /// Rows inserted, changed or deleted.
    pub(super) sql_written: f64,
    /// On disk, with indexes and dead rows.
    pub(super) sql_bytes: f64,
    /// Processor time of PostgreSQL.
    pub(super) sql_us: f64,
}

/// What a number of accounts needs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Plan {
    pub(super) accounts: u64,
    pub(super) peak: Peak,
    /// Of each layout, in the order of the inputs.
    pub(super) cores: Vec<Vec<Cores>>,
    /// Redis memory of each kind of data.
    pub(super) memory: Vec<Memory>,
    /// Of each keyspace, if it has a cluster of its own.
    pub(super) keyspaces: Vec<Keyspace>,
    /// Redis primaries of one cluster for all keyspaces.
    pub(super) primaries: f64,
    pub(super) sql: Sql,
    pub(super) limits: Vec<Limit>,
}

/// What happens per second at peak load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Peak {
    /// Operations of `mixed`, without likes and comments.
    pub(super) operations: f64,
    pub(super) posts: f64,
    pub(super) likes: f64,
    pub(super) comments: f64,
    /// Posts times followers.
    pub(super) deliveries: f64,
}

/// Cores of a process, summed over its replicas.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cores {
    pub(super) process: String,
    /// Cores that are busy at peak load.
    pub(super) busy: f64,
    /// Cores at the target utilization.
    pub(super) cores: f64,
}

/// Redis memory of a kind of data.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    pub(super) kind: &'static str,
    pub(super) keyspace: &'static str,
    pub(super) bytes: f64,
}

/// Redis memory of a keyspace.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Keyspace {
    pub(super) name: &'static str,
    pub(super) bytes: f64,
    /// Primaries that have this memory.
    pub(super) primaries: f64,
}

/// What SQL has to do and to store.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sql {
    /// Rows written for posts, likes and comments, a second at peak load.
    pub(super) written: f64,
    /// Cores that this keeps busy at peak load.
    pub(super) busy: f64,
    /// Cores at the target utilization.
    pub(super) cores: f64,
    /// Rows of each of [`KINDS`].
    pub(super) rows: [f64; 5],
    /// Bytes of each of [`KINDS`].
    pub(super) bytes: [f64; 5],
}

/// Computes what a number of accounts needs.
pub(super) fn plan(inputs: &Inputs, assumed: &Assumptions, accounts: u64) -> Plan {
    let peak = peak(assumed, accounts);
    let cores = inputs.layouts.iter().map(|times| cores(times, assumed, &peak)).collect();
    let memory = memory(inputs, assumed, accounts);
    let usable = assumed.redis_gb * 1e9 * assumed.redis_share;
    let keyspaces: Vec<_> = ["user", "relation", "post", "timeline"]
        .map(|name| {
            let of_name = memory.iter().filter(|memory| memory.keyspace == name);
            let bytes = of_name.map(|memory| memory.bytes).sum();
            Keyspace { name, bytes, primaries: (bytes / usable).ceil() }
        })
        .into();
    let bytes: f64 = memory.iter().map(|memory| memory.bytes).sum();
    let mut plan = Plan {
        accounts,
        peak,
        cores,
        memory,
        keyspaces,
        primaries: (bytes / usable).ceil(),
        sql: sql(inputs, assumed, accounts, &peak),
        limits: Vec::new(),
    };
    // A Redis primary runs commands on one core.
    let redis = plan.cores.iter().flatten().filter(|cores| cores.process == "redis-server");
    plan.primaries = redis.map(|redis| redis.cores).fold(plan.primaries, f64::max);
    plan.limits = limits::limits(inputs, assumed, &plan);
    plan
}

/// Returns the share of posts in the operations of `mixed`.
pub(super) fn publish_share() -> f64 {
    let all: u32 = MIX.iter().map(|(_, weight)| weight).sum();
    let publish = MIX.iter().find(|(scenario, _)| *scenario == Scenario::Publish);
    publish.map_or(0.0, |(_, weight)| f64::from(*weight) / f64::from(all))
}

fn posts_of_account_a_day(assumed: &Assumptions) -> f64 {
    assumed.active * assumed.operations * publish_share()
}

fn peak(assumed: &Assumptions, accounts: u64) -> Peak {
    let a_day = accounts as f64 * assumed.active * assumed.operations;
    let operations = a_day / SECONDS_PER_DAY * assumed.peak;
    let posts = operations * publish_share();
    Peak {
        operations,
        posts,
        likes: posts * f64::from(assumed.likes),
        comments: posts * f64::from(assumed.comments),
        deliveries: posts * f64::from(assumed.followers),
    }
}

/// Returns the cores of each process. A comment counts as a like.
fn cores(times: &LayoutTimes, assumed: &Assumptions, peak: &Peak) -> Vec<Cores> {
    // The measured calls include some deliveries.
    let deliveries = peak.deliveries - peak.posts * times.followers;
    let process = |process: &ProcessTime| {
        let us = peak.operations * process.mixed_us
            + (peak.likes + peak.comments) * process.like_us
            + deliveries * process.delivery_us;
        let busy = us.max(0.0) / 1e6;
        let cores = (busy / assumed.utilization).ceil();
        Cores { process: process.name.clone(), busy, cores }
    };
    times.processes.iter().map(process).collect()
}

fn memory(inputs: &Inputs, assumed: &Assumptions, accounts: u64) -> Vec<Memory> {
    let accounts = accounts as f64;
    let kept = f64::from(assumed.kept_posts);
    let counts = entries(accounts, assumed, kept);
    let kinds = KINDS.into_iter().zip(inputs.costs).zip(counts);
    let mut memory: Vec<_> = kinds
        .map(|(((kind, keyspace), cost), count)| Memory {
            kind,
            keyspace,
            bytes: count * cost.redis_bytes * if kind == CACHED { assumed.readers } else { 1.0 },
        })
        .collect();
    let of_timeline = |kind, bytes| Memory { kind, keyspace: "timeline", bytes };
    let entries = (f64::from(assumed.followers) * kept).min(HOME_MAX as f64);
    let homes = accounts * assumed.readers * entries * inputs.home_entry_bytes;
    memory.push(of_timeline("home timelines", homes));
    // A measured post includes its record in its author's user timeline, where older posts stay.
    let written = posts_of_account_a_day(assumed) * DAYS_PER_YEAR * assumed.years;
    let older = (written.min(USER_TIMELINE_MAX) - kept).max(0.0);
    let records = accounts * older * USER_RECORD as f64;
    memory.push(of_timeline("older posts in user timelines", records));
    memory
}

/// Returns the number of entries of each kind, with so many posts of each account.
fn entries(accounts: f64, assumed: &Assumptions, posts: f64) -> [f64; 5] {
    let posts = accounts * posts;
    let [likes, comments] = [assumed.likes, assumed.comments].map(|each| posts * f64::from(each));
    [accounts, accounts * f64::from(assumed.followers), posts, likes, comments]
}

fn sql(inputs: &Inputs, assumed: &Assumptions, accounts: u64, peak: &Peak) -> Sql {
    let rates = [0.0, 0.0, peak.posts, peak.likes, peak.comments];
    let sum = |value: fn(&Cost) -> f64| -> f64 {
        inputs.costs.iter().zip(rates).map(|(cost, rate)| rate * value(cost)).sum()
    };
    let busy = sum(|cost| cost.sql_us) / 1e6;
    let posts = posts_of_account_a_day(assumed) * DAYS_PER_YEAR * assumed.years;
    let entries = entries(accounts as f64, assumed, posts);
    let each = |value: fn(&Cost) -> f64| {
        std::array::from_fn(|kind| entries[kind] * value(&inputs.costs[kind]))
    };
    Sql {
        written: sum(|cost| cost.sql_written),
        busy,
        cores: (busy / assumed.utilization).ceil(),
        rows: each(|cost| cost.sql_rows),
        bytes: each(|cost| cost.sql_bytes),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        assumptions: Assumptions,
    }

    pub(super) fn assumed(flags: &[&str]) -> Assumptions {
        Cli::try_parse_from([&["capacity"], flags].concat()).unwrap().assumptions
    }

    /// Round numbers: in `mixed` 100 µs of timeline and 20 µs of Redis, authors with 40 followers.
    pub(super) fn inputs() -> Inputs {
        let process = |name: &str, mixed_us, delivery_us| ProcessTime {
            name: name.to_owned(),
            mixed_us,
            like_us: 10.0,
            publish_us: 50.0,
            delivery_us,
        };
        let cost = |redis_bytes, sql_bytes| Cost {
            measured: 1,
            redis_bytes,
            sql_rows: 1.0,
            sql_written: 2.0,
            sql_bytes,
            sql_us: 100.0,
        };
        Inputs {
            layouts: vec![LayoutTimes {
                layout: "separate".to_owned(),
                readers: 0.25,
                followers: 40.0,
                followers_few: 10.0,
                followers_many: 90.0,
                processes: vec![
                    process("timeline", 100.0, 2.0),
                    process("redis-server", 20.0, 1.0),
                ],
            }],
            costs: [
                cost(400.0, 900.0),
                cost(100.0, 200.0),
                cost(300.0, 600.0),
                cost(50.0, 150.0),
                cost(300.0, 400.0),
            ],
            home_entry_bytes: 20.0,
        }
    }

    /// Returns every number that grows with the need.
    fn needs(plan: &Plan) -> Vec<f64> {
        let Peak { operations, posts, likes, comments, deliveries } = plan.peak;
        let mut needs = vec![operations, posts, likes, comments, deliveries];
        needs.extend(plan.cores.iter().flatten().flat_map(|cores| [cores.busy, cores.cores]));
        needs.extend(plan.memory.iter().map(|memory| memory.bytes));
        needs.extend(plan.keyspaces.iter().map(|keyspace| keyspace.primaries));
        needs.extend([plan.primaries, plan.sql.written, plan.sql.busy, plan.sql.cores]);
        needs.extend(plan.sql.rows.iter().chain(&plan.sql.bytes));
        needs.extend(plan.limits.iter().map(|limit| limit.ratio));
        needs
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
    }

    #[test]
    fn an_example_agrees_with_the_computation_by_hand() {
        let found = plan(&inputs(), &assumed(&[]), 21_600_000);
        // 21.6 million × 0.1 × 40 operations a day are 1,000 a second, at peak 3,000.
        assert_close(found.peak.operations, 3_000.0);
        assert_close(found.peak.posts, 300.0);
        assert_close(found.peak.deliveries, 120_000.0);
        // 3,000 × 100 µs + 2,100 likes and comments × 10 µs + 300 × (400 - 40) × 2 µs.
        let [timeline, redis] = found.cores[0].as_slice() else { panic!("two processes") };
        assert_close(timeline.busy, 0.537);
        assert_eq!(timeline.cores, 2.0);
        assert_close(redis.busy, 0.189);
        // An account has 400 follows, of which Redis has a quarter, 10 posts in Redis, and 146 posts in SQL after a year.
        let each = |bytes: f64| bytes / 21_600_000.0;
        let memory: Vec<_> = found.memory.iter().map(|memory| each(memory.bytes)).collect();
        let expected = [400.0, 10_000.0, 3_000.0, 2_500.0, 6_000.0, 4_000.0, 2_176.0];
        memory.iter().zip(expected).for_each(|(found, expected)| assert_close(*found, expected));
        // 21.6 million × 28,076 bytes in primaries with 19.2 GB each.
        assert_eq!(found.primaries, 32.0);
        let primaries: Vec<_> = found.keyspaces.iter().map(|keyspace| keyspace.primaries).collect();
        assert_eq!(primaries, [1.0, 12.0, 13.0, 7.0]);
        assert_close(each(found.sql.bytes[1]), 80_000.0);
        assert_close(each(found.sql.bytes[2]), 87_600.0);
        // Two rows and 100 µs for each of 300 posts, 1,500 likes and 600 comments.
        assert_close(found.sql.written, 4_800.0);
        assert_close(found.sql.busy, 0.24);
    }

    #[test]
    fn needs_are_linear_in_accounts_but_for_whole_cores_and_primaries() {
        let (inputs, assumed) = (inputs(), assumed(&[]));
        let [one, ten] =
            [50_000_000, 500_000_000].map(|accounts| plan(&inputs, &assumed, accounts));
        assert_close(ten.peak.operations, 10.0 * one.peak.operations);
        for (one, ten) in one.memory.iter().zip(&ten.memory) {
            assert_close(ten.bytes, 10.0 * one.bytes);
        }
        for (one, ten) in one.cores[0].iter().zip(&ten.cores[0]) {
            assert_close(ten.busy, 10.0 * one.busy);
            assert!(ten.cores <= 10.0 * one.cores && ten.cores > 10.0 * (one.cores - 1.0));
        }
        assert!(
            ten.primaries <= 10.0 * one.primaries && ten.primaries > 10.0 * one.primaries - 10.0
        );
        one.sql
            .bytes
            .iter()
            .zip(ten.sql.bytes)
            .for_each(|(one, ten)| assert_close(ten, 10.0 * one));
    }

    #[test]
    fn no_need_shrinks_when_an_assumption_grows() {
        let least = needs(&plan(&inputs(), &assumed(&[]), 100_000_000));
        for flag in [
            "--active=0.2",
            "--readers=0.5",
            "--followers=800",
            "--operations=80",
            "--peak=6",
            "--likes=10",
            "--comments=4",
            "--years=2",
        ] {
            let more = needs(&plan(&inputs(), &assumed(&[flag]), 100_000_000));
            assert!(least.iter().zip(&more).all(|(least, more)| least <= more), "{flag}");
            assert_ne!(least, more, "{flag}");
        }
        for flag in ["--utilization=0.6", "--redis-gb=64", "--redis-share=0.7", "--sql-cores=128"] {
            let less = needs(&plan(&inputs(), &assumed(&[flag]), 100_000_000));
            assert!(less.iter().zip(&least).all(|(less, least)| less <= least), "{flag}");
            assert_ne!(less, least, "{flag}");
        }
    }

    #[test]
    fn more_posts_in_redis_take_more_memory_there_and_none_in_sql() {
        let of = |flags| plan(&inputs(), &assumed(flags), 100_000_000);
        let (least, more) = (of(&[]), of(&["--kept-posts=20"]));
        assert!(more.primaries > least.primaries);
        // Home timelines are full with ten posts of each of 400 authors.
        assert_eq!(more.memory[5].bytes, least.memory[5].bytes);
        assert_eq!(more.sql.bytes, least.sql.bytes);
    }

    #[test]
    fn all_numbers_are_finite_and_positive_at_any_size() {
        for accounts in [1, 500_000_000, 10_000_000_000] {
            let needs = needs(&plan(&inputs(), &assumed(&[]), accounts));
            assert!(needs.iter().all(|need| need.is_finite() && *need > 0.0), "{needs:?}");
        }
    }
}
