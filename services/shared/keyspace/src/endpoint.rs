//! Makes connections to what an address names. Knows no pool and sends no command of a store.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::select_ok;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, aio::MultiplexedConnection,
};
use tokio::time::Instant;

use crate::{
    Config, Error,
    address::{Address, Credentials, Node, Topology},
    certificates::{Contents, Files},
    clients::{Clients, Kind, Plan},
    connection::Connection,
    lock::lock,
    trip::Server,
    wire::{Listener, Wire},
};

// Requests that wait for the driver of a connection; it writes them out together.
const PIPELINE_BUFFER: usize = 1024;

// Between two looks at the files of TLS, however many connections are made.
const FILES_PAUSE: Duration = Duration::from_secs(1);

type Cause = Box<dyn StdError + Send + Sync>;

/// What an address names, ready to connect to.
pub(crate) struct Endpoint {
    plan: Plan,
    files: Option<Files>,
    known: Mutex<Known>,
    server: Server,
}

/// What was made of the files, which somebody may change while the process runs.
struct Known {
    /// Of which clients were made, or of which it is known that none can be.
    contents: Contents,
    clients: Arc<Clients>,
    /// How often others were made.
    generation: u64,
    looked: Instant,
    /// Whether the files could not be read then.
    is_unreadable: bool,
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
        let plan = Plan { address, to_sentinels, timeout: config.timeout() };
        let files = Files::new(config);
        let contents = files.as_ref().map(Files::read).transpose().map_err(invalid)?;
        let contents = contents.unwrap_or_default();
        let clients = clients(&plan, files.as_ref(), &contents).map_err(Error::Config)?;
        let looked = Instant::now();
        let known = Known { contents, clients, generation: 0, looked, is_unreadable: false };
        Ok(Self { plan, files, known: Mutex::new(known), server })
    }

    /// Returns the clients with the certificates of this moment, or with those before if these cannot
    /// be used, and how often there were new ones.
    fn clients(&self) -> (Arc<Clients>, u64) {
        let mut known = lock(&self.known);
        if let Some(files) = &self.files
            && known.looked.elapsed() >= FILES_PAUSE
        {
            known.looked = Instant::now();
            if let Err(error) = self.update(&mut known, files) {
                tracing::warn!(error, "TLS with redis goes on with the files as they were before");
            }
        }
        (known.clients.clone(), known.generation)
    }

    fn update(&self, known: &mut Known, files: &Files) -> Result<(), Cause> {
        // What cannot be read, or used, is said once.
        let read = files.read();
        let was_unreadable = std::mem::replace(&mut known.is_unreadable, read.is_err());
        let contents = match read {
            Err(_) if was_unreadable => return Ok(()),
            read => read?,
        };
        if contents == known.contents {
            return Ok(());
        }
        known.contents = contents;
        known.clients = clients(&self.plan, Some(files), &known.contents)?;
        known.generation += 1;
        tracing::info!("TLS with redis goes on with files that have changed");
        Ok(())
    }

    /// Returns whether a connection made at that generation goes on with certificates that have
    /// changed since: one to a cluster connects to nodes by itself, with those it was made with.
    pub(crate) fn has_outdated(&self, generation: u64) -> bool {
        self.files.is_some() && self.is_cluster() && self.generation() != generation
    }

    /// Returns a number that is another one when the certificates have changed.
    pub(crate) fn generation(&self) -> u64 {
        self.clients().1
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.plan.address.topology, Topology::Cluster)
    }

    /// Returns where it is, for those who measure.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Makes a connection for many users at once. Ends within the time-out.
    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        let config = self.connection_config().set_pipeline_buffer_size(PIPELINE_BUFFER);
        let connect = async {
            let (clients, _) = self.clients();
            match &clients.kind {
                Kind::Single(client) => to_node(client, &config).await,
                Kind::Sentinel { sentinels, master } => {
                    let node = self.master(sentinels, master).await?;
                    to_node(&clients.of_node(&node)?, &config).await
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
        !self.is_cluster() && !self.plan.address.tls
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
        match tokio::time::timeout(self.plan.timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Returns where the one server, or now the master, is; `None` for a cluster.
    pub(crate) async fn primary(&self) -> RedisResult<Option<ConnectionInfo>> {
        let (clients, _) = self.clients();
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
        Ok(self.clients().0.of_node(node)?.get_connection_info().clone())
    }

    /// Returns the settings of a connection to one node, without a limit on the answers' time.
    pub(crate) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.plan.timeout / 2))
            .set_response_timeout(None)
    }

    // Asks all Sentinels at once, so that a dead or frozen one costs no time.
    async fn master(&self, sentinels: &[Client], name: &str) -> RedisResult<Node> {
        let config = self.connection_config().set_response_timeout(Some(self.plan.timeout / 2));
        let ask = |sentinel| Box::pin(ask_sentinel(sentinel, &config, name));
        let (node, _others) = select_ok(sentinels.iter().map(ask)).await?;
        Ok(node)
    }
}

fn clients(plan: &Plan, files: Option<&Files>, contents: &Contents) -> Result<Arc<Clients>, Cause> {
    let certificates = files.map(|files| files.certificates(contents)).transpose()?;
    Ok(Arc::new(Clients::new(plan, certificates)?))
}

fn invalid(error: impl Into<Cause>) -> Error {
    Error::Config(error.into())
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
