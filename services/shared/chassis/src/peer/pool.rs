//! The addresses of a peer, and which of them a call goes to. How they come and go is in `roster.rs`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use rand::RngExt as _;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    endpoint::{Endpoint, Place},
    keeper::Hope,
    lookup::{Lookup, Names},
    metrics::Metrics,
};
use crate::Config;

// How long a call waits that finds no connection: for a name, and the first address that answers.
const PATIENCE: Duration = Duration::from_secs(3);

/// The addresses of one peer, as one worker sees them. Those that do not answer are left out.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) peer: String,
    state: Mutex<State>,
    pub(super) lookup: Lookup,
    pub(super) is_started: AtomicBool,
    /// That an address came or went, or did not answer, for those who wait.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Those that calls go to.
    pub(super) live: Vec<Arc<Endpoint>>,
    pub(super) known: Vec<Known>,
    /// Why an address did not answer, the last time that one did not.
    pub(super) cause: String,
    // Ends with the pool.
    pub(super) lookups: Option<AbortOnDropHandle<()>>,
}

/// An address while it is one of the peer's. What is under way when it is not any more goes on.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) is_live: bool,
    /// Whether the log says that it does not answer.
    pub(super) is_missed: bool,
    // Ends with it.
    pub(super) _keeper: AbortOnDropHandle<()>,
}

impl Pool {
    /// Neither resolves nor connects anything yet.
    pub(super) fn new(peer: String, names: Names, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            metrics: Metrics::new(peer.clone()),
            peer,
            state: Mutex::default(),
            lookup: Lookup::new(names, Duration::from_millis(config.peer_refresh_ms)),
            is_started: AtomicBool::new(false),
            news: Notify::new(),
        })
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns why an address did not answer.
    pub(super) fn cause(&self) -> String {
        self.state().cause.clone()
    }

    /// Returns whether there is another address that answers.
    pub(super) fn has_other(&self, than: Option<SocketAddr>) -> bool {
        self.state().live.iter().any(|endpoint| Some(endpoint.address) != than)
    }

    /// Returns a place for a call, at another address than one if there is one. Waits for the first
    /// address that answers if none does, but not for one that failed meanwhile: `None` then.
    pub(super) async fn place(self: &Arc<Self>, but: Option<SocketAddr>) -> Option<Place> {
        if let Some(place) = self.pick(but) {
            return Some(place);
        }
        // Boxed: what is hardly ever needed would be part of each call.
        let wait: futures::future::BoxFuture<'_, _> = Box::pin(self.wait());
        timeout(PATIENCE, wait).await.ok().flatten()
    }

    /// Of two addresses at random the one with fewer calls under way: those that are slow get fewer,
    /// and new ones no rush
    /// (<https://www.eecs.harvard.edu/~michaelm/postscripts/handbook2001.pdf>).
    fn pick(&self, but: Option<SocketAddr>) -> Option<Place> {
        let state = self.state();
        let live = &state.live;
        let Some(others) = live.len().checked_sub(1).filter(|&others| others > 0) else {
            return live.first()?.place_for_call();
        };
        let mut random = rand::rng();
        let first = random.random_range(0..=others);
        let second = (first + random.random_range(1..=others)) % live.len();
        let load = |at: usize| (Some(live[at].address) == but, live[at].under_way());
        let (first, second) =
            if load(second) < load(first) { (second, first) } else { (first, second) };
        // Connections may be lost of which the keeper has not heard yet.
        let rest = (0..live.len()).filter(|&at| at != first && at != second);
        [first, second].into_iter().chain(rest).find_map(|at| live[at].place_for_call())
    }

    async fn wait(self: &Arc<Self>) -> Option<Place> {
        self.start();
        let since = Instant::now();
        self.settle();
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if let Some(place) = self.pick(None) {
                return Some(place);
            }
            if !self.hopes(since) {
                return None;
            }
            news.await;
        }
    }

    /// Notes which addresses do not answer any more, of which their keepers may not have told yet.
    fn settle(&self) {
        let live = self.state().live.clone();
        for endpoint in live {
            self.note(&endpoint, None);
        }
    }

    /// Returns whether a caller who has waited since then has something to wait for. All that may
    /// be tried is tried then.
    fn hopes(&self, since: Instant) -> bool {
        let state = self.state();
        let hopes = |known: &Known| known.endpoint.hope(since) == Hope::UnderWay;
        let hopeful = state.known.iter().filter(|known| hopes(known)).count();
        self.lookup.hopes(since) || hopeful > 0
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for known in &self.state().known {
            self.metrics.endpoint(known.is_live, -1);
        }
    }
}
