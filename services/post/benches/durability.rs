//! What `CreatePost` and `Like` cost at each durability level.
//!
//! `cargo bench -p microblog-post --bench durability`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::cell::RefCell;

use microblog_proto::post::{CreatePostRequest, LikeRequest};
use microblog_testkit::{DurabilityBench, DurabilitySetting};
use support::{Client, config, id, request_id, timelines::Timelines};

/// Accounts of the calls that are not measured.
const OTHERS: u64 = 1 << 40;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let timelines = Timelines::default().listen(&config("redis://127.0.0.1", &[]));
        for setting in DurabilitySetting::all(&[1]) {
            measure(setting, &timelines).await;
        }
    });
}

async fn measure(setting: DurabilitySetting, timelines: &str) {
    let program = env!("CARGO_BIN_EXE_microblog-post");
    let flags = ["--posts-per-minute=0", "--timeline-url", timelines];
    let bench = DurabilityBench::start(setting, program, "post", &flags).await;
    let create = async |n, author_id| {
        let text = "the quick brown fox jumps over a lazy dog".to_owned();
        let request = CreatePostRequest { author_id, request_id: request_id(), text };
        Client::new(bench.channel(n)).create_post(request).await
    };
    bench.warm_up(async |n| create(n, OTHERS + n * 4).await.is_ok()).await;
    let posts = RefCell::new(Vec::new());
    let of_measured = format!("author < {OTHERS}");
    let publish = async |n: u64| {
        let created = create(n, id(n + 1)).await.unwrap().into_inner();
        posts.borrow_mut().push(created.post.unwrap().id);
    };
    bench.measure("publish", &format!("posts WHERE {of_measured}"), publish).await;
    let like = async |n: u64| {
        let post_id = posts.borrow()[n as usize];
        let request = LikeRequest { user_id: id(n + 2), post_id };
        Client::new(bench.channel(n)).like(request).await.unwrap();
    };
    bench.measure("like", "likes", like).await;
}
