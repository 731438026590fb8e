//! Redis and the relation service killed, restarted and cut off under load. Each acknowledged post
//! reaches each active follower, and reads get responses meanwhile.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use microblog_proto::{common::ErrorReason, relation, timeline as pb};
use microblog_testkit::{self as testkit, Process, Topology::Single};
use microblog_timeline::Store;
use tonic::{Code, Request, Status};

use crate::support::{
    Client, PATIENCE, assert_rejected, client, config, delivery, id,
    pages::{DEADLINE, OVER, Timeline, UNKNOWN, deliver_all, is_newest_first, until_answered},
    post_id, posts,
    posts::start_posts,
    queue::{published, stored},
    relations::{Link, Proxy, Relation},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog-timeline");

const AUTHORS: std::ops::RangeInclusive<u64> = 1..=6;
const READERS: std::ops::Range<u64> = 100..116;

/// Posts per author; together fewer than the length of a home timeline.
const POSTS_EACH: usize = 130;

/// The delay between two posts of an author.
const PACE: Duration = Duration::from_millis(100);

/// From the end of an outage until all acknowledged posts have arrived.
const ARRIVAL_MAX: Duration = Duration::from_secs(120);

/// A timeline service process, with a relation service behind a proxy.
struct Deployed {
    redis: testkit::Store,
    relation: Relation,
    proxy: Proxy,
    process: Process,
    client: Client,
    store: Store,
}

impl Deployed {
    async fn start() -> Self {
        let redis = testkit::Store::start(Single).await;
        let relation = Relation::start(redis.url("relation")).await;
        let proxy = relation.proxy().await;
        let (url, relation_url) = (redis.url("timeline"), proxy.url());
        let post_url = start_posts(&redis).await;
        let services = ["--relation-url", &relation_url, "--post-url", &post_url];
        let args = [&["--redis-url", &url, "--threads", "1"], &services[..]].concat();
        let process = Process::start(PROGRAM, &args).await;
        let client = client(&process.address());
        let store = Store::open(&config(&url, &[]).redis).unwrap();
        Self { redis, relation, proxy, process, client, store }
    }
}

#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    posted: Mutex<BTreeSet<u64>>,
    followed: AtomicUsize,
    read: AtomicUsize,
    failed: AtomicUsize,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn posted(&self) -> usize {
        self.posted.lock().unwrap().len()
    }

    async fn goes_well(&self, posts: usize, reads: usize) {
        let read = || self.read.load(Ordering::Relaxed);
        let (enough_posted, enough_read) = (self.posted() + posts, read() + reads);
        testkit::eventually("calls succeed", PATIENCE, async || {
            self.posted() >= enough_posted && read() >= enough_read
        })
        .await;
    }

    async fn post(&self, client: &Client, author: u64) {
        for _ in 0..POSTS_EACH {
            if !self.goes_on() {
                return;
            }
            let post = delivery(post_id(author), author, 0);
            deliver_all(client, &[post]).await;
            self.posted.lock().unwrap().insert(post.post_id);
            tokio::time::sleep(PACE).await;
        }
    }

    async fn follow(&self, relation: &Relation, follower_id: u64, target_id: u64) {
        let relation = relation.client();
        until_answered(async || {
            let mut request = Request::new(relation::FollowRequest { follower_id, target_id });
            request.set_timeout(DEADLINE);
            relation.clone().follow(request).await
        })
        .await;
        self.followed.fetch_add(1, Ordering::Relaxed);
    }

    // Follows the authors one by one, with pauses.
    async fn follow_all(&self, relation: &Relation, follower: u64) {
        for author in AUTHORS.skip(2).map(id) {
            self.follow(relation, follower, author).await;
            tokio::time::sleep(5 * PACE).await;
        }
    }

    async fn read(&self, client: &Client, reader: u64) {
        while self.goes_on() {
            let began = Instant::now();
            let page = Timeline::Home.page(client, reader, 50, "", "").await;
            assert!(began.elapsed() < OVER, "outlived its deadline");
            match page {
                Ok((entries, ..)) => {
                    assert!(is_newest_first(&posts(&entries)));
                    self.read.fetch_add(1, Ordering::Relaxed);
                }
                Err(status) => {
                    assert!(UNKNOWN.contains(&status.code()), "{status:?}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes all readers follow the first two authors and read.
    async fn begin(&self, client: &Client, relation: &Relation) {
        for reader in READERS.map(id) {
            for author in AUTHORS.take(2).map(id) {
                self.follow(relation, reader, author).await;
            }
            until_answered(async || Timeline::Home.page(client, reader, 1, "", "").await).await;
        }
    }

    async fn run(&self, client: &Client, relation: &Relation) {
        let posts = join_all(AUTHORS.map(|author| self.post(client, id(author))));
        let reads = join_all(READERS.map(|reader| self.read(client, id(reader))));
        let follows = join_all(READERS.map(|reader| self.follow_all(relation, id(reader))));
        futures::join!(posts, reads, follows);
    }

    /// Asserts that all acknowledged posts arrive.
    async fn arrives(&self, client: &Client, store: &Store) {
        let posted = self.posted.lock().unwrap().clone();
        let recovered = Instant::now();
        for reader in READERS.map(id) {
            testkit::eventually("all is there", ARRIVAL_MAX, async || {
                stored(store, reader).await.into_iter().collect::<BTreeSet<_>>() == posted
            })
            .await;
            let all = Timeline::Home.whole(client, reader, 100, "").await;
            assert!(all.iter().eq(posted.iter().rev()));
        }
        assert!(recovered.elapsed() < ARRIVAL_MAX);
        for author in AUTHORS.map(id) {
            let is_own = |post: &&u64| (*post ^ author) & 0xffc == 0;
            let expected: Vec<_> = posted.iter().rev().filter(is_own).copied().collect();
            assert_eq!(Timeline::Home.whole(client, author, 200, "").await, expected);
            assert_eq!(published(store, author).await, expected);
        }
    }
}

#[tokio::test]
async fn a_redis_crash_under_load_loses_no_post() {
    let deployed = Deployed::start().await;
    let Deployed { redis, relation, process, client, store, .. } = &deployed;
    let load = Load::default();
    load.begin(client, relation).await;
    let kills = async {
        for _ in 0..2 {
            load.goes_well(50, 100).await;
            redis.nodes()[0].kill();
            let away = async || !process.is_serving().await;
            testkit::eventually("health notices", PATIENCE, away).await;
            redis.nodes()[0].restart().await;
            load.goes_well(50, 100).await;
            let back = async || process.is_serving().await;
            testkit::eventually("health recovers", PATIENCE, back).await;
        }
        load.is_over.store(true, Ordering::Relaxed);
    };
    join(load.run(client, relation), kills).await;
    assert!(load.failed.load(Ordering::Relaxed) > 0, "the kills met calls under way");
    load.arrives(client, store).await;
}

#[tokio::test]
async fn a_relation_service_crash_under_load_loses_no_post() {
    let mut deployed = Deployed::start().await;
    let (client, store) = (deployed.client.clone(), deployed.store.clone());
    let load = Load::default();
    load.begin(&client, &deployed.relation).await;
    for _ in 0..3 {
        let round = async {
            load.goes_well(50, 100).await;
            load.is_over.store(true, Ordering::Relaxed);
        };
        join(load.run(&client, &deployed.relation), round).await;
        load.is_over.store(false, Ordering::Relaxed);
        // Killed with steps pending; deliveries still succeed.
        let more = join_all(AUTHORS.map(|author| load.post_some(&client, id(author), 3)));
        let kill = async { deployed.relation.kill() };
        join(more, kill).await;
        join_all(AUTHORS.map(|author| load.post_some(&client, id(author), 3))).await;
        let read = Timeline::Home.page(&client, id(100), 50, "", "").await;
        assert_rejected(read, Code::Unavailable, ErrorReason::PeerUnavailable);
        assert!(deployed.process.is_serving().await, "its own store is there");
        deployed.relation.restart().await;
    }
    load.arrives(&client, &store).await;
}

impl Load {
    /// Returns a `since_token` of a reader who has seen all posts.
    async fn latest(&self, client: &Client, reader: u64) -> String {
        let mut since = String::new();
        testkit::eventually("everything is there", PATIENCE, async || {
            let page = Timeline::Home.page(client, reader, 200, "", "").await;
            let (entries, _, token) = page.unwrap();
            since = token;
            entries.first().map(|entry| entry.post_id)
                == self.posted.lock().unwrap().last().copied()
        })
        .await;
        since
    }

    async fn post_some(&self, client: &Client, author: u64, count: usize) {
        for _ in 0..count {
            let post = delivery(post_id(author), author, 0);
            deliver_all(client, &[post]).await;
            self.posted.lock().unwrap().insert(post.post_id);
        }
    }
}

/// How long the relation service is unreachable.
const CUT: Duration = Duration::from_secs(5);
const FROZEN: Duration = Duration::from_secs(8);

#[tokio::test]
async fn deliveries_succeed_while_the_relation_service_is_unreachable() {
    without_relation(Link::Cut, CUT).await;
}

#[tokio::test]
async fn deliveries_succeed_while_the_relation_service_hangs() {
    without_relation(Link::Frozen, FROZEN).await;
}

async fn without_relation(link: Link, time: Duration) {
    let deployed = Deployed::start().await;
    let Deployed { relation, proxy, client, store, .. } = &deployed;
    let load = Load::default();
    load.begin(client, relation).await;
    // All followings at once, so that no read after the outage rebuilds a home timeline.
    join_all(READERS.map(|reader| load.follow_all(relation, id(reader)))).await;
    for reader in READERS.map(id) {
        Timeline::Home.page(client, reader, 1, "", "").await.unwrap();
    }
    load.post_some(client, id(1), 1).await;
    let since = load.latest(client, id(100)).await;
    proxy.set(link);
    let recovered = Instant::now() + time;
    while Instant::now() < recovered {
        let began = Instant::now();
        let home = Timeline::Home.page(client, id(100), 20, "", "");
        let friends = Timeline::Friends.page(client, id(100), 20, "", "");
        let (home, friends) = join(home, friends).await;
        assert!(began.elapsed() < OVER, "{link:?}");
        if link == Link::Cut {
            assert_rejected(home, Code::Unavailable, ErrorReason::PeerUnavailable);
            assert_rejected(friends, Code::Unavailable, ErrorReason::PeerUnavailable);
        } else {
            assert_late(home);
            assert_late(friends);
        }
        let author = id(1 + load.posted() as u64 % 6);
        load.post_some(client, author, 1).await;
        let newest = load.posted.lock().unwrap().last().copied();
        assert_eq!(published(store, author).await.first().copied(), newest);
        // A count without new posts needs no relation service.
        let request = pb::CountNewRequest { user_id: id(100), since_token: since.clone() };
        let count = client.clone().count_new(request).await.unwrap().into_inner().count;
        assert_eq!(count, 0);
        tokio::time::sleep(PACE).await;
    }
    proxy.set(Link::Open);
    load.arrives(client, store).await;
}

fn assert_late<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.unwrap_err();
    assert!(UNKNOWN.contains(&status.code()), "{status:?}");
}
