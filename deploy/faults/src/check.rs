//! The check after a fault: reads everything back through the gateway, and compares it with what the
//! clients were answered.

mod invariants;
mod read_back;
mod record;

use std::{rc::Rc, time::Duration};

use anyhow::Result;
use microblog_testkit::PostgresServer;
use tokio::time::{Instant, sleep};

pub(crate) use self::read_back::{as_viewer, login};
use self::{invariants::Findings, read_back::World};
use crate::{
    feed::{self, FeedReader},
    load::Shared,
    model::Loss,
};

/// Fan-out and jobs may take this long.
const SETTLED: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

/// What a check has found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    /// The number of subjects and of further comparisons.
    pub(crate) comparisons: usize,
    /// Acknowledged changes that the permitted losses have taken.
    pub(crate) lost: usize,
    pub(crate) violations: Vec<String>,
}

/// Checks all invariants, until they hold or have had their time.
#[expect(clippy::await_holding_refcell_ref, reason = "the clients, which change it, have ended")]
pub(crate) async fn check(
    gateway: &str,
    database: Option<&PostgresServer>,
    shared: &Rc<Shared>,
    reader: &FeedReader,
    losses: &[Loss],
    with_notices: bool,
) -> Result<Checked> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let read = async {
            let world = World::read(gateway, &shared.model.borrow(), with_notices).await?;
            anyhow::Ok((world, feed::snapshot(gateway).await?))
        };
        let (world, snapshot) = match read.await {
            Err(_) if Instant::now() < deadline => {
                sleep(PAUSE).await;
                continue;
            }
            read => read?,
        };
        let recorded = database.map(record::recorded);
        let mut found =
            Findings::of(&shared.model.borrow(), &world, recorded.as_ref(), losses, with_notices);
        let shown = feed::without_texts(&record::shown(&world));
        found.fed("a snapshot of the feed", &snapshot.shown(), &shown);
        found.fed("a reader of the feed", &reader.known().unwrap_or_default().shown(), &shown);
        if found.violations.is_empty() || Instant::now() >= deadline {
            let Findings { comparisons, lost, violations } = found;
            return Ok(Checked { comparisons, lost, violations });
        }
        sleep(PAUSE).await;
    }
}
