//! Networks that lose or delay what passes.

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::{fanout::delete_timelines, separate, waiting};
use crate::{
    load::CLIENTS,
    system::{DELAY, Passage},
    trial::{Bite, Fault, Trial},
};

/// The servers that call others.
const CALLS: [(&str, &str); 10] = [
    ("gateway", "user"),
    ("gateway", "relation"),
    ("gateway", "post"),
    ("gateway", "timeline"),
    ("post", "timeline"),
    ("timeline", "relation"),
    ("timeline", "post"),
    ("notice", "user"),
    ("notice", "relation"),
    ("notice", "post"),
];
/// More calls than were under way when the connection was cut.
const MEANWHILE: usize = 2 * CLIENTS;
const SERVICES: [&str; 5] = ["user", "relation", "post", "timeline", "notice"];

/// Returns the faults between servers.
pub(super) fn between_servers() -> Vec<Fault> {
    CALLS.into_iter().flat_map(|(caller, callee)| cut_off(caller, callee)).collect()
}

/// Returns the faults between servers and Redis.
pub(super) fn to_redis() -> Vec<Fault> {
    let slow = fault(
        "redis-slow".to_owned(),
        "each message from and to Redis takes 100 ms longer for 10 s (--long: 60 s)".to_owned(),
        None,
        "redis",
        Passage::Delayed,
    );
    SERVICES.into_iter().flat_map(|service| cut_off(service, "redis")).chain([slow]).collect()
}

/// Both ways, and one way.
fn cut_off(caller: &'static str, callee: &'static str) -> [Fault; 2] {
    let named = if callee == "redis" { "Redis" } else { callee };
    [
        ("cut", format!("nothing passes between {caller} and {named}"), Passage::Cut),
        ("one-way", format!("no replies pass from {named} to {caller}"), Passage::RepliesCut),
    ]
    .map(|(kind, lost, passage)| {
        let name = format!("{caller}-{callee}-{kind}");
        fault(name, format!("{lost} for 10 s (--long: 60 s)"), Some(caller), callee, passage)
    })
}

fn fault(
    name: String,
    injected: String,
    caller: Option<&'static str>,
    callee: &'static str,
    passage: Passage,
) -> Fault {
    Fault::new(
        name,
        injected,
        "failed or slow calls, or work that waits; of a service that has a database without Redis, calls that are done",
        separate(),
        move |trial| Box::pin(impaired(trial, caller, callee, passage)),
    )
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
    if (caller, callee) == (Some("timeline"), "post") {
        // Otherwise it has little to ask.
        delete_timelines(trial).await;
    }
    sleep(trial.impairment).await;
    let waiting = match (caller, callee) {
        (Some("post"), "timeline") => Some(waiting::deliveries(trial).await),
        (Some("timeline"), "relation") => Some(waiting::jobs(trial).await),
        // The database answers. Each call needs user, for its session.
        (Some(service @ ("user" | "relation" | "post")), "redis") => {
            let (what, call) = match service {
                "user" => ("calls", ""),
                "relation" => ("follows", "Follow("),
                _ => ("likes", "Like("),
            };
            trial.load.done(call, MEANWHILE, since).await;
            Some(format!("{} {what} meanwhile", trial.load.shared.log.done(call, since)))
        }
        // The database has the notices.
        (Some("notice"), "redis") => Some(waiting::applied(trial).await),
        (Some("notice"), service) => Some(waiting::notices(trial, service).await),
        _ if passage == Passage::Delayed => None,
        _ => {
            trial.load.unknown(1, since).await;
            None
        }
    };
    proxies.iter().for_each(|proxy| proxy.set(Passage::Open));
    let affected = affected() - before;
    trial.after().await;
    let log = &trial.load.shared.log;
    let (slow, unknown) = (log.longer_than(DELAY, since), log.unknown(since));
    let seen = match passage {
        Passage::Delayed => format!("{affected} delayed messages, {slow} slow calls"),
        _ => {
            let waiting = waiting.unwrap_or_else(|| format!("{unknown} unknown outcomes"));
            format!("{affected} lost messages, {waiting}")
        }
    };
    Ok(Bite::seen_if(affected > 0 && (passage != Passage::Delayed || slow > 0), seen))
}
