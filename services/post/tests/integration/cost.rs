//! The cost of calls, in commands and round trips: independent of the number of likes.

use futures::future::join_all;
use microblog_proto::post as pb;
use microblog_testkit::{
    self as testkit, Cost, CostMeter, Topology,
    redis::{self, cmd},
};

use crate::support::{self, PATIENCE, System, WITHOUT_JOBS, id, lists::List, request_id};

/// Starts the service without its jobs, whose commands would be counted. The size of the
/// client-side cache is a parameter: with none, every read shows.
async fn start(cache_bytes: usize) -> System {
    let flags = ["--redis-cache-bytes", &cache_bytes.to_string()];
    System::start_as(WITHOUT_JOBS, Topology::Single, &flags).await
}

/// Publishes a post with so many likes, which are written directly.
async fn liked_post(system: &System, author: u64, likes: u64) -> u64 {
    const CHUNK: u64 = 10_000;
    let post = system.create(author, "like me").await.unwrap().id;
    let partition = support::post(post).partition();
    let key = |kind: &str| format!("post:{{{partition}}}:{kind}:{post}");
    let mut admin = system.redis.nodes()[0].admin().await;
    for from in (0..likes).step_by(CHUNK as usize) {
        let mut add = redis::cmd("ZADD");
        add.arg(key("likes"));
        for n in from..likes.min(from + CHUNK) {
            add.arg(post + n * 4096).arg(id(1_000 + n));
        }
        add.exec_async(&mut admin).await.unwrap();
    }
    cmd("HSET").arg(key("post")).arg("l").arg(likes).exec_async(&mut admin).await.unwrap();
    post
}

#[tokio::test]
async fn the_cost_does_not_grow_with_the_number_of_likes() {
    let system = start(0).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    for likes in [10, 1_000_000] {
        let post = liked_post(&system, id(1), likes).await;
        assert_eq!(system.get(post, 0).await.unwrap().likes, likes);
        let fan = |n| id(5_000_000 + n);

        let like = meter
            .cost(async |n| assert!(system.like(fan(n), post).await.unwrap() <= likes + 20))
            .await;
        let commands = [
            ("exists", 1),
            ("fcall", 1),
            ("hdel", 1),
            ("hincrby", 1),
            ("time", 1),
            ("xrevrange", 1),
            ("zadd", 1),
            ("zscore", 1),
        ];
        assert_eq!(like, Cost::new(1, &commands), "a like");
        let again = meter
            .cost(async |n| assert!(system.like(fan(n), post).await.unwrap() <= likes + 20))
            .await;
        let commands = [("exists", 1), ("fcall", 1), ("hget", 1), ("zscore", 1)];
        assert_eq!(again, Cost::new(1, &commands), "a repeated like");
        let unlike =
            meter.cost(async |n| assert!(system.unlike(fan(n), post).await.unwrap() <= likes + 20));
        let commands = [
            ("exists", 1),
            ("fcall", 1),
            ("hdel", 1),
            ("hincrby", 1),
            ("time", 1),
            ("xrevrange", 1),
            ("zrem", 1),
            ("zscore", 1),
        ];
        assert_eq!(unlike.await, Cost::new(1, &commands), "its end");

        let liked = pb::BatchGetLikedRequest { user_id: id(1_000), post_ids: vec![post] };
        let liked = meter.cost(async |_| {
            let found = system.client.clone().batch_get_liked(liked.clone()).await.unwrap();
            assert_eq!(found.into_inner().post_ids, [post]);
        });
        assert_eq!(
            liked.await,
            Cost::new(1, &[("get", 1), ("zscore", 1)]),
            "whether a viewer likes it"
        );
        let get = meter.cost(async |_| drop(system.get(post, 0).await.unwrap()));
        assert_eq!(get.await, Cost::new(1, &[("hmget", 1)]), "the post with its counts");
        let get = meter.cost(async |_| drop(system.get(post, id(1_000)).await.unwrap()));
        let commands = [("get", 1), ("hmget", 1), ("zscore", 1)];
        assert_eq!(get.await, Cost::new(2, &commands), "with a viewer, of a post with likes");

        let list = List::Likers(post);
        let mut token = String::new();
        for which in ["the first page", "a later page"] {
            let mut next = String::new();
            let page = meter.cost(async |_| {
                let (page, after) = list.page(&system.client, 4, &token).await.unwrap();
                assert_eq!(page.len(), 4);
                next = after;
            });
            assert_eq!(page.await, Cost::new(1, &[("zrange", 1)]), "{which} of {likes} likes");
            token = next;
        }

        let delete = meter.cost_once(async || system.delete(id(1), post).await.unwrap());
        let commands = [
            ("exists", 1),
            ("fcall", 1),
            ("get", 1),
            ("hmget", 1),
            ("set", 1),
            ("time", 1),
            ("unlink", 1),
            ("xrevrange", 1),
            ("zrem", 3),
        ];
        assert_eq!(delete.await, Cost::new(2, &commands), "the end of a post that {likes} like");
    }
}

#[tokio::test]
async fn a_batch_is_one_round_trip_and_another_one_for_roots() {
    let system = start(0).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let roots = join_all((0..50).map(|n| system.create(id(100 + n), "root"))).await;
    let roots: Vec<_> = roots.into_iter().map(|post| post.unwrap().id).collect();
    let reposts = roots.iter().zip(200..).map(|(&root, n)| system.repost(id(n), root));
    let reposts: Vec<_> =
        join_all(reposts).await.into_iter().map(|post| post.unwrap().id).collect();
    let both = [&reposts[..25], &roots[..25]].concat();
    for (post_ids, viewer_id, expected) in [
        (&roots, 0, Cost::new(1, &[("hmget", 50)])),
        // The viewer likes no post without likes.
        (&roots, id(1), Cost::new(1, &[("hmget", 50)])),
        (&reposts, id(1), Cost::new(2, &[("hmget", 100)])),
        (&both, id(1), Cost::new(1, &[("hmget", 50)])),
    ] {
        let request = pb::BatchGetPostsRequest {
            post_ids: post_ids.clone(),
            viewer_id,
            ..Default::default()
        };
        let batch = meter.cost(async |_| {
            let found = system.client.clone().batch_get_posts(request.clone()).await.unwrap();
            assert_eq!(found.into_inner().posts.len(), 50);
        });
        assert_eq!(batch.await, expected);
    }
}

#[tokio::test]
async fn a_batch_of_comments_is_one_round_trip_and_two_more_if_some_are_missing() {
    let system = start(0).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let posts = join_all((0..20).map(|n| system.create(id(100 + n), "discuss"))).await;
    let posts: Vec<_> = posts.into_iter().map(|post| post.unwrap().id).collect();
    let mut keys = Vec::new();
    for &post in &posts {
        for n in 0..5 {
            keys.push((post, system.comment(id(200 + n), post, "well", 0).await.unwrap().id));
        }
    }
    let missing = [&keys[..], &[(posts[0], id(1)), (posts[1], id(2))]].concat();
    for (keys, expected) in [
        (&keys[..1], Cost::new(1, &[("hmget", 1)])),
        // A command for the comments on each post.
        (&keys, Cost::new(1, &[("hmget", 20)])),
        // Their posts might be in the archive.
        (&missing, Cost::new(3, &[("exists", 2), ("hmget", 24)])),
    ] {
        let batch = meter.cost(async |_| {
            let found = system.batch_comments(keys, true).await.unwrap();
            assert_eq!(found.comments.len(), keys.len().min(100));
        });
        assert_eq!(batch.await, expected);
    }
    let request = pb::GetCommentRequest { post_id: keys[0].0, comment_id: keys[0].1 };
    let get =
        meter.cost(async |_| drop(system.client.clone().get_comment(request).await.unwrap())).await;
    assert_eq!(get, Cost::new(1, &[("hmget", 1)]));
}

#[tokio::test]
async fn a_cached_read_costs_a_round_trip_and_a_ping() {
    let system = start(1 << 20).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let posts = join_all((0..20).map(|n| system.create(id(100 + n), "one of many"))).await;
    let post_ids: Vec<_> = posts.into_iter().map(|post| post.unwrap().id).collect();
    let request =
        pb::BatchGetPostsRequest { post_ids: post_ids.clone(), viewer_id: 0, ..Default::default() };
    let mut batch = async || {
        let request = request.clone();
        let batch = async |_| {
            let found = system.client.clone().batch_get_posts(request.clone()).await.unwrap();
            assert_eq!(found.into_inner().posts.len(), 20);
        };
        meter.cost(batch).await
    };
    // The tracked connection is opened on first use. The PING is the barrier of the read.
    let barrier = Cost::new(1, &[("ping", 1)]);
    testkit::eventually("all is cached", PATIENCE, async || batch().await == barrier).await;
    system.like(id(1), post_ids[3]).await.unwrap();
    let request = pb::BatchGetPostsRequest { post_ids, viewer_id: 0, ..Default::default() };
    let found = system.client.clone().batch_get_posts(request).await.unwrap().into_inner().posts;
    assert_eq!(found.iter().map(|post| post.likes).sum::<u64>(), 1);
}

#[tokio::test]
async fn a_page_of_posts_is_two_round_trips_however_many_there_are() {
    let system = start(0).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    for (author, posts) in [(id(1), 25), (id(2), 1_000)] {
        join_all((0..posts).map(|_| system.create(author, "one of many"))).await;
        let list = List::UserPosts(author);
        let page = meter.cost(async |_| {
            assert_eq!(list.page(&system.client, 20, "").await.unwrap().0.len(), 20);
        });
        assert_eq!(page.await, Cost::new(2, &[("hmget", 20), ("zrange", 1)]));
    }
}

#[tokio::test]
async fn writes_cost_the_sum_of_their_steps() {
    let system = start(0).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let create = meter.cost(async |_| drop(system.create(id(1), "a post").await.unwrap()));
    let made = [("get", 2), ("hset", 1), ("sadd", 1), ("set", 2), ("sismember", 1)];
    let both = [
        ("expire", 1),
        ("fcall", 2),
        ("time", 2),
        ("xrevrange", 1),
        ("zadd", 3),
        ("zrange", 1),
        ("zrem", 1),
    ];
    assert_eq!(create.await, Cost::new(2, &[&made[..], &both].concat()), "made, and delivered");

    let post = system.create(id(1), "discuss").await.unwrap().id;
    let comment = meter.cost(async |_| drop(system.comment(id(2), post, "well", 0).await.unwrap()));
    let made = comment.await;
    assert_eq!((made.round_trips, made.commands["fcall"]), (2, 2), "let through, and made");
    let answered = system.comment(id(2), post, "well", 0).await.unwrap().id;
    let answer = meter
        .cost(async |_| drop(system.comment(id(3), post, "answer", answered).await.unwrap()))
        .await;
    assert_eq!(answer.round_trips, 3, "what it answers is read between");

    // A repeated request makes nothing: one read finds its idempotency key.
    let request =
        pb::CreatePostRequest { author_id: id(1), request_id: request_id(), text: "once".into() };
    let repeated =
        async |_| drop(system.client.clone().create_post(request.clone()).await.unwrap());
    repeated(0).await;
    let commands = [("fcall", 1), ("get", 1), ("hmget", 1), ("zscore", 1)];
    assert_eq!(meter.cost(repeated).await, Cost::new(2, &commands), "a repeated post");
}
