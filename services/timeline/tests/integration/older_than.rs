//! The end of timelines at their maximum length: `older_than_id` is set, and no post above it is
//! missing.

use microblog_domain::UserId;
use microblog_proto::{relation, timeline as pb};
use microblog_testkit::{self as testkit, Topology::Single};
use microblog_timeline::FanoutState;

use crate::support::{
    PATIENCE, System, delivery, entry, id,
    pages::{Timeline, deliver_all, is_newest_first},
    post_id, posts,
    queue::{drained, published},
    relations::import,
};

const MODES: [&str; 3] = ["hybrid", "push", "pull"];
const HOME_MAX: usize = 800;
const USER_MAX: usize = 1_000;

/// The result of reading a whole timeline: its posts and `older_than_id`.
#[derive(Debug, PartialEq, Eq)]
struct TimelineEnd {
    posts: Vec<u64>,
    older_than: u64,
}

/// Returns a page of a timeline.
async fn page(system: &System, of: Timeline, user_id: u64, size: i32, page_token: &str) -> Page {
    let request = of.request(user_id, size, page_token, "");
    system.client.clone().get_timeline(request).await.unwrap().into_inner()
}

async fn home_page(system: &System, user_id: u64, size: i32, page_token: &str) -> Page {
    page(system, Timeline::Home, user_id, size, page_token).await
}

type Page = pb::GetTimelineResponse;

/// Reads a whole timeline.
async fn whole(system: &System, of: Timeline, user_id: u64, size: i32) -> TimelineEnd {
    let (mut actual, mut token) = (Vec::new(), String::new());
    loop {
        let page = page(system, of, user_id, size, &token).await;
        actual.extend(posts(&page.entries));
        if page.next_page_token.is_empty() {
            assert!(is_newest_first(&actual), "a post shows twice");
            return TimelineEnd { posts: actual, older_than: page.older_than_id };
        }
        assert_eq!(page.older_than_id, 0, "there is another page");
        token = page.next_page_token;
    }
}

async fn home(system: &System, user_id: u64, size: i32) -> TimelineEnd {
    whole(system, Timeline::Home, user_id, size).await
}

/// Returns the expected result for posts, oldest first, in a timeline of `max` posts.
fn newest(posts: &[u64], max: usize) -> TimelineEnd {
    let mut posts = posts.to_vec();
    posts.sort_unstable_by(|a, b| b.cmp(a));
    posts.truncate(max);
    let older_than = if posts.len() == max { posts[max - 1] } else { 0 };
    TimelineEnd { posts, older_than }
}

/// Delivers posts in this order, and waits until they have arrived.
async fn deliver(system: &System, deliveries: &[pb::Delivery]) {
    for some in deliveries.chunks(400) {
        deliver_all(&system.client, some).await;
    }
    drained(system).await;
}

/// Starts a system in which Bob has followed authors and read. The first author uses fan-out on
/// read in hybrid mode.
async fn with_authors(mode: &str, bob: u64, authors: &[u64]) -> System {
    let system = System::start_with(Single, &["--mode", mode, "--pull-threshold", "5"]).await;
    for &author in authors {
        system.follow(bob, author).await;
    }
    import(&system.relation, (100..110).map(id), authors[0]).await;
    assert_eq!(system.home(bob).await, [0; 0]);
    deliver(&system, &[delivery(post_id(authors[0]), authors[0], 0)]).await;
    if mode == "hybrid" {
        let author = [UserId::new(authors[0]).unwrap()];
        testkit::eventually("one author is pulled from", PATIENCE, async || {
            system.store.fanout_states(&author).await.unwrap() == [FanoutState::OnRead]
        })
        .await;
    }
    system
}

/// Returns new posts of authors in turn, oldest first.
fn by_turns(authors: &[u64], count: usize) -> Vec<pb::Delivery> {
    let authors = authors.iter().cycle().take(count);
    authors.map(|&author| delivery(post_id(author), author, 0)).collect()
}

fn ids(deliveries: &[pb::Delivery]) -> Vec<u64> {
    deliveries.iter().map(|delivery| delivery.post_id).collect()
}

#[tokio::test]
async fn a_user_timeline_keeps_its_newest_thousand_posts_in_order() {
    let (system, alice) = (System::start_without_jobs(Single).await, id(1));
    let mut all = Vec::new();
    let is_kept = async |all: &[u64]| {
        let kept = published(&system.store, alice).await;
        let readable = USER_MAX.min(all.len());
        assert!(kept.len() >= readable, "{} of {}", kept.len(), all.len());
        assert!(kept[..readable] == newest(all, readable).posts, "the newest are in order");
    };
    for count in [USER_MAX - 1, 1, 1, 300] {
        let some = by_turns(&[alice], count);
        for some in some.chunks(500) {
            deliver_all(&system.client, some).await;
        }
        all.extend(ids(&some));
        is_kept(&all).await;
    }
    // Some come late: between others, and older than all others.
    let newer = |post: &u64| delivery(post | 1, alice, 0);
    let late: Vec<_> = all[all.len() - 50..].iter().map(newer).collect();
    deliver_all(&system.client, &late).await;
    all.extend(ids(&late));
    is_kept(&all).await;
    let late: Vec<_> = all[..50].iter().map(newer).collect();
    deliver_all(&system.client, &late).await;
    is_kept(&all).await;
}

#[tokio::test]
async fn a_home_timeline_ends_at_its_800th_post_visible_or_not() {
    for mode in MODES {
        let (bob, authors) = (id(50), [1, 2, 3, 4].map(id));
        let system = with_authors(mode, bob, &authors).await;
        let mut all = home(&system, bob, 200).await.posts;
        let since = home_page(&system, bob, 1, "").await.since_token;
        for count in [HOME_MAX - 2, 1, 1, 437] {
            let some = by_turns(&authors, count);
            deliver(&system, &some).await;
            all.extend(ids(&some));
            for size in [37, 200] {
                let actual = home(&system, bob, size).await;
                assert_eq!(actual, newest(&all, HOME_MAX), "{mode}, {} posts", all.len());
            }
        }
        // The end of the timeline has only posts of a muted author.
        let expected = newest(&all, HOME_MAX);
        let muted: Vec<_> = all.iter().filter(|&post| post & 0xffc == authors[1] & 0xffc).collect();
        let mute = relation::MuteRequest { user_id: bob, target_id: authors[1] };
        system.relation.clone().mute(mute).await.unwrap();
        for size in [20, 200] {
            let actual = home(&system, bob, size).await;
            assert_eq!(actual.older_than, expected.older_than, "{mode}");
            let shown = expected.posts.iter().filter(|post| !muted.contains(post));
            assert!(actual.posts.iter().eq(shown), "{mode}");
        }
        let new = system.home_page(bob, 200, "", &since).await.unwrap();
        assert!(!new.1.is_empty());
        let (mut token, mut older_than) = (new.1, 0);
        while !token.is_empty() {
            let request = Timeline::Home.request(bob, 200, &token, &since);
            let page = system.client.clone().get_timeline(request).await.unwrap().into_inner();
            (token, older_than) = (page.next_page_token, page.older_than_id);
        }
        assert_eq!(older_than, 0, "queries for new posts do not set it");
    }
}

#[tokio::test]
async fn the_last_page_sets_older_than_if_all_posts_below_are_hidden() {
    for mode in MODES {
        let (bob, authors) = (id(50), [1, 2].map(id));
        let system = with_authors(mode, bob, &authors).await;
        let hidden = by_turns(&authors[1..], HOME_MAX);
        deliver(&system, &hidden).await;
        let shown = by_turns(&authors[..1], 20);
        deliver(&system, &shown).await;
        let first = home_page(&system, bob, 20, "").await;
        let mut expected = ids(&shown);
        expected.reverse();
        assert_eq!((posts(&first.entries), first.older_than_id), (expected.clone(), 0), "{mode}");
        let mute = relation::MuteRequest { user_id: bob, target_id: authors[1] };
        system.relation.clone().mute(mute).await.unwrap();
        let oldest = hidden[20].post_id;
        let rest = home_page(&system, bob, 20, &first.next_page_token).await;
        let rest = (posts(&rest.entries), rest.next_page_token.as_str(), rest.older_than_id);
        assert_eq!(rest, (vec![], "", oldest), "{mode}");
        assert_eq!(
            home(&system, bob, 7).await,
            TimelineEnd { posts: expected, older_than: oldest }
        );
    }
}

#[tokio::test]
async fn seen_posts_are_not_new_again_in_a_full_timeline() {
    for mode in MODES {
        let (bob, authors) = (id(50), [1, 2, 3].map(id));
        let system = with_authors(mode, bob, &authors).await;
        deliver(&system, &by_turns(&authors, 100)).await;
        let first = home_page(&system, bob, 20, "").await;
        let last = first.entries[19].post_id;
        deliver(&system, &by_turns(&authors, HOME_MAX + 50)).await;
        let second = home_page(&system, bob, 20, &first.next_page_token).await;
        let second = (second.entries.len(), second.next_page_token.as_str(), second.older_than_id);
        assert_eq!(second, (0, "", last), "{mode}");
    }
}

#[tokio::test]
async fn late_posts_hide_no_newer_posts_at_the_end() {
    for mode in MODES {
        let (bob, authors) = (id(50), [1, 2, 3, 4].map(id));
        let system = with_authors(mode, bob, &authors).await;
        let mut all = home(&system, bob, 200).await.posts;
        let first = by_turns(&authors, 500);
        deliver(&system, &first).await;
        all.extend(ids(&first));
        // A hundred posts as old as the first ones come late; then so many that these fall off.
        let late = first.iter().step_by(5);
        let late: Vec<_> =
            late.map(|seed| pb::Delivery { post_id: seed.post_id | 1, ..*seed }).collect();
        deliver(&system, &late).await;
        all.extend(ids(&late));
        for count in [250, 190, 50, 300] {
            let some = by_turns(&authors, count);
            deliver(&system, &some).await;
            all.extend(ids(&some));
            for size in [9, 73] {
                let actual = home(&system, bob, size).await;
                assert_eq!(actual, newest(&all, HOME_MAX), "{mode}, {} posts", all.len());
            }
        }
    }
}

#[tokio::test]
async fn a_backfill_of_a_full_timeline_keeps_older_than() {
    for mode in MODES {
        let (bob, authors, carol) = (id(50), [1, 2].map(id), id(3));
        let system = with_authors(mode, bob, &authors).await;
        let mut all = home(&system, bob, 200).await.posts;
        let others = by_turns(&[carol], 30);
        deliver(&system, &others).await;
        let some = by_turns(&authors, HOME_MAX + 10);
        deliver(&system, &some).await;
        all.extend(ids(&some));
        assert_eq!(home(&system, bob, 200).await, newest(&all, HOME_MAX));
        // Some are pushed twice.
        for delivery in &some[some.len() - 5..] {
            let post = entry(delivery.post_id, delivery.author_id);
            system.store.push(&post, &[UserId::new(bob).unwrap()]).await.unwrap();
        }
        system.follow(bob, carol).await;
        assert_eq!(home(&system, bob, 200).await, newest(&all, HOME_MAX), "{mode}");
        // After the unfollow, the timeline is not full.
        system.unfollow(bob, authors[0]).await;
        system.unfollow(bob, authors[1]).await;
        assert_eq!(home(&system, bob, 7).await, newest(&ids(&others), HOME_MAX), "{mode}");
    }
}

#[tokio::test]
async fn a_friends_timeline_ends_at_the_800th_post_of_visible_authors() {
    let (system, bob) = (System::start_without_jobs(Single).await, id(50));
    let [alice, muted, carol] = [1, 2, 3].map(id);
    for author in [alice, muted, carol] {
        system.follow(bob, author).await;
        system.follow(author, bob).await;
    }
    let friends = async |page_size| whole(&system, Timeline::Friends, bob, page_size).await;
    assert_eq!(friends(200).await, TimelineEnd { posts: Vec::new(), older_than: 0 });
    let mut seen = by_turns(&[alice, carol], HOME_MAX - 1);
    for some in seen.chunks(400) {
        deliver_all(&system.client, some).await;
    }
    for some in by_turns(&[muted], HOME_MAX + 10).chunks(400) {
        deliver_all(&system.client, some).await;
    }
    let request = relation::MuteRequest { user_id: bob, target_id: muted };
    system.relation.clone().mute(request).await.unwrap();
    assert_eq!(friends(200).await, newest(&ids(&seen), HOME_MAX), "there is room for one more");
    for count in [1, 10] {
        let more = by_turns(&[carol], count);
        deliver_all(&system.client, &more).await;
        seen.extend(more);
        for page_size in [33, 200] {
            assert_eq!(friends(page_size).await, newest(&ids(&seen), HOME_MAX));
        }
    }
}
