//! Connection balancing: spreads the connections of one port evenly over its worker threads. A
//! connection stays with its worker. The kernel assigns connections by hash, which is even only for
//! very many. gRPC clients hold few connections for long. The accepting worker therefore hands a
//! connection to the worker with the fewest. No connection is accepted before all workers have
//! started, or a second has passed. Envoy calls this an [exact
//! balance](https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/listener/v3/listener.proto#config-listener-v3-listener-connectionbalanceconfig-exactbalance).

use std::{
    io, net,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt as _, Stream, StreamExt as _,
    channel::mpsc::{UnboundedSender, unbounded},
    future, stream,
};
use tokio::{net::TcpStream, time::timeout};
use tokio_util::sync::CancellationToken;

/// Bound on the wait for other workers: a slow one must not delay the process's health checks.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// The workers of a port, with their connection counts.
#[derive(Debug)]
pub(super) struct ConnectionBalancer {
    workers: Mutex<Vec<WorkerQueue>>,
    expected: usize,
    /// Cancelled when all expected workers have registered.
    all_started: CancellationToken,
}

#[derive(Clone, Debug)]
struct WorkerQueue {
    connections: Arc<AtomicUsize>,
    to: UnboundedSender<HandedOver>,
}

/// A connection in transit to another worker, detached from any runtime.
type HandedOver = (net::TcpStream, ConnectionLease);

/// Connection lease: counts a connection toward its worker until dropped.
#[derive(Debug)]
pub(super) struct ConnectionLease(Arc<AtomicUsize>);

impl ConnectionLease {
    fn new(worker: &WorkerQueue) -> Self {
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Self(worker.connections.clone())
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionBalancer {
    /// Returns a balancer for a number of workers, none of them registered.
    pub(super) fn new(workers: usize) -> Self {
        let all_started = CancellationToken::new();
        Self { workers: Mutex::default(), expected: workers, all_started }
    }

    /// Registers a worker, and returns its connections: those that it accepts and keeps, and those
    /// that other workers hand over. It accepts none before all workers have registered, or a
    /// second has passed.
    pub(super) fn worker_connections(
        self: Arc<Self>,
        accepted: impl Stream<Item = io::Result<TcpStream>>,
    ) -> impl Stream<Item = io::Result<(TcpStream, ConnectionLease)>> {
        let (to, handed_over) = unbounded();
        let own = WorkerQueue { connections: Arc::default(), to };
        {
            let mut workers = self.workers();
            workers.push(own.clone());
            if workers.len() >= self.expected {
                self.all_started.cancel();
            }
        }
        let all_started = self.all_started.clone().cancelled_owned();
        let accepted = async move {
            // A late worker gets no share of the connections accepted before.
            let _ = timeout(START_TIMEOUT, all_started).await;
            accepted
        };
        let accepted = accepted.flatten_stream();
        let handed_over =
            handed_over.map(|(stream, lease)| Ok((TcpStream::from_std(stream)?, lease)));
        let kept = accepted.filter_map(move |accepted| {
            let kept = accepted.and_then(|stream| self.balance(&own, stream)).transpose();
            future::ready(kept)
        });
        stream::select(kept, handed_over)
    }

    /// Assigns a connection to a worker. Returns it if that is this worker.
    fn balance(
        &self,
        own: &WorkerQueue,
        stream: TcpStream,
    ) -> io::Result<Option<(TcpStream, ConnectionLease)>> {
        let (other, lease) = self.assign(own);
        let Some(other) = other else { return Ok(Some((stream, lease))) };
        match other.to.unbounded_send((stream.into_std()?, lease)) {
            Ok(()) => Ok(None),
            // The other worker has just stopped.
            Err(back) => {
                Ok(Some((TcpStream::from_std(back.into_inner().0)?, ConnectionLease::new(own))))
            }
        }
    }

    /// Counts a connection toward the worker with the fewest, preferring this one. Choosing and
    /// counting is atomic: two concurrent choices must not agree on one worker.
    fn assign(&self, own: &WorkerQueue) -> (Option<WorkerQueue>, ConnectionLease) {
        let mut workers = self.workers();
        // A stopped worker would not take its connections.
        workers.retain(|worker| !worker.to.is_closed());
        let count = |worker: &&WorkerQueue| worker.connections.load(Ordering::Relaxed);
        let least_loaded = workers.iter().min_by_key(count);
        match least_loaded.filter(|worker| count(worker) < count(&own)) {
            Some(other) => (Some(other.clone()), ConnectionLease::new(other)),
            None => (None, ConnectionLease::new(own)),
        }
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<WorkerQueue>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::net::TcpListener;

    use super::*;

    /// Returns accepted connections, with their clients.
    async fn connections(count: usize) -> Vec<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Vec::new();
        for _ in 0..count {
            let caller = TcpStream::connect(address).await.unwrap();
            connections.push((listener.accept().await.unwrap().0, caller));
        }
        connections
    }

    #[tokio::test]
    async fn connections_go_to_the_least_loaded_worker() {
        let balancer = Arc::new(ConnectionBalancer::new(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(6).await.into_iter().unzip();
        // The first worker accepts all connections, before a second one registers.
        let mut first =
            pin!(balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok))));
        assert!(
            first.next().now_or_never().is_none(),
            "no connection before all workers have started"
        );
        let mut second = pin!(balancer.clone().worker_connections(stream::pending()));
        let kept: Vec<_> = first.by_ref().take(3).map(Result::unwrap).collect().await;
        assert!(first.next().now_or_never().is_none(), "the sixth is not the first worker's");
        let handed_over: Vec<_> = second.by_ref().take(3).map(Result::unwrap).collect().await;
        assert!(second.next().now_or_never().is_none(), "one has come twice");
        assert_eq!((kept.len(), handed_over.len()), (3, 3));
    }

    #[tokio::test]
    async fn start_timeout_bounds_the_wait_for_other_workers() {
        let balancer = Arc::new(ConnectionBalancer::new(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(1).await.into_iter().unzip();
        let mut only =
            pin!(balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok))));
        assert!(
            only.next().now_or_never().is_none(),
            "no connection before all workers have started"
        );
        only.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn dropped_lease_decrements_the_connection_count() {
        let balancer = Arc::new(ConnectionBalancer::new(1));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(2).await.into_iter().unzip();
        let mut only =
            pin!(balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok))));
        let open = || balancer.workers()[0].connections.load(Ordering::Relaxed);
        let first = only.next().await.unwrap().unwrap();
        let second = only.next().await.unwrap().unwrap();
        assert_eq!(open(), 2);
        drop(first);
        assert_eq!(open(), 1);
        drop(second);
        assert_eq!(open(), 0);
    }

    #[tokio::test]
    async fn stopped_worker_gets_no_connections() {
        let balancer = Arc::new(ConnectionBalancer::new(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(4).await.into_iter().unzip();
        drop(balancer.clone().worker_connections(stream::pending()));
        let first = balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok)));
        let kept: Vec<_> = pin!(first).take(4).map(Result::unwrap).collect().await;
        assert_eq!(kept.len(), 4);
    }
}
