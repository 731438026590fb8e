//! Work that waits for a service: what stays in Redis meanwhile.

use std::{collections::BTreeSet, time::Duration};

use microblog_testkit::{
    PATIENCE, eventually,
    redis::{RedisResult, Value, aio::MultiplexedConnection, cmd},
};
use tokio::time::sleep;

use crate::trial::Trial;

/// Longer than a delivery or a job takes.
const STAYS: Duration = Duration::from_secs(2);

/// Waits until posts wait for their delivery to the timeline service.
pub(super) async fn deliveries(trial: &Trial) -> String {
    let read = async |connection: &mut MultiplexedConnection, outbox: &str| {
        cmd("ZRANGE").arg(outbox).arg(0).arg(-1).query_async(connection).await
    };
    let count = staying(trial, "post:*:outbox", read).await;
    format!("{count} posts that wait for their delivery")
}

/// Waits until fan-out jobs wait for another service.
pub(super) async fn jobs(trial: &Trial) -> String {
    let read = async |connection: &mut MultiplexedConnection, stream: &str| {
        let entries = cmd("XRANGE").arg(stream).arg("-").arg("+").query_async(connection).await;
        entries.map(|all: Vec<(String, Value)>| all.into_iter().map(|(id, _)| id).collect())
    };
    let count = staying(trial, "tl:*:fanout", read).await;
    format!("{count} jobs that wait")
}

/// Waits until changes of a service wait for the notice service: its position in their feed stays.
pub(super) async fn notices(trial: &Trial, service: &str) -> String {
    let read = async |connection: &mut MultiplexedConnection, feed: &str| {
        cmd("HMGET").arg(feed).arg("sequence").query_async(connection).await
    };
    staying(trial, &format!("note:*:feed:{service}"), read).await;
    format!("changes of {service} that wait")
}

/// Waits until entries of some keys stay for a while. Returns their number.
async fn staying<R>(trial: &Trial, keys: &str, read: R) -> usize
where
    R: AsyncFn(&mut MultiplexedConnection, &str) -> RedisResult<Vec<String>>,
{
    let mut count = 0;
    eventually(&format!("entries of {keys} stay"), PATIENCE, async || {
        let before = entries(trial, keys, &read).await;
        sleep(STAYS).await;
        count = entries(trial, keys, &read).await.intersection(&before).count();
        count > 0
    })
    .await;
    count
}

async fn entries<R>(trial: &Trial, keys: &str, read: &R) -> BTreeSet<String>
where
    R: AsyncFn(&mut MultiplexedConnection, &str) -> RedisResult<Vec<String>>,
{
    let mut all = BTreeSet::new();
    for server in trial.system.redis.servers() {
        let mut connection = server.admin().await;
        let found = cmd("KEYS").arg(keys).query_async(&mut connection).await;
        let found: Vec<String> = found.unwrap_or_default();
        for key in found {
            // A replica redirects to its primary.
            let entries = read(&mut connection, &key).await.unwrap_or_default();
            all.extend(entries.into_iter().map(|entry| format!("{key} {entry}")));
        }
    }
    all
}
