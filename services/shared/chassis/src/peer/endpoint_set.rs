//! Endpoint set: membership follows service discovery, liveness follows connections.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    address::Origin,
    endpoint::Endpoint,
    load_balancer::{LoadBalancer, Member, State},
};

impl LoadBalancer {
    /// Starts the discovery task, once.
    pub(super) fn start_discovery(self: &Arc<Self>) {
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
    pub(super) fn record_state(&self, endpoint: &Arc<Endpoint>, cause: Option<String>) {
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
