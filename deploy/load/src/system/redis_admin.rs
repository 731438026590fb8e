//! An administrator's client of the system's Redis, for statistics.

use std::{pin::pin, time::Duration};

use anyhow::Context as _;
use futures::StreamExt as _;
use microblog_keyspace::redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use microblog_local::up::Access;
use tokio::time::{sleep, timeout};

use super::{
    monitor::MonitorSample,
    usage::{RedisUsage, Traffic},
};
use crate::redis_info::Info;

// Long, since the measured server may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to Redis as its administrator with a long response timeout. The client's default is
/// half a second.
pub(crate) async fn connect(admin: &Client) -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    let connection = admin.get_multiplexed_async_connection_with_config(&config).await;
    connection.context("cannot connect to the system's redis-server")
}

/// The administrator's client.
pub(super) struct Admin {
    client: Client,
}

impl Admin {
    pub(super) fn new(access: &Access) -> anyhow::Result<Self> {
        Ok(Self { client: Client::open(access.admin_url()?)? })
    }

    /// Returns a new connection.
    pub(super) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.client).await
    }

    /// Returns the server's PID and its statistics so far.
    pub(super) async fn usage(
        &self,
        sample: Option<MonitorSample>,
    ) -> anyhow::Result<(u32, RedisUsage)> {
        let mut connection = self.connect().await?;
        let info = Info::fetch(&mut connection, &["server", "stats", "commandstats"]).await?;
        parse(&info, sample)
    }

    /// Samples commands with MONITOR for a duration.
    pub(super) async fn sample_commands(&self, length: Duration) -> anyhow::Result<MonitorSample> {
        let mut monitor = timeout(TIMEOUT, self.client.get_async_monitor())
            .await
            .context("timed out")
            .and_then(|monitor| Ok(monitor?))
            .context("MONITOR failed on the system's redis-server")?;
        let mut sample = MonitorSample::default();
        let mut lines = monitor.on_message::<String>();
        let mut end = pin!(sleep(length));
        loop {
            tokio::select! {
                () = &mut end => return Ok(sample),
                line = lines.next() => {
                    let line = line.context("the system's redis-server closed the connection")?;
                    sample.record(&line);
                }
            }
        }
    }
}

/// Reads the sections `server`, `stats` and `commandstats`.
fn parse(info: &Info, sample: Option<MonitorSample>) -> anyhow::Result<(u32, RedisUsage)> {
    let traffic = Traffic {
        reads: info.field("total_reads_processed")?,
        bytes_in: info.field("total_net_input_bytes")?,
        bytes_out: info.field("total_net_output_bytes")?,
    };
    Ok((info.field("process_id")?, RedisUsage::new(info.commands(), traffic, sample)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nprocess_id:4711\r\n\r\n# Stats\r\n\
        total_commands_processed:9\r\ntotal_net_input_bytes:210\r\ntotal_net_output_bytes:3400\r\n\
        total_reads_processed:6\r\n\r\n# Commandstats\r\n\
        cmdstat_fcall:calls=2,usec=170,usec_per_call=85.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_config|get:calls=1,usec=8,usec_per_call=8.00,rejected_calls=0,failed_calls=0\r\n";

    #[test]
    fn info_statistics_are_read() {
        let (id, usage) = parse(&Info::of(INFO), Some(MonitorSample::default())).unwrap();
        assert_eq!(id, 4711);
        assert_eq!((usage.round_trips, usage.bytes_in, usage.bytes_out), (6, 210, 3400));
        assert_eq!((usage.commands, usage.server_us), (Some(3), Some(178)));
    }

    #[test]
    fn commands_are_not_counted_without_a_monitor_sample() {
        let (_, usage) = parse(&Info::of(INFO), None).unwrap();
        assert_eq!((usage.commands, usage.server_us), (None, None));
        assert_eq!(usage.round_trips, 6);
    }

    #[test]
    fn the_error_for_a_missing_field_names_it() {
        let error = parse(&Info::of("process_id:4711\r\n"), None).unwrap_err().to_string();
        assert!(error.contains("total_reads_processed"), "{error}");
    }
}
