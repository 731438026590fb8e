//! The names of a peer, asked for their addresses every few seconds.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    address::{Host, Origin, Site},
    resolve::Resolve,
};

// Between two lookups that callers ask for.
const GAP: Duration = Duration::from_secs(1);
// Longer than the system's own patience with one server that does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a peer is, and who knows the addresses of names.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) sites: Vec<Site>,
    pub(super) resolver: Arc<dyn Resolve>,
}

#[derive(Debug)]
pub(super) struct Lookup {
    names: Names,
    refresh: Duration,
    state: Mutex<State>,
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// What each site's last answer was that had addresses.
    answers: Vec<Vec<SocketAddr>>,
    is_failing: bool,
    is_under_way: bool,
    /// When the last one ended.
    ended: Option<Instant>,
    /// When the last address was lost that answered.
    lost: Option<Instant>,
}

impl Lookup {
    pub(super) fn new(names: Names, refresh: Duration) -> Self {
        let answers = vec![Vec::new(); names.sites.len()];
        let state = State { answers, ..State::default() };
        Self { names, refresh, state: Mutex::new(state), wanted: Arc::default() }
    }

    /// Says that no address answers any more, and asks for a lookup as soon as may be.
    pub(super) fn lose(&self) {
        self.state().lost = Some(Instant::now());
        self.wanted.notify_one();
    }

    /// Returns what is notified when a lookup is asked for.
    pub(super) fn wanted(&self) -> Arc<Notify> {
        self.wanted.clone()
    }

    /// Returns whether a caller who has waited since then may hope for other addresses: if none was
    /// looked up since the last one was lost, or that was not a moment ago. A lookup is asked for
    /// then.
    pub(super) fn hopes(&self, since: Instant) -> bool {
        let state = self.state();
        let Some(ended) = state.ended else { return true };
        let is_due = state.lost > Some(ended) || ended.elapsed() >= self.gap();
        if !self.has_names() || ended >= since || !(is_due || state.is_under_way) {
            return false;
        }
        if !state.is_under_way {
            self.wanted.notify_one();
        }
        true
    }

    /// Returns all addresses, and what calls there say they are for. Of a name that cannot be looked
    /// up, or has none, those that it had.
    pub(super) async fn look_up(&self, peer: &str) -> Vec<(SocketAddr, Origin)> {
        self.state().is_under_way = true;
        let found = join_all(self.names.sites.iter().map(|site| self.resolve(site))).await;
        let mut state = self.state();
        let mut failure = None;
        for (known, found) in state.answers.iter_mut().zip(found) {
            match found {
                Ok(addresses) if !addresses.is_empty() => *known = addresses,
                Ok(_) => failure = Some("a name has no addresses".to_owned()),
                Err(error) => failure = Some(error.to_string()),
            }
        }
        let was_failing = std::mem::replace(&mut state.is_failing, failure.is_some());
        match failure {
            Some(cause) if !was_failing => tracing::warn!(peer, cause, "cannot resolve a peer"),
            Some(cause) => tracing::debug!(peer, cause, "still cannot resolve a peer"),
            None if was_failing => tracing::info!(peer, "a peer can be resolved again"),
            None => {}
        }
        state.is_under_way = false;
        state.ended = Some(Instant::now());
        let with_site = self.names.sites.iter().zip(&state.answers);
        let all = with_site.flat_map(|(site, addresses)| {
            addresses.iter().map(|address| (*address, site.origin.clone()))
        });
        // Each once, whoever names it.
        all.collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    async fn resolve(&self, site: &Site) -> io::Result<Vec<SocketAddr>> {
        match &site.host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name, port) => {
                let found = timeout(TIMEOUT, self.names.resolver.resolve(name, *port)).await;
                found.unwrap_or_else(|elapsed| Err(elapsed.into()))
            }
        }
    }

    /// Returns what lies between two lookups.
    pub(super) fn pause(&self) -> Pause {
        Pause { gap: self.gap(), refresh: self.has_names().then_some(self.refresh) }
    }

    fn gap(&self) -> Duration {
        self.refresh.min(GAP)
    }

    fn has_names(&self) -> bool {
        self.names.sites.iter().any(|site| matches!(site.host, Host::Name(..)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Pause {
    gap: Duration,
    /// `None` where nothing is to be looked up again.
    refresh: Option<Duration>,
}

impl Pause {
    /// Waits until it is over, which callers who want it may shorten.
    pub(super) async fn wait(self, wanted: &Notify) {
        let Some(refresh) = self.refresh else { return std::future::pending().await };
        sleep(self.gap).await;
        tokio::select! {
            () = sleep(refresh - self.gap) => {}
            () = wanted.notified() => {}
        }
    }
}
