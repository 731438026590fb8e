//! How a name becomes addresses. Knows nothing of what is done with them.

use std::{fmt, io, net::SocketAddr};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::net::lookup_host;

/// What finds the addresses that a name has at this moment.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Returns all addresses of a host, with the port. None of them is a failure, too.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// Asks the system (`getaddrinfo`), in one of the runtime's threads for what blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct System;

impl Resolve for System {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        lookup_host((host, port)).map(|found| found.map(Iterator::collect)).boxed()
    }
}
