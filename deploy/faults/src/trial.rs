//! A trial: one fault in one setup, from the start of the system to the check.

use std::time::Duration;

use anyhow::Result;
use futures::future::LocalBoxFuture;
use microblog_local::launch::Layout;

use crate::{
    check::{Checked, check},
    clock::Millis,
    feed::FeedReader,
    load::Load,
    model::Loss,
    system::{Setup, StoreKind, System},
};

/// A fault of the table.
pub(crate) struct Fault {
    pub(crate) name: String,
    /// How it is injected and healed.
    pub(crate) injected: String,
    /// What must be seen, or the trial is void.
    pub(crate) bites: &'static str,
    pub(crate) setups: Vec<Setup>,
    /// Further setups, of the long form.
    pub(crate) further_setups: Vec<Setup>,
    /// Whether no notice may be missing.
    keeps_notices: bool,
    pub(crate) inject: Inject,
}

/// Injects a fault and heals it. Returns what was seen of it.
pub(crate) type Inject =
    Box<dyn for<'a> Fn(&'a mut Trial) -> LocalBoxFuture<'a, Result<Bite>> + Send + Sync>;

impl Fault {
    pub(crate) fn new(
        name: impl Into<String>,
        injected: impl Into<String>,
        bites: &'static str,
        setups: Vec<Setup>,
        inject: impl for<'a> Fn(&'a mut Trial) -> LocalBoxFuture<'a, Result<Bite>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let inject = Box::new(inject);
        let (name, injected) = (name.into(), injected.into());
        let further_setups = Vec::new();
        Self { name, injected, bites, setups, further_setups, keeps_notices: false, inject }
    }

    /// Has notices checked, too: the fault takes nothing from the databases, and no cache is older for it.
    pub(crate) fn keeping_notices(self) -> Self {
        Self { keeps_notices: true, ..self }
    }

    /// Adds the other stores, and TLS, to its setups of the long form.
    pub(crate) fn with_any_store(self) -> Self {
        self.with_further(Setup::with_other_stores)
    }

    /// Adds replicas with all services to its setups of the long form.
    pub(crate) fn with_any_layout(self) -> Self {
        self.with_further(|setup| vec![Setup::replicas(StoreKind::Cluster).with(setup.equipment)])
    }

    fn with_further(mut self, others: impl Fn(Setup) -> Vec<Setup>) -> Self {
        let of_separate = |setup: &&Setup| setup.layout == Layout::Separate;
        let further = self.setups.iter().filter(of_separate).flat_map(|&setup| others(setup));
        let further: Vec<_> = further.filter(|setup| !self.setups.contains(setup)).collect();
        self.further_setups.extend(further);
        self
    }
}

/// What was seen of a fault.
pub(crate) enum Bite {
    Seen(String),
    /// Nothing of what must be seen, so the trial has shown nothing.
    Missed(String),
}

impl Bite {
    /// Returns what was seen, if it was.
    pub(crate) fn seen_if(seen: bool, what: String) -> Self {
        if seen { Self::Seen(what) } else { Self::Missed(what) }
    }

    /// Returns what was seen or missed.
    pub(crate) fn text(self) -> String {
        let (Self::Seen(text) | Self::Missed(text)) = self;
        text
    }
}

/// A system under load.
pub(crate) struct Trial {
    /// The calls that are acknowledged before a fault.
    calls: u64,
    /// How long networks lose or delay what passes.
    pub(crate) impairment: Duration,
    pub(crate) system: System,
    pub(crate) load: Load,
    pub(crate) reader: FeedReader,
    /// The losses of databases that have gone back, each of which must be seen.
    pub(crate) losses: Vec<Loss>,
}

/// The result of a trial.
pub(crate) struct Verdict {
    pub(crate) bite: Bite,
    pub(crate) checked: Checked,
    /// The number of acknowledged calls.
    pub(crate) acknowledged: u64,
}

impl Trial {
    /// Starts a system and its load.
    pub(crate) async fn start(
        setup: Setup,
        seed: u64,
        calls: u64,
        impairment: Duration,
    ) -> Result<Self> {
        let system = System::start(setup).await?;
        let load = Load::start(&system.gateways(), seed).await?;
        let reader = FeedReader::start(&system.gateways(), seed)?;
        Ok(Self { calls, impairment, system, load, reader, losses: Vec::new() })
    }

    /// Waits until the load has gone on for some time.
    pub(crate) async fn before(&self) {
        self.load.acknowledged(self.calls).await;
    }

    /// Waits until the load has gone on for half of that time.
    pub(crate) async fn meanwhile(&self) {
        self.load.acknowledged(self.calls.div_ceil(2)).await;
    }

    /// Waits until the load goes on.
    pub(crate) async fn after(&self) {
        self.load.acknowledged(self.calls.div_ceil(4)).await;
    }

    /// Permits that changes are lost which were acknowledged since one time and began before another.
    pub(crate) fn permit_loss(&mut self, since: Millis, until: Millis) {
        self.losses.push(Loss { until, since });
    }

    /// Injects a fault, waits for calm, and checks everything.
    pub(crate) async fn run(&mut self, fault: &Fault) -> Result<Verdict> {
        let mut bite = (fault.inject)(self).await?;
        self.load.stop().await?;
        self.system.wait_until_serving().await?;
        let checked = self.check(fault.keeps_notices).await?;
        if !self.losses.is_empty() && checked.lost == 0 {
            bite = Bite::Missed("no acknowledged write was lost".to_owned());
        }
        let acknowledged = self.load.shared.model.borrow().acknowledged();
        Ok(Verdict { bite, checked, acknowledged })
    }

    /// Checks what each gateway shows, what the database has, and what `microblog verify` finds.
    async fn check(&self, with_notices: bool) -> Result<Checked> {
        let mut all = Checked::default();
        for gateway in self.system.gateways() {
            let database = self.system.database.server();
            let (shared, reader, losses) = (&self.load.shared, &self.reader, &self.losses);
            let checked = check(gateway, database, shared, reader, losses, with_notices).await?;
            all.comparisons += checked.comparisons;
            all.lost = all.lost.max(checked.lost);
            all.violations.extend(checked.violations);
        }
        if let Err(error) = self.system.verify().await {
            all.violations.push(format!("{error:#}"));
        }
        Ok(all)
    }
}
