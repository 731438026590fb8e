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

/// Returns the faults between servers.
pub(super) fn between_servers() -> Vec<Fault> {
    let cut = [
        ("gateway", "user"),
        ("gateway", "relation"),
        ("gateway", "post"),
        ("post", "timeline"),
        ("timeline", "relation"),
    ];
    let cut = cut.map(|(caller, callee)| cut_off(caller, callee));
    cut.into_iter().chain([without_replies("gateway", "post")]).collect()
}

/// Returns the faults between servers and Redis.
pub(super) fn to_redis() -> Vec<Fault> {
    let cut = ["user", "relation", "post", "timeline"].map(|service| cut_off(service, "redis"));
    let one_way = ["relation", "post"].map(|service| without_replies(service, "redis"));
    let slow = fault(
        "redis-slow".to_owned(),
        "each message from and to Redis takes 100 ms longer for 10 s".to_owned(),
        None,
        "redis",
        Passage::Delayed,
    );
    cut.into_iter().chain(one_way).chain([slow]).collect()
}

fn cut_off(caller: &'static str, callee: &'static str) -> Fault {
    fault(
        format!("{caller}-{callee}-cut"),
        format!("nothing passes between {caller} and {} for 10 s", named(callee)),
        Some(caller),
        callee,
        Passage::Cut,
    )
}

fn without_replies(caller: &'static str, callee: &'static str) -> Fault {
    fault(
        format!("{caller}-{callee}-one-way"),
        format!("no replies pass from {} to {caller} for 10 s", named(callee)),
        Some(caller),
        callee,
        Passage::RepliesCut,
    )
}

fn named(callee: &str) -> &str {
    if callee == "redis" { "Redis" } else { callee }
}

fn fault(
    name: String,
    injected: String,
    caller: Option<&'static str>,
    callee: &'static str,
    passage: Passage,
) -> Fault {
    Fault::new(name, injected, "lost or delayed messages", five(), move |trial| {
        Box::pin(impaired(trial, caller, callee, passage))
    })
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
