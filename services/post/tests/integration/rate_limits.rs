//! Rate limits of an account's posts and comments.

use std::time::Duration;

use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::Topology;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{System, assert_rejected, id, request_id};

const MINUTE: Duration = Duration::from_secs(60);

/// Far from now, in Unix µs.
const FAR_AHEAD: &str = "9000000000000000";
const LONG_AGO: &str = "1";

/// The limited operation.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Posts,
    Comments,
}

impl Operation {
    fn flags(self, limit: u32) -> [String; 2] {
        match self {
            Self::Posts => ["--posts-per-minute".to_owned(), limit.to_string()],
            Self::Comments => ["--comments-per-minute".to_owned(), limit.to_string()],
        }
    }

    fn reason(self) -> ErrorReason {
        match self {
            Self::Posts => ErrorReason::PostsThrottled,
            Self::Comments => ErrorReason::CommentsThrottled,
        }
    }

    fn column(self) -> &'static str {
        match self {
            Self::Posts => "post_rate",
            Self::Comments => "comment_rate",
        }
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
        let flags = operation.flags(limit);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let system = System::start_with(Topology::Single, &flags).await;
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

    /// Sets the theoretical arrival time of an account by an expression.
    async fn set(&self, author: u64, value: &str) {
        let (column, account) = (self.operation.column(), id(author));
        let set = format!("UPDATE accounts SET {column} = {value} WHERE id = {account}");
        self.system.execute(&set.replace("now", column)).await;
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
        limited.set(1, "now - 12000000").await;
        limited.write_new(1).await.unwrap();
        limited.waits(1, MINUTE / 5).await;
        limited.set(1, "now - 24000000").await;
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
        limited.set(1, "now - 60000000").await;
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
async fn a_clock_that_went_back_extends_no_wait_beyond_a_minute() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 5).await;
        limited.write_new(1).await.unwrap();
        limited.set(1, FAR_AHEAD).await;
        limited.waits(1, MINUTE / 5).await;
    }
}

#[tokio::test]
async fn inactivity_does_not_increase_the_burst() {
    for operation in [Operation::Posts, Operation::Comments] {
        let limited = Limited::start(operation, 3).await;
        limited.write_new(1).await.unwrap();
        limited.set(1, LONG_AGO).await;
        for _ in 0..3 {
            limited.write_new(1).await.unwrap();
        }
        limited.waits(1, MINUTE / 3).await;
    }
}

#[tokio::test]
async fn the_limit_holds_over_all_processes() {
    for topology in [Topology::Single, Topology::Cluster] {
        let flags = ["--posts-per-minute", "10"];
        let system = System::start_with(topology, &flags).await;
        let other = system.another(&flags).await;
        let publish = |n: usize| {
            let mut client =
                if n.is_multiple_of(2) { system.client.clone() } else { other.clone() };
            async move {
                let (request_id, text) = (request_id(), "hello".to_owned());
                client
                    .create_post(pb::CreatePostRequest { author_id: id(1), request_id, text })
                    .await
            }
        };
        let made = futures::future::join_all((0..40).map(publish)).await;
        // Within a fraction of a minute, in which another one may become free.
        let made = made.iter().filter(|made| made.is_ok()).count();
        assert!((10..=12).contains(&made), "{made}");
    }
}
