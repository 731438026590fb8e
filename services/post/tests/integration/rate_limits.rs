//! Rate limits of an account's posts and comments.

use std::time::Duration;

use microblog_domain::RequestId;
use microblog_post::{Content, Published};
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{Topology, redis};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{System, assert_rejected, id, request_id, user};

const MINUTE: Duration = Duration::from_secs(60);

/// Far from now, in microseconds since the epoch of stamps.
const FAR_AHEAD: u64 = 1 << 50;
const LONG_AGO: u64 = 1;

/// The limited operation.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Posts,
    Comments,
}

impl Operation {
    fn flag(self, limit: u32) -> String {
        match self {
            Self::Posts => format!("--posts-per-minute={limit}"),
            Self::Comments => format!("--comments-per-minute={limit}"),
        }
    }

    fn reason(self) -> ErrorReason {
        match self {
            Self::Posts => ErrorReason::PostsThrottled,
            Self::Comments => ErrorReason::CommentsThrottled,
        }
    }

    fn key(self, author: u64) -> String {
        let kind = match self {
            Self::Posts => "post_rate",
            Self::Comments => "comment_rate",
        };
        format!("post:{{{}}}:{kind}:{}", user(author).partition(), id(author))
    }
}

/// A service with a limit, and a post to comment on.
struct Limited {
    system: System,
    operation: Operation,
    post: u64,
}

impl Limited {
    async fn start(operation: Operation, limit: u32) -> Self {
        let system = System::start_with(Topology::Single, &[&operation.flag(limit)]).await;
        let post = system.create(id(99), "discuss").await.unwrap().id;
        Self { system, operation, post }
    }

    /// Posts or comments with an idempotency key.
    async fn write(&self, author: u64, request: &str) -> Result<u64, Status> {
        let (author_id, request_id, text) = (id(author), request.to_owned(), "hello".to_owned());
        let mut client = self.system.client.clone();
        match self.operation {
            Operation::Posts => {
                let request = pb::CreatePostRequest { author_id, request_id, text };
                Ok(client.create_post(request).await?.into_inner().post.unwrap().id)
            }
            Operation::Comments => {
                let (post_id, in_reply_to_id) = (self.post, 0);
                let request =
                    pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
                Ok(client.add_comment(request).await?.into_inner().comment.unwrap().id)
            }
        }
    }

    async fn write_new(&self, author: u64) -> Result<u64, Status> {
        self.write(author, &request_id()).await
    }

    /// Asserts how long an account has to wait, less the time that has passed.
    async fn waits(&self, author: u64, longest: Duration) {
        let status = self.write_new(author).await;
        let status = assert_rejected(status, Code::ResourceExhausted, self.operation.reason());
        let wait = status.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(wait > longest / 2 && wait <= longest, "{wait:?}");
    }

    /// Sets the theoretical arrival time of an account, relative to its current value.
    async fn set(&self, author: u64, change: impl Fn(u64) -> u64) {
        let mut admin = self.system.redis.nodes()[0].admin().await;
        let key = self.operation.key(author);
        let busy_until: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
        let set = redis::cmd("SET").arg(&key).arg(change(busy_until)).take();
        set.exec_async(&mut admin).await.unwrap();
    }
}

#[tokio::test]
async fn a_burst_of_the_whole_limit_is_followed_by_an_even_rate() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 5).await;
        let mut made = Vec::new();
        for _ in 0..5 {
            let request = request_id();
            made.push((limited.write(1, &request).await.unwrap(), request));
        }
        limited.waits(1, MINUTE / 5).await;
        limited.waits(1, MINUTE / 5).await;
        // Other accounts have their own limits, and a repeated request is not limited.
        limited.write_new(2).await.unwrap();
        for (id, request) in &made {
            assert_eq!(limited.write(1, request).await.unwrap(), *id, "{operation:?}");
        }
        // Simulates that time has passed.
        limited.set(1, |busy_until| busy_until - 12_000_000).await;
        limited.write_new(1).await.unwrap();
        limited.waits(1, MINUTE / 5).await;
        limited.set(1, |busy_until| busy_until - 24_000_000).await;
        limited.write_new(1).await.unwrap();
        limited.write_new(1).await.unwrap();
        limited.waits(1, MINUTE / 5).await;
    }
}

#[tokio::test]
async fn a_throttled_request_may_be_repeated_with_its_id() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 1).await;
        limited.write_new(1).await.unwrap();
        let request = request_id();
        for _ in 0..3 {
            let status = limited.write(1, &request).await;
            assert_rejected(status, Code::ResourceExhausted, operation.reason());
        }
        limited.set(1, |busy_until| busy_until - 60_000_000).await;
        let made = limited.write(1, &request).await.unwrap();
        assert_eq!(limited.write(1, &request).await.unwrap(), made);
    }
}

#[tokio::test]
async fn reposts_count_as_posts() {
    let limited = Limited::start(Operation::Posts, 2).await;
    let system = &limited.system;
    let post = limited.write_new(1).await.unwrap();
    system.repost(id(1), post).await.unwrap();
    let refusal = system.repost(id(1), post).await;
    assert_rejected(refusal, Code::ResourceExhausted, ErrorReason::PostsThrottled);
    assert_eq!(system.get(post, 0).await.unwrap().reposts, 1);
    // Comments have their own limit, and likes have none.
    system.comment(id(1), post, "hello", 0).await.unwrap();
    system.like(id(1), post).await.unwrap();
}

#[tokio::test]
async fn a_limit_that_does_not_divide_a_minute_is_exact() {
    const LIMIT: usize = 1_100;
    let flag = Operation::Posts.flag(1_100);
    let system = System::start_with(Topology::Single, &[&flag]).await;
    let content = Content { author: user(1), text: "hello".to_owned(), origin: None };
    let publish = |_| async {
        let request = RequestId::parse("request_id", &request_id()).unwrap();
        system.store.publish(&content, request).await.unwrap()
    };
    // Within a fraction of a second, in which some more units become free.
    let published = futures::future::join_all((0..2 * LIMIT).map(publish)).await;
    let made = published.iter().filter(|made| matches!(made, Published::New(_))).count();
    assert!((LIMIT..LIMIT + LIMIT / 4).contains(&made), "{made}");
}

#[tokio::test]
async fn a_clock_that_went_back_extends_no_wait_beyond_a_minute() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 5).await;
        limited.write_new(1).await.unwrap();
        limited.set(1, |_| FAR_AHEAD).await;
        limited.waits(1, MINUTE / 5).await;
    }
}

#[tokio::test]
async fn inactivity_does_not_increase_the_burst() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 3).await;
        limited.write_new(1).await.unwrap();
        limited.set(1, |_| LONG_AGO).await;
        for _ in 0..3 {
            limited.write_new(1).await.unwrap();
        }
        limited.waits(1, MINUTE / 3).await;
    }
}

#[tokio::test]
async fn rate_limit_keys_expire_after_a_minute() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 5).await;
        limited.write_new(1).await.unwrap();
        let mut admin = limited.system.redis.nodes()[0].admin().await;
        let pttl = redis::cmd("PTTL").arg(operation.key(1)).take();
        let left: i64 = pttl.query_async(&mut admin).await.unwrap();
        assert!((50_000..=60_000).contains(&left), "{left} ms");
    }
}

#[tokio::test]
async fn without_a_limit_no_key_is_stored() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 0).await;
        for _ in 0..70 {
            limited.write_new(1).await.unwrap();
        }
        let mut admin = limited.system.redis.nodes()[0].admin().await;
        let exists = redis::cmd("EXISTS").arg(operation.key(1)).take();
        let exists: bool = exists.query_async(&mut admin).await.unwrap();
        assert!(!exists);
    }
}
