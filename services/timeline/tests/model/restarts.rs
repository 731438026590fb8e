//! Restarts in the middle of bursts that are larger than a home timeline. After each, the posts of the
//! last minute are delivered again, while others are published and home timelines are rebuilt. Each
//! read has all posts down to where it ends, and a watch gets none twice.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    StreamExt as _,
    future::{join, join_all, join3},
    stream,
};
use microblog_proto::timeline as pb;
use microblog_testkit::{PATIENCE, Topology, redis::cmd};
use tokio::time::timeout;

use crate::{
    rng::{self, Rng},
    support::{
        System, delivery, id,
        pages::{Timeline, deliver_all, is_newest_first, until_answered},
        post_id,
        queue::{drained, published},
        relations::import,
    },
};

const HOME_MAX: usize = 800;
const USER_MAX: usize = 1_000;

/// The authors that the reader follows all the time. In hybrid mode, the first one has fan-out on read.
const AUTHORS: u64 = 4;

/// Those of them who follow the reader.
const FRIENDS: u64 = 2;

/// The author that the reader sometimes follows.
const PASSING: u64 = 9;

const READER: u64 = 50;

/// The posts before the first restart, of a new burst at most, and of a repetition.
const FIRST: usize = 950;
const BURST_MAX: usize = 300;
const REPEATED: usize = 1_100;

/// The posts of a delivery, and the deliveries at once.
const BATCH: usize = 50;
const AT_ONCE: usize = 3;

/// How often a watch looks whether the restart is over.
const LOOK: Duration = Duration::from_millis(100);

/// The restarts of a run.
const RESTARTS: usize = 4;

/// How the posts of the last minute are delivered again: as the post service does, or otherwise.
#[derive(Clone, Copy, Debug)]
enum Order {
    OldestFirst,
    NewestFirst,
    Shuffled,
}

/// What happens to the reader's home timeline during a restart, other than that it is stale.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    Expires,
    Follows,
    Unfollows,
}

/// Posts by their ids, and where they are.
#[derive(Default)]
struct Posts {
    /// Of any author, delivered or being delivered.
    begun: BTreeSet<u64>,
    /// Of authors that the reader follows all the time: in all timelines.
    settled: BTreeSet<u64>,
    /// Not delivered yet.
    held: Vec<pb::Delivery>,
}

struct Run {
    system: System,
    rng: Mutex<Rng>,
    posts: Mutex<Posts>,
    all: Mutex<Vec<pb::Delivery>>,
    follows: AtomicBool,
}

impl Run {
    async fn start(topology: Topology, mode: &str, seed: u64) -> Self {
        let flags = ["--mode", mode, "--pull-threshold", "5"];
        let system = System::start_with(topology, &flags).await;
        for author in 1..=AUTHORS {
            system.follow(id(READER), id(author)).await;
        }
        for author in 1..=FRIENDS {
            system.follow(id(author), id(READER)).await;
        }
        import(&system.relation, (100..110).map(id), id(1)).await;
        assert_eq!(system.home(id(READER)).await, [0; 0]);
        let rng = Mutex::new(Rng::new(seed, 0));
        let (posts, all, follows) = Default::default();
        Self { system, rng, posts, all, follows }
    }

    fn below(&self, count: usize) -> usize {
        self.rng.lock().unwrap().below(count)
    }

    /// Publishes so many posts. A few of them are delivered after a later restart.
    async fn burst(&self, count: usize) {
        let mut new = std::mem::take(&mut self.posts.lock().unwrap().held);
        for _ in 0..count {
            let number = self.below(AUTHORS as usize + 1) as u64;
            let author = id(if number == 0 { PASSING } else { number });
            let post = delivery(post_id(author), author, 0);
            if self.below(40) == 0 {
                self.posts.lock().unwrap().held.push(post);
            } else {
                new.push(post);
            }
        }
        self.publish(&new).await;
    }

    async fn publish(&self, posts: &[pb::Delivery]) {
        self.all.lock().unwrap().extend(posts);
        self.deliver(posts).await;
    }

    async fn deliver(&self, posts: &[pb::Delivery]) {
        self.posts.lock().unwrap().begun.extend(posts.iter().map(|post| post.post_id));
        let calls = posts.chunks(BATCH).map(|posts| deliver_all(&self.system.client, posts));
        stream::iter(calls).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
    }

    /// Delivers the last posts again.
    async fn repeat(&self, order: Order) {
        let mut last = self.all.lock().unwrap().clone();
        last.sort_unstable_by_key(|post| post.post_id);
        last.drain(..last.len().saturating_sub(REPEATED));
        match order {
            Order::OldestFirst => {}
            Order::NewestFirst => last.reverse(),
            Order::Shuffled => last.sort_by_cached_key(|_| self.below(1 << 20)),
        }
        self.deliver(&last).await;
    }

    async fn occurs(&self, event: Event) {
        let reader = id(READER);
        match event {
            Event::Nothing => {}
            Event::Expires => {
                let key = format!("tl:{{{}}}:home:{reader}", (reader >> 2) & 1023);
                for node in self.system.redis.nodes() {
                    // In a cluster, one node has the key.
                    let _ = cmd("UNLINK").arg(&key).exec_async(&mut node.admin().await).await;
                }
            }
            Event::Follows => self.system.follow(reader, id(PASSING)).await,
            Event::Unfollows => self.system.unfollow(reader, id(PASSING)).await,
        }
    }

    /// A restart as the repair of failovers leaves it, in the middle of a burst.
    async fn restart(&self, order: Order, event: Event) {
        self.system.store.record_unpushed(Duration::ZERO).await.unwrap();
        let burst = self.burst(self.below(BURST_MAX));
        join(join(self.repeat(order), burst), self.occurs(event)).await;
        match event {
            Event::Follows => self.follows.store(true, Ordering::Relaxed),
            Event::Unfollows => self.follows.store(false, Ordering::Relaxed),
            Event::Nothing | Event::Expires => {}
        }
    }

    /// Reads a whole timeline. Returns its posts, and the post down to which it has all.
    async fn read(&self, timeline: Timeline) -> (Vec<u64>, u64) {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let request = timeline.request(id(READER), 200, &token, "");
            let call = async || self.system.client.clone().get_timeline(request.clone()).await;
            let page = until_answered(call).await.into_inner();
            seen.extend(page.entries.iter().map(|entry| entry.post_id));
            if page.next_page_token.is_empty() {
                return (seen, page.older_than_id);
            }
            token = page.next_page_token;
        }
    }

    /// Reads until something else is done, and checks each read.
    async fn read_until(&self, is_done: &AtomicBool) {
        for timeline in Timeline::ALL.into_iter().cycle() {
            if is_done.load(Ordering::Relaxed) {
                return;
            }
            let mut settled = self.posts.lock().unwrap().settled.clone();
            settled.retain(|&post| timeline == Timeline::Home || author_of(post) <= FRIENDS);
            let (seen, older_than) = self.read(timeline).await;
            assert!(is_newest_first(&seen), "each once, newest first: {seen:?}");
            let has: BTreeSet<_> = seen.iter().copied().collect();
            let posts = self.posts.lock().unwrap();
            assert!(has.is_subset(&posts.begun), "a post that nobody published");
            let lacks = settled.range(older_than..).filter(|post| !has.contains(post)).count();
            let newest = settled.iter().rev().take(20).filter(|post| !has.contains(post)).count();
            let what = format!("{timeline:?} lacks of {}, and of the newest 20", has.len());
            assert_eq!((lacks, newest), (0, 0), "{what}");
        }
    }

    /// Watches the home timeline until something else is done and one more post has come.
    async fn watch_until(&self, is_done: &AtomicBool) {
        let request =
            pb::WatchHomeTimelineRequest { user_id: id(READER), since_token: String::new() };
        let mut client = self.system.client.clone();
        let mut stream = client.watch_home_timeline(request).await.unwrap().into_inner();
        let mut come = self.posts.lock().unwrap().settled.clone();
        let (mut last, give_up) = (None, Instant::now() + 10 * PATIENCE);
        loop {
            assert!(Instant::now() < give_up, "the last post comes");
            if last.is_none() && is_done.load(Ordering::Relaxed) {
                let post = delivery(post_id(id(AUTHORS)), id(AUTHORS), 0);
                self.publish(&[post]).await;
                last = Some(post.post_id);
            }
            let Ok(message) = timeout(LOOK, stream.message()).await else { continue };
            for entry in message.unwrap().expect("the stream continues").entries {
                assert!(come.insert(entry.post_id), "seen before: {}", entry.post_id);
            }
            if last.is_some_and(|last| come.contains(&last)) {
                return;
            }
        }
    }

    /// Waits for the fan-out, and checks that all timelines are exact.
    async fn settles(&self) {
        drained(&self.system).await;
        let mut all: Vec<u64> = self.posts.lock().unwrap().begun.iter().rev().copied().collect();
        for author in (1..=AUTHORS).chain([PASSING]) {
            let own = all.iter().filter(|&&post| author_of(post) == author);
            let own: Vec<u64> = own.take(USER_MAX).copied().collect();
            assert!(published(&self.system.store, id(author)).await.starts_with(&own));
        }
        let follows = self.follows.load(Ordering::Relaxed);
        all.retain(|&post| follows || author_of(post) != PASSING);
        self.posts.lock().unwrap().settled =
            all.iter().copied().filter(|&post| author_of(post) != PASSING).collect();
        assert_eq!(self.read(Timeline::Home).await, newest(&all));
        all.retain(|&post| author_of(post) <= FRIENDS);
        assert_eq!(self.read(Timeline::Friends).await, newest(&all));
    }
}

/// Returns the number of a post's author.
fn author_of(post: u64) -> u64 {
    (post >> 2) & 1023
}

/// Returns what a timeline shows of posts, newest first, and the post down to which it has all.
fn newest(all: &[u64]) -> (Vec<u64>, u64) {
    let older_than = all.get(HOME_MAX - 1).copied().unwrap_or_default();
    (all.iter().take(HOME_MAX).copied().collect(), older_than)
}

async fn every_read_has_the_newest_posts(topology: Topology, mode: &str) {
    let seed = rng::seed();
    println!("{}", rng::again(seed));
    let run = Run::start(topology, mode, seed).await;
    run.burst(FIRST).await;
    run.settles().await;
    let orders = [Order::OldestFirst, Order::Shuffled, Order::NewestFirst, Order::OldestFirst];
    let events = [Event::Follows, Event::Expires, Event::Unfollows, Event::Nothing];
    for restart in 0..RESTARTS {
        // Each event in each order, in the course of several runs.
        let (order, event) = (orders[run.below(orders.len())], events[restart % events.len()]);
        println!("{order:?} {event:?}");
        let is_done = AtomicBool::new(false);
        let restarted = async {
            run.restart(order, event).await;
            drained(&run.system).await;
            is_done.store(true, Ordering::Relaxed);
        };
        let reads = join_all([run.read_until(&is_done), run.read_until(&is_done)]);
        join3(restarted, reads, run.watch_until(&is_done)).await;
        run.settles().await;
    }
}

#[tokio::test]
async fn every_read_after_a_restart_is_whole_in_hybrid_mode() {
    every_read_has_the_newest_posts(Topology::Single, "hybrid").await;
}

#[tokio::test]
async fn every_read_after_a_restart_is_whole_in_hybrid_mode_on_a_cluster() {
    every_read_has_the_newest_posts(Topology::Cluster, "hybrid").await;
}

#[tokio::test]
async fn every_read_after_a_restart_is_whole_in_push_mode() {
    every_read_has_the_newest_posts(Topology::Single, "push").await;
}

#[tokio::test]
async fn every_read_after_a_restart_is_whole_in_pull_mode() {
    every_read_has_the_newest_posts(Topology::Single, "pull").await;
}
