//! What the change journals of both accounts add to Redis' time for the three steps of a follow.
//!
//! `cargo bench -p microblog-relation --bench journal`

#![allow(clippy::unwrap_used, reason = "a measurement that fails panics")]

use clap::Parser as _;
use futures::{StreamExt as _, stream};
use microblog_domain::UserId;
use microblog_relation::{Config, Edge, EdgeSaga, Store};
use microblog_testkit::journal_cost::{CHANGES, PARTITIONS, print_journal_cost};

/// Changes that are under way at once.
const AT_ONCE: usize = 64;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = |partition| format!("rel:{{{partition}}}:journal");
    runtime.block_on(print_journal_cost(
        &["follow", "unfollow"],
        journal,
        async |server| {
            let flags = ["relation", "--redis-url", &server.url("relation")];
            let store = Store::open(&Config::parse_from(flags)).unwrap();
            assert!(store.is_ready().await);
            let edges = EdgeSaga::new(store);
            for n in CHANGES..CHANGES + PARTITIONS {
                change(&edges, "follow", n).await;
            }
            edges
        },
        async |edges, kind| {
            stream::iter(0..CHANGES)
                .map(|n| change(edges, kind, n))
                .buffer_unordered(AT_ONCE)
                .for_each(async |()| ())
                .await;
        },
    ));
}

/// Makes a change. Each partition has one follower.
async fn change(edges: &EdgeSaga, kind: &str, n: u64) {
    let edge = Edge { from: user(n % PARTITIONS), to: user(1 << 20 | n) };
    match kind {
        "follow" => _ = edges.follow(edge).await.unwrap(),
        _ => _ = edges.unfollow(edge).await.unwrap(),
    }
}

fn user(n: u64) -> UserId {
    UserId::new((60_000_000_000 + n / PARTITIONS) << 12 | (n % PARTITIONS) << 2).unwrap()
}
