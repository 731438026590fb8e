//! Authors who switch to fan-out on read and back under load: no post is lost, none shows twice.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use microblog_domain::UserId;
use microblog_testkit::{
    self as testkit,
    Topology::{Cluster, Single},
};
use microblog_timeline::FanoutState;

use crate::support::{
    PATIENCE, System, delivery, id,
    pages::{Timeline, deliver_all, is_newest_first},
    post_id,
    queue::{drained, stored},
};

const THRESHOLD: u64 = 50;
const AUTHOR: u64 = 1;
/// An author whom all follow and who never switches.
const FRIEND: u64 = 2;

/// Fewer than the length of a home timeline, so that none falls off its end.
const POSTS_MAX: usize = 700;

/// Initial followers, and those who follow one by one.
const FIRST: std::ops::Range<u64> = 100..130;
const LATER: std::ops::Range<u64> = 130..190;

/// Followers of both groups who read all the time.
const READERS: [u64; 8] = [100, 107, 111, 129, 130, 141, 160, 189];

#[derive(Default)]
struct Run {
    /// Delivered posts, oldest first.
    posts: Mutex<Vec<u64>>,
    /// The most posts for now, so that a slow crossing does not use up those of a home timeline.
    posts_max: AtomicUsize,
    is_over: AtomicBool,
}

impl Run {
    fn posts(&self) -> Vec<u64> {
        self.posts.lock().unwrap().clone()
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn allow(&self, posts_max: usize) {
        self.posts_max.store(posts_max, Ordering::Relaxed);
    }

    /// Posts as both authors until `is_over`, and pauses at `posts_max` posts.
    async fn post(&self, system: &System) {
        while self.goes_on() {
            if self.posts().len() >= self.posts_max.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let posted: Vec<_> = [AUTHOR, AUTHOR, FRIEND]
                .map(|author| delivery(post_id(id(author)), id(author), 0))
                .into();
            deliver_all(&system.client, &posted).await;
            self.posts.lock().unwrap().extend(posted.iter().map(|delivery| delivery.post_id));
            tokio::task::yield_now().await;
        }
    }

    /// Reads the whole timeline repeatedly. Each post seen once must stay.
    async fn read(&self, system: &System, reader: u64) {
        let mut known = BTreeSet::new();
        while self.goes_on() {
            let all = Timeline::Home.whole(&system.client, id(reader), 50, "").await;
            assert!(is_newest_first(&all), "{reader} sees one twice");
            let all = BTreeSet::from_iter(all);
            let lost: Vec<_> = known.difference(&all).collect();
            assert_eq!(lost, [&0; 0], "{reader} lost some");
            known = all;
        }
    }
}

async fn state(system: &System) -> FanoutState {
    system.store.fanout_states(&[UserId::new(id(AUTHOR)).unwrap()]).await.unwrap()[0]
}

async fn follows(system: &System, follower: u64) {
    system.follow(id(follower), id(AUTHOR)).await;
    system.follow(id(follower), id(FRIEND)).await;
}

/// Asserts that the readers see all posts in the end.
async fn assert_exact(system: &System, posts: &[u64], readers: impl Iterator<Item = u64>) {
    drained(system).await;
    let expected: Vec<_> = posts.iter().rev().copied().collect();
    for reader in readers {
        assert_eq!(
            Timeline::Home.whole(&system.client, id(reader), 200, "").await,
            expected,
            "{reader}"
        );
    }
}

/// Makes the author cross the threshold under load.
async fn cross_threshold(system: &System, run: &Run) {
    join_all(FIRST.map(|follower| follows(system, follower))).await;
    join_all(READERS.map(|reader| system.home(id(reader)))).await;
    let crosses = async {
        for (n, follower) in LATER.enumerate() {
            run.allow(10 * (n + 1));
            follows(system, follower).await;
        }
        run.allow(POSTS_MAX - 20);
        testkit::eventually("the author is pulled from", PATIENCE, async || {
            state(system).await == FanoutState::OnRead
        })
        .await;
        // And a few more.
        let enough = run.posts().len() + 15;
        run.allow(enough);
        testkit::eventually("more is posted", PATIENCE, async || run.posts().len() >= enough).await;
        run.is_over.store(true, Ordering::Relaxed);
    };
    let readers = join_all(READERS.map(|reader| run.read(system, reader)));
    futures::join!(run.post(system), readers, crosses);
}

#[tokio::test]
async fn switching_fanout_loses_and_duplicates_no_post() {
    for topology in [Single, Cluster] {
        let threshold = THRESHOLD.to_string();
        let system = System::start_with(topology, &["--pull-threshold", &threshold]).await;
        let run = Run::default();
        cross_threshold(&system, &run).await;
        let mut posts = run.posts();
        assert!(posts.len() < 790, "below the maximum length: {}", posts.len());
        assert_exact(&system, &posts, FIRST.chain(LATER)).await;

        // Fan-out on read: shown at once, and written only into the author's own timelines.
        assert_eq!(state(&system).await, FanoutState::OnRead);
        let pulled = system.post(id(AUTHOR)).await;
        posts.push(pulled);
        for reader in READERS {
            assert_eq!(system.home(id(reader)).await[0], pulled);
        }
        assert_exact(&system, &posts, READERS.into_iter()).await;
        for reader in READERS {
            assert!(!stored(&system.store, id(reader)).await.contains(&pulled));
        }

        // Fan-out on read holds down to half of the threshold. Below it, the next post is pushed
        // again.
        let few = LATER.rev().chain(FIRST.rev()).filter(|follower| !READERS.contains(follower));
        let many = (FIRST.count() + LATER.count()) as u64 - THRESHOLD / 2;
        let mut few = few.take(many as usize + 1);
        for follower in few.by_ref().take(many as usize) {
            system.unfollow(id(follower), id(AUTHOR)).await;
        }
        posts.push(system.post(id(AUTHOR)).await);
        assert_exact(&system, &posts, READERS.into_iter()).await;
        assert_eq!(state(&system).await, FanoutState::OnRead, "at half of the threshold");
        system.unfollow(id(few.next().unwrap()), id(AUTHOR)).await;
        let mut pushed = Vec::new();
        for _ in 0..3 {
            pushed.push(system.post(id(AUTHOR)).await);
            posts.push(*pushed.last().unwrap());
            assert_exact(&system, &posts, READERS.into_iter()).await;
            assert_eq!(state(&system).await, FanoutState::OnWrite);
        }
        for reader in READERS {
            let stored = stored(&system.store, id(reader)).await;
            assert!(pushed.iter().all(|post| stored.contains(post)), "{reader}");
        }
    }
}

#[tokio::test]
async fn an_author_may_switch_repeatedly() {
    let system = System::start_with(Single, &["--pull-threshold", "6"]).await;
    let (fans, readers) = ((200..208).map(id), [100, 101].map(id));
    for reader in readers {
        system.follow(reader, id(AUTHOR)).await;
        assert_eq!(system.home(reader).await, [0; 0]);
    }
    let mut posts = Vec::new();
    let mut becomes = async |expected: FanoutState| {
        testkit::eventually("the author crosses", PATIENCE, async || {
            posts.insert(0, system.post(id(AUTHOR)).await);
            drained(&system).await;
            for reader in readers {
                assert_eq!(system.home(reader).await, posts, "{expected:?}");
            }
            state(&system).await == expected
        })
        .await;
    };
    for _ in 0..4 {
        for fan in fans.clone() {
            system.follow(fan, id(AUTHOR)).await;
        }
        becomes(FanoutState::OnRead).await;
        for fan in fans.clone() {
            system.unfollow(fan, id(AUTHOR)).await;
        }
        becomes(FanoutState::OnWrite).await;
    }
}
