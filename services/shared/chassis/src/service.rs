//! What a service hands to the chassis, and where the chassis runs it.

use std::{any::Any, fmt, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use tonic::service::Routes;

/// Tells whether a service can do its work now: its store answers. Asked about once a second.
pub type Probe = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A handler of any service, of a type that the wire contract names.
pub type Handler = Arc<dyn Any + Send + Sync>;

/// A service in one worker, ready to be served.
pub struct Service {
    /// The full name by which health is asked for: `microblog.user.v1.UserService`.
    pub name: &'static str,
    /// The generated server, with `--max-message-bytes` as its decoding limit, which only the
    /// generated code can keep. Health and reflection are added.
    pub routes: Routes,
    /// The same for callers within the process, which need no routes: the handler as the wire
    /// contract names its type, such as `user::UserServiceHandler`. Without it, they call as from
    /// outside.
    pub handler: Option<Handler>,
    /// Whether it can do its work.
    pub ready: Probe,
    /// Jobs that run beside it for ever, dropped when the process is to stop. They may call peers
    /// and [`mutate`](crate::mutate()). When one ends or panics, the server fails, and so does the
    /// process, to be started again.
    pub background: Vec<BoxFuture<'static, ()>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A service and the address that it is to listen on.
#[derive(Debug)]
pub struct Listening {
    /// Port 0 picks a free one, the same for all workers.
    pub address: SocketAddr,
    /// What is served there.
    pub service: Service,
}

/// One of a process's workers: a thread with a runtime, listeners and connections of its own.
/// Jobs that a process needs once belong into worker 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Worker {
    /// The worker of a process that has only one, such as a test.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Returns whether this is the worker for jobs that a process needs once.
    pub const fn is_first(self) -> bool {
        self.index == 0
    }
}
