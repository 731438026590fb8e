//! Scrolling: no post twice and none skipped, with concurrent posts and equal time stamps.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use futures::future::{Either, select};
use microblog_domain::UserId;
use microblog_proto::timeline as pb;
use microblog_testkit::{self as testkit, Topology::Single};
use microblog_timeline::FanoutState;
use tokio::{
    sync::Semaphore,
    time::{MissedTickBehavior, interval},
};

use crate::support::{
    self, PATIENCE, System, delivery, id,
    pages::{Timeline, deliver_all, is_newest_first},
    post_id, posts,
    queue::published,
    relations::import,
};

const MODES: [&str; 3] = ["hybrid", "push", "pull"];
const AUTHORS: u64 = 6;
const PAGES: usize = 40;
const PAGE: usize = 10;

/// The delay between two posts: a hundred per second.
const PACE: Duration = Duration::from_millis(10);

/// The least number of posts between two pages.
const BETWEEN_PAGES: usize = 3;

/// The most posts per page, so that all posts of a scroll stay in the timeline on a slow machine
/// too.
const PER_PAGE_MAX: usize = 8;

/// Posts since the start of the scroll.
struct Arrived {
    posts: Mutex<Vec<u64>>,
    may_come: Semaphore,
}

impl Arrived {
    fn len(&self) -> usize {
        self.posts.lock().unwrap().len()
    }
}

/// Starts a system in which a reader follows authors, some with fan-out on read in hybrid mode, and
/// has 400 posts. Returns the posts, oldest first.
async fn with_posts(mode: &str, reader: u64) -> (System, Vec<pb::Delivery>) {
    let system = System::start_with(Single, &["--mode", mode, "--pull-threshold", "5"]).await;
    for author in (1..=AUTHORS).map(id) {
        system.follow(reader, author).await;
    }
    for author in [1, 2].map(id) {
        import(&system.relation, (100..110).map(id), author).await;
    }
    assert_eq!(system.home(reader).await, [0; 0]);
    let seed = |n| {
        let author = id(1 + n as u64 % AUTHORS);
        delivery(post_id(author), author, 0)
    };
    let seeds: Vec<_> = (0..PAGES * PAGE).map(seed).collect();
    deliver_all(&system.client, &seeds).await;
    testkit::eventually("all are there", PATIENCE, async || {
        Timeline::Home.whole(&system.client, reader, 200, "").await.len() == seeds.len()
    })
    .await;
    if mode == "hybrid" {
        let authors = [1, 2, 3].map(|n| UserId::new(id(n)).unwrap());
        testkit::eventually("two authors are pulled from", PATIENCE, async || {
            let expected = [FanoutState::OnRead, FanoutState::OnRead, FanoutState::OnWrite];
            system.store.fanout_states(&authors).await.unwrap() == expected
        })
        .await;
    }
    (system, seeds)
}

/// Delivers a hundred posts per second, as many as allowed. One of five is late: as old as an
/// existing post.
async fn arrive(system: &System, seeds: &[pb::Delivery], arrived: &Arrived) {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for n in 0.. {
        arrived.may_come.acquire().await.unwrap().forget();
        ticks.tick().await;
        let author = id(1 + n as u64 % AUTHORS);
        let next = if n % 5 == 4 {
            let seed = seeds[n * 7 % seeds.len()];
            pb::Delivery { post_id: seed.post_id | 1, ..seed }
        } else {
            delivery(post_id(author), author, 0)
        };
        deliver_all(&system.client, &[next]).await;
        arrived.posts.lock().unwrap().push(next.post_id);
    }
}

/// Reads 40 pages; returns their posts.
async fn scroll(
    system: &System,
    reader: u64,
    first: support::pages::Page,
    arrived: &Arrived,
) -> Vec<u64> {
    let (entries, mut token, _) = first;
    let mut all = posts(&entries);
    for _ in 1..PAGES {
        let before = arrived.len();
        arrived.may_come.add_permits(PER_PAGE_MAX);
        testkit::eventually("posts come", PATIENCE, async || {
            arrived.len() >= before + BETWEEN_PAGES
        })
        .await;
        let page = Timeline::Home.page(&system.client, reader, PAGE as i32, &token, "").await;
        let (entries, next, _) = page.unwrap();
        assert!(entries.len() == PAGE || next.is_empty(), "only the last page is short");
        all.extend(posts(&entries));
        token = next;
        if token.is_empty() {
            break;
        }
    }
    all
}

#[tokio::test]
async fn a_scroll_of_forty_pages_repeats_and_skips_no_post() {
    for mode in MODES {
        let reader = id(50);
        let (system, seeds) = with_posts(mode, reader).await;
        let arrived = Arrived { posts: Mutex::default(), may_come: Semaphore::new(0) };
        let first = Timeline::Home.page(&system.client, reader, PAGE as i32, "", "").await.unwrap();
        let since = first.2.clone();
        let arriving = Box::pin(arrive(&system, &seeds, &arrived));
        let scrolling = Box::pin(scroll(&system, reader, first, &arrived));
        let Either::Right((scrolled, arriving)) = select(arriving, scrolling).await else {
            panic!("posts come for ever")
        };
        drop(arriving);

        assert!(is_newest_first(&scrolled), "one shows twice");
        let old: BTreeSet<_> = seeds.iter().map(|seed| seed.post_id).collect();
        let seen: BTreeSet<_> = scrolled.iter().copied().collect();
        let late: BTreeSet<_> =
            arrived.posts.lock().unwrap().iter().copied().filter(|post| post & 1 == 1).collect();
        let oldest = *scrolled.last().unwrap();
        let missing: Vec<_> = old.range(oldest..).filter(|post| !seen.contains(post)).collect();
        assert_eq!(missing, [&0; 0], "skipped: {mode}");
        assert!(scrolled.len() >= PAGES * PAGE, "{mode}");
        assert!(seen.difference(&old).all(|post| late.contains(post)), "{mode}");
        assert!(seen.len() > old.range(oldest..).count(), "none of those that came late was seen");

        // Exactly the posts delivered meanwhile are new. One may be pending.
        let mut all: Vec<_> = Vec::new();
        testkit::eventually("delivered posts are new", PATIENCE, async || {
            all = Timeline::Home.whole(&system.client, reader, PAGE as i32, &since).await;
            let arrived = arrived.posts.lock().unwrap();
            arrived.iter().all(|post| all.contains(post) || old.range(post..).count() >= PAGE)
        })
        .await;
        assert!(is_newest_first(&all));
        assert!(all.iter().all(|post| !old.contains(post)), "{mode}");
    }
}

#[tokio::test]
async fn posts_with_equal_time_stamps_show_once() {
    for mode in MODES {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let bob = id(100);
        let authors = [1, 2, 3, 900, 1_023].map(id);
        for author in authors {
            system.follow(bob, author).await;
            system.follow(author, bob).await;
        }
        assert_eq!(system.home(bob).await, [0; 0]);
        let mut all = Vec::new();
        for _ in 0..2 {
            let moment = post_id(4) >> 12;
            let of = |author: u64, sequence: u64| {
                delivery((moment << 12) | (author & 0xffc) | sequence, author, 0)
            };
            let mut posts: Vec<_> = authors.map(|author| of(author, 0)).into();
            posts.extend((1..4).map(|sequence| of(authors[2], sequence)));
            // In a shuffled order.
            posts.sort_by_key(|delivery| delivery.post_id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            deliver_all(&system.client, &posts).await;
            all.extend(posts);
        }
        all.sort_by_key(|delivery| std::cmp::Reverse(delivery.post_id));
        let expected: Vec<_> = all.iter().map(|delivery| delivery.post_id).collect();
        system.home_becomes(bob, &expected).await;
        let own: Vec<_> = all.iter().filter(|delivery| delivery.author_id == authors[2]).collect();
        let own: Vec<_> = own.into_iter().map(|delivery| delivery.post_id).collect();
        for size in [1, 2, 3, 5] {
            let whole = async |timeline: Timeline, user| {
                timeline.whole(&system.client, user, size, "").await
            };
            assert_eq!(whole(Timeline::Home, bob).await, expected, "{mode}");
            assert_eq!(whole(Timeline::Friends, bob).await, expected, "{mode}");
        }
        assert_eq!(published(&system.store, authors[2]).await, own, "{mode}");
        // New since the first one: the others, and the last post of that millisecond.
        let (first, _, since) = system.home_page(bob, 1, "", "").await.unwrap();
        assert_eq!(posts(&first), expected[..1]);
        let last = delivery(expected[0] | 3, id(1_023), 0);
        system.deliver(last).await;
        let expected = [&[last.post_id], &expected[..]].concat();
        system.home_becomes(bob, &expected).await;
        let new = Timeline::Home.whole(&system.client, bob, 2, &since).await;
        assert_eq!(new, [last.post_id], "{mode}");
    }
}
