//! What `CreatePost` and `Like` cost with each database, with one and with two workers. Nothing is delivered:
//! there is no timeline service.
//!
//! `cargo bench -p microblog-post --bench writes`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../tests/support/mod.rs"]
mod support;

use microblog_proto::post::{CreatePostRequest, LikeRequest, Post};
use microblog_testkit::{WriteBench, WriteSetting};
use support::{Client, id, request_id};

/// Authors, each of whom has as many posts.
const AUTHORS: u64 = 1_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for setting in WriteSetting::all(&[1, 2]) {
            measure(setting).await;
        }
    });
}

async fn measure(setting: WriteSetting) {
    let program = env!("CARGO_BIN_EXE_microblog-post");
    let bench = WriteBench::start(setting, program, "post", &["--posts-per-minute=0"]).await;
    let publish = async |n: u64, author_id| -> Result<Post, tonic::Status> {
        let (request_id, text) = (request_id(), format!("post {n}"));
        let request = CreatePostRequest { author_id, request_id, text };
        let answer = Client::new(bench.channel(n)).create_post(request).await?;
        Ok(answer.into_inner().post.unwrap())
    };
    // Of accounts whose posts are not counted.
    bench.warm_up(async |n| publish(n, (1 << 52) + n * 4).await.is_ok()).await;
    let create = async |n: u64| drop(publish(n, id(1 + n % AUTHORS)).await.unwrap());
    bench.measure("CreatePost", &format!("posts WHERE author < {}", 1_u64 << 52), create).await;
    let liked = publish(0, id(1)).await.unwrap().id;
    let like = async |n: u64| {
        let request = LikeRequest { user_id: id(10_000 + n), post_id: liked };
        Client::new(bench.channel(n)).like(request).await.unwrap();
    };
    bench.measure("Like of one post", "likes", like).await;
}
