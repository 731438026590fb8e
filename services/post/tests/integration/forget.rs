//! Deleted accounts: their posts are deleted, with the counts of reposts, whatever crashes; new
//! posts and comments are rejected.

use std::time::Duration;

use microblog_domain::RequestId;
use microblog_post::{
    CommentAdmission, Content, Delivery, Eraser, Origin, Posts, Published, Sweeper, forget_marked,
};
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{self as testkit, Topology, redis};
use tonic::{Code, Status};

use crate::support::{
    self, System, assert_rejected, config, id, lists::List, request_id, timelines::Timelines, user,
};

/// Two and a half pages.
const MANY: usize = 450;

async fn forget(system: &System, user_id: u64) {
    let request = pb::ForgetUserRequest { user_id };
    system.client.clone().forget_user(request).await.unwrap();
}

async fn forget_now(system: &System) {
    let delivery = Delivery::new(system.store.clone(), None);
    let tiered = support::tiered(&system.store);
    let posts = Posts::new(tiered.clone(), delivery);
    forget_marked(&tiered, &posts).await.unwrap();
    while Eraser::new(tiered.clone(), Duration::ZERO).run_once().await.unwrap() {}
}

/// Waits until the service's jobs have deleted the posts of an account.
async fn posts_are_deleted(client: &support::Client, author_id: u64) {
    testkit::eventually("its posts are deleted", support::PATIENCE, async || {
        let request = pb::ListUserPostsRequest { author_id, ..Default::default() };
        let left = client.clone().list_user_posts(request).await;
        left.is_ok_and(|left| left.get_ref().posts.is_empty())
    })
    .await;
}

async fn posts_of(system: &System, author_id: u64) -> Vec<pb::Post> {
    let request = pb::ListUserPostsRequest { author_id, ..Default::default() };
    system.client.clone().list_user_posts(request).await.unwrap().into_inner().posts
}

async fn create(system: &System, author_id: u64, request: &str) -> Result<pb::Post, Status> {
    let (request_id, text) = (request.to_owned(), "hello".to_owned());
    let request = pb::CreatePostRequest { author_id, request_id, text };
    Ok(system.client.clone().create_post(request).await?.into_inner().post.unwrap())
}

#[track_caller]
fn is_no_account<T: std::fmt::Debug>(answer: Result<T, Status>) {
    assert_rejected(answer, Code::NotFound, ErrorReason::UserNotFound);
}

#[tokio::test]
async fn posts_of_a_deleted_account_are_deleted_and_new_ones_rejected() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let gone = id(1);
        let request = request_id();
        let own = create(&system, gone, &request).await.unwrap();
        let others = system.create(id(2), "stays").await.unwrap();
        let repost = system.repost(gone, others.id).await.unwrap();
        let by_way_of_it = system.repost(id(3), repost.id).await.unwrap();
        let of_own = system.repost(id(3), own.id).await.unwrap();
        let comment = system.comment(gone, others.id, "stays, too", 0).await.unwrap();
        system.like(gone, others.id).await.unwrap();
        assert_eq!(system.get(others.id, 0).await.unwrap().reposts, 2);

        forget(&system, gone).await;
        forget(&system, gone).await;
        posts_are_deleted(&system.client, gone).await;
        system.settles().await;
        for post in [own.id, repost.id] {
            assert_rejected(system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        }
        // Its likes and comments are erased after the grace period.
        assert_eq!(support::being_erased(&system.client).await, 1);
        let tiered = support::tiered(&system.store);
        let later = Eraser::new(tiered.clone(), Duration::from_secs(3_600));
        assert!(!later.run_once().await.unwrap(), "the grace period has not passed");
        assert_eq!(system.get(others.id, 0).await.unwrap().comments, 1);
        assert!(Eraser::new(tiered, Duration::ZERO).run_once().await.unwrap());
        assert_eq!(support::being_erased(&system.client).await, 0);
        let others = system.get(others.id, gone).await.unwrap();
        assert_eq!((others.reposts, others.comments, others.likes), (1, 0, 0));
        assert!(!others.liked);
        assert!(system.get(of_own.id, 0).await.unwrap().root_deleted);
        assert!(!system.get(by_way_of_it.id, 0).await.unwrap().root_deleted);

        is_no_account(system.create(gone, "I am back").await);
        is_no_account(system.repost(gone, others.id).await);
        is_no_account(system.comment(gone, others.id, "hello", 0).await);
        is_no_account(system.comment(gone, others.id, "hello", comment.id).await);
        let repeated = create(&system, gone, &request).await;
        assert_rejected(repeated, Code::NotFound, ErrorReason::PostNotFound);
        assert_eq!(system.get(others.id, 0).await.unwrap(), others);
        system.settles().await;
    }
}

#[tokio::test]
async fn an_account_without_posts_is_deleted_for_good() {
    let system = System::start_without_jobs(Topology::Single).await;
    for work in [&[user(1)][..], &[]] {
        forget(&system, id(1)).await;
        assert_eq!(system.store.forgetting().await.unwrap(), work);
        forget_now(&system).await;
        assert_eq!(system.store.forgetting().await.unwrap(), []);
        is_no_account(system.create(id(1), "I am back").await);
    }
    // An account of the same partition may still post.
    system.create(id(1) + 4096, "hello").await.unwrap();
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_admitted_comment_is_rejected_after_its_author_is_deleted() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(2), "discuss").await.unwrap();
    let request = request_id();
    let parsed = RequestId::parse("request_id", &request).unwrap();
    let on = support::post(post.id);
    let admitted = system.store.admit_comment(on, user(1), parsed).await.unwrap();
    assert_eq!(admitted, CommentAdmission::Admitted);
    // A crash here; the account is deleted before the caller repeats the request.
    forget(&system, id(1)).await;
    let request = pb::AddCommentRequest {
        author_id: id(1),
        request_id: request,
        post_id: post.id,
        text: "hello".to_owned(),
        in_reply_to_id: 0,
    };
    is_no_account(system.client.clone().add_comment(request).await);
    assert_eq!(system.get(post.id, 0).await.unwrap().comments, 0);
}

#[tokio::test]
async fn an_account_stays_marked_until_its_last_post_is_deleted() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "hello").await.unwrap();
    forget(&system, id(1)).await;
    assert!(!system.store.finish_forgetting(user(1)).await.unwrap());
    assert_eq!(system.store.forgetting().await.unwrap(), [user(1)]);
    assert_eq!(support::being_erased(&system.client).await, 1);

    system.delete(id(1), post.id).await.unwrap();
    assert!(system.store.finish_forgetting(user(1)).await.unwrap());
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    let authors = format!("post:{{{}}}:authors", user(1).partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    let left: bool = redis::cmd("EXISTS").arg(authors).query_async(&mut admin).await.unwrap();
    assert!(!left, "the account is not an author any more");
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_dangling_list_entry_does_not_block_the_deletion_of_an_account() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "hello").await.unwrap();
    let list = format!("post:{{{}}}:posts:{}", user(1).partition(), id(1));
    let mut admin = system.redis.nodes()[0].admin().await;
    let damage = redis::cmd("ZADD").arg(list).arg(post.id - 4096).arg(post.id - 4096).take();
    damage.exec_async(&mut admin).await.unwrap();
    forget(&system, id(1)).await;
    forget_now(&system).await;
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_malformed_post_of_a_deleted_account_is_deleted() {
    let system = System::start_without_jobs(Topology::Single).await;
    let post = system.create(id(1), "hello").await.unwrap();
    system.like(id(2), post.id).await.unwrap();
    let partition = user(1).partition();
    let key = |kind: &str| format!("post:{{{partition}}}:{kind}:{}", post.id);
    let mut admin = system.redis.nodes()[0].admin().await;
    let damage = redis::cmd("HSET").arg(key("post")).arg("b").arg("rubbish").take();
    damage.exec_async(&mut admin).await.unwrap();
    forget(&system, id(1)).await;
    forget_now(&system).await;
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    let left = redis::cmd("EXISTS").arg(&[key("post"), key("likes")]).take();
    assert_eq!(left.query_async::<u64>(&mut admin).await.unwrap(), 0);
    assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
}

#[tokio::test]
async fn many_posts_are_deleted_after_the_first_attempt_stopped() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        let root = system.create(id(2), "root").await.unwrap();
        let of_root = Origin { root: support::post(root.id), reposted: support::post(root.id) };
        let contents: Vec<_> = (0..MANY)
            .map(|n| Content {
                author: user(1),
                text: "hello".to_owned(),
                // Every third one.
                origin: (n % 3 == 0).then_some(of_root),
            })
            .collect();
        let store = &system.store;
        let publish = |content| async move {
            let request = RequestId::parse("request_id", &request_id()).unwrap();
            match store.publish(content, request).await.unwrap() {
                Published::New(id) => id,
                other => panic!("{other:?}"),
            }
        };
        let made = futures::future::join_all(contents.iter().map(publish)).await;
        forget(&system, id(1)).await;
        // Deleted without notifying the targets: the newest and the oldest half page.
        for n in (0..100).chain(MANY - 100..MANY) {
            system.store.delete(&support::deletion(made[n], &contents[n])).await.unwrap().unwrap();
        }

        forget_now(&system).await;
        assert_eq!(posts_of(&system, id(1)).await, []);
        assert_eq!(system.store.forgetting().await.unwrap(), []);
        let delivery = Delivery::new(system.store.clone(), None);
        let mut sweeper = Sweeper::new(support::tiered(&system.store), delivery);
        sweeper.notify_targets(Duration::ZERO).await.unwrap();
        assert_eq!(system.get(root.id, 0).await.unwrap().reposts, 0);
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn deletion_of_an_account_resumes_after_a_crash() {
    let redis = testkit::Store::start(Topology::Single).await;
    let program = env!("CARGO_BIN_EXE_microblog-post");
    let url = redis.url("post");
    let timelines = Timelines::default().listen(&config(&url, &[]));
    let args = ["--redis-url", &url, "--timeline-url", &timelines, "--posts-per-minute=0"];
    let process = testkit::Process::start(program, &args).await;
    let client = support::client(&process.address());
    let create = |_| {
        let (author_id, request_id, text) = (id(1), request_id(), "hello".to_owned());
        let mut client = client.clone();
        let request = pb::CreatePostRequest { author_id, request_id, text };
        async move { client.create_post(request).await }
    };
    futures::future::try_join_all((0..MANY).map(create)).await.unwrap();
    client.clone().forget_user(pb::ForgetUserRequest { user_id: id(1) }).await.unwrap();
    process.kill9();

    let process = testkit::Process::start(program, &args).await;
    let client = support::client(&process.address());
    posts_are_deleted(&client, id(1)).await;
    support::settles(&client).await;
}

/// More posts of one author than are read of each at once; likewise comments on one of them.
const POSTS: usize = 230;
const COMMENTS: u64 = 1_100;

#[tokio::test]
async fn likes_and_comments_are_erased_by_a_repeatedly_killed_eraser() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_without_jobs(topology).await;
        let gone = [id(1), id(2)];
        let [author, other, fan] = [id(3), id(4), id(5)];
        let mut posts = Vec::new();
        for n in 0..POSTS {
            posts.push(system.create(author, &format!("{n}")).await.unwrap().id);
        }
        posts.push(system.create(other, "another one").await.unwrap().id);
        for (n, &post) in posts.iter().enumerate() {
            for &account in gone.iter().skip(n % 2) {
                system.like(account, post).await.unwrap();
            }
            if n % 3 == 0 {
                system.like(fan, post).await.unwrap();
            }
        }
        let long = posts[0];
        let comment = |n: u64| {
            let by = [gone[0], fan, gone[1], fan, fan][(n % 5) as usize];
            let system = &system;
            async move { system.comment(by, long, "secret", 0).await.unwrap().id }
        };
        let comments = futures::future::join_all((0..COMMENTS).map(comment)).await;
        let answer = system.comment(fan, long, "stays", comments[0]).await.unwrap();
        let alone = system.comment(gone[0], posts[POSTS], "secret", 0).await.unwrap();
        for account in gone {
            forget(&system, account).await;
        }

        let (tiered, mut cut_off) = (support::tiered(&system.store), 0);
        for milliseconds in (1..).map(|n: u64| n * n) {
            // Each stands for another process, without state.
            let eraser = Eraser::new(tiered.clone(), Duration::ZERO);
            match tokio::time::timeout(Duration::from_millis(milliseconds), eraser.run_once()).await
            {
                Ok(done) => {
                    assert!(done.unwrap());
                    break;
                }
                Err(_) => cut_off += 1,
            }
            let left = support::being_erased(&system.client).await;
            if left == 0 {
                // It was cut off after its last step, or before it deleted the run.
                Eraser::new(tiered.clone(), Duration::ZERO).run_once().await.unwrap();
                break;
            }
            // It may be cut off between the ends of the two.
            assert!((1..=2).contains(&left));
        }
        assert!(cut_off > 3, "it was cut off {cut_off} times");
        assert_eq!(system.store.forgetting().await.unwrap(), []);
        for (n, &post) in posts.iter().enumerate() {
            let found = system.get(post, gone[1]).await.unwrap();
            assert_eq!((found.likes, found.liked), (u64::from(n % 3 == 0), false), "{n}");
        }
        let left = List::oldest(long).whole(&system.client, 200).await;
        assert_eq!(left.len() as u64, COMMENTS * 3 / 5 + 1);
        assert_eq!(system.get(long, 0).await.unwrap().comments, left.len() as u64);
        assert_eq!(answer.in_reply_to_id, comments[0]);
        assert_eq!(left.last(), Some(&answer.id), "a reply to a deleted comment");
        assert_eq!(system.get(alone.post_id, 0).await.unwrap().comments, 0);
        assert!(!Eraser::new(tiered, Duration::ZERO).run_once().await.unwrap());
        assert_eq!(support::violations(&system.client).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn erasure_works_at_the_memory_limit() {
    let system = System::start_without_jobs(Topology::Single).await;
    let [gone, author] = [id(1), id(2)];
    let own = system.create(gone, "goes").await.unwrap();
    let post = system.create(author, "stays").await.unwrap();
    system.like(gone, post.id).await.unwrap();
    system.comment(gone, post.id, "secret", 0).await.unwrap();

    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg(1);
    limit.exec_async(&mut system.redis.nodes()[0].admin().await).await.unwrap();
    let refusal = system.create(author, "no room").await;
    assert_rejected(refusal, Code::ResourceExhausted, ErrorReason::StoreFull);

    forget(&system, gone).await;
    forget_now(&system).await;
    assert_eq!(support::being_erased(&system.client).await, 0);
    assert_rejected(system.get(own.id, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    let left = system.get(post.id, gone).await.unwrap();
    assert_eq!((left.comments, left.likes, left.liked), (0, 0, false));
}
