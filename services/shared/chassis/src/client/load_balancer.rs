//! Client-side load balancing over the live endpoints of a peer: power of two random choices, by
//! calls in flight. The endpoint set's membership follows service discovery; its liveness follows
//! connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::RngExt as _;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    address::Origin,
    discovery::{Discovery, DiscoveryConfig},
    endpoint::{CallLease, Endpoint},
    metrics::Metrics,
    reconnector::ConnectState,
};
use crate::config::Config;

// Bound on the wait of a call without a live endpoint: for resolution and the first connection.
const PICK_TIMEOUT: Duration = Duration::from_secs(3);

/// The load balancer of one peer in one worker. Only live endpoints are candidates.
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

#[derive(Default)]
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

// The endpoint set.
impl LoadBalancer {
    /// Starts the discovery task, once.
    fn start_discovery(self: &Arc<Self>) {
        if self.is_started.swap(true, Relaxed) {
            return;
        }
        let (balancer, refresh_requested) =
            (Arc::downgrade(self), self.discovery.refresh_requested());
        let discovery_task = tokio::spawn(discover(balancer, refresh_requested));
        self.state().discovery_task = Some(AbortOnDropHandle::new(discovery_task));
    }

    /// Replaces the members. New endpoints are added; calls in flight at removed ones complete, and
    /// then their connections close.
    fn set_endpoints(self: &Arc<Self>, addresses: &[(SocketAddr, Origin)]) {
        let mut state = self.state();
        let is_listed = |Member { endpoint, .. }: &Member| {
            let mut listed = addresses.iter();
            listed.any(|(at, origin)| *at == endpoint.address && origin.is_same(&endpoint.origin))
        };
        let (kept, removed): (_, Vec<Member>) =
            std::mem::take(&mut state.members).into_iter().partition(is_listed);
        // The initial set is not logged.
        let is_change = !(kept.is_empty() && removed.is_empty());
        state.members = kept;
        for Member { endpoint, is_live, .. } in &removed {
            tracing::info!(peer = self.peer, address = %endpoint.address, "endpoint removed");
            self.metrics.add_endpoints(*is_live, -1);
        }
        for (address, origin) in addresses {
            if state.members.iter().any(|member| member.endpoint.address == *address) {
                continue;
            }
            if is_change {
                tracing::info!(peer = self.peer, %address, "endpoint added");
            }
            self.metrics.add_endpoints(false, 1);
            let endpoint = Endpoint::new(*address, origin.clone(), &self.config);
            state.members.push(self.add_member(Arc::new(endpoint)));
        }
        state.select_live();
        drop(state);
        self.changed.notify_waiters();
    }

    fn add_member(self: &Arc<Self>, endpoint: Arc<Endpoint>) -> Member {
        let (balancer, endpoint_task) = (Arc::downgrade(self), endpoint.clone());
        let reconnector = tokio::spawn(async move {
            let notify = |cause| {
                if let Some(balancer) = balancer.upgrade() {
                    balancer.record_state(&endpoint_task, cause);
                }
            };
            endpoint_task.reconnect(notify).await;
        });
        let _reconnector = AbortOnDropHandle::new(reconnector);
        Member { endpoint, is_live: false, is_logged_unavailable: false, _reconnector }
    }

    /// Records an endpoint's state: liveness, metrics and log.
    fn record_state(&self, endpoint: &Arc<Endpoint>, cause: Option<String>) {
        let is_live = endpoint.is_live();
        let mut state = self.state();
        let has_others = state.members.len() > 1;
        let Some(member) =
            state.members.iter_mut().find(|member| Arc::ptr_eq(&member.endpoint, endpoint))
        else {
            return;
        };
        // The outage of a single endpoint is logged by the calls themselves.
        let is_reportable = member.is_live || member.is_logged_unavailable || cause.is_some();
        let is_logged_unavailable = !is_live && has_others && is_reportable;
        let was_logged_unavailable =
            std::mem::replace(&mut member.is_logged_unavailable, is_logged_unavailable);
        let was_live = std::mem::replace(&mut member.is_live, is_live);
        let (peer, address) = (&self.peer, endpoint.address);
        match (was_logged_unavailable, is_logged_unavailable) {
            (false, true) if was_live => {
                tracing::warn!(peer, %address, cause, "endpoint ejected");
            }
            (false, true) => tracing::info!(peer, %address, cause, "endpoint unavailable"),
            (true, false) if is_live => tracing::info!(peer, %address, "endpoint available again"),
            _ => tracing::debug!(peer, %address, is_live, cause, "endpoint state"),
        }
        if was_live != is_live {
            self.metrics.add_endpoints(was_live, -1);
            self.metrics.add_endpoints(is_live, 1);
            state.select_live();
            if state.live.is_empty() {
                self.discovery.all_endpoints_lost();
            }
        }
        if let Some(cause) = cause {
            state.last_error = cause;
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

impl State {
    fn select_live(&mut self) {
        let live = self.members.iter().filter(|member| member.is_live);
        self.live = live.map(|member| member.endpoint.clone()).collect();
    }
}

/// The discovery task: resolves periodically until the balancer is dropped.
async fn discover(balancer: Weak<LoadBalancer>, refresh_requested: Arc<Notify>) {
    loop {
        let Some(balancer) = balancer.upgrade() else { return };
        let addresses = balancer.discovery.resolve_all(&balancer.peer).await;
        balancer.set_endpoints(&addresses);
        let timer = balancer.discovery.refresh_timer();
        drop(balancer);
        timer.wait(&refresh_requested).await;
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        for member in &self.state().members {
            self.metrics.add_endpoints(member.is_live, -1);
        }
    }
}
