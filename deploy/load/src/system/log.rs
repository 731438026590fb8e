//! Redis' append-only file, which Redis writes anew by itself when it has doubled, unless it is
//! told not to.

use std::time::Duration;

use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};
use tokio::time::sleep;

use crate::info::Info;

const POLL: Duration = Duration::from_millis(50);

/// Has Redis write the file anew, and not again by itself, so that it does not while something is
/// measured: meanwhile each page of memory that is written to is copied first.
pub(crate) async fn settle(admin: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let mut never = cmd("CONFIG");
    never.arg("SET").arg("auto-aof-rewrite-percentage").arg(0).exec_async(admin).await?;
    written(admin).await?;
    cmd("BGREWRITEAOF").exec_async(admin).await?;
    written(admin).await
}

/// Waits until the file is not being written anew, and is not about to be.
async fn written(admin: &mut MultiplexedConnection) -> anyhow::Result<()> {
    loop {
        let info = Info::ask(admin, &["persistence"]).await?;
        let is_busy = |name| Ok::<_, anyhow::Error>(info.field::<u8>(name)? != 0);
        if !is_busy("aof_rewrite_in_progress")? && !is_busy("aof_rewrite_scheduled")? {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn the_file_has_been_written_anew() {
        let server = RedisServer::start().await;
        let mut admin = server.admin().await;
        cmd("SET").arg("key").arg("value").exec_async(&mut admin).await.unwrap();
        settle(&mut admin).await.unwrap();
        let info = Info::ask(&mut admin, &["persistence"]).await.unwrap();
        let last: i64 = info.field("aof_last_rewrite_time_sec").unwrap();
        assert!(last >= 0, "never written anew");
    }
}
