//! Clients of the library for an address, with the current certificates and password. Does not
//! connect.

use std::{sync::Arc, time::Duration};

use microblog_files::{Loader, TextFile, TlsError, UnusableText};
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

// Of the cluster client, whose defaults are 16 retries and a wait of up to 655 s.
const CLUSTER_RETRIES: u32 = 3;
const CLUSTER_RETRY_WAIT_MIN_MS: u64 = 10;
const CLUSTER_RETRY_WAIT_MAX_MS: u64 = 100;

/// The address, credentials, timeout and files of the clients.
pub(crate) struct ClientOptions {
    pub(crate) address: Address,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) timeout: Duration,
    pub(crate) certificates: Option<Paths>,
    /// The file with the password, if the address has none.
    pub(crate) password: Option<TextFile<String>>,
}

/// The contents of the files when they were read.
#[derive(PartialEq, Eq)]
pub(crate) struct Snapshot {
    certificates: Option<Files>,
    password: Option<String>,
}

/// A failure to create the clients.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error(transparent)]
    Password(#[from] UnusableText),
    #[error("the address has a password: --redis-password-file must not name another")]
    TwoPasswords,
    #[error(transparent)]
    Tls(#[from] certificates::ConfigError),
    #[error(transparent)]
    Library(#[from] RedisError),
}

impl Loader for ClientOptions {
    type Snapshot = Snapshot;
    type Value = Clients;
    type Error = ClientError;

    fn read(&self) -> Result<Self::Snapshot, ClientError> {
        if self.password.is_some() && self.address.credentials.password.is_some() {
            return Err(ClientError::TwoPasswords);
        }
        Ok(Snapshot {
            certificates: self.certificates.as_ref().map(Paths::read).transpose()?,
            password: self.password.as_ref().map(TextFile::read).transpose()?,
        })
    }

    fn build(&self, files: &Self::Snapshot) -> Result<Clients, ClientError> {
        let tls_files = files.certificates.as_ref();
        let certificates = tls_files.map(Files::certificates).transpose()?;
        let tls = if self.address.tls {
            Some(Arc::new(certificates::client_config(tls_files)?))
        } else {
            None
        };
        let mut credentials = self.address.credentials.clone();
        if let Some((file, text)) = self.password.as_ref().zip(files.password.as_ref()) {
            credentials.password = Some(file.build(text)?);
        }
        Ok(Clients::new(self, credentials, certificates, tls)?)
    }
}

/// The clients of an address.
pub(crate) struct Clients {
    pub(crate) kind: Kind,
    credentials: Credentials,
    timeout: Duration,
    /// For multiplexed connections; `None` without TLS.
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
        options: &ClientOptions,
        credentials: Credentials,
        certificates: Option<TlsCertificates>,
        tls: Option<Arc<ClientConfig>>,
    ) -> RedisResult<Self> {
        let mut clients = Self {
            kind: Kind::Sentinel { sentinels: Vec::new(), master: String::new() },
            credentials,
            timeout: options.timeout,
            tls,
            certificates,
        };
        clients.kind = clients.kind(options)?;
        Ok(clients)
    }

    fn kind(
        &self,
        ClientOptions { address, sentinel_credentials, .. }: &ClientOptions,
    ) -> RedisResult<Kind> {
        Ok(match &address.topology {
            Topology::Single { database } => {
                Kind::Single(self.client(&address.nodes[0], &self.credentials, *database)?)
            }
            Topology::Sentinel { master } => {
                let client = |node| self.client(node, sentinel_credentials, 0);
                let sentinels = address.nodes.iter().map(client).collect::<Result<_, _>>()?;
                Kind::Sentinel { sentinels, master: master.clone() }
            }
            Topology::Cluster => Kind::Cluster(Box::new(self.cluster(&address.nodes)?)),
        })
    }

    /// Returns the client of a node found by Sentinel or CLUSTER SLOTS.
    pub(crate) fn node_client(&self, node: &Node) -> RedisResult<Client> {
        self.client(node, &self.credentials, 0)
    }

    fn client(&self, node: &Node, credentials: &Credentials, database: i64) -> RedisResult<Client> {
        let info = self.info(node, credentials, database)?;
        match &self.certificates {
            Some(certificates) if self.tls.is_some() => {
                Client::build_with_tls(info, certificates.clone())
            }
            _ => Client::open(info),
        }
    }

    fn info(
        &self,
        node: &Node,
        credentials: &Credentials,
        database: i64,
    ) -> RedisResult<ConnectionInfo> {
        let Node { host, port } = node.clone();
        let address = if self.tls.is_some() {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        // Skips CLIENT SETINFO: Redis 7.0 does not support it, and later versions would log an ACL
        // violation for each connection. Of a cluster's clients, `node_connection` does so.
        let mut redis = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if let Some(user) = &credentials.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &credentials.password {
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
            // For one node: a part of the timeout, so that time remains to try another node.
            .connection_timeout(self.timeout / 4)
            // The shared pool bounds the whole request, and thereby ends it first: after a timeout of
            // its own, the library would repeat a command that may still run.
            .response_timeout(self.timeout)
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
