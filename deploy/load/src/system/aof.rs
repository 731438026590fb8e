//! Rewrites of Redis' append-only file (AOF).

use std::time::Duration;

use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};
use tokio::time::sleep;

use crate::redis_info::Info;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Rewrites the AOF and turns automatic rewrites off. A rewrite during a measurement would cost
/// copy-on-write of every modified page.
pub(crate) async fn rewrite(admin: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let mut no_rewrites = cmd("CONFIG");
    no_rewrites.arg("SET").arg("auto-aof-rewrite-percentage").arg(0).exec_async(admin).await?;
    wait_for_rewrite(admin).await?;
    cmd("BGREWRITEAOF").exec_async(admin).await?;
    wait_for_rewrite(admin).await
}

/// Waits until no rewrite is running or scheduled.
async fn wait_for_rewrite(admin: &mut MultiplexedConnection) -> anyhow::Result<()> {
    loop {
        let info = Info::fetch(admin, &["persistence"]).await?;
        let is_busy = |name| Ok::<_, anyhow::Error>(info.field::<u8>(name)? != 0);
        if !is_busy("aof_rewrite_in_progress")? && !is_busy("aof_rewrite_scheduled")? {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn rewrite_waits_until_the_aof_is_rewait_for_rewrite() {
        let server = RedisServer::start().await;
        let mut admin = server.admin().await;
        cmd("SET").arg("key").arg("value").exec_async(&mut admin).await.unwrap();
        rewrite(&mut admin).await.unwrap();
        let info = Info::fetch(&mut admin, &["persistence"]).await.unwrap();
        let last: i64 = info.field("aof_last_rewrite_time_sec").unwrap();
        assert!(last >= 0, "the AOF was not rewritten");
    }
}
