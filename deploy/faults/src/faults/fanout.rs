//! Faults of the timelines' cache and of the fan-out streams.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use microblog_testkit::{
    PATIENCE, RedisServer, eventually,
    redis::{Value, aio::MultiplexedConnection, cmd},
};
use tokio::time::sleep;

use super::redis_server::only;
use crate::trial::{Bite, Trial};

const STREAMS: u16 = 16;
const GROUP: &str = "fanout";
const REPEATED: usize = 10;
const PAUSE: Duration = Duration::from_millis(200);
/// Jobs that are delivered again before a trial ends.
const COPIES: usize = 20;

/// All cached timelines are deleted again and again.
pub(super) async fn timelines_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = only(trial)?.admin().await;
    let mut deleted = 0;
    for _ in 0..REPEATED {
        for pattern in ["tl:*:home:*", "tl:*:pulls:*", "tl:*:user:*"] {
            let keys: Vec<String> = cmd("KEYS").arg(pattern).query_async(&mut connection).await?;
            if !keys.is_empty() {
                deleted += cmd("UNLINK").arg(keys).query_async::<u64>(&mut connection).await?;
            }
        }
        sleep(PAUSE).await;
    }
    trial.after().await;
    Ok(Bite::seen_if(deleted > 0, format!("{deleted} deleted timelines")))
}

/// Jobs are added again: each up to twice, late, and in another order.
pub(super) async fn jobs_repeated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = only(trial)?.admin().await;
    let mut seen: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut jobs: Vec<(String, Vec<u8>)> = Vec::new();
    // A worker deletes a job within milliseconds.
    eventually("jobs were read", PATIENCE, async || {
        for stream in streams() {
            for job in entries(&mut connection, &stream).await {
                if seen.insert(job.clone()) {
                    jobs.push((stream.clone(), job));
                }
            }
        }
        jobs.len() >= COPIES
    })
    .await;
    for (stream, job) in jobs.iter().rev().chain(&jobs) {
        let mut add = cmd("XADD");
        add.arg(stream).arg("*").arg("job").arg(job).exec_async(&mut connection).await?;
    }
    trial.after().await;
    Ok(Bite::Seen(format!("{} jobs, each added twice more", jobs.len())))
}

/// Entries that are no jobs are added to all streams.
pub(super) async fn poisoned(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = only(trial)?.admin().await;
    for stream in streams() {
        for (field, value) in [("job", "\u{7f}no job"), ("other", "field")] {
            let mut add = cmd("XADD");
            add.arg(&stream).arg("*").arg(field).arg(value).exec_async(&mut connection).await?;
        }
    }
    let expected = 2 * u64::from(STREAMS);
    let mut found = 0;
    eventually("all are pending", PATIENCE, async || {
        found = pending(&mut connection).await;
        found >= expected
    })
    .await;
    trial.after().await;
    let found = pending(&mut connection).await;
    Ok(Bite::seen_if(found >= expected, format!("{found} entries that stay pending")))
}

/// The consumer groups are deleted, with what was pending.
pub(super) async fn groups_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let server = only(trial)?;
    let mut connection = server.admin().await;
    let mut deleted = 0;
    for _ in 0..REPEATED {
        for stream in streams() {
            let mut destroy = cmd("XGROUP");
            destroy.arg("DESTROY").arg(&stream).arg(GROUP);
            deleted += destroy.query_async::<u64>(&mut connection).await.unwrap_or_default();
        }
        sleep(PAUSE).await;
    }
    trial.after().await;
    eventually("all groups exist again", PATIENCE, async || groups(server).await == STREAMS).await;
    Ok(Bite::seen_if(deleted > u64::from(STREAMS), format!("{deleted} deleted groups")))
}

/// The streams are deleted, with their jobs.
pub(super) async fn streams_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let server = only(trial)?;
    let mut connection = server.admin().await;
    let mut deleted = 0;
    for _ in 0..REPEATED {
        let streams: Vec<String> = streams().collect();
        deleted += cmd("UNLINK").arg(streams).query_async::<u64>(&mut connection).await?;
        sleep(PAUSE).await;
    }
    trial.after().await;
    eventually("all groups exist again", PATIENCE, async || groups(server).await == STREAMS).await;
    Ok(Bite::seen_if(deleted > u64::from(STREAMS), format!("{deleted} deleted streams")))
}

fn streams() -> impl Iterator<Item = String> {
    (0..STREAMS).map(|number| format!("tl:{{{number}}}:fanout"))
}

/// Returns the jobs of a stream.
async fn entries(connection: &mut MultiplexedConnection, stream: &str) -> Vec<Vec<u8>> {
    let range = cmd("XRANGE").arg(stream).arg("-").arg("+").query_async(connection).await;
    let entries: Vec<(String, Vec<Vec<u8>>)> = range.unwrap_or_default();
    entries.into_iter().filter_map(|(_, fields)| fields.into_iter().nth(1)).collect()
}

/// Returns how many streams have their group.
async fn groups(server: &RedisServer) -> u16 {
    let mut connection = server.admin().await;
    let mut found = 0;
    for stream in streams() {
        let info = cmd("XINFO").arg("GROUPS").arg(stream).query_async(&mut connection).await;
        let groups: Vec<Value> = info.unwrap_or_default();
        found += u16::from(!groups.is_empty());
    }
    found
}

/// Returns how many entries of all streams were delivered and not acknowledged.
async fn pending(connection: &mut MultiplexedConnection) -> u64 {
    let mut pending = 0;
    for stream in streams() {
        let summary = cmd("XPENDING").arg(stream).arg(GROUP).query_async(connection).await;
        pending += summary.map_or(0, |(count, ..): (u64, Value, Value, Value)| count);
    }
    pending
}
