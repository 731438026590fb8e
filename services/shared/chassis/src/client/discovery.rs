//! Service discovery: resolves the host names of a peer periodically.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use tokio::{
    net::lookup_host,
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::address::{Host, Origin, PeerUrl};

// Cooldown between two refreshes on demand.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(1);
// Above the system resolver's own timeout for one unresponsive DNS server.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The URLs of a peer, and their resolver.
pub(super) struct DiscoveryConfig {
    pub(super) urls: Vec<PeerUrl>,
    pub(super) resolver: Arc<dyn Resolve>,
}

pub(super) struct Discovery {
    config: DiscoveryConfig,
    refresh: Duration,
    state: Mutex<State>,
    refresh_requested: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// The last non-empty result of each URL.
    addresses_by_url: Vec<Vec<SocketAddr>>,
    is_failing: bool,
    is_resolving: bool,
    /// When the last refresh ended.
    finished_at: Option<Instant>,
    /// When the last live endpoint was lost.
    all_lost_at: Option<Instant>,
}

impl Discovery {
    pub(super) fn new(config: DiscoveryConfig, refresh: Duration) -> Self {
        let addresses_by_url = vec![Vec::new(); config.urls.len()];
        let state = State { addresses_by_url, ..State::default() };
        Self { config, refresh, state: Mutex::new(state), refresh_requested: Arc::default() }
    }

    /// Records that no endpoint is live, and requests a refresh.
    pub(super) fn all_endpoints_lost(&self) {
        self.state().all_lost_at = Some(Instant::now());
        self.refresh_requested.notify_one();
    }

    /// Returns the notification of refresh requests.
    pub(super) fn refresh_requested(&self) -> Arc<Notify> {
        self.refresh_requested.clone()
    }

    /// Returns whether a call that has waited since then may get new addresses. It may if no
    /// refresh has ended since the last endpoint was lost, or the cooldown is over. Then it
    /// requests a refresh.
    pub(super) fn refresh_if_due(&self, since: Instant) -> bool {
        let state = self.state();
        let Some(finished_at) = state.finished_at else { return true };
        let is_due =
            state.all_lost_at > Some(finished_at) || finished_at.elapsed() >= self.interval_min();
        if !self.has_names() || finished_at >= since || !(is_due || state.is_resolving) {
            return false;
        }
        if !state.is_resolving {
            self.refresh_requested.notify_one();
        }
        true
    }

    /// Resolves all URLs. A name that fails to resolve, or has no addresses, keeps the previous
    /// ones.
    pub(super) async fn resolve_all(&self, peer: &str) -> Vec<(SocketAddr, Origin)> {
        self.state().is_resolving = true;
        let found = join_all(self.config.urls.iter().map(|url| self.resolve(url))).await;
        let mut state = self.state();
        let mut failure = None;
        for (addresses_of_url, found) in state.addresses_by_url.iter_mut().zip(found) {
            match found {
                Ok(addresses) if !addresses.is_empty() => *addresses_of_url = addresses,
                Ok(_) => failure = Some("the name has no addresses".to_owned()),
                Err(error) => failure = Some(error.to_string()),
            }
        }
        let was_failing = std::mem::replace(&mut state.is_failing, failure.is_some());
        match failure {
            Some(cause) if !was_failing => tracing::warn!(peer, cause, "service discovery failed"),
            Some(cause) => tracing::debug!(peer, cause, "service discovery still failing"),
            None if was_failing => tracing::info!(peer, "service discovery recovered"),
            None => {}
        }
        state.is_resolving = false;
        state.finished_at = Some(Instant::now());
        let with_url = self.config.urls.iter().zip(&state.addresses_by_url);
        let all = with_url.flat_map(|(url, addresses)| {
            addresses.iter().map(|address| (*address, url.origin.clone()))
        });
        // Deduplicates addresses of several URLs.
        all.collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    async fn resolve(&self, url: &PeerUrl) -> io::Result<Vec<SocketAddr>> {
        match &url.host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name, port) => {
                let found =
                    timeout(RESOLVE_TIMEOUT, self.config.resolver.resolve(name, *port)).await;
                found.unwrap_or_else(|elapsed| Err(elapsed.into()))
            }
        }
    }

    /// Returns the timer until the next refresh.
    pub(super) fn refresh_timer(&self) -> RefreshTimer {
        RefreshTimer {
            interval_min: self.interval_min(),
            refresh: self.has_names().then_some(self.refresh),
        }
    }

    fn interval_min(&self) -> Duration {
        self.refresh.min(REFRESH_INTERVAL_MIN)
    }

    fn has_names(&self) -> bool {
        self.config.urls.iter().any(|url| matches!(url.host, Host::Name(..)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct RefreshTimer {
    interval_min: Duration,
    /// `None` without host names.
    refresh: Option<Duration>,
}

impl RefreshTimer {
    /// Waits for the refresh interval; a request ends it after the cooldown.
    pub(super) async fn wait(self, refresh_requested: &Notify) {
        let Some(refresh) = self.refresh else { return std::future::pending().await };
        sleep(self.interval_min).await;
        tokio::select! {
            () = sleep(refresh - self.interval_min) => {}
            () = refresh_requested.notified() => {}
        }
    }
}

/// Resolves host names to addresses, such as DNS.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Returns all current addresses of a host, with the port. An empty list counts as a failure.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The system resolver (`getaddrinfo`), on the runtime's blocking threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        lookup_host((host, port)).map(|found| found.map(Iterator::collect)).boxed()
    }
}
