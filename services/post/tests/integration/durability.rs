//! Durability levels: an acknowledged change is where its level states, and a change that is not
//! there is not acknowledged, nor is a repeated call that relies on it.

use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{RedisServer, Store, Topology, eventually};
use tonic::{Code, Status};

use crate::{
    aging::{self, Aging},
    support::{
        PATIENCE, System, WITHOUT_JOBS,
        archives::{ArchiveServer, Kind},
        assert_rejected, id, request_id,
    },
};

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

const RECORDED: &str = "--durability=recorded";
const REPLICATED: &str = "--durability=replicated";

/// Starts a service with a filled database.
async fn recorded(archives: &ArchiveServer, topology: Topology) -> Aging {
    Aging::start_in(topology, archives, 10, &[RECORDED]).await
}

#[tokio::test]
async fn recorded_changes_are_in_the_database_when_they_are_acknowledged() {
    for (kind, topology) in [(Kind::Sqlite, Topology::Cluster), (Kind::Postgres, Topology::Single)]
    {
        let archives = ArchiveServer::start(kind).await;
        let aging = recorded(&archives, topology).await;
        let system = &aging.system;
        let count = async |query: &str, expected: i64| {
            let query = format!("SELECT COUNT(*) FROM {query}");
            assert_eq!(aging.count(&query).await, expected, "{query}");
        };
        let post = system.create(AUTHOR, "post").await.unwrap().id;
        count("posts", 1).await;
        let repost = system.repost(OTHER, post).await.unwrap().id;
        count("posts", 2).await;
        count("posts WHERE reposts = 1", 1).await;
        system.like(FAN, post).await.unwrap();
        count("likes WHERE ended = 0", 1).await;
        system.unlike(FAN, post).await.unwrap();
        count("likes WHERE ended = 0", 0).await;
        let comment = system.comment(FAN, post, "comment", 0).await.unwrap().id;
        count("comments WHERE deleted = 0", 1).await;
        system.uncomment(FAN, post, comment).await.unwrap();
        count("comments WHERE deleted = 0", 0).await;
        system.delete(OTHER, repost).await.unwrap();
        count("posts WHERE deleted = 0", 1).await;
        count("posts WHERE reposts = 1", 0).await;
        let request = pb::ForgetUserRequest { user_id: OTHER };
        system.client.clone().forget_user(request).await.unwrap();
        count("deleted_accounts", 1).await;
    }
}

/// A call of each kind, which may be repeated.
struct Calls<'a> {
    system: &'a System,
    request_id: String,
    /// One of the author, liked by OTHER and with a comment of FAN.
    post: u64,
    comment: u64,
    /// Another one, to be deleted.
    doomed: u64,
}

impl<'a> Calls<'a> {
    async fn prepare(system: &'a System) -> Self {
        let post = system.create(AUTHOR, "post").await.unwrap().id;
        let doomed = system.create(AUTHOR, "doomed").await.unwrap().id;
        system.like(OTHER, post).await.unwrap();
        let comment = system.comment(FAN, post, "comment", 0).await.unwrap().id;
        Self { system, request_id: request_id(), post, comment, doomed }
    }

    /// Makes all calls, and returns their results.
    async fn make(&self) -> Vec<(&'static str, Result<(), Status>)> {
        let &Self { system, post, comment, doomed, .. } = self;
        let request_id = || self.request_id.clone();
        let mut client = system.client.clone();
        let text = || "text".to_owned();
        let create =
            pb::CreatePostRequest { author_id: AUTHOR, request_id: request_id(), text: text() };
        let repost = pb::RepostRequest {
            author_id: OTHER,
            request_id: request_id(),
            post_id: post,
            text: text(),
        };
        let add = pb::AddCommentRequest {
            author_id: OTHER,
            request_id: request_id(),
            post_id: post,
            text: text(),
            ..Default::default()
        };
        vec![
            ("create", client.create_post(create).await.map(|_| ())),
            ("repost", client.repost(repost).await.map(|_| ())),
            ("comment", client.add_comment(add).await.map(|_| ())),
            ("like", system.like(FAN, post).await.map(|_| ())),
            ("unlike", system.unlike(OTHER, post).await.map(|_| ())),
            ("uncomment", system.uncomment(FAN, post, comment).await),
            ("delete", system.delete(AUTHOR, doomed).await),
        ]
    }

    /// Asserts that no call is acknowledged, the first time and again: its effect is there by then.
    async fn assert_not_durable(&self, reason: ErrorReason) {
        for attempt in 1..=2 {
            for (call, result) in self.make().await {
                println!("{call}, attempt {attempt}");
                assert_rejected(result, Code::Unavailable, reason);
            }
        }
    }

    /// Repeats the calls until all are acknowledged.
    async fn become_durable(&self) {
        eventually("all calls are acknowledged", PATIENCE, async || {
            self.make().await.iter().all(|(_, result)| result.is_ok())
        })
        .await;
    }
}

#[tokio::test]
async fn no_change_is_acknowledged_while_the_database_is_away() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = recorded(&archives, Topology::Single).await;
    let calls = Calls::prepare(&aging.system).await;
    archives.postgres().kill();
    calls.assert_not_durable(ErrorReason::NotRecorded).await;
    archives.postgres().restart().await;
    calls.become_durable().await;
    for (query, expected) in [
        ("SELECT COUNT(*) FROM posts WHERE deleted = 0", 3),
        ("SELECT COUNT(*) FROM comments WHERE deleted = 0", 1),
        ("SELECT COUNT(*) FROM likes WHERE ended = 0", 1),
        ("SELECT member FROM likes WHERE ended = 0", FAN.cast_signed()),
        ("SELECT reposts FROM posts WHERE reposts > 0", 1),
    ] {
        assert_eq!(aging.count(query).await, expected, "{query}");
    }
    aging.is_sound().await;
}

#[tokio::test]
async fn no_change_is_acknowledged_before_a_replica_has_it() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let url = archives.url();
    let primary = RedisServer::start().await;
    let replica = primary.start_replica().await;
    let flags = aging::flags(&url, 10);
    let flags: Vec<_> = flags.iter().map(String::as_str).chain([REPLICATED]).collect();
    let system = System::start_on(Store::Single(primary), WITHOUT_JOBS, &flags).await;
    let aging = Aging::on(system, &url, 10).await;
    let calls = Calls::prepare(&aging.system).await;
    replica.pause();
    calls.assert_not_durable(ErrorReason::NotReplicated).await;
    replica.resume();
    calls.become_durable().await;
    aging.is_sound().await;
}
