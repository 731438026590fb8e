//! Server side: listeners, health checks, and the drain. This file serves one service on one
//! listener, from accept to the end of its drain; `process` runs a whole process.

mod call_batches;
pub(crate) mod connection;
mod connection_balancer;
mod drain;
mod health;
mod health_path;
mod health_port;
mod listeners;
pub(crate) mod process;
mod proxy_protocol;
mod tls;
mod web;

use std::{
    convert::Infallible, future::Future, io, net::TcpListener, pin::pin, sync::Arc, time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use microblog_files::TlsError;
use rand::random_range;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tonic_reflection::server::{Builder as ReflectionBuilder, Error as ReflectionError};

use self::{
    call_batches::BatchedCalls,
    connection::{Accepted, Remote},
    connection_balancer::ConnectionLease,
    drain::{CloseHttp1, SilenceLimit},
    health::HealthState,
    health_port::HealthCalls,
    listeners::Listener,
    tls::{Acceptor, MaybeTlsStream},
    web::PublicCalls,
};
use crate::{
    call::{
        admission::Admission,
        context::{Context, ServerState},
        metadata::HEADER_LIST_MAX,
        trace_context::Trace,
    },
    config::Config,
    identity::Identity,
    methods,
    middleware::Calls,
    service::{Probe, ProxyProtocol, Service, Worker},
};

// Longer than a store's round trip, by default three seconds: an earlier timeout could not detect a
// dead connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
// Faster while not ready: callers are waiting.
const UNREADY_PROBE_INTERVAL: Duration = Duration::from_millis(100);
// HTTP/2 keepalive: detects a network partition within the sum of these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
// Limit on pending stream resets (rapid reset attack). A gateway that dies legitimately cancels all
// its calls at once.
const PENDING_RESETS_MAX: usize = 1024;
// HTTP/2 and TLS clients send first, and at once.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
// Out of file descriptors, accept fails until a connection closes.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

pub(crate) const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION_V1: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_V1ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Why a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// TLS is configured but unusable.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
    /// The socket cannot be used.
    #[error("cannot use the listening socket")]
    Listener(#[source] io::Error),
    /// The proto descriptors do not decode.
    #[error("cannot set up server reflection")]
    Reflection(#[source] ReflectionError),
    /// The transport failed.
    #[error("the transport failed")]
    Transport(#[source] tonic::transport::Error),
    /// A background job returned, which none does normally, or panicked. The panic's message is
    /// omitted: it may contain user data.
    #[error("a background job exited")]
    Background,
}

/// State shared by the servers of a process.
struct ProcessState {
    config: Config,
    admission: Arc<Admission>,
    /// TLS acceptor, if configured.
    acceptor: Option<Arc<Acceptor>>,
}

impl ProcessState {
    fn new(config: &Config) -> Result<Self, TlsError> {
        Ok(Self {
            config: config.clone(),
            admission: Arc::new(Admission::new(config)),
            acceptor: Acceptor::new(config)?.map(Arc::new),
        })
    }
}

/// Serves one service on a socket until `stop` resolves and the drain ends; for tests, with port 0.
/// Drains for at most `--drain-delay-ms` plus `--drain-timeout-ms`; the rest ends with the runtime.
/// Ignores `--health-listen`, which is per process.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    config: &Config,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let health = HealthState::new(service.name, 1);
    let process = ProcessState::new(config).map_err(ServeError::Tls)?;
    serve_in(Worker::ONLY, Listener::from(listener), service, &process, health, stop).await
}

/// Serves one service in one worker of a process.
async fn serve_in(
    worker: Worker,
    listener: Listener,
    service: Service,
    process: &ProcessState,
    health: Arc<HealthState>,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let ProcessState { config, admission, acceptor } = process;
    let server_state = Arc::new(ServerState::new(config, admission.clone()));
    let routes = add_reflection(service.routes, service.name).map_err(ServeError::Reflection)?;
    let calls =
        Calls::new(routes.add_service(health::server(vec![health.clone()])), server_state.clone());
    let calls = BatchedCalls::new(calls, service.name, config, server_state.clone());
    let establishing = Establishing {
        acceptor: acceptor.clone(),
        proxy_protocol: service.web.as_ref().and_then(|web| web.proxy_protocol.clone()),
        accept_http1: service.web.is_some(),
        closing: server_state.closing.clone(),
    };
    let calls = PublicCalls::new(
        calls,
        service.name,
        service.web,
        config,
        server_state.clone(),
        health.clone(),
    );
    let calls = CloseHttp1::new(calls, server_state.clone());
    let mut background = spawn(service.background, &server_state);
    let server = transport(config).accept_http1(establishing.accept_http1);
    let transport = server.serve_with_incoming_shutdown(
        calls,
        incoming(listener, establishing)?,
        server_state.closing.clone().cancelled_owned(),
    );
    let mut transport = pin!(transport);

    tokio::select! {
        ended = &mut transport => return ended.map_err(ServeError::Transport),
        never = probe_readiness(&service.ready, &health, worker) => match never {},
        // Fail instead of continuing without the job.
        Some(_ended) = background.join_next() => return Err(ServeError::Background),
        () = stop => {}
    }
    health.drain();
    server_state.draining.cancel();
    drop(background);
    // Accept calls during the drain delay, until load balancers notice.
    if let Ok(ended) = timeout(config.drain_delay(), &mut transport).await {
        return ended.map_err(ServeError::Transport);
    }
    // End the watches, which would last as long as their callers. Those of the health first: they end
    // with their last message.
    health.close();
    server_state.closing.cancel();
    let deadline = Instant::now() + config.drain_timeout();
    let ended = timeout_at(deadline, &mut transport).await;
    server_state.writes.close();
    let written = timeout_at(deadline, server_state.writes.wait()).await;
    if ended.is_err() || written.is_err() {
        let (calls, writes) = (server_state.admission.in_flight(), server_state.writes.len());
        tracing::warn!(service = service.name, calls, writes, "drain timed out, aborting the rest");
    }
    ended.unwrap_or(Ok(())).map_err(ServeError::Transport)
}

/// Serves the health checks of services without TLS, by gRPC and by HTTP, until dropped.
async fn serve_health(
    listener: Listener,
    config: &Config,
    health_states: Vec<Arc<HealthState>>,
) -> Result<(), ServeError> {
    let establishing = Establishing { accept_http1: true, ..Establishing::default() };
    transport(config)
        .accept_http1(true)
        .serve_with_incoming(HealthCalls::new(health_states), incoming(listener, establishing)?)
        .await
        .map_err(ServeError::Transport)
}

/// Adds server reflection to the routes of a service, v1 and v1alpha (for Python clients), so that
/// clients need no `.proto` files. Lists only the services of this server's package, although the
/// descriptors include all.
fn add_reflection(routes: Routes, service: &str) -> Result<Routes, ReflectionError> {
    let builder = || {
        let builder = ReflectionBuilder::configure()
            .register_encoded_file_descriptor_set(microblog_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(
                tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            );
        methods::services_of_package(service)
            .into_iter()
            .chain([HEALTH, REFLECTION_V1, REFLECTION_V1ALPHA])
            .fold(builder, ReflectionBuilder::with_service_name)
    };
    Ok(routes.add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

fn transport(config: &Config) -> Server {
    let server = Server::builder()
        .max_concurrent_streams(config.max_streams)
        .http2_max_header_list_size(HEADER_LIST_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
    match config.max_connection_age_s {
        0 => server,
        // Jitter between workers and processes. Those of one worker that were opened together close
        // together: tonic has one age for all connections of a server.
        age => server.max_connection_age(Duration::from_secs(age).mul_f64(random_range(0.9..1.1))),
    }
}

/// Returns the listener's connections, each after its first byte: tonic's drain would wait forever
/// for a silent one. With TLS, the first byte after the handshake.
///
/// Sets TCP_NODELAY: tonic sets it only on listeners of its own, and without it responses are
/// delayed 40 ms by delayed ACKs.
fn incoming(
    listener: Listener,
    establishing: Establishing,
) -> Result<impl futures::Stream<Item = io::Result<MaybeTlsStream>>, ServeError> {
    let Listener { socket, balancer } = listener;
    socket.set_nonblocking(true).map_err(ServeError::Listener)?;
    let socket = tokio::net::TcpListener::from_std(socket).map_err(ServeError::Listener)?;
    // HTTP/1.1 has no keepalive of its own.
    let tcp = TcpIncoming::from(socket)
        .with_nodelay(Some(true))
        .with_keepalive(Some(KEEPALIVE_INTERVAL))
        .with_keepalive_interval(Some(KEEPALIVE_TIMEOUT / 2))
        .with_keepalive_retries(Some(2));
    let accepted = tcp.then(|accepted| async {
        if accepted.is_err() {
            sleep(ACCEPT_BACKOFF).await;
        }
        accepted
    });
    // Handshakes run concurrently, limited only by the process's file descriptors.
    let established = balancer
        .worker_connections(accepted)
        .map(move |accepted| stream::once(establish(accepted, establishing.clone()).boxed()));
    Ok(established.flatten_unordered(None).filter_map(future::ready))
}

/// How the connections of a listener are established.
#[derive(Clone, Default)]
struct Establishing {
    acceptor: Option<Arc<Acceptor>>,
    proxy_protocol: Option<ProxyProtocol>,
    accept_http1: bool,
    /// Cancelled when the server accepts no more calls.
    closing: CancellationToken,
}

/// Reads the header of the PROXY protocol, performs the TLS handshake, if any, and waits for the first
/// byte. Returns `None` on timeout or failure.
async fn establish(
    accepted: io::Result<(TcpStream, ConnectionLease)>,
    establishing: Establishing,
) -> Option<io::Result<MaybeTlsStream>> {
    let Establishing { acceptor, proxy_protocol, accept_http1, closing } = establishing;
    let (mut connection, lease) = match accepted {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            return Some(Err(error));
        }
    };
    let established = async {
        let remote = remote(&mut connection, proxy_protocol).await?;
        let mut connection = SilenceLimit::new(connection, closing);
        let accepted = Accepted { remote, _lease: lease };
        match acceptor {
            Some(acceptor) => acceptor.accept(connection, accepted, accept_http1).await,
            None => {
                let has_begun = connection.has_first_byte().await;
                has_begun.then(|| MaybeTlsStream::plain(connection, accepted))
            }
        }
    };
    timeout(FIRST_BYTE_TIMEOUT, established).await.ok().flatten().map(Ok)
}

/// Returns the client: by the PROXY protocol, if the peer speaks it. Returns `None` if the peer should
/// speak it, and does not.
async fn remote(
    connection: &mut TcpStream,
    proxy_protocol: Option<ProxyProtocol>,
) -> Option<Remote> {
    let peer = connection.peer_addr().ok();
    let is_spoken = proxy_protocol.zip(peer).is_some_and(|(one, peer)| one.is_spoken_by(peer.ip()));
    if !is_spoken {
        return Some(Remote { address: peer, is_unnamed: false });
    }
    match proxy_protocol::read_header(connection).await {
        Ok(client) => Some(Remote { address: client.or(peer), is_unnamed: client.is_none() }),
        Err(error) => {
            // DEBUG: balancers also connect to check whether the port is open.
            tracing::debug!(?peer, %error, "cannot read the PROXY protocol");
            None
        }
    }
}

/// Runs the readiness probe periodically.
async fn probe_readiness(ready: &Probe, health: &HealthState, worker: Worker) -> Infallible {
    loop {
        let is_ready = timeout(PROBE_TIMEOUT, ready()).await.unwrap_or(false);
        health.set_ready(worker.index, is_ready);
        sleep(if is_ready { PROBE_INTERVAL } else { UNREADY_PROBE_INTERVAL }).await;
    }
}

/// Spawns background jobs. They act as the system outside any call; the drain waits for their
/// writes.
fn spawn(jobs: Vec<BoxFuture<'static, ()>>, server_state: &Arc<ServerState>) -> JoinSet<()> {
    let mut background = JoinSet::new();
    for job in jobs {
        let server_state = server_state.clone();
        let (trace, identity) = (Trace::new_root(false), Identity::System.into());
        let context = Context { deadline: None, trace, identity, server_state, permit: None };
        background.spawn(context.scope(job));
    }
    background
}
