//! What `Follow` costs with each database, with one and with two workers.
//!
//! `cargo bench -p microblog-relation --bench writes`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use microblog_proto::relation::FollowRequest;
use microblog_testkit::{WriteBench, WriteSetting};
use support::{Client, id};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for setting in WriteSetting::all(&[1, 2]) {
            measure(setting).await;
        }
    });
}

async fn measure(setting: WriteSetting) {
    let program = env!("CARGO_BIN_EXE_microblog-relation");
    let bench = WriteBench::start(setting, program, "relation", &[]).await;
    let follow = async |n, follower_id, target_id| {
        let request = FollowRequest { follower_id, target_id };
        Client::new(bench.channel(n)).follow(request).await
    };
    bench.warm_up(async |n| follow(n, (1 << 40) + n * 4, id(1)).await.is_ok()).await;
    let call = async |n: u64| {
        follow(n, id(n + 1), id(n + 100_000)).await.unwrap();
    };
    bench.measure("follow", &format!("follows WHERE source < {}", 1_u64 << 40), call).await;
}
