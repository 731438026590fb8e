//! The connections that the library's cluster client makes to the nodes.

use futures::FutureExt as _;
use redis::{
    AsyncConnectionConfig, Cmd, IntoConnectionInfo, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::Connect,
};

/// The cluster client of the library.
pub(crate) type ClusterConnection = redis::cluster_async::ClusterConnection<NodeConnection>;

/// A connection that sends no CLIENT SETINFO. The cluster client drops the setting of its addresses
/// that skips it (redis 1.8.1), and Redis 7.2 and later would log two ACL violations for each
/// connection.
#[derive(Clone)]
pub(crate) struct NodeConnection(MultiplexedConnection);

impl Connect for NodeConnection {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        let connect = async move {
            let info = info.into_connection_info()?;
            let settings = info.redis_settings().clone().set_skip_set_lib_name();
            let info = info.set_redis_settings(settings);
            MultiplexedConnection::connect_with_config(info, config).await.map(Self)
        };
        connect.boxed()
    }
}

impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;
    use redis::cmd;

    use super::*;

    #[tokio::test]
    async fn a_connection_begins_without_an_error() {
        let server = RedisServer::start().await;
        let mut admin = server.admin().await;
        cmd("CONFIG").arg("RESETSTAT").exec_async(&mut admin).await.unwrap();
        let config = AsyncConnectionConfig::new();
        NodeConnection::connect_with_config(server.url("post"), config).await.unwrap();
        // Redis 7.0 does not know CLIENT SETINFO, and later ones reject it.
        let errors: String = cmd("INFO").arg("errorstats").query_async(&mut admin).await.unwrap();
        assert!(!errors.contains("errorstat_"), "{errors}");
    }
}
