//! Networks that lose or delay what passes.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::five;
use crate::{
    system::{DELAY, Passage},
    trial::{Bite, Fault, Trial},
};

/// Longer than all timeouts of calls and commands.
const CUT: Duration = Duration::from_secs(10);

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |name: String, injected: String, caller, callee, passage| {
        faults.push(Fault::new(name, injected, "lost or delayed messages", five(), move |trial| {
            Box::pin(impaired(trial, caller, callee, passage))
        }));
    };
    for service in ["user", "relation", "post", "timeline"] {
        add(
            format!("{service}-redis-cut"),
            format!("nothing passes between {service} and Redis for 10 s"),
            Some(service),
            "redis",
            Passage::Cut,
        );
    }
    for (caller, callee) in [
        ("gateway", "user"),
        ("gateway", "relation"),
        ("gateway", "post"),
        ("post", "timeline"),
        ("timeline", "relation"),
    ] {
        add(
            format!("{caller}-{callee}-cut"),
            format!("nothing passes between {caller} and {callee} for 10 s"),
            Some(caller),
            callee,
            Passage::Cut,
        );
    }
    for (caller, callee) in [("relation", "redis"), ("post", "redis"), ("gateway", "post")] {
        add(
            format!("{caller}-{callee}-one-way"),
            format!("no replies pass from {callee} to {caller} for 10 s"),
            Some(caller),
            callee,
            Passage::RepliesCut,
        );
    }
    add(
        "redis-slow".to_owned(),
        "each message from and to Redis takes 100 ms longer for 10 s".to_owned(),
        None,
        "redis",
        Passage::Delayed,
    );
    faults
}

/// What passes from a caller, or from all, to a callee is lost or delayed for some time.
async fn impaired(
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
