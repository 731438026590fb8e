//! Calls between services: over the network, or within the process. They carry the deadline, the
//! trace context and the identity of the current call.

mod address;
mod call_stream;
mod connection;
mod discovery;
mod endpoint;
mod failure;
mod load_balancer;
mod metrics;
mod reconnector;
mod request;
mod response;
mod retry;
mod tls;
mod watched;

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    task::{Context as Waker, Poll},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use http::{HeaderMap, Request, Response};
use tokio::time::Instant;
use tonic::{Status, body::Body};
use tower::Service as TowerService;

pub use self::{address::AddressError, discovery::Resolve};
use self::{
    discovery::{DiscoveryConfig, SystemResolver},
    load_balancer::LoadBalancer,
    retry::Remote,
};
use crate::{
    call::{
        admission::Admission,
        context::{self, Context, ServerState},
        metadata,
    },
    config::Config,
    identity::{self, KeyFile},
    methods::{self, Method},
    middleware::Calls,
    service::{Handler, Service},
    status,
};

/// Client of another service. Cheap to clone; created in the worker that uses it. Pass it to a
/// generated peer, `UserServicePeer::new(peer.clone())`, which calls handlers of the same process
/// directly; or to a tonic client, `UserServiceClient::new(peer)`, as any channel.
///
/// A call has the deadline of the current call, or else the default timeout. It carries its trace
/// context and identity. A failure to reach the service is UNAVAILABLE, with the reason
/// PEER_UNAVAILABLE.
#[derive(Clone)]
pub struct Peer {
    target: Target,
    default_timeout: Duration,
    max_timeout: Duration,
    /// Keys that sign the identity of remote calls.
    keys: Option<KeyFile>,
}

#[derive(Clone)]
enum Target {
    Remote(Arc<Remote>),
    // Set when the service has started.
    Local(Arc<OnceLock<Local>>),
}

#[derive(Clone)]
struct Local {
    calls: Calls,
    handler: Option<Handler>,
}

impl Peer {
    /// Returns a peer at an `http` or `https` URL, or at several, separated by commas. A host name
    /// is resolved every `--peer-refresh-ms`; each of its addresses is an endpoint. Connects at the
    /// first call, and reconnects with backoff. Each endpoint has `--peer-connections` connections
    /// for calls, and more for streams on demand.
    ///
    /// Calls are balanced over the live endpoints. A request that no server has seen is retried on
    /// another endpoint. One without a response, or with UNAVAILABLE, is retried once, if the
    /// method's `idempotency_level` permits it.
    ///
    /// With `https`, the server's certificate must be valid for the host in the URL, and signed by
    /// an authority of `--peer-ca-file`. `--peer-cert-file` is presented for mutual TLS.
    pub fn remote(address: &str, config: &Config) -> Result<Self, AddressError> {
        Self::resolved_by(Arc::new(SystemResolver), address, config)
    }

    /// Returns the same with another resolver of host names.
    pub fn resolved_by(
        resolver: Arc<dyn Resolve>,
        address: &str,
        config: &Config,
    ) -> Result<Self, AddressError> {
        let urls = address::parse(address, config)?;
        let authorities = urls.iter().map(|url| url.origin.authority.as_str());
        let peer = authorities.collect::<Vec<_>>().join(",");
        let balancer = LoadBalancer::new(peer.clone(), DiscoveryConfig { urls, resolver }, config);
        let remote = Remote::new(peer, balancer);
        Ok(Self::new(Target::Remote(Arc::new(remote)), config))
    }

    /// Returns a peer within the process. Its handlers run in the caller's task, behind the same
    /// middleware as remote calls.
    pub fn local(service: &Service, config: &Config) -> Self {
        let peer = Self::unbound(config);
        peer.bind(service, config);
        peer
    }

    /// Returns a peer within the process whose service starts later, for services that call each
    /// other. Until [`Self::bind`], calls fail.
    pub fn unbound(config: &Config) -> Self {
        Self::new(Target::Local(Arc::default()), config)
    }

    /// Sets the service of an unbound peer and all its clones. Does nothing for other peers.
    pub fn bind(&self, service: &Service, config: &Config) {
        let Target::Local(local) = &self.target else { return };
        // Used only outside a call; a local call shares the state of the call that makes it.
        let server_state = ServerState::new(config, Admission::new(config).into());
        let calls = Calls::new(service.routes.clone(), server_state.into());
        local.get_or_init(|| Local { calls, handler: service.handler.clone() });
    }

    fn new(target: Target, config: &Config) -> Self {
        let [default_timeout, max_timeout] =
            [config.default_timeout_ms, config.max_timeout_ms].map(Duration::from_millis);
        Self { target, default_timeout, max_timeout, keys: config.identity_key_file.clone() }
    }

    /// Returns the deadline of a call: the earlier of its own `grpc-timeout` and the current call's
    /// deadline, or else the default. A stream's deadline may be far away: its calls do not wait as long.
    fn deadline(
        &self,
        headers: &HeaderMap,
        method: &Method,
        caller: Option<&Context>,
    ) -> Option<Instant> {
        let own = metadata::timeout(headers).ok().flatten();
        let now = Instant::now();
        let own = own.map(|timeout| now + timeout);
        let given = own.into_iter().chain(caller.and_then(|caller| caller.deadline)).min();
        match given {
            given if method.streaming => given,
            Some(given) => Some(given.min(now + self.max_timeout)),
            None => Some(now + self.default_timeout),
        }
    }
}

impl TowerService<Request<Body>> for Peer {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    // Always ready: a call itself waits for a connection, within its deadline.
    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = methods::find(request.uri().path());
        let caller = context::with(Context::clone);
        let deadline = self.deadline(request.headers(), method, caller.as_ref());
        match &mut self.target {
            Target::Local(local) => {
                let Some(local) = local.get() else {
                    return future::ready(Err(status::peer_unavailable())).boxed();
                };
                let call = local.calls.clone().call_local(request, method, caller, deadline);
                call.map(|Ok(response)| Ok(response.map(Body::new))).boxed()
            }
            Target::Remote(remote) => {
                if let Some(keys) = self.keys.as_ref().filter(|_| method.requires_identity) {
                    identity::inject(keys, context::identity(), request.headers_mut());
                }
                if let Some(caller) = caller {
                    caller.trace.inject(request.headers_mut());
                }
                remote.clone().call(request, method, deadline).boxed()
            }
        }
    }
}

impl microblog_proto::Peer for Peer {
    fn handler<H: Clone + 'static>(&self) -> Option<H> {
        match &self.target {
            Target::Local(local) => local.get()?.handler.as_ref()?.downcast_ref().cloned(),
            Target::Remote(_) => None,
        }
    }

    async fn call_inside<Q: Send, A: Send, F>(
        &self,
        path: &'static str,
        request: tonic::Request<Q>,
        call: impl FnOnce(tonic::Request<Q>) -> F + Send,
    ) -> Result<tonic::Response<A>, Status>
    where
        F: Future<Output = Result<tonic::Response<A>, Status>> + Send,
    {
        let Target::Local(local) = &self.target else { return Err(status::internal()) };
        let local = local.get().ok_or_else(status::peer_unavailable)?;
        let method = methods::find(path);
        let caller = context::with(Context::clone);
        let deadline = self.deadline(request.metadata().as_ref(), method, caller.as_ref());
        local.calls.run_local(method, caller, deadline, call(request)).await
    }
}
