//! Load: clients that write until they are stopped, and log each call.

mod act;
mod client;
mod log;

use std::{cell::RefCell, rc::Rc, time::Duration};

use anyhow::{Result, ensure};
use futures::future::join_all;
use microblog_testkit::eventually;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_local},
    time::timeout,
};

use self::client::Client;
pub(crate) use self::{client::PASSWORD, log::Log};
use crate::model::Model;

/// Each client has accounts of its own, and is the only one that changes them.
pub(crate) const CLIENTS: usize = 8;
/// A fault may take this long before calls succeed again.
const PROGRESS: Duration = Duration::from_secs(120);

/// What all clients share.
pub(crate) struct Shared {
    pub(crate) model: RefCell<Model>,
    pub(crate) log: Log,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Write,
    /// They complete their current calls.
    Stop,
}

/// Running clients.
pub(crate) struct Load {
    pub(crate) shared: Rc<Shared>,
    order: watch::Sender<Order>,
    clients: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    /// Registers the first accounts, and starts the clients, each with one of the gateways.
    pub(crate) async fn start(gateways: &[&str], seed: u64) -> Result<Self> {
        let shared = Rc::new(Shared { model: RefCell::default(), log: Log::default() });
        let mut seeds = SmallRng::seed_from_u64(seed);
        let mut clients = Vec::new();
        for (number, gateway) in (0..CLIENTS).zip(gateways.iter().cycle()) {
            clients.push(Client::new(number, gateway, seeds.random(), shared.clone())?);
        }
        join_all(clients.iter_mut().map(Client::register_accounts))
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        let everybody: Vec<u64> = clients.iter().flat_map(Client::accounts).collect();
        let (order, orders) = watch::channel(Order::Write);
        let run = |client: Client| spawn_local(client.run(everybody.clone(), orders.clone()));
        let clients = clients.into_iter().map(run).collect();
        Ok(Self { shared, order, clients })
    }

    /// Waits until this many more calls were acknowledged.
    pub(crate) async fn acknowledged(&self, more: u64) {
        let acknowledged = || self.shared.model.borrow().acknowledged();
        let enough = acknowledged() + more;
        let what = format!("{more} calls are acknowledged");
        eventually(&what, PROGRESS, async || acknowledged() >= enough).await;
    }

    /// Waits until this many calls have failed with one of these reasons since an earlier moment of the log.
    pub(crate) async fn failures(&self, reasons: &[&str], count: usize, since: usize) {
        let what = format!("{count} calls fail with {}", reasons.join(" or "));
        let of_reason = |reason: &&str| self.shared.log.count(reason, since);
        let failed = async || reasons.iter().map(of_reason).sum::<usize>() >= count;
        eventually(&what, PROGRESS, failed).await;
    }

    /// Waits until this many calls had an unknown outcome since an earlier moment of the log.
    pub(crate) async fn unknown(&self, count: usize, since: usize) {
        let what = format!("{count} calls have an unknown outcome");
        let unknown = async || self.shared.log.unknown(since) >= count;
        eventually(&what, PROGRESS, unknown).await;
    }

    /// Waits until this many calls that begin with a text were done since an earlier moment of the log.
    pub(crate) async fn done(&self, call: &str, count: usize, since: usize) {
        let done = async || self.shared.log.done(call, since) >= count;
        eventually(&format!("{count} calls `{call}…` are done"), PROGRESS, done).await;
    }

    /// Stops the clients once each has completed its call.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.order.send_replace(Order::Stop);
        let all = timeout(PROGRESS, join_all(self.clients.drain(..))).await;
        ensure!(all.is_ok(), "clients do not end: calls fail for {PROGRESS:?}");
        all?.into_iter().try_for_each(|client| client?)
    }
}
