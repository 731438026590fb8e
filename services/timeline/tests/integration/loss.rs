//! Timelines after Redis has lost the data of the timeline service, or of one of its partitions.

use std::{collections::BTreeSet, sync::Mutex};

use futures::future::join;
use microblog_testkit::Topology;

use crate::support::{
    id,
    pages::{Timeline, is_newest_first},
    posts::WithPosts,
};

/// The modes, with two authors in hybrid mode that have fan-out on read.
const MODES: [&[&str]; 3] =
    [&["--mode=hybrid", "--pull-threshold=1"], &["--mode=push"], &["--mode=pull"]];

const PAGE: i32 = 200;

async fn home(system: &WithPosts, reader: u64) -> Vec<u64> {
    Timeline::Home.whole(&system.system.client, reader, PAGE, "").await
}

/// Returns a system where `reader` and others follow three authors, of whom one has no posts.
async fn world(topology: Topology, flags: &[&str], readers: &[u64]) -> WithPosts {
    let system = WithPosts::start(topology, flags).await;
    for &reader in readers {
        for author in 1..=3 {
            system.system.follow(reader, id(author)).await;
        }
    }
    let root = system.post(id(1)).await;
    for _ in 0..3 {
        system.post(id(1)).await;
        system.post(id(2)).await;
    }
    system.repost(id(2), root, "").await;
    system.repost(id(2), root, "quoted").await;
    system
}

#[tokio::test]
async fn timelines_have_all_posts_after_a_loss_of_everything() {
    for topology in [Topology::Single, Topology::Cluster] {
        for flags in MODES {
            let readers = [id(10), id(11)];
            let system = world(topology, flags, &readers).await;
            system.system.follow(id(1), readers[0]).await;
            let page = async || system.system.home_page(readers[0], PAGE, "", "").await.unwrap().0;
            let friends =
                async || Timeline::Friends.whole(&system.system.client, readers[0], PAGE, "").await;
            let mut before = home(&system, readers[0]).await;
            let (entries, of_friends) = (page().await, friends().await);
            assert_eq!((before.len(), of_friends.len()), (8, 4), "{flags:?}");

            system.lose(None).await;
            assert_eq!(page().await, entries, "{flags:?}");
            assert_eq!(friends().await, of_friends, "{flags:?}");

            // A delivery before the first read does not hide the posts before it.
            system.lose(None).await;
            before.insert(0, system.post(id(1)).await);
            for reader in readers {
                assert_eq!(home(&system, reader).await, before, "{flags:?}");
            }
        }
    }
}

#[tokio::test]
async fn timelines_have_all_posts_after_a_loss_of_a_partition() {
    for topology in [Topology::Single, Topology::Cluster] {
        for flags in MODES {
            let readers = [id(10), id(11), id(12)];
            let system = world(topology, flags, &readers).await;
            let mut before = home(&system, readers[0]).await;
            for lost in [id(1), id(2), readers[0]] {
                system.lose(Some(lost)).await;
                for reader in &readers[..2] {
                    assert_eq!(home(&system, *reader).await, before, "{flags:?}");
                }
                system.lose(Some(lost)).await;
                before.insert(0, system.post(id(2)).await);
                for reader in &readers[..2] {
                    system.system.home_becomes(*reader, &before).await;
                }
            }
            // Its first read.
            assert_eq!(home(&system, readers[2]).await, before, "{flags:?}");
        }
    }
}

#[tokio::test]
async fn full_timelines_have_all_posts_after_a_loss() {
    const BOTH: usize = 820;
    let (reader, of_one) = (id(10), id(11));
    let system = WithPosts::start(Topology::Single, &["--mode=pull"]).await;
    for author in 1..=3 {
        system.system.follow(reader, id(author)).await;
    }
    system.system.follow(of_one, id(2)).await;
    let old = system.post(id(2)).await;
    let mut all = vec![old];
    for _ in 1..BOTH {
        all.insert(0, system.post(id(1)).await);
    }
    assert_eq!(home(&system, reader).await, all[..800]);
    system.lose(None).await;
    // Twice: the post service returned the newest 800 of both authors, which do not have the old one.
    for _ in 0..2 {
        assert_eq!(home(&system, reader).await, all[..800]);
    }
    assert_eq!(home(&system, of_one).await, [old]);
    assert_eq!(home(&system, reader).await, all[..800]);
}

/// Every read has all posts that were delivered before it began, each once, while data is lost,
/// authors publish and deliveries are delayed.
#[tokio::test]
async fn no_read_lacks_or_repeats_a_post_while_data_is_lost() {
    const ROUNDS: usize = 10;
    for flags in MODES {
        let reader = id(10);
        let system = WithPosts::start(Topology::Single, flags).await;
        for author in 1..=3 {
            system.system.follow(reader, id(author)).await;
        }
        let delivered = Mutex::new(BTreeSet::new());
        let publish = async |author: u64| {
            for n in 0..ROUNDS {
                let first = system.publish(id(author)).await;
                let second = system.publish(id(author)).await;
                // Also out of order, and twice.
                for delivery in [second, first, second] {
                    system.system.deliver(delivery).await;
                    delivered.lock().unwrap().insert(delivery.post_id);
                }
                if n % 3 == author as usize - 1 {
                    system.lose(Some(id(author))).await;
                }
            }
        };
        let read = async |reader: u64| {
            for _ in 0..ROUNDS {
                let before = delivered.lock().unwrap().clone();
                let seen = home(&system, reader).await;
                assert!(is_newest_first(&seen), "{flags:?}: {seen:?}");
                let lacks: Vec<_> = before.iter().filter(|&post| !seen.contains(post)).collect();
                // A pushed post arrives a moment after its delivery.
                if flags.contains(&"--mode=pull") {
                    assert!(lacks.is_empty(), "{lacks:?} of {before:?}");
                }
            }
        };
        join(join(publish(1), publish(2)), join(read(reader), read(reader))).await;
        let all: Vec<_> = delivered.into_inner().unwrap().into_iter().rev().collect();
        system.system.home_becomes(reader, &all).await;
    }
}
