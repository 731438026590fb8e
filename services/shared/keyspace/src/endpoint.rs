//! The endpoint of an address: finds the primary and connects.

use std::{collections::HashMap, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use microblog_files::{HotReload, password_file};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, aio::MultiplexedConnection,
};

use crate::{
    Config, Error, Primaries,
    address::{Address, Credentials, Node, Topology},
    certificates::Paths,
    clients::{ClientOptions, Kind},
    multiplexed::{Multiplexed, PushHandler},
    node_connection::ClusterConnection,
    round_trip_metrics::ServerAddress,
    stream::Stream,
};

/// How long the answers of the other Sentinels are waited for after the first one.
const SENTINELS_WAIT: Duration = Duration::from_millis(50);

/// Connects to an address.
pub(crate) struct Endpoint {
    /// With the current certificates and password, or the previous ones while a file is invalid.
    clients: HotReload<ClientOptions>,
    server: ServerAddress,
    /// Told of each connection before it is used.
    primaries: Primaries,
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
        let options = ClientOptions {
            address,
            sentinel_credentials,
            timeout: config.timeout(),
            certificates: Paths::new(config),
            password: config.redis_password_file.clone().map(password_file),
        };
        let clients = HotReload::new("redis", options);
        let clients = clients.map_err(|error| Error::Config(error.into()))?;
        Ok(Self { clients, server, primaries: config.primaries.clone() })
    }

    fn options(&self) -> &ClientOptions {
        self.clients.loader()
    }

    /// Returns the generation of the certificates and the password, which changes when they are
    /// reloaded. They are at most a second old.
    pub(crate) fn files_generation(&self) -> u64 {
        self.clients.generation()
    }

    /// Reads the certificates and the password now, and returns their generation.
    pub(crate) fn reload_files(&self) -> u64 {
        self.clients.check_now();
        self.clients.generation()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options().address.topology, Topology::Cluster)
    }

    /// Returns the server address for metrics.
    pub(crate) fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Notes that other nodes of a cluster are primaries than before.
    pub(crate) fn primaries_changed(&self) {
        self.primaries.count_connection();
    }

    /// Returns the generation of the primary.
    pub(crate) fn generation(&self) -> u64 {
        self.primaries.generation()
    }

    /// Discards the connections of a generation to the single server, or to the primary that the
    /// Sentinels reported: it is a replica.
    pub(crate) fn discard_connections(&self, generation: u64) {
        self.primaries.changed(generation);
    }

    /// Returns whether a connection is open, and to the current primary.
    pub(crate) fn is_current(&self, connection: &Multiplexed) -> bool {
        !connection.is_closed() && connection.generation() == self.generation()
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
            self.reload_files();
            let (server, generation) = match node {
                Some(node) => (self.node(node)?, self.generation()),
                None => self.current_primary().await?,
            };
            Ok(self.open(&server, on_push).await?.of_generation(generation))
        };
        // Boxed: with a TLS handshake in it, its type is too deep for the compiler.
        self.with_timeout(connect).boxed()
    }

    /// Makes a cluster client of the library. Ends within the timeout.
    pub(crate) fn cluster_client(&self) -> BoxFuture<'_, RedisResult<ClusterConnection>> {
        let connect = async {
            match &self.clients.current().kind {
                Kind::Cluster(client) => client.get_async_generic_connection().await,
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
        let is_tracking = on_push.is_some();
        let connection = match on_push {
            None => Multiplexed::open(stream, settings, silence_max).await,
            Some(on_push) => {
                Multiplexed::open_tracking(stream, settings, silence_max, on_push).await
            }
        }?;
        if !is_tracking {
            self.primaries.count_connection();
        }
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
        self.current_primary().await.map(|(server, _)| server)
    }

    /// Returns the single server, or the primary that the Sentinels report, with its generation.
    async fn current_primary(&self) -> RedisResult<(ConnectionInfo, u64)> {
        let clients = self.clients.current();
        match &clients.kind {
            Kind::Single(client) => Ok((client.get_connection_info().clone(), self.generation())),
            Kind::Sentinel { sentinels, master } => {
                let Found { epoch, node, is_agreed } = self.master(sentinels, master).await?;
                let address = format!("{}:{}", node.host, node.port);
                let generation = self.primaries.reported(&address, epoch, is_agreed);
                let late = (ErrorKind::Client, "the sentinels' configuration is old");
                Ok((self.node(&node)?, generation.ok_or_else(|| RedisError::from(late))?))
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

    // Asks all Sentinels concurrently, so that a dead or frozen one causes little delay. Of their
    // answers, the one with the highest epoch counts: after a failover, the others report the old
    // primary for a second, which may accept writes until it becomes a replica.
    async fn master(&self, sentinels: &[Client], name: &str) -> RedisResult<Found> {
        let config =
            self.connection_config().set_response_timeout(Some(self.options().timeout / 2));
        let ask = |sentinel| ask_sentinel(sentinel, &config, name);
        let mut answers: FuturesUnordered<_> = sentinels.iter().map(ask).collect();
        let (mut found, mut failure) = (Vec::new(), None);
        while found.is_empty()
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(answer) => found.push(answer),
                Err(error) => failure = Some(error),
            }
        }
        let others = async {
            while let Some(answer) = answers.next().await {
                found.extend(answer.ok());
            }
        };
        let _elapsed = tokio::time::timeout(SENTINELS_WAIT, others).await;
        let is_agreed = found.len() == sentinels.len() && found.windows(2).all(|w| w[0] == w[1]);
        let newest = found.into_iter().max_by_key(|(epoch, _)| *epoch);
        let none = || (ErrorKind::InvalidClientConfig, "there is no Sentinel").into();
        let (epoch, node) = newest.ok_or_else(|| failure.unwrap_or_else(none))?;
        Ok(Found { epoch, node, is_agreed })
    }
}

/// The primary that Sentinels report.
struct Found {
    /// The epoch of their configuration.
    epoch: u64,
    node: Node,
    /// Whether all of them answered, and alike.
    is_agreed: bool,
}

async fn connect(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    client.get_multiplexed_async_connection_with_config(config).await
}

// Returns the primary that a Sentinel reports, and the epoch of its configuration.
async fn ask_sentinel(
    sentinel: &Client,
    config: &AsyncConnectionConfig,
    name: &str,
) -> RedisResult<(u64, Node)> {
    let mut connection = connect(sentinel, config).await?;
    let mut state = redis::cmd("SENTINEL");
    state.arg("MASTER").arg(name);
    // Fails if it has no such master.
    let state = state.query_async::<HashMap<String, String>>(&mut connection).await;
    let state = state.unwrap_or_default();
    let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    // Unlike the state, it has the new primary before a failover is complete.
    let mut address = redis::cmd("SENTINEL");
    address.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply: Option<(String, u16)> = address.query_async(&mut connection).await?;
    let (host, port) = reply.ok_or_else(|| {
        RedisError::from((
            ErrorKind::MasterNameNotFoundBySentinel,
            "the sentinel has no master of this name",
        ))
    })?;
    Ok((epoch, Node { host, port }))
}
