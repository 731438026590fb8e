//! Quiescence of a system: the fan-out streams are empty.

use std::time::Duration;

use anyhow::bail;
use microblog_keyspace::redis::{Pipeline, RedisResult, aio::MultiplexedConnection, pipe};
use microblog_timeline::STREAMS;
use tokio::time::{Instant, sleep};

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Enough for the backlog of some million posts.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Short, since the wait is part of the measurement.
const DELIVERY_POLL: Duration = Duration::from_millis(5);

/// Waits until the fan-out streams are empty.
pub(crate) async fn wait_until_delivered(
    redis: &mut [MultiplexedConnection],
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut lengths = pipe();
    for stream in fan_out_streams() {
        lengths.cmd("XLEN").arg(stream);
    }
    while sum(redis, &mut lengths).await? > 0 {
        if started.elapsed() > TIMEOUT {
            bail!("fan-out is not complete after {TIMEOUT:?}");
        }
        sleep(DELIVERY_POLL).await;
    }
    Ok(())
}

/// Returns the keys of the fan-out streams.
fn fan_out_streams() -> impl Iterator<Item = String> {
    (0..STREAMS).map(|stream| format!("tl:{{{stream}}}:fanout"))
}

/// Waits until no background work is pending.
pub(crate) async fn wait_until_quiescent(
    redis: &mut [MultiplexedConnection],
) -> anyhow::Result<()> {
    let started = Instant::now();
    while let Some(pending) = pending(redis).await? {
        if started.elapsed() > TIMEOUT {
            bail!("{pending} entries of background work are pending after {TIMEOUT:?}");
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns the number of pending entries, if any.
async fn pending(redis: &mut [MultiplexedConnection]) -> anyhow::Result<Option<u64>> {
    let mut pipeline = pipe();
    for stream in fan_out_streams() {
        pipeline.cmd("XLEN").arg(stream);
    }
    Ok(Some(sum(redis, &mut pipeline).await?).filter(|&pending| pending > 0))
}

/// Returns the sum of the replies of all servers. Each node of a cluster replies for its own keys, and
/// with MOVED for others.
async fn sum(redis: &mut [MultiplexedConnection], pipeline: &mut Pipeline) -> anyhow::Result<u64> {
    let mut sum = 0;
    for server in redis {
        let replies: Vec<RedisResult<u64>> = pipeline.ignore_errors().query_async(server).await?;
        for reply in replies {
            match reply {
                Err(error) if error.code() == Some("MOVED") => {}
                reply => sum += reply?,
            }
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis::cmd;
    use microblog_testkit::{Store, Topology};
    use tokio::time::timeout;

    use super::*;

    async fn check(store: Store) {
        let mut redis = Vec::new();
        for node in store.nodes() {
            redis.push(node.admin().await);
        }
        let one = |command: &str, arguments: &[&str]| cmd(command).arg(arguments).take();
        wait_until_quiescent(&mut redis).await.unwrap();
        for command in [
            one("XADD", &["tl:{3}:fanout", "*", "job", "x"]),
            one("XADD", &["tl:{15}:fanout", "*", "job", "x"]),
        ] {
            let mut taken = 0;
            for node in &mut redis {
                taken += u32::from(command.exec_async(node).await.is_ok());
            }
            assert_eq!(taken, 1, "one node has the slot");
        }
        assert_eq!(pending(&mut redis).await.unwrap(), Some(2));
        timeout(3 * POLL_INTERVAL, wait_until_quiescent(&mut redis)).await.unwrap_err();
    }

    #[tokio::test]
    async fn pending_work_of_a_server_is_awaited() {
        check(Store::start(Topology::Single).await).await;
    }

    #[tokio::test]
    async fn pending_work_of_a_cluster_is_awaited() {
        check(Store::start(Topology::Cluster).await).await;
    }
}
