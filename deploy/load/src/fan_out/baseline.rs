//! Fan-out baseline: bare pipelined commands on one sorted set per follower.

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_keyspace::redis::{Pipeline, RedisResult, aio::MultiplexedConnection, cmd, pipe};

use crate::system::aof;

/// The length at which sorted sets are trimmed.
const HOME_MAX: i64 = 800;

/// Followers per pipeline, and pipelines in flight. With two, the client encodes one while Redis
/// runs the other.
const FOLLOWERS: u32 = 500;
const PIPELINES: usize = 2;

const PREFIX: &str = "load:bare:";

/// Delivers posts to sorted sets with this number of entries, and deletes the sets. Returns the
/// seconds of the delivery, without set-up and deletion.
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
        run_pipelines(admin, followers, fill).await?;
    }
    aof::rewrite(admin).await?;
    let began = Instant::now();
    for post in 1..=posts {
        let score = entries + post;
        let add = |pipeline: &mut Pipeline, set: &str| {
            pipeline.cmd("ZADD").arg(set).arg(score).arg(id(score)).ignore();
            pipeline.cmd("ZREMRANGEBYRANK").arg(set).arg(0).arg(-HOME_MAX - 1).ignore();
        };
        run_pipelines(admin, followers, add).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let remove = |pipeline: &mut Pipeline, set: &str| {
        pipeline.cmd("UNLINK").arg(set).ignore();
    };
    run_pipelines(admin, followers, remove).await?;
    // Waits until Redis has processed the deletions.
    cmd("PING").exec_async(admin).await?;
    Ok(seconds)
}

/// Returns an id of the same length as a post id.
fn id(number: u32) -> u64 {
    373_000_000_000_000 + u64::from(number) * 4_096
}

async fn run_pipelines(
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
