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
    discovery::{Discovery, DiscoveryConfig},
    endpoint::{CallLease, Endpoint},
    metrics::Metrics,
    reconnector::ConnectState,
};
use crate::Config;

// How long a call waits that finds no connection: for a name, and the first address that answers.
const PICK_TIMEOUT: Duration = Duration::from_secs(3);

/// The addresses of one peer, as one worker sees them. Those that do not answer are left out.
#[derive(Debug)]
pub(super) struct LoadBalancer {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) peer: String,
    state: Mutex<State>,
    pub(super) discovery: Discovery,
    pub(super) is_started: AtomicBool,
    /// That an address came or went, or did not answer, for those who wait.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Those that calls go to.
    pub(super) live: Vec<Arc<Endpoint>>,
    pub(super) members: Vec<Member>,
    /// RetryReason an address did not answer, the last time that one did not.
    pub(super) last_error: String,
    // Ends with the pool.
    pub(super) discovery_task: Option<AbortOnDropHandle<()>>,
}

/// An address while it is one of the peer's. What is under way when it is not any more goes on.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) is_live: bool,
    /// Whether the log says that it does not answer.
    pub(super) is_logged_unavailable: bool,
    // Ends with it.
    pub(super) _reconnector: AbortOnDropHandle<()>,
}

impl LoadBalancer {
    /// Neither resolves nor connects anything yet.
    pub(super) fn new(peer: String, discovery: DiscoveryConfig, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            metrics: Metrics::new(peer.clone()),
            peer,
            state: Mutex::default(),
            discovery: Discovery::new(discovery, Duration::from_millis(config.peer_refresh_ms)),
            is_started: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns why an address did not answer.
    pub(super) fn last_error(&self) -> String {
        self.state().last_error.clone()
    }

    /// Returns whether there is another address that answers.
    pub(super) fn has_other(&self, than: Option<SocketAddr>) -> bool {
        self.state().live.iter().any(|endpoint| Some(endpoint.address) != than)
    }

    /// Returns a lease for a call, at another address than one if there is one. Waits for the first
    /// address that answers if none does, except not for one that failed meanwhile: `None` then.
    pub(super) async fn acquire(self: &Arc<Self>, except: Option<SocketAddr>) -> Option<CallLease> {
        if let Some(lease) = self.pick(except) {
            return Some(lease);
        }
        // Boxed: what is hardly ever needed would be part of each call.
        let wait: futures::future::BoxFuture<'_, _> = Box::pin(self.wait_for_endpoint());
        timeout(PICK_TIMEOUT, wait).await.ok().flatten()
    }

    /// Of two addresses at random the one with fewer calls under way: those that are slow get fewer,
    /// and new ones no rush
    /// (<https://www.eecs.harvard.edu/~michaelm/postscripts/handbook2001.pdf>).
    fn pick(&self, except: Option<SocketAddr>) -> Option<CallLease> {
        let state = self.state();
        let live = &state.live;
        let Some(others) = live.len().checked_sub(1).filter(|&others| others > 0) else {
            return live.first()?.lease_for_call();
        };
        let mut random = rand::rng();
        let first = random.random_range(0..=others);
        let second = (first + random.random_range(1..=others)) % live.len();
        let load = |at: usize| (Some(live[at].address) == except, live[at].in_flight());
        let (first, second) =
            if load(second) < load(first) { (second, first) } else { (first, second) };
        // Connections may be lost of which the keeper has not heard yet.
        let rest = (0..live.len()).filter(|&at| at != first && at != second);
        [first, second].into_iter().chain(rest).find_map(|at| live[at].lease_for_call())
    }

    async fn wait_for_endpoint(self: &Arc<Self>) -> Option<CallLease> {
        self.start_discovery();
        let since = Instant::now();
        self.refresh_states();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(lease) = self.pick(None) {
                return Some(lease);
            }
            if !self.is_worth_waiting(since) {
                return None;
            }
            changed.await;
        }
    }

    /// Notes which addresses do not answer any more, of which their keepers may not have told yet.
    fn refresh_states(&self) {
        let live = self.state().live.clone();
        for endpoint in live {
            self.record_state(&endpoint, None);
        }
    }

    /// Returns whether a caller who has waited since then has something to wait for. All that may
    /// be tried is tried then.
    fn is_worth_waiting(&self, since: Instant) -> bool {
        let state = self.state();
        let is_connecting =
            |member: &Member| member.endpoint.connect_state(since) == ConnectState::Connecting;
        let connecting = state.members.iter().filter(|member| is_connecting(member)).count();
        self.discovery.refresh_if_due(since) || connecting > 0
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        for member in &self.state().members {
            self.metrics.add_endpoints(member.is_live, -1);
        }
    }
}
