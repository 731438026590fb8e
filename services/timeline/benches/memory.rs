//! The memory of a home timeline in Redis, compared with a sorted set of as many post ids on a
//! server with default settings.
//!
//! `cargo bench -p microblog-timeline --bench memory`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

mod support;

use microblog_testkit::{
    RedisServer,
    redis::{self, aio::MultiplexedConnection, cmd},
};
use microblog_timeline::{Entry, Store};
use support::{build, config, entries_from, id, run_alone};

/// The entries of a timeline.
const LENGTHS: [u64; 4] = [10, 48, 200, 800];

/// The number of timelines of each length.
const TIMELINES: u64 = 1_000;

/// The time of the posts since 2006, so that ids have a realistic length.
const TWO_YEARS_MS: u64 = 62_000_000_000;

/// Redis' defaults.
const DEFAULTS: [(&str, &str); 1] = [("zset-max-listpack-entries", "128")];

fn main() {
    run_alone(async {
        println!("bytes of a home timeline: in all, of {TIMELINES}; in brackets, its MEMORY USAGE");
        println!(
            "{:<12}{:>20}{:>20}{:>10}{:>18}",
            "entries", "ours", "sorted set", "ratio", "ours/entry"
        );
        for length in LENGTHS {
            let entries = entries_from(TWO_YEARS_MS, length, 100);
            let (ours, sets) = (ours(&entries).await, sets(&entries).await);
            let shown = |held: &Held| format!("{:.0} ({})", held.each, held.key);
            let ratio = format!("1/{:.1}", sets.each / ours.each);
            let per_entry = ours.each / length as f64;
            println!(
                "{length:<12}{:>20}{:>20}{ratio:>10}{per_entry:>18.1}",
                shown(&ours),
                shown(&sets)
            );
        }
    });
}

/// The memory of timelines.
struct Held {
    /// The used memory per timeline.
    each: f64,
    /// The memory of one key, as Redis reports it.
    key: u64,
}

async fn ours(entries: &[Entry]) -> Held {
    let server = RedisServer::start().await;
    let store = Store::open(&config(&server.url("timeline"), &[]).redis).unwrap();
    let mut admin = server.admin().await;
    // Connections, buffers and functions exist before the measurement.
    build(&store, &[id(TIMELINES)], entries, &[]).await;
    let before = used(&mut admin).await;
    let users: Vec<_> = (0..TIMELINES).map(id).collect();
    build(&store, &users, entries, &[]).await;
    let each = (used(&mut admin).await - before) as f64 / TIMELINES as f64;
    let first = users[0];
    let key = usage(&mut admin, &format!("tl:{{{}}}:home:{first}", (first >> 2) & 1023)).await;
    Held { each, key }
}

async fn sets(entries: &[Entry]) -> Held {
    let server = RedisServer::start_with(&DEFAULTS).await;
    let mut admin = server.admin().await;
    let before = used(&mut admin).await;
    for user in (0..TIMELINES).map(id) {
        let mut pipeline = redis::pipe();
        for post in entries.iter().map(|entry| entry.post.get()) {
            pipeline.cmd("ZADD").arg(format!("home:{user}")).arg(post).arg(post).ignore();
        }
        pipeline.exec_async(&mut admin).await.unwrap();
    }
    let each = (used(&mut admin).await - before) as f64 / TIMELINES as f64;
    Held { each, key: usage(&mut admin, &format!("home:{}", id(0))).await }
}

/// Returns the used memory in bytes, without connections and buffers of the append-only file.
async fn used(admin: &mut MultiplexedConnection) -> i64 {
    let info: String = cmd("INFO").arg("memory").query_async(admin).await.unwrap();
    let number = |name: &str| -> i64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    };
    number("used_memory")
        - number("mem_clients_normal")
        - number("mem_aof_buffer")
        - number("used_memory_scripts_eval")
        - number("used_memory_vm_functions")
}

async fn usage(admin: &mut MultiplexedConnection, key: &str) -> u64 {
    cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).query_async(admin).await.unwrap()
}
