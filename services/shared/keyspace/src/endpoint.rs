//! The endpoint of an address: finds the primary and connects.

use futures::{
    FutureExt as _,
    future::{BoxFuture, select_ok},
};
use microblog_files::HotReload;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, aio::MultiplexedConnection, cluster_async::ClusterConnection,
};

use crate::{
    Config, Error, PartitionStates,
    address::{Address, Credentials, Node, Topology},
    certificates::Paths,
    clients::{ClientOptions, Kind},
    multiplexed::{Multiplexed, PushHandler},
    round_trip_metrics::ServerAddress,
    stream::Stream,
};

/// Connects to an address.
pub(crate) struct Endpoint {
    /// With the current certificates, or the previous ones while the current ones are invalid.
    clients: HotReload<ClientOptions>,
    server: ServerAddress,
    /// Told of each connection before it is used.
    states: PartitionStates,
}

impl Endpoint {
    /// Validates the configuration. Does not connect.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let address = Address::parse(&config.redis_url)?;
        if address.tls {
            // Fails if the process has a provider already, which serves too.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let server = ServerAddress::new(&address);
        let sentinel_credentials = Credentials {
            user: config.redis_sentinel_user.clone(),
            password: config.redis_sentinel_password.clone(),
        };
        let (timeout, files) = (config.timeout(), Paths::new(config));
        let options = ClientOptions { address, sentinel_credentials, timeout, files };
        let clients = HotReload::new("TLS with redis", options);
        let clients = clients.map_err(|error| Error::Config(error.into()))?;
        Ok(Self { clients, server, states: config.partition_states.clone() })
    }

    fn options(&self) -> &ClientOptions {
        self.clients.loader()
    }

    /// Returns the generation of the certificates, which changes when they are reloaded.
    pub(crate) fn certificate_generation(&self) -> u64 {
        self.clients.generation()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options().address.topology, Topology::Cluster)
    }

    /// Returns the server address for metrics.
    pub(crate) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Notes that other servers are primaries than before.
    pub(crate) fn primaries_changed(&self) {
        self.states.lost_connection();
        self.states.connected();
    }

    /// Makes a multiplexed connection to a cluster node; without a node, to the single server or to
    /// the primary that the Sentinels report. Ends within the timeout.
    pub(crate) fn connect<'a>(
        &'a self,
        node: Option<&'a Node>,
    ) -> BoxFuture<'a, RedisResult<Multiplexed>> {
        self.connect_with(node, None)
    }

    /// Makes such a connection with client tracking, with a handler of push messages.
    pub(crate) fn connect_tracking<'a>(
        &'a self,
        node: Option<&'a Node>,
        on_push: PushHandler,
    ) -> BoxFuture<'a, RedisResult<Multiplexed>> {
        self.connect_with(node, Some(on_push))
    }

    fn connect_with<'a>(
        &'a self,
        node: Option<&'a Node>,
        on_push: Option<PushHandler>,
    ) -> BoxFuture<'a, RedisResult<Multiplexed>> {
        let connect = async move {
            let server = match node {
                Some(node) => self.node(node)?,
                None => self.primary().await?,
            };
            self.open(&server, on_push).await
        };
        // Boxed: with a TLS handshake in it, its type is too deep for the compiler.
        self.with_timeout(connect).boxed()
    }

    /// Makes a cluster client of the library. Ends within the timeout.
    pub(crate) fn cluster_client(&self) -> BoxFuture<'_, RedisResult<ClusterConnection>> {
        let connect = async {
            match &self.clients.current().kind {
                Kind::Cluster(client) => client.get_async_connection().await,
                Kind::Single(_) | Kind::Sentinel { .. } => {
                    Err((ErrorKind::InvalidClientConfig, "not a cluster").into())
                }
            }
        };
        self.with_timeout(connect).boxed()
    }

    // Opens a multiplexed connection; with a push handler, one with client tracking.
    async fn open(
        &self,
        node: &ConnectionInfo,
        on_push: Option<PushHandler>,
    ) -> RedisResult<Multiplexed> {
        let tls = self.clients.current().tls.clone();
        let (host, port, tls) = match node.addr() {
            ConnectionAddr::Tcp(host, port) => (host, *port, None),
            ConnectionAddr::TcpTls { host, port, .. } => (host, *port, tls),
            _ => return Err((ErrorKind::InvalidClientConfig, "not a TCP address").into()),
        };
        let stream = Stream::connect(host, port, tls).await?;
        let (settings, silence_max) = (node.redis_settings(), self.options().timeout);
        let connection = match on_push {
            None => Multiplexed::open(stream, settings, silence_max).await,
            Some(on_push) => {
                Multiplexed::open_tracking(stream, settings, silence_max, on_push).await
            }
        }?;
        connection.report_to(&self.states);
        self.states.connected();
        Ok(connection)
    }

    async fn with_timeout<T>(
        &self,
        connect: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        match tokio::time::timeout(self.options().timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Returns the single server, or the primary that the Sentinels report.
    pub(crate) async fn primary(&self) -> RedisResult<ConnectionInfo> {
        let clients = self.clients.current();
        match &clients.kind {
            Kind::Single(client) => Ok(client.get_connection_info().clone()),
            Kind::Sentinel { sentinels, master } => {
                self.node(&self.master(sentinels, master).await?)
            }
            Kind::Cluster(_) => {
                Err((ErrorKind::InvalidClientConfig, "a cluster has several primaries").into())
            }
        }
    }

    /// Returns the connection info of a cluster node.
    pub(crate) fn node(&self, node: &Node) -> RedisResult<ConnectionInfo> {
        Ok(self.clients.current().node_client(node)?.get_connection_info().clone())
    }

    /// Returns the settings of a library connection to one node, without a reply timeout.
    pub(crate) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options().timeout / 2))
            .set_response_timeout(None)
    }

    // Asks all Sentinels concurrently, so that a dead or frozen one causes no delay.
    async fn master(&self, sentinels: &[Client], name: &str) -> RedisResult<Node> {
        let config =
            self.connection_config().set_response_timeout(Some(self.options().timeout / 2));
        let ask = |sentinel| Box::pin(ask_sentinel(sentinel, &config, name));
        let (node, _others) = select_ok(sentinels.iter().map(ask)).await?;
        Ok(node)
    }
}

async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    client.get_multiplexed_async_connection_with_config(config).await
}

async fn ask_sentinel(
    sentinel: &Client,
    config: &AsyncConnectionConfig,
    name: &str,
) -> RedisResult<Node> {
    let mut connection = connect(sentinel, config).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply: Option<(String, u16)> = command.query_async(&mut connection).await?;
    reply.map(|(host, port)| Node { host, port }).ok_or_else(|| {
        RedisError::from((
            ErrorKind::MasterNameNotFoundBySentinel,
            "the sentinel has no master of this name",
        ))
    })
}
