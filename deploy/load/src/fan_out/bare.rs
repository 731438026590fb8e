//! The least that the usual way takes: a sorted set for each follower, and bare commands.

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_keyspace::redis::{Pipeline, RedisResult, aio::MultiplexedConnection, cmd, pipe};

use crate::system::log;

/// The length at which sorted sets are cut.
const HOME_MAX: i64 = 800;

/// The followers of a pipeline, and how many pipelines are under way: one is made while Redis works
/// on another.
const FOLLOWERS: u32 = 500;
const PIPELINES: usize = 2;

const PREFIX: &str = "load:bare:";

/// Brings so many posts into the sorted sets of so many followers, each of which has some entries,
/// and removes them again. Returns the seconds that it took, without what comes before and after.
pub(super) async fn deliver(
    admin: &mut MultiplexedConnection,
    followers: u32,
    entries: u32,
    posts: u32,
) -> anyhow::Result<f64> {
    let fill = |pipeline: &mut Pipeline, set: &str| {
        let add = pipeline.cmd("ZADD").arg(set);
        for entry in 1..=entries {
            add.arg(entry).arg(id(entry));
        }
        add.ignore();
    };
    if entries > 0 {
        all(admin, followers, fill).await?;
    }
    log::settle(admin).await?;
    let began = Instant::now();
    for post in 1..=posts {
        let score = entries + post;
        let add = |pipeline: &mut Pipeline, set: &str| {
            pipeline.cmd("ZADD").arg(set).arg(score).arg(id(score)).ignore();
            pipeline.cmd("ZREMRANGEBYRANK").arg(set).arg(0).arg(-HOME_MAX - 1).ignore();
        };
        all(admin, followers, add).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let remove = |pipeline: &mut Pipeline, set: &str| {
        pipeline.cmd("UNLINK").arg(set).ignore();
    };
    all(admin, followers, remove).await?;
    // What frees memory is over before anything else is measured.
    cmd("PING").exec_async(admin).await?;
    Ok(seconds)
}

/// Returns an id that is as long as a post's.
fn id(number: u32) -> u64 {
    373_000_000_000_000 + u64::from(number) * 4_096
}

async fn all(
    admin: &MultiplexedConnection,
    followers: u32,
    command: impl Fn(&mut Pipeline, &str),
) -> RedisResult<()> {
    let firsts = (0..followers).step_by(FOLLOWERS as usize);
    let pipelines = firsts.map(|first| {
        let mut pipeline = pipe();
        for follower in first..followers.min(first + FOLLOWERS) {
            command(&mut pipeline, &format!("{PREFIX}{follower}"));
        }
        let mut admin = admin.clone();
        async move { pipeline.exec_async(&mut admin).await }
    });
    stream::iter(pipelines).buffer_unordered(PIPELINES).try_collect().await
}
