//! How one service calls another: over the network, or in the same process, with the deadline and
//! the trace of the call that it works for, and for whom that acts.

mod address;
mod connection;
mod discovery;
mod endpoint;
mod endpoint_set;
mod failure;
mod load_balancer;
mod log_throttle;
mod metrics;
mod reconnector;
mod remote;
mod response;
mod retryable_request;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context as Waker, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tonic::{Status, body::Body};
use tower::Service as TowerService;

pub use self::{address::AddressError, discovery::Resolve};
use self::{
    discovery::{DiscoveryConfig, SystemResolver},
    load_balancer::LoadBalancer,
    log_throttle::LogThrottle,
    remote::Remote,
};
use crate::{
    Config, Handler, Service,
    admission::Admission,
    call::{CallFuture, Calls, timeout},
    context::{self, Context, Shared},
    identity::{self, KeyFile},
    methods::{self, Method},
    status,
};

/// Another service. Cheap to clone; made in the worker that uses it. Pass it to what is generated
/// for each service: `UserServicePeer::new(peer.clone())`, which calls the handlers of the same
/// process as they are; or to a client, `UserServiceClient::new(peer)`, as any channel.
///
/// What is called has until the deadline of the current call, or else the default timeout, and
/// belongs to the same trace, and is told who acts there. A service that does not answer is UNAVAILABLE, with the reason
/// PEER_UNAVAILABLE.
#[derive(Clone, Debug)]
pub struct Peer {
    target: Target,
    default_timeout: Duration,
    /// What tells another process who acts.
    keys: Option<KeyFile>,
}

#[derive(Clone, Debug)]
enum Target {
    Remote(Arc<Remote>),
    Local(Local),
}

#[derive(Clone)]
struct Local {
    calls: Calls,
    handler: Option<Handler>,
}

impl Peer {
    /// Returns a service at an `http` or `https` URL, or at several with commas between them. A host that is a
    /// name is looked up every `--peer-refresh-ms`, and each of its addresses is one of the
    /// service's; that of a URL never is. Connects when it is first called, and again whenever a
    /// connection is lost; there are `--peer-connections` to each address, and for streams as many
    /// more as they need.
    ///
    /// Calls go to the addresses that answer. What no server has seen goes to another one; what was
    /// not answered, or with UNAVAILABLE, is asked there once more, if the method may be repeated
    /// (`idempotency_level`).
    ///
    /// With `https`, the certificate must be for the host in the URL, and signed by one of the
    /// authorities of `--peer-ca-file`; `--peer-cert-file` is shown to who asks for one.
    pub fn remote(address: &str, config: &Config) -> Result<Self, AddressError> {
        Self::resolved_by(Arc::new(SystemResolver), address, config)
    }

    /// Returns the same, where something else knows the addresses of names.
    pub fn resolved_by(
        resolver: Arc<dyn Resolve>,
        address: &str,
        config: &Config,
    ) -> Result<Self, AddressError> {
        let urls = address::parse(address, config)?;
        let authorities = urls.iter().map(|url| url.origin.authority.as_str());
        let peer = authorities.collect::<Vec<_>>().join(",");
        let balancer = LoadBalancer::new(peer.clone(), DiscoveryConfig { urls, resolver }, config);
        let remote = Remote::new(balancer, LogThrottle::new(peer));
        Ok(Self::new(Target::Remote(Arc::new(remote)), config))
    }

    /// Returns a service of this process. Its handlers run as part of the caller's task, behind
    /// the same layer as for a caller from outside.
    pub fn local(service: &Service, config: &Config) -> Self {
        // Not used by calls that work for a call; others are not counted at all.
        let shared = Shared::new(config, Admission::new(config).into());
        let calls = Calls::new(service.routes.clone(), shared.into());
        let handler = service.handler.clone();
        Self::new(Target::Local(Local { calls, handler }), config)
    }

    fn new(target: Target, config: &Config) -> Self {
        let default_timeout = Duration::from_millis(config.default_timeout_ms);
        Self { target, default_timeout, keys: config.identity_key_file.clone() }
    }

    /// Returns when the time is up for a call: what the caller of the client asked for, the
    /// current call's deadline, or the default, whichever is first and there.
    fn deadline(
        &self,
        headers: &HeaderMap,
        method: &Method,
        caller: Option<&Context>,
    ) -> Option<Instant> {
        let asked = timeout::read(headers).ok().flatten();
        let asked = asked.map(|timeout| Instant::now() + timeout);
        match (asked, caller.and_then(|caller| caller.deadline)) {
            (Some(asked), Some(call)) => Some(asked.min(call)),
            (Some(only), None) | (None, Some(only)) => Some(only),
            (None, None) if method.streaming => None,
            (None, None) => Some(Instant::now() + self.default_timeout),
        }
    }
}

impl TowerService<Request<Body>> for Peer {
    type Response = Response<Body>;
    type Error = Status;
    type Future = PeerFuture;

    // Whatever there is to wait for is waited for in the call, which has a deadline.
    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> PeerFuture {
        let method = methods::find(request.uri().path());
        let caller = context::with(Context::clone);
        let deadline = self.deadline(request.headers(), method, caller.as_ref());
        match &mut self.target {
            Target::Local(local) => PeerFuture::Local {
                call: local.calls.call_local(request, method, caller, deadline),
            },
            Target::Remote(remote) => {
                if let Some(keys) = self.keys.as_ref().filter(|_| method.requires_identity) {
                    identity::inject(keys, context::identity(), request.headers_mut());
                }
                if let Some(caller) = caller {
                    caller.trace.inject(request.headers_mut());
                }
                let call = remote.clone().call(request, method, deadline);
                PeerFuture::Remote { call: Box::pin(call) }
            }
        }
    }
}

impl microblog_proto::Peer for Peer {
    fn handler<H: Clone + 'static>(&self) -> Option<H> {
        match &self.target {
            Target::Local(local) => local.handler.as_ref()?.downcast_ref().cloned(),
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
        let method = methods::find(path);
        let caller = context::with(Context::clone);
        let deadline = self.deadline(request.metadata().as_ref(), method, caller.as_ref());
        local.calls.run_local(method, caller, deadline, call(request)).await
    }
}

// The routes and the handler have nothing to show.
impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

pin_project! {
    /// Resolves when a peer begins to answer, or its time is up.
    #[project = PeerFutureProjection]
    #[allow(missing_docs)]
    pub enum PeerFuture {
        #[doc(hidden)]
        Remote {
            call: BoxFuture<'static, Result<Response<Body>, Status>>,
        },
        #[doc(hidden)]
        Local {
            #[pin]
            call: CallFuture,
        },
    }
}

impl Future for PeerFuture {
    type Output = Result<Response<Body>, Status>;

    fn poll(self: Pin<&mut Self>, waker: &mut Waker<'_>) -> Poll<Self::Output> {
        match self.project() {
            PeerFutureProjection::Local { call } => {
                call.poll(waker).map(|Ok(response)| Ok(response.map(Body::new)))
            }
            PeerFutureProjection::Remote { call } => call.as_mut().poll(waker),
        }
    }
}
