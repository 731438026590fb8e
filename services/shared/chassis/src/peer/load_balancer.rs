//! Client-side load balancing over the live endpoints of a peer: power of two random choices, by
//! calls in flight. `endpoint_set.rs` maintains the endpoints.

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

// Bound on the wait of a call without a live endpoint: for resolution and the first connection.
const PICK_TIMEOUT: Duration = Duration::from_secs(3);

/// The load balancer of one peer in one worker. Only live endpoints are candidates.
#[derive(Debug)]
pub(super) struct LoadBalancer {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) peer: String,
    state: Mutex<State>,
    pub(super) discovery: Discovery,
    pub(super) is_started: AtomicBool,
    /// Notified when an endpoint's state changes, or a connection attempt fails.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The candidates for calls.
    pub(super) live: Vec<Arc<Endpoint>>,
    pub(super) members: Vec<Member>,
    /// Why the last endpoint failed.
    pub(super) last_error: String,
    // Aborted with the balancer.
    pub(super) discovery_task: Option<AbortOnDropHandle<()>>,
}

/// An endpoint while discovery lists it. Calls in flight complete after its removal.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) is_live: bool,
    /// Whether the log reports it as unavailable.
    pub(super) is_logged_unavailable: bool,
    // Aborted with the member.
    pub(super) _reconnector: AbortOnDropHandle<()>,
}

impl LoadBalancer {
    /// Creates a balancer. It resolves and connects at the first call.
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

    /// Returns why the last endpoint failed.
    pub(super) fn last_error(&self) -> String {
        self.state().last_error.clone()
    }

    /// Returns whether another endpoint is live.
    pub(super) fn has_other(&self, than: Option<SocketAddr>) -> bool {
        self.state().live.iter().any(|endpoint| Some(endpoint.address) != than)
    }

    /// Leases a connection for a call, preferring other endpoints than `except`. Without a live
    /// endpoint, waits for the first one. Returns `None` if all have failed meanwhile.
    pub(super) async fn acquire(self: &Arc<Self>, except: Option<SocketAddr>) -> Option<CallLease> {
        if let Some(lease) = self.pick(except) {
            return Some(lease);
        }
        // Boxed: the rare case must not enlarge the future of each call.
        let wait: futures::future::BoxFuture<'_, _> = Box::pin(self.wait_for_endpoint());
        timeout(PICK_TIMEOUT, wait).await.ok().flatten()
    }

    /// Power of two random choices: takes the endpoint with fewer calls in flight. Slow endpoints
    /// get fewer calls, and new ones no burst
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
        // A connection may have closed before the reconnector noticed.
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

    /// Updates the liveness of endpoints whose reconnectors have not reported yet.
    fn refresh_states(&self) {
        let live = self.state().live.clone();
        for endpoint in live {
            self.record_state(&endpoint, None);
        }
    }

    /// Returns whether a call that has waited since then may still get an endpoint. Triggers every
    /// reconnect and refresh that is due.
    fn is_worth_waiting(&self, since: Instant) -> bool {
        let state = self.state();
        let is_connecting =
            |member: &Member| member.endpoint.request_connect(since) == ConnectState::Connecting;
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
