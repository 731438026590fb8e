//! Networks that lose or delay what passes.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use crate::{
    system::{DELAY, Passage},
    trial::{Bite, Trial},
};

/// Longer than all timeouts of calls and commands.
const CUT: Duration = Duration::from_secs(10);

/// What passes from a caller, or from all, to a callee is lost or delayed for some time.
pub(super) async fn impaired(
    trial: &mut Trial,
    caller: Option<&str>,
    callee: &str,
    passage: Passage,
) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let proxies = trial.system.proxies(caller, callee);
    ensure!(!proxies.is_empty(), "there is no proxy to {callee}");
    let affected = || proxies.iter().map(|proxy| proxy.affected()).sum::<u64>();
    let before = affected();
    proxies.iter().for_each(|proxy| proxy.set(passage));
    sleep(CUT).await;
    proxies.iter().for_each(|proxy| proxy.set(Passage::Open));
    let affected = affected() - before;
    trial.after().await;
    let log = &trial.load.shared.log;
    let (slow, unknown) = (log.longer_than(DELAY, since), log.unknown(since));
    let seen = match passage {
        Passage::Delayed => format!("{affected} delayed messages, {slow} slow calls"),
        _ => format!("{affected} lost messages, {unknown} unknown outcomes"),
    };
    Ok(Bite::seen_if(affected > 0 && (passage != Passage::Delayed || slow > 0), seen))
}
