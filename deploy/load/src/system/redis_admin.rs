//! An administrator's client of the system's Redis, for statistics.

use std::time::Duration;

use anyhow::Context as _;
use microblog_keyspace::redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use microblog_local::up::Access;

use super::usage::RedisUsage;
use crate::redis_info::Info;

// Long, since the measured server may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The administrator's client.
pub(super) struct Admin {
    client: Client,
}

impl Admin {
    pub(super) fn new(access: &Access) -> anyhow::Result<Self> {
        Ok(Self { client: Client::open(access.admin_url()?)? })
    }

    /// Returns a new connection with a long response timeout. The client's default is half a second.
    pub(super) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        connection.context("cannot connect to the system's redis-server")
    }

    /// Returns the server's PID and its statistics so far.
    pub(super) async fn usage(&self) -> anyhow::Result<(u32, RedisUsage)> {
        let info = Info::fetch(&mut self.connect().await?, &["server", "stats"]).await?;
        let usage = RedisUsage {
            commands: info.field("total_commands_processed")?,
            round_trips: info.field("total_reads_processed")?,
            bytes_in: info.field("total_net_input_bytes")?,
            bytes_out: info.field("total_net_output_bytes")?,
        };
        Ok((info.field("process_id")?, usage))
    }
}
