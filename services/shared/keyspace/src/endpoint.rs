//! Makes connections to what an address names. Knows no pool and sends no command of a store.

use std::time::Duration;

use futures::future::select_ok;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates,
    aio::MultiplexedConnection,
    cluster::{ClusterClient, ClusterClientBuilder},
    io::tcp::TcpSettings,
};

use crate::{
    Config, Error,
    address::{Address, Credentials, Node, Topology},
    connection::Connection,
    trip::Server,
    wire::{Listener, Wire},
};

// Requests that wait for the driver of a connection; it writes them out together.
const PIPELINE_BUFFER: usize = 1024;

// Of the cluster client. Its own defaults are 16 repeats and up to 655 s of waiting.
const CLUSTER_RETRIES: u32 = 3;
const CLUSTER_RETRY_WAIT_MIN_MS: u64 = 10;
const CLUSTER_RETRY_WAIT_MAX_MS: u64 = 100;

/// What an address names, ready to connect to.
pub(crate) struct Endpoint {
    kind: Kind,
    timeout: Duration,
    certificates: Option<TlsCertificates>,
    credentials: Credentials,
    tls: bool,
    server: Server,
}

enum Kind {
    Single(Client),
    Sentinel { sentinels: Vec<Client>, master: String },
    Cluster(Box<ClusterClient>),
}

impl Endpoint {
    /// Checks the configuration, connects to nothing.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let address = Address::parse(&config.redis_url)?;
        let certificates = match &config.redis_ca_file {
            Some(path) => Some(TlsCertificates {
                client_tls: None,
                root_cert: Some(std::fs::read(path).map_err(|error| Error::Config(error.into()))?),
            }),
            None => None,
        };
        if address.tls {
            // Already installed by somebody else is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut endpoint = Self {
            kind: Kind::Sentinel { sentinels: Vec::new(), master: String::new() },
            timeout: config.timeout(),
            certificates,
            credentials: address.credentials.clone(),
            tls: address.tls,
            server: Server::new(&address),
        };
        endpoint.kind =
            endpoint.kind(address, config).map_err(|error| Error::Config(error.into()))?;
        Ok(endpoint)
    }

    fn kind(&self, address: Address, config: &Config) -> RedisResult<Kind> {
        Ok(match address.topology {
            Topology::Single { database } => {
                Kind::Single(self.client(&address.nodes[0], &self.credentials, database)?)
            }
            Topology::Sentinel { master } => {
                let credentials = Credentials {
                    user: config.redis_sentinel_user.clone(),
                    password: config.redis_sentinel_password.clone(),
                };
                let client = |node| self.client(node, &credentials, 0);
                let sentinels = address.nodes.iter().map(client).collect::<Result<_, _>>()?;
                Kind::Sentinel { sentinels, master }
            }
            Topology::Cluster => Kind::Cluster(Box::new(self.cluster(&address.nodes)?)),
        })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// Returns where it is, for those who measure.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Makes a connection for many users at once. Ends within the time-out.
    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        let config = self.connection_config().set_pipeline_buffer_size(PIPELINE_BUFFER);
        let connect = async {
            match &self.kind {
                Kind::Single(client) => to_node(client, &config).await,
                Kind::Sentinel { sentinels, master } => {
                    let node = self.master(sentinels, master).await?;
                    let client = self.client(&node, &self.credentials, 0)?;
                    to_node(&client, &config).await
                }
                Kind::Cluster(client) => {
                    client.get_async_connection().await.map(Connection::Cluster)
                }
            }
        };
        self.in_time(connect).await
    }

    /// Returns whether [`Endpoint::connect_tracking`] can be.
    pub(crate) fn can_track(&self) -> bool {
        !self.is_cluster() && !self.tls
    }

    /// Makes a connection to one server, without TLS, on which a listener is told what changes of
    /// that which is read there. Ends within the time-out.
    pub(crate) async fn connect_tracking(&self, listener: Listener) -> RedisResult<Wire> {
        let connect = async {
            let info = self.primary().await?;
            match info.as_ref().map(|info| (info.addr(), info.redis_settings())) {
                Some((ConnectionAddr::Tcp(host, port), settings)) => {
                    Wire::connect_tracking(host, *port, settings, listener).await
                }
                _ => Err((ErrorKind::Client, "not one server without TLS").into()),
            }
        };
        self.in_time(connect).await
    }

    async fn in_time<T>(&self, connect: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        match tokio::time::timeout(self.timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Returns where the one server, or now the master, is; `None` for a cluster.
    pub(crate) async fn primary(&self) -> RedisResult<Option<ConnectionInfo>> {
        match &self.kind {
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
        Ok(self.client(node, &self.credentials, 0)?.get_connection_info().clone())
    }

    /// Returns the settings of a connection to one node, without a limit on the answers' time.
    pub(crate) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout / 2))
            .set_response_timeout(None)
    }

    // Asks all Sentinels at once, so that a dead or frozen one costs no time.
    async fn master(&self, sentinels: &[Client], name: &str) -> RedisResult<Node> {
        let config = self.connection_config().set_response_timeout(Some(self.timeout / 2));
        let ask = |sentinel| Box::pin(ask_sentinel(sentinel, &config, name));
        let (node, _others) = select_ok(sentinels.iter().map(ask)).await?;
        Ok(node)
    }

    fn client(&self, node: &Node, to_be: &Credentials, database: i64) -> RedisResult<Client> {
        let info = self.info(node, to_be, database)?;
        match &self.certificates {
            Some(certificates) if self.tls => Client::build_with_tls(info, certificates.clone()),
            _ => Client::open(info),
        }
    }

    fn info(&self, node: &Node, to_be: &Credentials, database: i64) -> RedisResult<ConnectionInfo> {
        let Node { host, port } = node.clone();
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        // The library's name is not sent: Redis 7.0 does not know the command, and later ones
        // would log a refusal at every connection.
        let mut redis = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if let Some(user) = &to_be.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &to_be.password {
            redis = redis.set_password(password);
        }
        let info = address.into_connection_info()?;
        Ok(info.set_redis_settings(redis).set_tcp_settings(tcp_settings()))
    }

    fn cluster(&self, nodes: &[Node]) -> RedisResult<ClusterClient> {
        let infos = nodes.iter().map(|node| self.info(node, &self.credentials, 0));
        let mut builder = ClusterClientBuilder::new(infos.collect::<RedisResult<Vec<_>>>()?)
            .retries(CLUSTER_RETRIES)
            .min_retry_wait(CLUSTER_RETRY_WAIT_MIN_MS)
            .max_retry_wait(CLUSTER_RETRY_WAIT_MAX_MS)
            // Of one node: below the whole, so that a frozen node leaves time to ask another one.
            .connection_timeout(self.timeout / 4)
            .response_timeout(self.timeout / 2)
            // Whoever sends a request bounds the whole.
            .overall_response_timeout(None)
            .tcp_settings(tcp_settings());
        if let (Some(certificates), true) = (&self.certificates, self.tls) {
            builder = builder.certs(certificates.clone());
        }
        builder.build()
    }
}

fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Connects to one server, for many users at once.
async fn to_node(client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Connection> {
    let info = client.get_connection_info();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            Wire::connect(host, *port, info.redis_settings()).await.map(Connection::Node)
        }
        _ => connect(client, config).await.map(Connection::Tls),
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
