//! Faults of the timelines' cache and of the fan-out streams.

use std::collections::BTreeSet;

use anyhow::Result;
use microblog_testkit::{
    PATIENCE, eventually,
    redis::{Value, aio::MultiplexedConnection, cmd},
};

use super::{repeatedly, separate};
use crate::trial::{Bite, Fault, Trial};

const STREAMS: u16 = 16;
const GROUP: &str = "fanout";
const REPEATED: usize = 10;
/// Jobs that are delivered again before a trial ends.
const COPIES: usize = 20;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "timelines-lost",
            "all cached timelines are deleted, ten times in 2 s",
            "deleted timelines",
            separate(),
            |trial| Box::pin(timelines_lost(trial)),
        ),
        Fault::new(
            "jobs-repeated",
            "fan-out jobs are added twice more, late and in another order",
            "added jobs",
            separate(),
            |trial| Box::pin(jobs_repeated(trial)),
        ),
        Fault::new(
            "jobs-poisoned",
            "entries that are no jobs are added to all fan-out streams",
            "entries that stay pending",
            separate(),
            |trial| Box::pin(poisoned(trial)),
        ),
        Fault::new(
            "groups-lost",
            "the consumer groups of fan-out are deleted, ten times in 2 s",
            "groups that were created again",
            separate(),
            |trial| Box::pin(groups_lost(trial)),
        ),
        Fault::new(
            "streams-lost",
            "the fan-out streams are deleted with their jobs, ten times in 2 s",
            "streams that were created again",
            separate(),
            |trial| Box::pin(streams_lost(trial)),
        ),
    ]
}

/// All cached timelines are deleted again and again.
async fn timelines_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let deleted = repeatedly(REPEATED, async || Ok(delete_timelines(trial).await)).await?;
    trial.after().await;
    Ok(Bite::seen_if(deleted > 0, format!("{deleted} deleted timelines")))
}

/// Deletes all cached timelines. Returns their number.
pub(super) async fn delete_timelines(trial: &Trial) -> u64 {
    let mut deleted = 0;
    for server in trial.system.redis.servers() {
        let mut connection = server.admin().await;
        for pattern in ["tl:*:home:*", "tl:*:pulls:*", "tl:*:user:*"] {
            let keys = cmd("KEYS").arg(pattern).query_async(&mut connection).await;
            let keys: Vec<String> = keys.unwrap_or_default();
            for key in keys {
                // A replica redirects to its primary.
                let unlinked = cmd("UNLINK").arg(key).query_async(&mut connection).await;
                deleted += unlinked.unwrap_or(0);
            }
        }
    }
    deleted
}

/// Jobs are added again: each up to twice, late, and in another order.
async fn jobs_repeated(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = trial.system.redis.single()?.admin().await;
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
async fn poisoned(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = trial.system.redis.single()?.admin().await;
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
async fn groups_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = trial.system.redis.single()?.admin().await;
    let deleted = repeatedly(REPEATED, async || {
        let mut deleted = 0;
        for stream in streams() {
            let mut destroy = cmd("XGROUP");
            destroy.arg("DESTROY").arg(&stream).arg(GROUP);
            deleted += destroy.query_async::<u64>(&mut connection).await.unwrap_or_default();
        }
        Ok(deleted)
    });
    let deleted = deleted.await?;
    created_again(trial, deleted, "groups").await
}

/// The streams are deleted, with their jobs.
async fn streams_lost(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut connection = trial.system.redis.single()?.admin().await;
    let deleted = repeatedly(REPEATED, async || {
        let streams: Vec<String> = streams().collect();
        Ok(cmd("UNLINK").arg(streams).query_async(&mut connection).await?)
    });
    let deleted = deleted.await?;
    created_again(trial, deleted, "streams").await
}

/// Waits until all groups exist again. More must have been deleted than there are.
async fn created_again(trial: &Trial, deleted: u64, what: &str) -> Result<Bite> {
    trial.after().await;
    let mut connection = trial.system.redis.single()?.admin().await;
    eventually("all groups exist again", PATIENCE, async || {
        groups(&mut connection).await == STREAMS
    })
    .await;
    Ok(Bite::seen_if(deleted > u64::from(STREAMS), format!("{deleted} deleted {what}")))
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
async fn groups(connection: &mut MultiplexedConnection) -> u16 {
    let mut found = 0;
    for stream in streams() {
        let info = cmd("XINFO").arg("GROUPS").arg(stream).query_async(connection).await;
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
