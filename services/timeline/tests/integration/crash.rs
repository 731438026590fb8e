//! Processes killed during fan-out: each acknowledged post reaches each active follower.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, future::join, stream};
use microblog_testkit::{self as testkit, Process, Topology::Single};
use microblog_timeline::Store;

use crate::support::{
    PATIENCE, client, config, delivery, id,
    pages::{Timeline, deliver_all, until_answered},
    post_id,
    posts::start_posts,
    queue::{depth, jobs, stored},
    relations::{Relation, import},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog-timeline");

const AUTHOR: u64 = 1;
const FOLLOWERS: u64 = 100_000;
/// Every fiftieth follower is active.
const ACTIVE: usize = 50;
const KILLS: usize = 5;

/// From the last kill until all posts have arrived.
const ARRIVAL_MAX: Duration = Duration::from_secs(120);

fn followers() -> impl Iterator<Item = u64> {
    (0..FOLLOWERS).map(|n| id(1_000 + n))
}

/// Reads the home timelines of users, which creates their caches.
async fn make_active(address: &str, users: impl Iterator<Item = u64>) {
    let client = client(address);
    let client = &client;
    let read = |user| async move {
        until_answered(async || Timeline::Home.page(client, user, 1, "", "").await).await
    };
    let pages = stream::iter(users.map(read)).buffer_unordered(16);
    pages.for_each(async |(entries, ..)| assert!(entries.is_empty())).await;
}

/// Posts until `is_over`; repeats each call until it is acknowledged.
async fn posts(address: &str, is_over: &AtomicBool, posts: &Mutex<Vec<u64>>) {
    let client = client(address);
    while !is_over.load(Ordering::Relaxed) {
        let post = delivery(post_id(id(AUTHOR)), id(AUTHOR), 0);
        deliver_all(&client, &[post]).await;
        posts.lock().unwrap().push(post.post_id);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

#[tokio::test]
async fn repeated_crashes_lose_no_post() {
    let redis = testkit::Store::start(Single).await;
    let relation = Relation::start(redis.url("relation")).await;
    let url = redis.url("timeline");
    let relation_url = relation.url();
    let post_url = start_posts(&redis).await;
    let services = ["--relation-url", &relation_url, "--post-url", &post_url];
    let args = [&["--redis-url", &url, "--pull-threshold", "1000000"], &services[..]].concat();
    let port = testkit::free_port();
    let start = || Process::start_on(port, PROGRAM, &args);
    let mut process = start().await;
    let address = process.address();
    let store = Store::open(&config(&url, &[]).redis).unwrap();
    make_active(&address, followers().step_by(ACTIVE)).await;
    import(&relation.client(), followers(), id(AUTHOR)).await;

    let (is_over, posted) = (AtomicBool::new(false), Mutex::<Vec<u64>>::default());
    let kills = async {
        for _ in 0..KILLS {
            // Without the steps that the last kill left pending, which are claimed later.
            let left = jobs(&redis.nodes()[0]).await;
            let posts = || posted.lock().unwrap().len();
            let enough = posts() + 1;
            testkit::eventually("a fan-out is half done", 2 * PATIENCE, async || {
                let jobs = jobs(&redis.nodes()[0]).await;
                let mut new = jobs.iter().filter(|job| !left.contains(job));
                posts() >= enough && new.any(|job| (1..FOLLOWERS).contains(&job.followers_done))
            })
            .await;
            process.kill9();
            process = start().await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    join(posts(&address, &is_over, &posted), kills).await;

    testkit::eventually("the streams are empty", ARRIVAL_MAX, async || depth(&redis).await == 0)
        .await;
    let posted = posted.into_inner().unwrap();
    for follower in followers().step_by(ACTIVE) {
        let stored = stored(&store, follower).await;
        assert_eq!(
            HashSet::<u64>::from_iter(stored),
            HashSet::from_iter(posted.clone()),
            "{follower}"
        );
    }
    let client = client(&address);
    let expected: Vec<_> = posted.iter().rev().copied().collect();
    for follower in followers().step_by(ACTIVE * 100) {
        assert_eq!(Timeline::Home.whole(&client, follower, 7, "").await, expected);
    }
}
