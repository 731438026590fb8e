//! A system at rest: nothing waits for somebody any more. Knows the names of the keys in which things
//! wait.

use std::time::Duration;

use anyhow::bail;
use microblog_domain::Partition;
use microblog_keyspace::redis::{aio::MultiplexedConnection, pipe};
use tokio::time::{Instant, sleep};

/// Sorted sets of a partition that are gone when nothing waits.
const WAITING: [&str; 5] = [
    "user:{p}:registrations",
    "user:{p}:deletions",
    "rel:{p}:pending",
    "post:{p}:outbox",
    "post:{p}:pending",
];

/// In how many streams posts wait for their way to followers, as the timeline service has it.
const STREAMS: u16 = 16;

const POLL: Duration = Duration::from_millis(200);

/// For what some millions of posts leave behind.
const LONGEST: Duration = Duration::from_secs(1200);

/// How often it is asked whether posts are still on their way: what was measured is over then.
const DELIVERY_POLL: Duration = Duration::from_millis(5);

/// Waits until no post is on its way to followers.
pub(crate) async fn delivered(redis: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut lengths = pipe();
    for stream in fan_out_streams() {
        lengths.cmd("XLEN").arg(stream);
    }
    while lengths.query_async::<Vec<u64>>(redis).await?.iter().any(|&length| length > 0) {
        if begun.elapsed() > LONGEST {
            bail!("posts are still on their way after {LONGEST:?}");
        }
        sleep(DELIVERY_POLL).await;
    }
    Ok(())
}

/// Returns the keys of the streams in which posts wait for their way to followers.
fn fan_out_streams() -> impl Iterator<Item = String> {
    (0..STREAMS).map(|stream| format!("tl:{{{stream}}}:fanout"))
}

/// Waits until nothing waits.
pub(crate) async fn reached(redis: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Some(waiting) = waiting(redis).await? {
        if begun.elapsed() > LONGEST {
            bail!("{waiting} things are still under way after {LONGEST:?}");
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// Returns how much is under way, if there is anything.
async fn waiting(redis: &mut MultiplexedConnection) -> anyhow::Result<Option<u64>> {
    let mut pipeline = pipe();
    for partition in Partition::all() {
        let partition = format!("{{{partition}}}");
        for key in WAITING {
            pipeline.cmd("EXISTS").arg(key.replace("{p}", &partition));
        }
        // Where there is an archive, one member stays for good.
        pipeline.cmd("ZCOUNT").arg(format!("post:{partition}:unarchived")).arg("(0").arg("+inf");
    }
    for stream in fan_out_streams() {
        pipeline.cmd("XLEN").arg(stream);
    }
    let counts: Vec<u64> = pipeline.query_async(redis).await?;
    Ok(Some(counts.iter().sum()).filter(|&waiting| waiting > 0))
}

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis::cmd;
    use microblog_testkit::RedisServer;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn what_waits_for_somebody_is_awaited() {
        let server = RedisServer::start().await;
        let mut redis = server.admin().await;
        let one = |command: &str, arguments: &[&str]| cmd(command).arg(arguments).take();
        let noted = one("ZADD", &["post:{3}:unarchived", "0", "-"]);
        noted.exec_async(&mut redis).await.unwrap();
        reached(&mut redis).await.unwrap();
        for command in [
            one("ZADD", &["post:{3}:unarchived", "77", "77"]),
            one("ZADD", &["rel:{1023}:pending", "77", "follow:1>2"]),
            one("XADD", &["tl:{15}:fanout", "*", "job", "x"]),
        ] {
            command.exec_async(&mut redis).await.unwrap();
        }
        assert_eq!(waiting(&mut redis).await.unwrap(), Some(3));
        timeout(3 * POLL, reached(&mut redis)).await.unwrap_err();
    }
}
