//! Benchmark support: both services on a store, imports of followers, and measurements of Redis.
#![allow(dead_code, reason = "no benchmark uses all of it")]

#[path = "../../tests/support/mod.rs"]
mod system;

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::UserId;
use microblog_proto::relation::{Follow, ImportFollowsRequest};
use microblog_testkit::{
    RedisServer,
    redis::{aio::MultiplexedConnection, cmd},
};
use microblog_timeline::{BuildLease, Entry, Replacement, Store};
use tokio::time::sleep;

pub(crate) use self::system::*;

/// Concurrent calls during preparation.
const AT_ONCE: usize = 256;

/// The follows per import: few enough that the order of followers is independent of their
/// partitions, as with single follows.
const IMPORT: usize = 1_000;

/// Runs a benchmark, on one thread.
pub(crate) fn run_alone(benchmark: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(benchmark);
}

impl System {
    /// Returns the only server.
    pub(crate) fn server(&self) -> &RedisServer {
        &self.redis.nodes()[0]
    }

    /// Makes users follow an author.
    pub(crate) async fn import(&self, followers: &[u64], author: u64) {
        let follow = |&follower_id: &u64| Follow { follower_id, target_id: author };
        for followers in followers.chunks(IMPORT) {
            let follows = followers.iter().map(follow).collect();
            let request = ImportFollowsRequest { follows };
            let imported = self.relation.clone().import_follows(request).await.unwrap();
            assert_eq!(imported.into_inner().created, followers.len() as u64);
        }
    }

    /// Waits until an author's fan-out stream is empty.
    pub(crate) async fn drained(&self, admin: &mut MultiplexedConnection, author: u64) {
        let stream = format!("tl:{{{}}}:fanout", (author >> 2) % 16);
        while cmd("XLEN").arg(&stream).query_async::<u64>(admin).await.unwrap() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Creates the home timelines of users with these entries, oldest first.
pub(crate) async fn build(store: &Store, users: &[u64], entries: &[Entry], pulls: &[UserId]) {
    let build = async |user: u64| {
        let user = UserId::new(user).unwrap();
        let BuildLease::Acquired(edition) = store.begin_build(user, None).await? else {
            return Ok(());
        };
        // The highest version, so that no read backfills it.
        let version = (1 << 53) - 1;
        let replacement = Replacement {
            version,
            entries: entries.to_vec(),
            pulled_authors: pulls.to_vec(),
            is_rebuild: true,
        };
        store.replace(user, edition, &replacement).await.map(|_| ())
    };
    let builds = users.iter().map(|&user| build(user));
    let built: Result<(), microblog_keyspace::Error> =
        stream::iter(builds).buffer_unordered(AT_ONCE).try_collect().await;
    built.unwrap();
}

/// Returns posts of a number of authors in turn, oldest first, and all older than delivered ones.
pub(crate) fn old_entries(count: u64, authors: u64) -> Vec<Entry> {
    entries_from(40_000_000, count, authors)
}

/// Returns posts of a number of authors in turn, one per millisecond from one since 2006 on.
pub(crate) fn entries_from(millisecond: u64, count: u64, authors: u64) -> Vec<Entry> {
    let post = |n| {
        let author = id(500_000 + n % authors);
        entry(((millisecond + n) << 12) | (author & 0xffc), author)
    };
    (0..count).map(post).collect()
}

/// Returns the processor time of a server in seconds.
pub(crate) async fn redis_seconds(admin: &mut MultiplexedConnection) -> f64 {
    let info: String = cmd("INFO").arg("cpu").query_async(admin).await.unwrap();
    let number = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    number("used_cpu_user") + number("used_cpu_sys")
}

/// Returns the processor time of this thread in seconds: both services and the client.
pub(crate) fn own_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: u64 = statistics.split(' ').next().unwrap().parse().unwrap();
    nanoseconds as f64 / 1e9
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
