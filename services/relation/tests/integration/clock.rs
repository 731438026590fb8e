//! Clocks that jumped ahead: no version is issued too far ahead of the time, and clocks are set
//! back without issuing a version twice.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use microblog_keyspace::{Call, ClockRepair, Error, Keyspace, Library};
use microblog_proto::{common::ErrorReason, relation as pb};
use microblog_testkit::{Store as Redis, Topology, redis};
use tonic::Code;

use crate::support::{self, System, id, user};

/// Ticks of a quarter of a millisecond.
const SECOND: u64 = 4_000;
const HOUR: u64 = 3_600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;

const LIBRARY: Library = Library {
    name: "test",
    source: "
local function test_issue(keys, args)
  return issue(keys[1], tonumber(args[1]), tonumber(args[2]))
end
register('test_issue', test_issue)
register('test_repair_clock', repair_clock, 'allow-oom')
",
};

fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap() - Duration::from_secs(1_704_067_200);
    since.as_millis() as u64 * 4
}

fn key(n: u64) -> String {
    format!("rel:{{{}}}:clock", user(n).partition())
}

async fn set(redis: &Redis, key: &str, value: impl redis::ToRedisArgs) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).exec_async(&mut support::admin_of(redis, key).await).await.unwrap();
}

/// The clock of a partition.
struct Clock {
    redis: Redis,
    keyspace: Keyspace,
}

impl Clock {
    async fn start() -> Self {
        let redis = Redis::start(Topology::Single).await;
        let config = microblog_keyspace::Config::at(redis.url("relation"));
        let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
        keyspace.ready().await.unwrap();
        Self { redis, keyspace }
    }

    async fn issue_at(&self, time: SystemTime, count: u64) -> Result<Vec<u64>, Error> {
        let call = Call::new("test_issue").key(key(1)).issuing_at(user(1).partition(), time);
        self.keyspace.call(call.arg(count)).await
    }

    /// Issues stamps, and returns their ticks.
    async fn issue(&self, count: u64) -> Result<Vec<u64>, Error> {
        let stamps = self.issue_at(SystemTime::now(), count).await?;
        Ok(stamps.into_iter().map(|stamp| (stamp >> 12) * 4 + (stamp & 3)).collect())
    }

    async fn get<T: redis::FromRedisValue>(&self, key: &str) -> T {
        let mut admin = self.redis.nodes()[0].admin().await;
        redis::cmd("GET").arg(key).query_async(&mut admin).await.unwrap()
    }

    async fn mend(&self) -> ClockRepair {
        let partition = user(1).partition();
        self.keyspace.repair_clock("test_repair_clock", partition, key(1)).await.unwrap()
    }
}

#[tokio::test]
async fn no_version_is_far_ahead_of_the_callers_time() {
    let clock = Clock::start().await;
    let (before, minutes) = (SystemTime::now(), |n: u64| Duration::from_secs(60 * n));
    // As if Redis' clock had jumped.
    let rejected = clock.issue_at(before - minutes(6), 1).await;
    assert!(matches!(rejected, Err(Error::ClockAhead(_))), "{rejected:?}");
    clock.issue_at(before - minutes(4), 1).await.unwrap();
    // The caller's clock alone has no effect.
    let first = clock.issue_at(before + minutes(1_000), 1).await.unwrap();
    assert!((first[0] >> 12) * 4 < now() + SECOND);
}

#[tokio::test]
async fn a_jumped_clock_is_set_back_and_issues_no_stamp_twice() {
    let clock = Clock::start().await;
    let mut issued: BTreeSet<u64> = clock.issue(3).await.unwrap().into_iter().collect();
    // Both clocks were a year ahead for a moment.
    let (before, jumped) = (*issued.last().unwrap(), now() + YEAR);
    set(&clock.redis, &key(1), jumped + 2).await;
    set(&clock.redis, &format!("{}:rests", key(1)), format!("{before};{jumped}")).await;
    assert!(matches!(clock.issue(1).await, Err(Error::ClockAhead(_))));

    let ClockRepair::By(back) = clock.mend().await else { panic!("it is ahead") };
    assert!(back.as_secs().abs_diff(YEAR / SECOND) < 60, "{back:?}");
    assert_eq!(clock.mend().await, ClockRepair::NotAhead);
    issued.extend(clock.issue(3).await.unwrap());
    assert!(*issued.last().unwrap() < now() + SECOND && issued.len() == 6, "{issued:?}");

    // The time reaches a used range: one in the near future, and another.
    let used = (now() + 100, now() + 100 + 10 * 60 * SECOND);
    set(&clock.redis, &format!("{}:ahead", key(1)), format!("{};{}", used.0, used.1)).await;
    let mut last = *issued.last().unwrap();
    for _ in 0..200 {
        let ticks = clock.issue(7).await.unwrap();
        assert!(ticks[0] > last, "they only grow");
        assert!(
            ticks.iter().all(|tick| !(used.0..=used.1).contains(tick)),
            "{ticks:?} of {used:?}"
        );
        last = ticks[6];
    }
    assert!(last > used.1, "what was used is behind it");
    assert_eq!(clock.mend().await, ClockRepair::NotAhead);
}

#[tokio::test]
async fn a_clock_ahead_since_its_first_stamp_is_set_back() {
    let clock = Clock::start().await;
    // The trace of the first stamp of a partition that was issued while both clocks were ahead.
    clock.issue(1).await.unwrap();
    let rests = format!("{}:rests", key(1));
    let first: String = clock.get(&rests).await;
    assert!(first.starts_with("0;"), "{first}");
    set(&clock.redis, &key(1), now() + YEAR).await;
    set(&clock.redis, &rests, format!("0;{}", now() + YEAR - 1)).await;
    assert!(matches!(clock.mend().await, ClockRepair::By(_)));
    assert!(clock.issue(1).await.unwrap()[0] < now() + SECOND);
    assert_eq!(clock.mend().await, ClockRepair::NotAhead);
}

#[tokio::test]
async fn each_jumped_range_is_skipped() {
    let clock = Clock::start().await;
    let mut used = Vec::new();
    for jumped in [now() + 10 * YEAR, now() + YEAR, now() + 5 * YEAR] {
        let before = clock.issue(1).await.unwrap()[0];
        set(&clock.redis, &key(1), jumped + 2).await;
        set(&clock.redis, &format!("{}:rests", key(1)), format!("{before};{jumped}")).await;
        assert!(matches!(clock.mend().await, ClockRepair::By(_)));
        used.push((jumped, jumped + 2));
    }
    used.sort_unstable();
    let text = used.iter().map(|(from, to)| format!("{from};{to}")).collect::<Vec<_>>().join(";");
    assert_eq!(clock.get::<String>(&format!("{}:ahead", key(1))).await, text);
    // The time reaches the first range and continues after it, not after the last one.
    let near = now() + 50;
    let ahead = format!("{near};{};{};{}", near + 2, now() + YEAR, now() + YEAR + 2);
    set(&clock.redis, &format!("{}:ahead", key(1)), ahead).await;
    let mut last = 0;
    while last <= near + 2 {
        let ticks = clock.issue(7).await.unwrap();
        assert!(ticks[0] > last && ticks.iter().all(|tick| !(near..=near + 2).contains(tick)));
        last = ticks[6];
    }
    assert!(last < now() + SECOND);
}

#[tokio::test]
async fn stamps_stay_below_2_to_the_53() {
    let clock = Clock::start().await;
    // As if the time had reached the end of the used range.
    let last = (1_u64 << 43) - 1;
    set(&clock.redis, &key(1), format!("0{}", last - 1)).await;
    set(&clock.redis, &format!("{}:ahead", key(1)), format!("1;{}", last - 10)).await;
    assert!(matches!(clock.issue(2).await, Err(Error::ClockAhead(_))));
    assert_eq!(clock.issue(1).await.unwrap(), [last]);
}

#[tokio::test]
async fn at_most_sixteen_used_ranges_are_stored() {
    let clock = Clock::start().await;
    let rests = format!("{}:rests", key(1));
    for n in 0..20 {
        set(&clock.redis, &key(1), now() - (100 - n) * HOUR).await;
        clock.issue(1).await.unwrap();
    }
    let mut get = redis::cmd("GET");
    let mut admin = clock.redis.nodes()[0].admin().await;
    let text: String = get.arg(&rests).query_async(&mut admin).await.unwrap();
    assert_eq!(text.split(';').count(), 32, "{text}");
    // A clock without a record of its jump waits for the time.
    set(&clock.redis, &key(1), now() + HOUR).await;
    assert_eq!(clock.mend().await, ClockRepair::Unknown);
}

#[tokio::test]
async fn a_partition_with_a_clock_ahead_rejects_writes_and_is_reported() {
    let system = System::start_without_jobs(Topology::Single).await;
    system.follow(id(1), id(2)).await.unwrap();
    for ahead in [now() + YEAR, 1 << 60] {
        set(&system.redis, &key(1), ahead).await;
        let rejection = system.follow(id(1), id(3)).await;
        support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
        let rejection = system.unfollow(id(1), id(2)).await;
        support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
        assert_eq!(system.counts(id(1)).await, (1, 0, 0));
    }
    jump(&system.redis, 1, now() + YEAR).await;
    let partition = user(1).partition();
    let violations = support::violations(&system.client).await;
    let expected = format!("the clock of partition {partition} is 3153");
    assert!(violations.len() == 1 && violations[0].starts_with(&expected), "{violations:?}");
    repaired(&system, 1).await;
    system.follow(id(1), id(3)).await.unwrap();
    assert_eq!(system.counts(id(1)).await, (2, 0, 0));
}

#[tokio::test]
async fn a_repair_sets_clocks_back_first() {
    let system = System::start_without_jobs(Topology::Cluster).await;
    for n in 2..9 {
        system.follow(id(n), id(1)).await.unwrap();
    }
    let mut partitions = BTreeSet::new();
    for n in 1..9 {
        jump(&system.redis, n, now() + YEAR).await;
        partitions.insert(user(n).partition().number());
    }
    // Orphaned inverse edges; the repair of each issues a version in its follower's partition.
    for n in 2..9 {
        lose(&system.redis, "ZREM", "following", n, 1).await;
        lose(&system.redis, "SREM", "following_ids", n, 1).await;
    }
    let rejection = system.follow(id(2), id(3)).await;
    support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
    let repaired = repaired(&system, partitions.len()).await;
    assert!(repaired.iter().any(|line| line.contains("does not follow")), "{repaired:?}");
    assert_eq!(system.counts(id(1)).await, (0, 0, 0));
    for n in 2..9 {
        system.follow(id(n), id(1)).await.unwrap();
        system.follow(id(1), id(n)).await.unwrap();
    }
    assert_eq!(system.counts(id(1)).await, (7, 7, 7));
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn edges_changed_by_a_clock_ahead_can_change_again() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        // Changes of both kinds, on both sides, with versions a year ahead.
        for n in 2..6 {
            system.follow(id(1), id(n)).await.unwrap();
        }
        for n in 6..8 {
            system.block(id(1), id(n)).await.unwrap();
        }
        let jumped = now() + YEAR;
        let score = |tick: u64| (tick / 4) << 12;
        for (n, kind, mirror) in [
            (2, "following", "followers"),
            (3, "following", "followers"),
            (6, "blocks", "blocked_by"),
        ] {
            put(&system.redis, kind, 1, n, score(jumped)).await;
            put(&system.redis, mirror, n, 1, score(jumped)).await;
        }
        for (n, kind, lost, is_follow) in
            [(4, "following", "lost", true), (7, "blocks", "unblocked", false)]
        {
            if is_follow {
                system.unfollow(id(1), id(n)).await.unwrap();
            } else {
                unblock(&system, 1, n).await;
            }
            put(&system.redis, lost, n, 1, score(jumped)).await;
            assert_eq!(version(&system.redis, kind, 1, n).await, None);
        }
        jump(&system.redis, 1, jumped + 2).await;
        let rejection = system.unfollow(id(1), id(2)).await;
        support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
        repaired(&system, 1).await;

        // The next changes have versions above the existing ones.
        assert_eq!(system.unfollow(id(1), id(2)).await.unwrap(), support::NONE);
        assert_eq!(system.counts(id(2)).await, (0, 0, 0));
        assert_eq!(system.follow(id(1), id(2)).await.unwrap(), support::FOLLOWING);
        assert_eq!(system.counts(id(2)).await, (0, 1, 0));
        assert_eq!(system.unfollow(id(1), id(2)).await.unwrap(), support::NONE);
        system.block(id(3), id(1)).await.unwrap();
        assert_eq!(system.relation(id(1), id(3)).await.state, support::NONE);
        assert_eq!(system.follow(id(1), id(4)).await.unwrap(), support::FOLLOWING);
        assert_eq!(system.unfollow(id(1), id(5)).await.unwrap(), support::NONE);
        unblock(&system, 1, 6).await;
        assert!(!system.relation(id(6), id(1)).await.blocked_by);
        system.block(id(1), id(7)).await.unwrap();
        assert!(system.relation(id(7), id(1)).await.blocked_by);
        assert_eq!(system.follow(id(1), id(8)).await.unwrap(), support::FOLLOWING);
        // The newest follow has the newest version, although another one is ahead of the time.
        let newest = version(&system.redis, "following", 1, 8).await.unwrap();
        let ahead = version(&system.redis, "following", 1, 4).await.unwrap();
        assert!(newest > ahead && ahead > score(jumped), "{newest} {ahead}");
        assert_eq!(system.counts(id(1)).await, (2, 0, 0));
        assert_eq!(support::repair(&system.client).await, Default::default());
    }
}

#[tokio::test]
async fn edges_made_after_a_repair_exceed_what_was_issued_ahead() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        let jumped = now() + YEAR;
        jump(&system.redis, 1, jumped).await;
        // The end of an edge that is not there leaves a version in the record, and nothing in Redis.
        let rejection = system.unfollow(id(1), id(2)).await;
        support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
        let request = pb::UnblockRequest { user_id: id(1), target_id: id(3) };
        let rejection = system.client.clone().unblock(request).await;
        support::assert_rejected(rejection, Code::Unavailable, ErrorReason::ClockAhead);
        repaired(&system, 1).await;

        let ahead = (jumped / 4) << 12;
        for n in [2, 4] {
            system.follow(id(1), id(n)).await.unwrap();
            let version = version(&system.redis, "following", 1, n).await.unwrap();
            assert!(version > ahead, "{version} {ahead}");
        }
        system.block(id(1), id(3)).await.unwrap();
        let version = version(&system.redis, "blocks", 1, 3).await.unwrap();
        assert!(version > ahead, "{version} {ahead}");
        for n in [2, 4, 5] {
            assert_eq!(system.unfollow(id(1), id(n)).await.unwrap(), support::NONE);
        }
        unblock(&system, 1, 3).await;
        unblock(&system, 1, 3).await;
        system.follow(id(1), id(3)).await.unwrap();
        assert_eq!(system.counts(id(1)).await, (1, 0, 0));
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

/// Repairs everything; expects so many clocks ahead, and nothing to do the second time. Returns the
/// repairs.
async fn repaired(system: &System, clocks: usize) -> Vec<String> {
    let (left, repaired) = support::repair(&system.client).await;
    assert_eq!(left, Vec::<String>::new(), "{repaired:?}");
    let of_clocks = repaired.iter().filter(|line| line.contains("is set back by 3153")).count();
    assert_eq!(of_clocks, clocks, "{repaired:?}");
    assert_eq!(support::repair(&system.client).await, Default::default());
    repaired
}

/// Leaves the state of a partition whose clocks were ahead for a moment.
async fn jump(redis: &Redis, n: u64, jumped: u64) {
    let rests = format!("{}:rests", key(n));
    set(redis, &key(n), jumped).await;
    set(redis, &rests, format!("{};{}", now() - SECOND, jumped - 2)).await;
}

fn list(kind: &str, owner: u64) -> String {
    format!("rel:{{{}}}:{kind}:{}", user(owner).partition(), id(owner))
}

async fn lose(redis: &Redis, command: &str, kind: &str, owner: u64, peer: u64) {
    let mut admin = support::admin_of(redis, &list(kind, owner)).await;
    let mut command = redis::cmd(command);
    command.arg(list(kind, owner)).arg(id(peer)).exec_async(&mut admin).await.unwrap();
}

async fn put(redis: &Redis, kind: &str, owner: u64, peer: u64, version: u64) {
    let mut admin = support::admin_of(redis, &list(kind, owner)).await;
    let mut add = redis::cmd("ZADD");
    add.arg(list(kind, owner)).arg(version).arg(id(peer));
    add.exec_async(&mut admin).await.unwrap();
}

async fn version(redis: &Redis, kind: &str, owner: u64, peer: u64) -> Option<u64> {
    let mut admin = support::admin_of(redis, &list(kind, owner)).await;
    let mut read = redis::cmd("ZSCORE");
    read.arg(list(kind, owner)).arg(id(peer));
    let score: Option<f64> = read.query_async(&mut admin).await.unwrap();
    score.map(|score| score as u64)
}

async fn unblock(system: &System, user_id: u64, target_id: u64) {
    let request = pb::UnblockRequest { user_id: id(user_id), target_id: id(target_id) };
    system.client.clone().unblock(request).await.unwrap();
}
