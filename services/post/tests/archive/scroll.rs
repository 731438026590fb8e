//! Scrolling through thousands of an author's posts while posts are published, deleted and evicted:
//! each once, in order, none missing.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt as _,
    future::{join_all, join3},
    stream,
};
use microblog_proto::post as pb;

use crate::{
    aging::{Aging, on_both},
    support::{archives::ArchiveServer, id, lists::List},
};

on_both! { thousands_of_posts_are_scrolled_during_evictions }

const AUTHOR: u64 = id(1);
/// In another partition, for pages of several authors.
const OTHER: u64 = id(2);
const POSTS: usize = 5_000;
const OTHERS: usize = 50;
const HOT: usize = 100;

/// What scrollers may meet: posts that existed before and stay, and deleted ones.
struct Posts {
    stay: BTreeSet<u64>,
    gone: Mutex<BTreeSet<u64>>,
    /// The number of evicted posts.
    evicted: AtomicU64,
    is_done: AtomicBool,
}

/// Asserts that a scroller met each post once, in order: all that stayed, and none that was deleted
/// before it began.
fn check(read: &[u64], posts: &Posts, gone: &BTreeSet<u64>, how: &str) {
    assert!(read.is_sorted_by(|a, b| a > b), "{how}: in order, each once");
    let met: BTreeSet<_> = read.iter().copied().collect();
    let missing: Vec<_> = posts.stay.difference(&met).collect();
    assert!(missing.is_empty(), "{how}: {} are missing, the first {:?}", missing.len(), missing[0]);
    let ended: Vec<_> = gone.intersection(&met).collect();
    assert!(ended.is_empty(), "{how}: {ended:?} were deleted");
}

async fn scroll_one(aging: &Aging, posts: &Posts, size: i32) {
    let gone = posts.gone.lock().unwrap().clone();
    let read = List::UserPosts(AUTHOR).whole(&aging.system.client, size).await;
    check(&read, posts, &gone, &format!("by {size}"));
}

async fn scroll_both(aging: &Aging, posts: &Posts, page_size: i32) {
    let gone = posts.gone.lock().unwrap().clone();
    let (mut read, mut before_id) = (Vec::new(), 0);
    loop {
        let author_ids = vec![OTHER, AUTHOR];
        let request =
            pb::ListAuthorsPostsRequest { author_ids, page_size, before_id, ..Default::default() };
        let page = aging.system.client.clone().list_authors_posts(request).await.unwrap();
        let page = page.into_inner();
        assert!(page.posts.iter().all(|post| before_id == 0 || post.id < before_id));
        read.extend(page.posts.iter().map(|post| (post.author_id, post.id)));
        before_id = page.next_before_id;
        if before_id == 0 {
            break;
        }
    }
    let of = |author| read.iter().filter(move |(by, _)| *by == author).map(|(_, id)| *id);
    assert!(read.is_sorted_by(|(_, a), (_, b)| a > b));
    assert_eq!(of(OTHER).count(), OTHERS);
    check(&of(AUTHOR).collect::<Vec<_>>(), posts, &gone, &format!("of both by {page_size}"));
}

async fn thousands_of_posts_are_scrolled_during_evictions(archives: &ArchiveServer) {
    let aging = Aging::start(archives, HOT).await;
    let system = &aging.system;
    let create = |n| async move {
        let author = if n % 100 == 0 { OTHER } else { AUTHOR };
        (author, system.create(author, &format!("number {n}")).await.unwrap().id)
    };
    // Every hundredth is by the other author.
    let numbers = 1..=POSTS + OTHERS;
    let made: Vec<_> = stream::iter(numbers).map(create).buffer_unordered(32).collect().await;
    let made = made.into_iter().filter(|(author, _)| *author == AUTHOR).map(|(_, id)| id);
    let mut made: Vec<u64> = made.collect();
    made.sort_unstable();
    // Every 25th is deleted meanwhile.
    let (end, stay): (Vec<_>, Vec<_>) = (0..).zip(made).partition(|(n, _)| n % 25 == 7);
    let posts = Posts {
        stay: stay.into_iter().map(|(_, id)| id).collect(),
        gone: Mutex::default(),
        evicted: AtomicU64::new(0),
        is_done: AtomicBool::new(false),
    };

    let scrolls = async {
        join_all([200, 90].map(|size| scroll_one(&aging, &posts, size))).await;
        scroll_both(&aging, &posts, 200).await;
        scroll_one(&aging, &posts, 45).await;
        scroll_both(&aging, &posts, 150).await;
        // The evictor may be slow: some scrolls must coincide with most of the evictions.
        while posts.evicted.load(Ordering::Relaxed) <= POSTS as u64 / 2 {
            scroll_one(&aging, &posts, 100).await;
        }
        posts.is_done.store(true, Ordering::Relaxed);
    };
    let writes = async {
        let mut end = end.iter();
        let mut made = 0;
        while !posts.is_done.load(Ordering::Relaxed) || end.len() > 0 {
            system.create(AUTHOR, "new").await.unwrap();
            made += 1;
            if let Some(&(_, id)) = end.next() {
                system.delete(AUTHOR, id).await.unwrap();
                posts.gone.lock().unwrap().insert(id);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        made
    };
    let moves = async {
        while !posts.is_done.load(Ordering::Relaxed) {
            let evicted = aging.age(&[AUTHOR, OTHER]).await.evicted;
            posts.evicted.fetch_add(evicted, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (made, (), ()) = join3(writes, moves, scrolls).await;

    aging.is_sound_everywhere().await;
    aging.age(&[AUTHOR, OTHER]).await;
    let read = List::UserPosts(AUTHOR).whole(&system.client, 123).await;
    check(&read, &posts, &posts.gone.lock().unwrap(), "in the end");
    assert_eq!(read.len(), posts.stay.len() + made, "and nothing else");
    let in_redis = system.store.post_counts(&[crate::support::user(1)]).await.unwrap();
    assert_eq!(in_redis[0].listed, HOT);
}
