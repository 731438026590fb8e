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
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The workers of a port, and how many connections each has.
#[derive(Debug)]
pub(crate) struct ConnectionBalancer {
    workers: Mutex<Vec<Seat>>,
    expected: usize,
    /// Cancelled when as many workers have come as are expected.
    waiting: CancellationToken,
}

#[derive(Clone, Debug)]
struct Seat {
    taken: Arc<AtomicUsize>,
    to: UnboundedSender<Passed>,
}

/// A connection on its way to another worker: it is of no runtime.
type Passed = (net::TcpStream, Taken);

/// That a connection is a worker's, as long as it lasts.
#[derive(Debug)]
pub(crate) struct Taken(Arc<AtomicUsize>);

impl Taken {
    fn of(seat: &Seat) -> Self {
        seat.taken.fetch_add(1, Ordering::Relaxed);
        Self(seat.taken.clone())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionBalancer {
    /// Returns the seats of so many workers, of which none is there yet.
    pub(crate) fn of(workers: usize) -> Self {
        let waiting = CancellationToken::new();
        Self { workers: Mutex::default(), expected: workers, waiting }
    }

    /// Returns the connections that are one worker's, of those that the kernel hands to it and
    /// those that other workers pass on; none before all workers have asked for theirs, or a second
    /// has passed.
    pub(crate) fn of_worker(
        self: Arc<Self>,
        accepted: impl Stream<Item = io::Result<TcpStream>>,
    ) -> impl Stream<Item = io::Result<(TcpStream, Taken)>> {
        let (to, passed) = unbounded();
        let own = Seat { taken: Arc::default(), to };
        {
            let mut workers = self.workers();
            workers.push(own.clone());
            if workers.len() >= self.expected {
                self.waiting.cancel();
            }
        }
        let all_are_here = self.waiting.clone().cancelled_owned();
        let accepted = async move {
            // Who has not come by then does without those that are taken before.
            let _ = timeout(WAIT_MAX, all_are_here).await;
            accepted
        };
        let accepted = accepted.flatten_stream();
        let passed = passed.map(|(stream, taken)| Ok((TcpStream::from_std(stream)?, taken)));
        let kept = accepted.filter_map(move |accepted| {
            let kept = accepted.and_then(|stream| self.seat(&own, stream)).transpose();
            future::ready(kept)
        });
        stream::select(kept, passed)
    }

    /// Finds the worker for a connection. Returns it unless another one has it now.
    fn seat(&self, own: &Seat, stream: TcpStream) -> io::Result<Option<(TcpStream, Taken)>> {
        let (other, taken) = self.take(own);
        let Some(other) = other else { return Ok(Some((stream, taken))) };
        match other.to.unbounded_send((stream.into_std()?, taken)) {
            Ok(()) => Ok(None),
            // It has just gone.
            Err(back) => Ok(Some((TcpStream::from_std(back.into_inner().0)?, Taken::of(own)))),
        }
    }

    /// Takes a place at the worker that has the fewest connections, which is another one unless it
    /// is the own. At once: two who look at the same time must not take the same.
    fn take(&self, own: &Seat) -> (Option<Seat>, Taken) {
        let mut workers = self.workers();
        // Of those that have gone, nobody takes what is passed on.
        workers.retain(|seat| !seat.to.is_closed());
        let count = |seat: &&Seat| seat.taken.load(Ordering::Relaxed);
        let emptiest = workers.iter().min_by_key(count);
        match emptiest.filter(|seat| count(seat) < count(&own)) {
            Some(other) => (Some(other.clone()), Taken::of(other)),
            None => (None, Taken::of(own)),
        }
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<Seat>> {
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
    async fn the_worker_with_fewer_connections_gets_the_next_one() {
        let seats = Arc::new(ConnectionBalancer::of(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(6).await.into_iter().unzip();
        // All of them come to the first worker, before there is a second one.
        let mut first = pin!(seats.clone().of_worker(stream::iter(accepted.into_iter().map(Ok))));
        assert!(first.next().now_or_never().is_none(), "one is taken before all are here");
        let mut second = pin!(seats.clone().of_worker(stream::pending()));
        let kept: Vec<_> = first.by_ref().take(3).map(Result::unwrap).collect().await;
        assert!(first.next().now_or_never().is_none(), "the sixth is not the first worker's");
        let passed: Vec<_> = second.by_ref().take(3).map(Result::unwrap).collect().await;
        assert!(second.next().now_or_never().is_none(), "one has come twice");
        assert_eq!((kept.len(), passed.len()), (3, 3));
    }

    #[tokio::test]
    async fn a_worker_that_does_not_come_is_not_waited_for() {
        let seats = Arc::new(ConnectionBalancer::of(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(1).await.into_iter().unzip();
        let mut only = pin!(seats.clone().of_worker(stream::iter(accepted.into_iter().map(Ok))));
        assert!(only.next().now_or_never().is_none(), "one is taken before all are here");
        only.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_has_ended_counts_no_more() {
        let seats = Arc::new(ConnectionBalancer::of(1));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(2).await.into_iter().unzip();
        let mut only = pin!(seats.clone().of_worker(stream::iter(accepted.into_iter().map(Ok))));
        let taken = || seats.workers()[0].taken.load(Ordering::Relaxed);
        let first = only.next().await.unwrap().unwrap();
        let second = only.next().await.unwrap().unwrap();
        assert_eq!(taken(), 2);
        drop(first);
        assert_eq!(taken(), 1);
        drop(second);
        assert_eq!(taken(), 0);
    }

    #[tokio::test]
    async fn nothing_is_passed_to_a_worker_that_has_gone() {
        let seats = Arc::new(ConnectionBalancer::of(2));
        let (accepted, _callers): (Vec<_>, Vec<_>) = connections(4).await.into_iter().unzip();
        drop(seats.clone().of_worker(stream::pending()));
        let first = seats.clone().of_worker(stream::iter(accepted.into_iter().map(Ok)));
        let kept: Vec<_> = pin!(first).take(4).map(Result::unwrap).collect().await;
        assert_eq!(kept.len(), 4);
    }
}
