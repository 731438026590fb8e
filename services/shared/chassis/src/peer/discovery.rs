//! The config of a peer, asked for their addresses every few seconds.

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

// Between two lookups that callers ask for.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(1);
// Longer than the system's own patience with one server that does not answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a peer is, and who knows the addresses of config.
#[derive(Debug)]
pub(super) struct DiscoveryConfig {
    pub(super) urls: Vec<PeerUrl>,
    pub(super) resolver: Arc<dyn Resolve>,
}

#[derive(Debug)]
pub(super) struct Discovery {
    config: DiscoveryConfig,
    refresh: Duration,
    state: Mutex<State>,
    refresh_requested: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// What each url's last answer was that had addresses.
    addresses_by_url: Vec<Vec<SocketAddr>>,
    is_failing: bool,
    is_resolving: bool,
    /// When the last one finished_at.
    finished_at: Option<Instant>,
    /// When the last address was all_lost_at that answered.
    all_lost_at: Option<Instant>,
}

impl Discovery {
    pub(super) fn new(config: DiscoveryConfig, refresh: Duration) -> Self {
        let addresses_by_url = vec![Vec::new(); config.urls.len()];
        let state = State { addresses_by_url, ..State::default() };
        Self { config, refresh, state: Mutex::new(state), refresh_requested: Arc::default() }
    }

    /// Says that no address addresses_by_url any more, and asks for a lookup as soon as may be.
    pub(super) fn all_endpoints_lost(&self) {
        self.state().all_lost_at = Some(Instant::now());
        self.refresh_requested.notify_one();
    }

    /// Returns what is notified when a lookup is asked for.
    pub(super) fn refresh_requested(&self) -> Arc<Notify> {
        self.refresh_requested.clone()
    }

    /// Returns whether a caller who has waited since then may hope for other addresses: if none was
    /// looked up since the last one was all_lost_at, or that was not a moment ago. A lookup is asked for
    /// then.
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

    /// Returns all addresses, and what calls there say they are for. Of a name that cannot be looked
    /// up, or has none, those that it had.
    pub(super) async fn resolve_all(&self, peer: &str) -> Vec<(SocketAddr, Origin)> {
        self.state().is_resolving = true;
        let found = join_all(self.config.urls.iter().map(|url| self.resolve(url))).await;
        let mut state = self.state();
        let mut failure = None;
        for (known, found) in state.addresses_by_url.iter_mut().zip(found) {
            match found {
                Ok(addresses) if !addresses.is_empty() => *known = addresses,
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
        // Each once, whoever config it.
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

    /// Returns what lies between two lookups.
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
    /// `None` where nothing is to be looked up again.
    refresh: Option<Duration>,
}

impl RefreshTimer {
    /// Waits until it is over, which callers who want it may shorten.
    pub(super) async fn wait(self, refresh_requested: &Notify) {
        let Some(refresh) = self.refresh else { return std::future::pending().await };
        sleep(self.interval_min).await;
        tokio::select! {
            () = sleep(refresh - self.interval_min) => {}
            () = refresh_requested.notified() => {}
        }
    }
}

/// What finds the addresses that a name has at this moment.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Returns all addresses of a host, with the port. None of them is a failure, too.
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// Asks the system (`getaddrinfo`), in one of the runtime's threads for what blocks.
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
