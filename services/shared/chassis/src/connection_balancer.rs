//! Connections of one port, spread evenly over the workers that listen on it: a connection stays with
//! its worker. The kernel spreads them by chance, which is even for very many only, and callers of
//! gRPC hold few of them for long: so the worker that is handed one passes it on to one that has
//! fewer, and none is taken before all workers are there, or have had a second to come. (What Envoy
//! calls an
//! [exact balance](https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/listener/v3/listener.proto#config-listener-v3-listener-connectionbalanceconfig-exactbalance).)

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

/// How long a worker waits for the others: one that takes longer to start must not keep a process
/// from saying that it does not serve yet.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// The workers of a port, and how many connections each has.
#[derive(Debug)]
pub(crate) struct ConnectionBalancer {
    workers: Mutex<Vec<WorkerQueue>>,
    expected: usize,
    /// Cancelled when as many workers have come as are expected.
    all_started: CancellationToken,
}

#[derive(Clone, Debug)]
struct WorkerQueue {
    taken: Arc<AtomicUsize>,
    to: UnboundedSender<HandedOver>,
}

/// A connection on its way to another worker: it is of no runtime.
type HandedOver = (net::TcpStream, ConnectionLease);

/// That a connection is a worker's, as long as it lasts.
#[derive(Debug)]
pub(crate) struct ConnectionLease(Arc<AtomicUsize>);

impl ConnectionLease {
    fn new(worker: &WorkerQueue) -> Self {
        worker.taken.fetch_add(1, Ordering::Relaxed);
        Self(worker.taken.clone())
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionBalancer {
    /// Returns the balancer of so many workers, of which none is there yet.
    pub(crate) fn new(workers: usize) -> Self {
        let all_started = CancellationToken::new();
        Self { workers: Mutex::default(), expected: workers, all_started }
    }

    /// Returns the connections that are one worker's, of those that the kernel hands to it and
    /// those that other workers pass on; none before all workers have asked for theirs, or a second
    /// has handed_over.
    pub(crate) fn worker_connections(
        self: Arc<Self>,
        accepted: impl Stream<Item = io::Result<TcpStream>>,
    ) -> impl Stream<Item = io::Result<(TcpStream, ConnectionLease)>> {
        let (to, handed_over) = unbounded();
        let own = WorkerQueue { taken: Arc::default(), to };
        {
            let mut workers = self.workers();
            workers.push(own.clone());
            if workers.len() >= self.expected {
                self.all_started.cancel();
            }
        }
        let all_started = self.all_started.clone().cancelled_owned();
        let accepted = async move {
            // Who has not come by then does without those that are taken before.
            let _ = timeout(START_TIMEOUT, all_started).await;
            accepted
        };
        let accepted = accepted.flatten_stream();
        let handed_over =
            handed_over.map(|(stream, taken)| Ok((TcpStream::from_std(stream)?, taken)));
        let kept = accepted.filter_map(move |accepted| {
            let kept = accepted.and_then(|stream| self.balance(&own, stream)).transpose();
            future::ready(kept)
        });
        stream::select(kept, handed_over)
    }

    /// Finds the worker for a connection. Returns it unless another one has it now.
    fn balance(
        &self,
        own: &WorkerQueue,
        stream: TcpStream,
    ) -> io::Result<Option<(TcpStream, ConnectionLease)>> {
        let (other, taken) = self.assign(own);
        let Some(other) = other else { return Ok(Some((stream, taken))) };
        match other.to.unbounded_send((stream.into_std()?, taken)) {
            Ok(()) => Ok(None),
            // It has just gone.
            Err(back) => {
                Ok(Some((TcpStream::from_std(back.into_inner().0)?, ConnectionLease::new(own))))
            }
        }
    }

    /// Takes a place at the worker that has the fewest connections, which is another one unless it
    /// is the own. At once: two who look at the same time must not take the same.
    fn assign(&self, own: &WorkerQueue) -> (Option<WorkerQueue>, ConnectionLease) {
        let mut workers = self.workers();
        // Of those that have gone, nobody takes what is handed_over on.
        workers.retain(|worker| !worker.to.is_closed());
        let count = |worker: &&WorkerQueue| worker.taken.load(Ordering::Relaxed);
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

    /// Returns so many connections as a listener accepts them, with their callers.
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
        // All of them come to the first worker, before there is a second one.
        let mut first =
            pin!(balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok))));
        assert!(first.next().now_or_never().is_none(), "one is taken before all are here");
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
        assert!(only.next().now_or_never().is_none(), "one is taken before all are here");
        only.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn dropped_lease_decrements_the_connection_count() {
        let balancer = Arc::new(ConnectionBalancer::new(1));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(2).await.into_iter().unzip();
        let mut only =
            pin!(balancer.clone().worker_connections(stream::iter(accepted.into_iter().map(Ok))));
        let taken = || balancer.workers()[0].taken.load(Ordering::Relaxed);
        let first = only.next().await.unwrap().unwrap();
        let second = only.next().await.unwrap().unwrap();
        assert_eq!(taken(), 2);
        drop(first);
        assert_eq!(taken(), 1);
        drop(second);
        assert_eq!(taken(), 0);
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
