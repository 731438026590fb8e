//! How one service calls another: over the network, or in the same process, with the deadline and
//! the trace of the call that it works for.

mod body;
mod connections;
mod connector;
mod outage;

use std::{
    error::Error as StdError,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context as Waker, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response, Uri};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{
    Status, TimeoutExpired,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{Service as TowerService, ServiceExt as _, util::Oneshot};

use self::{
    body::PeerBody,
    connections::{Connections, Place},
    outage::Outage,
};
use crate::{
    Config, Handler, Service,
    admission::Admission,
    call::{CallFuture, Calls, timeout},
    context::{self, Context, Shared},
    methods::{self, Method},
    status,
};

// A connection that a partition cut off is found out within the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// An address that is not one of a service.
#[derive(Debug, thiserror::Error)]
#[error("not the address of a service, such as http://127.0.0.1:50051: {address}")]
pub struct AddressError {
    address: String,
    #[source]
    source: Option<tonic::transport::Error>,
}

/// Another service. Cheap to clone; made in the worker that uses it. Pass it to what is generated
/// for each service: `UserServicePeer::new(peer.clone())`, which calls the handlers of the same
/// process as they are; or to a client, `UserServiceClient::new(peer)`, as any channel.
///
/// What is called has until the deadline of the current call, or else the default timeout, and
/// belongs to the same trace. A service that does not answer is UNAVAILABLE, with the reason
/// PEER_UNAVAILABLE.
#[derive(Clone, Debug)]
pub struct Peer {
    target: Target,
    default_timeout: Duration,
}

#[derive(Clone, Debug)]
enum Target {
    Remote(Remote),
    Local(Local),
}

#[derive(Clone)]
struct Local {
    calls: Calls,
    handler: Option<Handler>,
}

#[derive(Clone, Debug)]
struct Remote {
    connections: Arc<Connections>,
    outage: Arc<Outage>,
}

impl Peer {
    /// Returns a service at an `http` URL. Connects when it is first called, and again whenever
    /// a connection is lost; there are `--peer-connections` of them, used in turn, and for
    /// streams as many more as they need. Must be called inside a runtime.
    pub fn remote(address: &str, config: &Config) -> Result<Self, AddressError> {
        let error = |source| AddressError { address: address.to_owned(), source };
        let uri: Uri = address.parse().map_err(|_| error(None))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(error(None));
        }
        let host = uri.host().unwrap_or_default();
        let name = uri.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let outage = Arc::new(Outage::none(name));
        let endpoint = Endpoint::new(uri)
            .map_err(|source| error(Some(source)))?
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let connections = Arc::new(Connections::new(endpoint, config));
        Ok(Self::new(Target::Remote(Remote { connections, outage }), config))
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
        Self { target, default_timeout: Duration::from_millis(config.default_timeout_ms) }
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

    // A channel's own readiness has no time limit; it is waited for in the call.
    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> PeerFuture {
        let method = methods::find(request.uri().path());
        let caller = context::with(Context::clone);
        let deadline = self.deadline(request.headers(), method, caller.as_ref());
        match &mut self.target {
            Target::Local(local) => PeerFuture::Local {
                call: local.calls.call_inside(request, method, caller, deadline),
            },
            Target::Remote(remote) => {
                let headers = request.headers_mut();
                if let Some(deadline) = deadline {
                    timeout::write(headers, deadline.saturating_duration_since(Instant::now()));
                }
                if let Some(caller) = caller {
                    caller.trace.write(headers);
                }
                let place = method.streaming.then(|| remote.connections.for_stream());
                let channel = match &place {
                    Some(place) => Channel::clone(place),
                    None => remote.connections.for_call(),
                };
                let call = channel.oneshot(request);
                let timer = deadline.map(sleep_until);
                let outage = remote.outage.clone();
                PeerFuture::Remote { call, timer, method, deadline, outage, place }
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
        local.calls.run_inside(method, caller, deadline, call(request)).await
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
            #[pin]
            call: Oneshot<Channel, Request<Body>>,
            #[pin]
            timer: Option<Sleep>,
            method: &'static Method,
            deadline: Option<Instant>,
            outage: Arc<Outage>,
            place: Option<Place>,
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
            PeerFutureProjection::Remote { call, timer, method, deadline, outage, place } => {
                match call.poll(waker) {
                    Poll::Ready(Ok(response)) => {
                        outage.answered();
                        Poll::Ready(Ok(
                            response.map(|body| PeerBody::wrap(body, *deadline, place.take()))
                        ))
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(failure(&error, method, outage))),
                    Poll::Pending => {
                        let Some(timer) = timer.as_pin_mut() else { return Poll::Pending };
                        timer.poll(waker).map(|()| Err(status::deadline_exceeded()))
                    }
                }
            }
        }
    }
}

/// Says why a call did not reach its handler.
fn failure(error: &tonic::transport::Error, method: &Method, outage: &Outage) -> Status {
    let causes = || {
        let first: &(dyn StdError + 'static) = error;
        std::iter::successors(Some(first), |&error| error.source())
    };
    if causes().any(|cause| cause.is::<TimeoutExpired>()) {
        return status::deadline_exceeded();
    }
    let cause = causes().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    outage.failed(&method.path, &cause);
    status::peer_unavailable()
}
