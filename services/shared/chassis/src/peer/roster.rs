//! What becomes of a peer's addresses: they come and go as its names say, and answer or do not.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    address::Origin,
    endpoint::Endpoint,
    pool::{Known, Pool, State},
};

impl Pool {
    /// Begins to look addresses up, if that has not begun.
    pub(super) fn start(self: &Arc<Self>) {
        if self.is_started.swap(true, Relaxed) {
            return;
        }
        let (pool, wanted) = (Arc::downgrade(self), self.lookup.wanted());
        let lookups = tokio::spawn(look_up(pool, wanted));
        self.state().lookups = Some(AbortOnDropHandle::new(lookups));
    }

    /// Takes up addresses that are new, and leaves those that are no more: what is under way there
    /// goes on, and then their connections end.
    fn set(self: &Arc<Self>, addresses: &[(SocketAddr, Origin)]) {
        let mut state = self.state();
        let is_named = |Known { endpoint, .. }: &Known| {
            let mut named = addresses.iter();
            named.any(|(at, origin)| *at == endpoint.address && origin.is(&endpoint.origin))
        };
        let (stay, gone): (_, Vec<Known>) =
            std::mem::take(&mut state.known).into_iter().partition(is_named);
        // The first ones are no news.
        let is_change = !(stay.is_empty() && gone.is_empty());
        state.known = stay;
        for Known { endpoint, is_live, .. } in &gone {
            tracing::info!(peer = self.peer, address = %endpoint.address, "a peer's address is gone");
            self.metrics.endpoint(*is_live, -1);
        }
        for (address, origin) in addresses {
            if state.known.iter().any(|known| known.endpoint.address == *address) {
                continue;
            }
            if is_change {
                tracing::info!(peer = self.peer, %address, "a peer has a new address");
            }
            self.metrics.endpoint(false, 1);
            let endpoint = Endpoint::new(*address, origin.clone(), &self.config);
            state.known.push(self.keep(Arc::new(endpoint)));
        }
        state.choose();
        drop(state);
        self.news.notify_waiters();
    }

    fn keep(self: &Arc<Self>, endpoint: Arc<Endpoint>) -> Known {
        let (pool, kept) = (Arc::downgrade(self), endpoint.clone());
        let keeper = tokio::spawn(async move {
            let tell = |cause| {
                if let Some(pool) = pool.upgrade() {
                    pool.note(&kept, cause);
                }
            };
            kept.keep(tell).await;
        });
        let _keeper = AbortOnDropHandle::new(keeper);
        Known { endpoint, is_live: false, is_missed: false, _keeper }
    }

    /// Notes what has become of an address.
    pub(super) fn note(&self, endpoint: &Arc<Endpoint>, cause: Option<String>) {
        let is_live = endpoint.is_live();
        let mut state = self.state();
        let has_others = state.known.len() > 1;
        let Some(known) =
            state.known.iter_mut().find(|known| Arc::ptr_eq(&known.endpoint, endpoint))
        else {
            return;
        };
        // Of the only one, the calls tell.
        let is_news = known.is_live || known.is_missed || cause.is_some();
        let is_missed = !is_live && has_others && is_news;
        let was_missed = std::mem::replace(&mut known.is_missed, is_missed);
        let was_live = std::mem::replace(&mut known.is_live, is_live);
        let (peer, address) = (&self.peer, endpoint.address);
        match (was_missed, is_missed) {
            (false, true) if was_live => {
                tracing::warn!(peer, %address, cause, "a peer's address is left out");
            }
            (false, true) => tracing::info!(peer, %address, cause, "a peer's address is away"),
            (true, false) if is_live => tracing::info!(peer, %address, "a peer's address is back"),
            _ => tracing::debug!(peer, %address, is_live, cause, "a peer's address"),
        }
        if was_live != is_live {
            self.metrics.endpoint(was_live, -1);
            self.metrics.endpoint(is_live, 1);
            state.choose();
            if state.live.is_empty() {
                self.lookup.lose();
            }
        }
        if let Some(cause) = cause {
            state.cause = cause;
        }
        drop(state);
        self.news.notify_waiters();
    }
}

impl State {
    fn choose(&mut self) {
        let live = self.known.iter().filter(|known| known.is_live);
        self.live = live.map(|known| known.endpoint.clone()).collect();
    }
}

/// Finds the addresses out, again and again, until the pool is gone.
async fn look_up(pool: Weak<Pool>, wanted: Arc<Notify>) {
    loop {
        let Some(here) = pool.upgrade() else { return };
        let addresses = here.lookup.look_up(&here.peer).await;
        here.set(&addresses);
        let pause = here.lookup.pause();
        drop(here);
        pause.wait(&wanted).await;
    }
}
