//! Clocks that jump by an hour, and back. That of the database, which dates what is written, stays.

use anyhow::Result;

use crate::{
    system::{Clock, Equipment, Setup, StoreKind},
    trial::{Bite, Fault, Trial},
};

const HOUR: i64 = 3_600;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let setups = || vec![Setup::separate(StoreKind::Single).with(Equipment::Clocks)];
    let mut faults = Vec::new();
    for (name, whose, clocks) in [
        ("redis", "the clock of Redis is", &[Clock::Redis][..]),
        ("servers", "the clocks of all servers are", &[Clock::Servers]),
        ("all", "the clocks of all servers and of Redis are", &[Clock::Redis, Clock::Servers]),
    ] {
        for (direction, offset) in [("ahead", HOUR), ("behind", -HOUR)] {
            faults.push(Fault::new(
                format!("{name}-clock-{direction}"),
                format!("{whose} an hour {direction} for some time"),
                "calls in another time",
                setups(),
                move |trial| Box::pin(shifted(trial, clocks, offset)),
            ));
        }
    }
    faults
}

/// Clocks jump by an offset, and back later.
async fn shifted(trial: &mut Trial, clocks: &[Clock], offset: i64) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let set = |offset| clocks.iter().try_for_each(|clock| trial.system.set_clock(*clock, offset));
    set(offset)?;
    trial.meanwhile().await;
    set(0)?;
    trial.after().await;
    let log = &trial.load.shared.log;
    let (done, unknown) = (log.done("", since), log.unknown(since));
    Ok(Bite::Seen(format!("{done} calls in another time, {unknown} unknown outcomes")))
}
