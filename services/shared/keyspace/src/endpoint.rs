//! Makes connections to what an address names. Knows no pool and sends no command of a store.

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
    Config, Error,
    address::{Address, Credentials, Node, Topology},
    certificates::Paths,
    clients::{Kind, Plan},
    connection::Connection,
    stream::Stream,
    trip::Server,
    wire::{Listener, Wire},
};

/// What an address names, ready to connect to.
pub(crate) struct Endpoint {
    /// With the certificates of this moment, or with those before if these cannot be used.
    clients: HotReload<Plan>,
    server: Server,
}

impl Endpoint {
    /// Checks the configuration, connects to nothing.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let address = Address::parse(&config.redis_url)?;
        if address.tls {
            // Already installed by somebody else is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let server = Server::new(&address);
        let to_sentinels = Credentials {
            user: config.redis_sentinel_user.clone(),
            password: config.redis_sentinel_password.clone(),
        };
        let (timeout, files) = (config.timeout(), Paths::new(config));
        let plan = Plan { address, to_sentinels, timeout, files };
        let clients = HotReload::new("TLS with redis", plan);
        let clients = clients.map_err(|error| Error::Config(error.into()))?;
        Ok(Self { clients, server })
    }

    fn plan(&self) -> &Plan {
        self.clients.loader()
    }

    /// Returns whether a connection made at that generation goes on with certificates that have
    /// changed since: one to a cluster connects to nodes by itself, with those it was made with.
    pub(crate) fn has_outdated(&self, generation: u64) -> bool {
        self.plan().files.is_some() && self.is_cluster() && self.generation() != generation
    }

    /// Returns a number that is another one when the certificates have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.clients.generation()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.plan().address.topology, Topology::Cluster)
    }

    /// Returns where it is, for those who measure.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Makes a connection for many users at once. Ends within the time-out.
    pub(crate) fn connect(&self) -> BoxFuture<'_, RedisResult<Connection>> {
        let connect = async {
            match self.primary().await? {
                Some(node) => self.wire(&node, None).await.map(Connection::Node),
                None => self.cluster().await.map(Connection::Cluster),
            }
        };
        // Boxed: with a TLS handshake in it, its type is too deep for the compiler.
        self.in_time(connect).boxed()
    }

    async fn cluster(&self) -> RedisResult<ClusterConnection> {
        match &self.clients.current().kind {
            Kind::Cluster(client) => client.get_async_connection().await,
            Kind::Single(_) | Kind::Sentinel { .. } => {
                Err((ErrorKind::InvalidClientConfig, "not a cluster").into())
            }
        }
    }

    /// Returns whether [`Endpoint::connect_tracking`] can be.
    pub(crate) fn can_track(&self) -> bool {
        !self.is_cluster()
    }

    /// Makes a connection to one server, on which a listener is told what changes of that which is
    /// read there. Ends within the time-out.
    pub(crate) fn connect_tracking(&self, listener: Listener) -> BoxFuture<'_, RedisResult<Wire>> {
        let connect = async move {
            match self.primary().await? {
                Some(node) => self.wire(&node, Some(listener)).await,
                None => Err((ErrorKind::Client, "not one server").into()),
            }
        };
        self.in_time(connect).boxed()
    }

    // With a listener, Redis tracks what is read.
    async fn wire(&self, node: &ConnectionInfo, listener: Option<Listener>) -> RedisResult<Wire> {
        let tls = self.clients.current().tls.clone();
        let (host, port, tls) = match node.addr() {
            ConnectionAddr::Tcp(host, port) => (host, *port, None),
            ConnectionAddr::TcpTls { host, port, .. } => (host, *port, tls),
            _ => return Err((ErrorKind::InvalidClientConfig, "not an address of TCP").into()),
        };
        let stream = Stream::connect(host, port, tls).await?;
        match listener {
            None => Wire::open(stream, node.redis_settings()).await,
            Some(listener) => Wire::open_tracking(stream, node.redis_settings(), listener).await,
        }
    }

    async fn in_time<T>(&self, connect: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        match tokio::time::timeout(self.plan().timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Returns where the one server, or now the master, is; `None` for a cluster.
    pub(crate) async fn primary(&self) -> RedisResult<Option<ConnectionInfo>> {
        let clients = self.clients.current();
        match &clients.kind {
            Kind::Single(client) => Ok(Some(client.get_connection_info().clone())),
            Kind::Sentinel { sentinels, master } => {
                let node = self.master(sentinels, master).await?;
                self.node(&node).map(Some)
            }
            Kind::Cluster(_) => Ok(None),
        }
    }

    /// Returns how to connect to a node of a cluster.
    pub(crate) fn node(&self, node: &Node) -> RedisResult<ConnectionInfo> {
        Ok(self.clients.current().of_node(node)?.get_connection_info().clone())
    }

    /// Returns the settings of a connection to one node, without a limit on the answers' time.
    pub(crate) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.plan().timeout / 2))
            .set_response_timeout(None)
    }

    // Asks all Sentinels at once, so that a dead or frozen one costs no time.
    async fn master(&self, sentinels: &[Client], name: &str) -> RedisResult<Node> {
        let config = self.connection_config().set_response_timeout(Some(self.plan().timeout / 2));
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
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer: Option<(String, u16)> = question.query_async(&mut connection).await?;
    answer.map(|(host, port)| Node { host, port }).ok_or_else(|| {
        RedisError::from((
            ErrorKind::MasterNameNotFoundBySentinel,
            "the sentinel knows no master of this name",
        ))
    })
}
