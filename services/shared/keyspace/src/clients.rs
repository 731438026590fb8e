//! The library's clients for what an address names, with the certificates of one moment. Connects
//! to nothing.

use std::{sync::Arc, time::Duration};

use microblog_files::{Loader, TlsError};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
    cluster::{ClusterClient, ClusterClientBuilder},
    io::tcp::TcpSettings,
};
use rustls::ClientConfig;

use crate::{
    address::{Address, Credentials, Node, Topology},
    certificates::{self, Files, Paths},
};

// Of the cluster client. Its own defaults are 16 repeats and up to 655 s of waiting.
const CLUSTER_RETRIES: u32 = 3;
const CLUSTER_RETRY_WAIT_MIN_MS: u64 = 10;
const CLUSTER_RETRY_WAIT_MAX_MS: u64 = 100;

/// What there is to connect to, as whom, and with which certificates.
pub(crate) struct Plan {
    pub(crate) address: Address,
    pub(crate) to_sentinels: Credentials,
    pub(crate) timeout: Duration,
    pub(crate) files: Option<Paths>,
}

/// Why there are no clients of a plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error(transparent)]
    Tls(#[from] certificates::ConfigError),
    #[error(transparent)]
    Library(#[from] RedisError),
}

impl Loader for Plan {
    type Snapshot = Option<Files>;
    type Value = Clients;
    type Error = PlanError;

    fn read(&self) -> Result<Self::Snapshot, PlanError> {
        Ok(self.files.as_ref().map(Paths::read).transpose()?)
    }

    fn build(&self, files: &Self::Snapshot) -> Result<Clients, PlanError> {
        let certificates = files.as_ref().map(Files::certificates).transpose()?;
        let tls = if self.address.tls {
            Some(Arc::new(certificates::client_config(files.as_ref())?))
        } else {
            None
        };
        Ok(Clients::new(self, certificates, tls)?)
    }
}

/// How to connect to it.
pub(crate) struct Clients {
    pub(crate) kind: Kind,
    credentials: Credentials,
    timeout: Duration,
    /// For connections that the library does not make; `None` without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    certificates: Option<TlsCertificates>,
}

pub(crate) enum Kind {
    Single(Client),
    Sentinel { sentinels: Vec<Client>, master: String },
    Cluster(Box<ClusterClient>),
}

impl Clients {
    fn new(
        plan: &Plan,
        certificates: Option<TlsCertificates>,
        tls: Option<Arc<ClientConfig>>,
    ) -> RedisResult<Self> {
        let mut clients = Self {
            kind: Kind::Sentinel { sentinels: Vec::new(), master: String::new() },
            credentials: plan.address.credentials.clone(),
            timeout: plan.timeout,
            tls,
            certificates,
        };
        clients.kind = clients.kind(plan)?;
        Ok(clients)
    }

    fn kind(&self, Plan { address, to_sentinels, .. }: &Plan) -> RedisResult<Kind> {
        Ok(match &address.topology {
            Topology::Single { database } => {
                Kind::Single(self.client(&address.nodes[0], &self.credentials, *database)?)
            }
            Topology::Sentinel { master } => {
                let client = |node| self.client(node, to_sentinels, 0);
                let sentinels = address.nodes.iter().map(client).collect::<Result<_, _>>()?;
                Kind::Sentinel { sentinels, master: master.clone() }
            }
            Topology::Cluster => Kind::Cluster(Box::new(self.cluster(&address.nodes)?)),
        })
    }

    /// Returns the client of a node that is found while others are asked.
    pub(crate) fn of_node(&self, node: &Node) -> RedisResult<Client> {
        self.client(node, &self.credentials, 0)
    }

    fn client(&self, node: &Node, to_be: &Credentials, database: i64) -> RedisResult<Client> {
        let info = self.info(node, to_be, database)?;
        match &self.certificates {
            Some(certificates) if self.tls.is_some() => {
                Client::build_with_tls(info, certificates.clone())
            }
            _ => Client::open(info),
        }
    }

    fn info(&self, node: &Node, to_be: &Credentials, database: i64) -> RedisResult<ConnectionInfo> {
        let Node { host, port } = node.clone();
        let address = if self.tls.is_some() {
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
        if let (Some(certificates), true) = (&self.certificates, self.tls.is_some()) {
            builder = builder.certs(certificates.clone());
        }
        builder.build()
    }
}

fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
