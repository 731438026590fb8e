//! The interface between a service and the chassis.

use std::{
    any::Any,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures::future::BoxFuture;
use http::HeaderValue;
use tonic::service::Routes;

/// Readiness probe: returns whether the service's store responds. Called once a second.
pub type Probe = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A handler, type-erased; its type is declared by the generated code.
pub type Handler = Arc<dyn Any + Send + Sync>;

/// A service in one worker, ready to serve.
pub struct Service {
    /// Full service name for health checks: `microblog.user.v1.UserService`.
    pub name: &'static str,
    /// The generated server, with `--max-message-bytes` as its decoding limit, which only generated
    /// code can enforce. The chassis adds health and reflection.
    pub routes: Routes,
    /// The handler for local calls without routes, as the type `user::UserServiceHandler`. Without
    /// it, local calls use the routes.
    pub handler: Option<Handler>,
    /// Also serves gRPC-Web and Connect, with HTTP/1.1 and HTTP/2; `None` for gRPC only.
    pub web: Option<Web>,
    /// The readiness probe.
    pub ready: Probe,
    /// Background jobs, dropped at shutdown. They may call peers and [`mutate`](crate::mutate()).
    /// If one returns or panics, the server fails and the process exits, to be restarted.
    pub background: Vec<BoxFuture<'static, ()>>,
}

/// How a service serves browsers.
#[derive(Clone, Debug, Default)]
pub struct Web {
    /// The origins whose scripts may call it, such as `https://example.org`.
    pub allowed_origins: Vec<HeaderValue>,
    /// The files that it serves.
    pub files: Vec<File>,
    /// Also serves the metrics of the process at `/metrics`, for a page that shows them. They are
    /// empty without `--metrics-listen`.
    pub metrics: bool,
    /// The balancers that name their clients.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// The peers whose connections begin with a header of the PROXY protocol, version 1 or 2. Those of
/// other peers have none.
#[derive(Clone)]
pub struct ProxyProtocol(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl ProxyProtocol {
    /// Returns it for the peers whose addresses pass. An IPv4 address never comes as an IPv6 address.
    pub fn new(is_spoken_by: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_spoken_by))
    }

    pub(crate) fn is_spoken_by(&self, peer: IpAddr) -> bool {
        (self.0)(peer.to_canonical())
    }
}

impl fmt::Debug for ProxyProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ProxyProtocol")
    }
}

/// A file that a service serves by HTTP.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its path, such as `/style.css`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its contents.
    pub contents: &'static str,
}

/// A service and its listen address.
pub struct ServiceListener {
    /// Port 0 selects a free port, the same for all workers.
    pub address: SocketAddr,
    /// The service.
    pub service: Service,
}

/// A worker of a process: a thread with its own runtime, listeners and connections. Jobs that run
/// once per process belong to worker 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// From 0.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
}

impl Worker {
    /// The worker of a process with only one, such as a test.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns whether this worker runs the jobs of the process.
    pub const fn is_first(self) -> bool {
        self.index == 0
    }
}
