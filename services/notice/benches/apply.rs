//! Redis' own microseconds for `note_apply` with one follow, where the account's notices of the day's
//! follows and mutual follows have 0, 10 or 40 acts each. Compared with a bare `HSET` of such a notice
//! and a `ZADD` of its name.
//!
//! `cargo bench -p microblog-notice --bench apply`

#![allow(clippy::unwrap_used, reason = "a measurement that fails panics")]

use clap::Parser as _;
use microblog_domain::UserId;
use microblog_keyspace::{Call, Keyspace, Library};
use microblog_notice::Config;
use microblog_testkit::{
    RedisServer,
    redis::{aio::MultiplexedConnection, cmd},
};

/// The functions that the service loads.
const LIBRARY: Library = Library { name: "note", source: include_str!("../src/functions.lua") };

/// The acts of each notice. Every other one was undone.
const ACTS: [u64; 3] = [0, 10, 40];

/// The accounts of a round. Each gets a follow.
const ACCOUNTS: u64 = 200;

/// Rounds. The least disturbed one counts.
const ROUNDS: usize = 20;

/// A day since 2006, and its notices of follows.
const DAY: u64 = 900;
const NAMES: [&str; 2] = ["f900", "u900"];

/// Half the number of the measured changes in the change feed. Those of earlier ones are below.
const LAST: u64 = 1_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start().await;
        let config = Config::parse_from(["notice", "--redis-url", &server.url("notice")]);
        let keyspace = Keyspace::open(&config.redis, LIBRARY).unwrap();
        println!("microseconds of Redis for a follow, least of {ROUNDS} rounds of {ACCOUNTS}\n");
        println!("{:<8}{:>12}{:>14}{:>8}", "acts", "note_apply", "HSET + ZADD", "ratio");
        for acts in ACTS {
            let [mut ours, mut bare] = [f64::INFINITY; 2];
            for _ in 0..ROUNDS {
                let (a, b) = measure(&server, &keyspace, acts).await;
                (ours, bare) = (ours.min(a), bare.min(b));
            }
            println!("{acts:<8}{ours:>12.1}{bare:>14.2}{:>8.1}", ours / bare);
        }
    });
}

/// Returns the microseconds of a follow, and of the bare commands, in one round.
async fn measure(server: &RedisServer, keyspace: &Keyspace, acts: u64) -> (f64, f64) {
    let mut admin = server.admin().await;
    cmd("FLUSHDB").exec_async(&mut admin).await.unwrap();
    for account in 0..ACCOUNTS {
        for (name, first) in NAMES.into_iter().zip([1, LAST / 2]) {
            let mut changes = Vec::new();
            for n in first..first + acts {
                changes.push(("follow", 2 * n, n));
                changes.extend((n % 2 == 0).then_some(("undo", 2 * n + 1, n)));
            }
            apply(keyspace, account, name, &changes).await;
        }
    }
    server.reset_commandstats().await;
    for account in 0..ACCOUNTS {
        apply(keyspace, account, NAMES[0], &[("follow", 2 * LAST, LAST + account)]).await;
    }
    let ours = server.function_time().await;
    server.reset_commandstats().await;
    for account in 0..ACCOUNTS {
        let [notices, order, _] = keys(user(account));
        let notice: Vec<u8> =
            cmd("HGET").arg(&notices).arg(NAMES[0]).query_async(&mut admin).await.unwrap();
        cmd("HSET").arg(&notices).arg("bare").arg(notice).exec_async(&mut admin).await.unwrap();
        cmd("ZADD").arg(&order).arg(account).arg("bare").exec_async(&mut admin).await.unwrap();
    }
    let bare = microseconds(&mut admin, "hset").await + microseconds(&mut admin, "zadd").await;
    (ours / ACCOUNTS as f64, bare / ACCOUNTS as f64)
}

/// Applies changes to a notice of an account: for each, what to do, its number in the feed, and the
/// account that did it.
async fn apply(keyspace: &Keyspace, account: u64, name: &str, changes: &[(&str, u64, u64)]) {
    let call = Call::new("note_apply").keys(keys(user(account))).arg("relation").arg(1);
    let call = changes.iter().fold(call, |call, &(what, number, by)| {
        let by = user(1_000_000 + by).get();
        let version = (DAY * 86_400_000 + number) << 12;
        call.arg(number).arg(what).arg(name).arg(by).arg(by).arg(version)
    });
    keyspace.call::<()>(call).await.unwrap();
}

fn user(n: u64) -> UserId {
    UserId::new(((60_000_000_000 + n) << 12) | ((n * 37 % 1024) << 2)).unwrap()
}

/// Returns the keys of an account: notices, order, mentions.
fn keys(user: UserId) -> [String; 3] {
    let partition = user.partition();
    ["notices", "order", "mentions"].map(|kind| format!("note:{{{partition}}}:{kind}:{user}"))
}

/// Returns the time that Redis spent on a command since the last reset.
async fn microseconds(admin: &mut MultiplexedConnection, command: &str) -> f64 {
    let mut question = cmd("INFO");
    let info: String = question.arg("commandstats").query_async(admin).await.unwrap();
    let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let (_, rest) = line.unwrap().split_once("usec=").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}
