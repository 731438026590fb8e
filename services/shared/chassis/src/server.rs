//! One service on one listener, from the first connection to the end of its drain.

use std::{
    convert::Infallible, future::Future, io, net::TcpListener, pin::pin, sync::Arc, time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use rand::random_range;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tonic::transport::{Server, server::TcpIncoming};

use crate::{
    Config, Probe, Service, Worker,
    admission::Admission,
    call::{Calls, HEADER_LIST_MAX},
    connection_balancer::ConnectionLease,
    context::{Context, Shared, Trace},
    health::HealthState,
    identity::Identity,
    listeners::Listener,
    reflection,
    tls::{Acceptor, MaybeTlsStream, TlsError},
};

// A probe that takes longer has its answer. Longer than a store's round trip may take, by default three
// seconds: one that is cut off before does not tell that a connection is dead.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
// Who is not ready is asked more often: callers wait.
const UNREADY_PROBE_INTERVAL: Duration = Duration::from_millis(100);
// A caller that a partition cut off holds its connection for no longer than the two together.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
// Callers that hang up at once are no attack yet: a gateway that dies cancels all of its calls.
const PENDING_RESETS_MAX: usize = 1024;
// A caller of HTTP/2 or TLS has_first_byte first, and at once.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
// When the process is out of file descriptors, accepting fails until a connection ends.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Why a server ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// TLS is configured, and cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
    /// The socket cannot be used.
    #[error("cannot use the listening socket")]
    Listener(#[source] io::Error),
    /// The descriptors of the wire contract cannot be read.
    #[error("cannot set up server reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the transport failed")]
    Transport(#[source] tonic::transport::Error),
    /// A job that runs beside the service ended, which none does by itself, or panicked. What the
    /// panic says is left out, since it may tell of users.
    #[error("a background job exited")]
    Background,
}

/// What the servers of a process share.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) config: Config,
    pub(crate) admission: Arc<Admission>,
    /// What is shown to callers, if they speak TLS.
    acceptor: Option<Arc<Acceptor>>,
}

impl ProcessState {
    pub(crate) fn new(config: &Config) -> Result<Self, TlsError> {
        Ok(Self {
            config: config.clone(),
            admission: Arc::new(Admission::new(config)),
            acceptor: Acceptor::new(config)?.map(Arc::new),
        })
    }
}

/// Serves one service on a socket until `stop` resolves and the drain is over: what a test calls
/// with port 0. Returns in `--drain-delay-ms` and `--drain-timeout-ms` at most; what is under way
/// then ends with the runtime. There is no `--health-listen` to it, which is a process's.
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
pub(crate) async fn serve_in(
    worker: Worker,
    listener: Listener,
    service: Service,
    process: &ProcessState,
    health: Arc<HealthState>,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let ProcessState { config, admission, acceptor } = process;
    let shared = Arc::new(Shared::new(config, admission.clone()));
    let routes = reflection::add(service.routes, service.name).map_err(ServeError::Reflection)?;
    let calls = Calls::new(routes.add_service(health.server()), shared.clone());
    let mut background = spawn(service.background, &shared);
    let transport = transport(config).serve_with_incoming_shutdown(
        calls,
        incoming(listener, acceptor.clone())?,
        shared.closing.clone().cancelled_owned(),
    );
    let mut transport = pin!(transport);

    tokio::select! {
        ended = &mut transport => return ended.map_err(ServeError::Transport),
        never = probe_readiness(&service.ready, &health, worker) => match never {},
        // To go on without it would leave its work undone, and nobody would know.
        Some(_ended) = background.join_next() => return Err(ServeError::Background),
        () = stop => {}
    }
    health.drain();
    drop(background);
    // New calls are still answered, until whoever spreads them has noticed.
    if let Ok(ended) = timeout(config.drain_delay(), &mut transport).await {
        return ended.map_err(ServeError::Transport);
    }
    // With it go those who watch: they would stay as long as they may.
    shared.closing.cancel();
    health.close();
    let deadline = Instant::now() + config.drain_timeout();
    let ended = timeout_at(deadline, &mut transport).await;
    shared.writes.close();
    let written = timeout_at(deadline, shared.writes.wait()).await;
    if ended.is_err() || written.is_err() {
        let (calls, writes) = (shared.admission.in_flight(), shared.writes.len());
        tracing::warn!(service = service.name, calls, writes, "drain timed out, cutting off");
    }
    ended.unwrap_or(Ok(())).map_err(ServeError::Transport)
}

/// Answers for a service's health, without TLS, until it is dropped.
pub(crate) async fn serve_health(
    listener: Listener,
    config: &Config,
    health: &Arc<HealthState>,
) -> Result<(), ServeError> {
    let server = transport(config).add_service(health.server());
    server.serve_with_incoming(incoming(listener, None)?).await.map_err(ServeError::Transport)
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
        // Not the same for all, or those that were opened together are opened together again.
        age => server.max_connection_age(Duration::from_secs(age).mul_f64(random_range(0.9..1.1))),
    }
}

/// Returns the connections of a listener whose callers say something, each as soon as it does: to
/// the transport, a silent one is under way for ever, and its drain waits for it. With TLS, that is
/// what they say after they have shaken hands.
///
/// They have TCP_NODELAY: tonic sets it only on listeners that it opens itself, and without it
/// answers wait 40 ms for an acknowledgement.
fn incoming(
    listener: Listener,
    acceptor: Option<Arc<Acceptor>>,
) -> Result<impl futures::Stream<Item = io::Result<MaybeTlsStream>>, ServeError> {
    let Listener { socket, balancer } = listener;
    socket.set_nonblocking(true).map_err(ServeError::Listener)?;
    let socket = tokio::net::TcpListener::from_std(socket).map_err(ServeError::Listener)?;
    let tcp = TcpIncoming::from(socket).with_nodelay(Some(true));
    let accepted = tcp.then(|accepted| async {
        if accepted.is_err() {
            sleep(ACCEPT_BACKOFF).await;
        }
        accepted
    });
    // All of them are listened to at once, without a limit of its own beside that of the process's
    // file descriptors.
    let established = balancer
        .worker_connections(accepted)
        .map(move |accepted| stream::once(establish(accepted, acceptor.clone()).boxed()));
    Ok(established.flatten_unordered(None).filter_map(future::ready))
}

/// Waits for what a caller says first. Returns `None` when that is nothing, or not what it should be.
async fn establish(
    accepted: io::Result<(TcpStream, ConnectionLease)>,
    acceptor: Option<Arc<Acceptor>>,
) -> Option<io::Result<MaybeTlsStream>> {
    let (connection, lease) = match accepted {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            return Some(Err(error));
        }
    };
    let established = async {
        match acceptor {
            Some(acceptor) => acceptor.accept(connection, lease).await,
            None => {
                has_first_byte(&connection).await.then(|| MaybeTlsStream::plain(connection, lease))
            }
        }
    };
    timeout(FIRST_BYTE_TIMEOUT, established).await.ok().flatten().map(Ok)
}

/// Waits for the first byte of a connection, and returns whether there is one.
async fn has_first_byte(connection: &TcpStream) -> bool {
    matches!(connection.peek(&mut [0]).await, Ok(1..))
}

/// Asks a service over and over whether it can do its work.
async fn probe_readiness(ready: &Probe, health: &HealthState, worker: Worker) -> Infallible {
    loop {
        let is_ready = timeout(PROBE_TIMEOUT, ready()).await.unwrap_or(false);
        health.set_ready(worker.index, is_ready);
        sleep(if is_ready { PROBE_INTERVAL } else { UNREADY_PROBE_INTERVAL }).await;
    }
}

/// Starts a service's jobs. They work for no call, and act as the system, but their writes are
/// waited for.
fn spawn(jobs: Vec<BoxFuture<'static, ()>>, shared: &Arc<Shared>) -> JoinSet<()> {
    let mut background = JoinSet::new();
    for job in jobs {
        let shared = shared.clone();
        let (trace, identity) = (Trace::new_root(false), Identity::System.into());
        let context = Context { deadline: None, trace, identity, shared, permit: None };
        background.spawn(context.scope(job));
    }
    background
}
