//! Suppressed reposts: a timeline shows one repost of a root, another one if that is deleted, and
//! none twice.

use microblog_testkit::{Topology, eventually, next_millisecond};

use crate::{
    system::{Flags, Jobs, Member, System},
    timeline_actions::{SOON, post_ids, without_jobs},
};

/// The fan-out modes.
const MODES: [&str; 3] = ["hybrid", "push", "pull"];

/// Starts a system with this fan-out mode.
async fn in_mode(mode: &str) -> System {
    let timeline = &["--mode", mode];
    System::start_on(Topology::Single, Jobs::Run, Flags { timeline, ..Flags::default() }).await
}

/// Reads a home timeline, with a change after its first page, and returns the posts on all pages.
async fn scroll(
    system: &System,
    viewer: &Member,
    page_size: i32,
    change: impl AsyncFnOnce(),
) -> Vec<u64> {
    let first = system.home(viewer, page_size, "", "").await;
    change().await;
    let (mut seen, mut token) = (post_ids(&first.posts), first.next_page_token);
    while !token.is_empty() {
        let page = system.home(viewer, page_size, &token, "").await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
    }
    seen
}

async fn home_becomes(system: &System, viewer: &Member, expected: &[u64]) {
    eventually("the posts arrive", SOON, async || {
        post_ids(&system.home(viewer, 200, "", "").await.posts) == expected
    })
    .await;
}

#[tokio::test]
async fn each_suppressed_repost_is_shown_after_the_others_are_deleted() {
    let system = without_jobs().await;
    let [ann, author] = [system.join("ann").await, system.join("author").await];
    let root = system.publish(&author, "the root").await.id;
    let mut reposts = Vec::new();
    for name in ["first", "second", "third", "fourth", "fifth", "sixth"] {
        let reposter = system.join(name).await;
        system.follow(&ann, &reposter).await;
        let post_id = system.repost(&reposter, root, "").await.id;
        reposts.push((reposter, post_id));
    }
    let shown = async || post_ids(&system.home(&ann, 0, "", "").await.posts);
    for (reposter, post_id) in &reposts {
        assert_eq!(shown().await, [*post_id]);
        system.delete_post(reposter, *post_id).await;
    }
    assert_eq!(shown().await, [0; 0]);
}

#[tokio::test]
async fn the_last_of_hundreds_of_suppressed_reposts_is_shown_across_pages() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let author = system.join("author").await;
    let root = system.publish(&author, "the root").await.id;
    let first = system.repost(&bob, root, "").await.id;
    let between = system.publish(&bob, "in between").await.id;
    let mut reposts = vec![first];
    for _ in 0..300 {
        reposts.push(system.repost(&bob, root, "").await.id);
    }
    let newest = system.publish(&bob, "the newest").await.id;
    let shown = async |size| scroll(&system, &ann, size, async || ()).await;
    assert_eq!(shown(10).await, [newest, between, first]);
    let last = reposts.split_off(300);
    system.delete_many(&bob, &reposts).await;
    for page_size in [1, 2, 10] {
        assert_eq!(shown(page_size).await, [newest, between, last[0]], "{page_size} a page");
    }
    system.delete_many(&bob, &last).await;
    assert_eq!(shown(1).await, [newest, between]);
}

#[tokio::test]
async fn a_shown_repost_is_not_repeated_on_a_later_page() {
    for mode in MODES {
        let system = in_mode(mode).await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        let author = system.join("author").await;
        system.follow(&ann, &bob).await;
        let root = system.publish(&author, "the root").await.id;
        let mut posts = system.publish_many(&bob, vec!["before".to_owned(); 3]).await;
        posts.push(system.repost(&bob, root, "").await.id);
        posts.extend(system.publish_many(&bob, vec!["after".to_owned(); 3]).await);
        posts.reverse();
        home_becomes(&system, &ann, &posts).await;
        let seen = scroll(&system, &ann, 5, async || {
            system.delete_post(&author, root).await;
            system.follow(&ann, &author).await;
        });
        assert_eq!(seen.await, posts, "{mode}");
    }
}

#[tokio::test]
async fn a_replacement_repost_is_not_repeated_on_a_later_page() {
    for mode in MODES {
        let system = in_mode(mode).await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        let [carl, dora] = [system.join("carl").await, system.join("dora").await];
        let author = system.join("author").await;
        for followed in [&bob, &carl] {
            system.follow(&ann, followed).await;
        }
        let root = system.publish(&author, "the root").await.id;
        let oldest = system.repost(&dora, root, "").await.id;
        next_millisecond().await;
        let below = system.publish(&bob, "below").await.id;
        let deleted = system.repost(&bob, root, "").await.id;
        let above = system.publish(&bob, "above").await.id;
        let repost = system.repost(&carl, root, "").await.id;
        home_becomes(&system, &ann, &[above, deleted, below]).await;
        system.delete_post(&bob, deleted).await;
        let seen = scroll(&system, &ann, 2, async || {
            system.delete_post(&dora, oldest).await;
            system.follow(&ann, &dora).await;
        });
        assert_eq!(seen.await, [above, repost, below], "{mode}");
    }
}

#[tokio::test]
async fn an_unshown_repost_of_an_earlier_page_is_shown() {
    for mode in MODES {
        let system = in_mode(mode).await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        let author = system.join("author").await;
        for followed in [&author, &bob] {
            system.follow(&ann, followed).await;
        }
        let root = system.publish(&author, "the root").await.id;
        next_millisecond().await;
        let below = system.publish(&bob, "below").await.id;
        let repost = system.repost(&bob, root, "").await.id;
        let above = system.publish(&bob, "above").await.id;
        home_becomes(&system, &ann, &[above, below, root]).await;
        for is_deleted in [false, true] {
            let seen = scroll(&system, &ann, 1, async || {
                if is_deleted {
                    system.delete_post(&author, root).await;
                }
            });
            let last = if is_deleted { repost } else { root };
            assert_eq!(seen.await, [above, below, last], "{mode}");
        }
    }
}
