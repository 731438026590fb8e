//! Clocks that jump by an hour, and back.

use anyhow::Result;

use crate::{
    system::{Clock, Equipment, Level, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

const HOUR: i64 = 3_600;
/// Calls that fail meanwhile.
const FAILED: usize = 5;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups =
        || vec![Setup::separate(StoreKind::Single, Level::Recorded).with(Equipment::Clocks)];
    let mut faults = Vec::new();
    for (name, whose, clocks) in [
        ("redis", "the clock of Redis is", &[Clock::Redis][..]),
        ("servers", "the clocks of all servers are", &[Clock::Servers]),
        ("all", "the clocks of all servers and of Redis are", &[Clock::Redis, Clock::Servers]),
    ] {
        for (direction, offset) in [("ahead", HOUR), ("behind", -HOUR)] {
            faults.push(Fault::new(
                format!("{name}-clock-{direction}"),
                format!("{whose} an hour {direction} for some time; `microblog verify --repair`"),
                "calls CLOCK_AHEAD, or calls in another time",
                setups(),
                move |trial| Box::pin(shifted(trial, clocks, offset)),
            ));
        }
    }
    faults
}

/// Clocks jump by an offset, and back later. Then the clocks of the partitions are repaired, where they
/// have gone ahead.
async fn shifted(trial: &mut Trial, clocks: &[Clock], offset: i64) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let set = |offset| clocks.iter().try_for_each(|clock| trial.system.set_clock(*clock, offset));
    set(offset)?;
    // A clock that is behind the partitions' issues nothing.
    let issues = offset > 0 && clocks.contains(&Clock::Servers);
    if issues {
        trial.meanwhile().await;
    } else {
        trial.load.failures(&["CLOCK_AHEAD"], FAILED, since).await;
    }
    set(0)?;
    let repaired = trial.system.repair().await?;
    trial.after().await;
    let log = &trial.load.shared.log;
    let (rejected, unknown) = (log.count("CLOCK_AHEAD", since), log.unknown(since));
    Ok(Bite::Seen(format!(
        "{rejected} calls CLOCK_AHEAD, {unknown} unknown outcomes, {repaired} repaired clocks"
    )))
}
