//! Full home timelines.

use std::collections::BTreeSet;

use microblog_domain::UserId;
use microblog_testkit::Topology;
use microblog_timeline::{BuildLease, Replacement};

use crate::{
    rng::{self, Rng},
    support::{System, delivery, entry, id, post_id, queue::stored},
};

/// The length of a home timeline.
const HOME_MAX: usize = 800;

/// The posts per delivery.
const BATCH: usize = 100;

impl System {
    async fn deliver_all(&self, posts: &[u64], author: u64) {
        for posts in posts.chunks(BATCH) {
            let deliveries = posts.iter().map(|&post| delivery(post, author, 0)).collect();
            let request = microblog_proto::timeline::DeliverRequest { deliveries };
            self.client.clone().deliver(request).await.unwrap();
        }
    }

    async fn whole_home(&self, user: u64) -> Vec<u64> {
        let (mut ids, mut token) = (Vec::new(), String::new());
        loop {
            let (entries, next, _) = self.home_page(user, 200, &token, "").await.unwrap();
            ids.extend(entries.iter().map(|entry| entry.post_id));
            if next.is_empty() {
                return ids;
            }
            token = next;
        }
    }
}

#[tokio::test]
async fn a_home_timeline_has_the_newest_800_posts_at_each_ring_size() {
    let system = System::start_with(Topology::Single, &["--mode", "push"]).await;
    let (author, reader) = (id(1), id(2));
    system.follow(reader, author).await;
    assert_eq!(system.home(reader).await, [0; 0]);
    let mut posts: Vec<u64> = Vec::new();
    // Past each size of a ring, one by one around the first of them.
    for count in [9, 1, 1, 10, 1, 1, 25, 1, 50, 101, 204, 394, 1, 1, 1, 799, 1, 1, 350] {
        let new: Vec<u64> = (0..count).map(|_| post_id(author)).collect();
        system.deliver_all(&new, author).await;
        posts.extend(&new);
        let is_there = async |user| {
            let home = system.whole_home(user).await;
            home.iter().eq(posts.iter().rev().take(HOME_MAX))
        };
        assert!(is_there(author).await, "the author's own, with {} posts", posts.len());
        let what = format!("a follower has the newest of {} posts", posts.len());
        microblog_testkit::eventually(&what, crate::PATIENCE, async || is_there(reader).await)
            .await;
    }
    // A repeated delivery inserts nothing, not even of a post that is not there any more.
    let before = [system.whole_home(author).await, system.whole_home(reader).await];
    system.deliver_all(&posts, author).await;
    let last = system.post(author).await;
    microblog_testkit::eventually("the last post arrives", crate::PATIENCE, async || {
        system.home(reader).await[0] == last
    })
    .await;
    for (before, user) in before.into_iter().zip([author, reader]) {
        let home = system.whole_home(user).await;
        assert_eq!((home.len(), &home[1..]), (HOME_MAX, &before[..HOME_MAX - 1]));
    }
}

/// A stored home timeline as specified.
#[derive(Default)]
struct Ring {
    content: BTreeSet<u64>,
    /// The edition that is being built; what its builder read; the posts pushed since then.
    edition: Option<u64>,
    fetched: Vec<u64>,
    pushed: BTreeSet<u64>,
}

impl Ring {
    /// Adds a post unless it has only newer ones.
    fn push(&mut self, post: u64) {
        self.pushed.insert(post);
        self.content.insert(post);
        if self.content.len() > HOME_MAX {
            self.content.pop_first();
        }
    }

    /// Checks the content after the edition was replaced.
    fn is_replaced(&mut self, kept: BTreeSet<u64>) {
        let read: BTreeSet<u64> = self.fetched.drain(..).collect();
        let oldest = if kept.len() == HOME_MAX { kept.first().copied() } else { None };
        let mut needed = read.union(&self.pushed);
        assert!(needed.all(|post| kept.contains(post) || Some(*post) < oldest));
        let known = |post| read.contains(post) || self.content.contains(post);
        assert!(kept.iter().all(known), "of what was read, or was there");
        // What was there before is kept only if it is newer than something pushed.
        let first = self.pushed.first().copied().unwrap_or(u64::MAX);
        assert!(kept.iter().all(|post| read.contains(post) || *post >= first));
        self.content = kept;
        self.edition = None;
    }
}

/// Pushes in any order, with builds meanwhile, of what another user's timeline may need.
#[tokio::test]
async fn a_ring_keeps_the_newest_posts_in_order() {
    const STEPS: usize = 150;
    let (seed, system) = (rng::seed(), System::start_without_jobs(Topology::Single).await);
    println!("{}", rng::again(seed));
    let (mut rng, mut ring, mut all) = (Rng::new(seed, 0), Ring::default(), Vec::new());
    let (author, reader) = (id(1), UserId::new(id(2)).unwrap());
    let store = &system.store;
    assert_eq!(system.home(reader.get()).await, [0; 0]);
    for _ in 0..STEPS {
        let mut posts: Vec<u64> = match rng.below(8) {
            0..4 => {
                let count = rng.of(&[1, 10, 90, 400]);
                let new: Vec<_> = (0..count).map(|_| post_id(author)).collect();
                all.extend(&new);
                new
            }
            // Again, or those just after them, which come late.
            repeated => {
                let count = rng.of(&[1, 30, 900]).min(all.len());
                let from = rng.below(all.len() - count + 1);
                let late = u64::from(repeated == 4);
                all[from..from + count].iter().map(|post| post | late).collect()
            }
        };
        match rng.below(4) {
            0 => posts.reverse(),
            1 => posts.sort_by_cached_key(|_| rng.below(1 << 20)),
            _ => {}
        }
        for post in posts {
            store.push(&entry(post, author), &[reader]).await.unwrap();
            ring.push(post);
        }
        let kept = stored(store, reader.get()).await;
        assert!(kept.iter().eq(&ring.content), "the newest in order, each once");
        match ring.edition {
            None if rng.one_in(3) => {
                let head = store.head(reader).await.unwrap().unwrap();
                let lease = store.begin_build(reader, Some(head.edition)).await.unwrap();
                let BuildLease::Acquired(edition) = lease else { panic!("{lease:?}") };
                // Often not all, as after an unfollow.
                let part = rng.of(&[0, 300, 800]);
                ring.fetched = ring.content.iter().rev().take(part).rev().copied().collect();
                if rng.one_in(2) {
                    ring.fetched.retain(|_| rng.one_in(2));
                }
                (ring.edition, ring.pushed) = (Some(edition), BTreeSet::new());
            }
            Some(edition) if rng.one_in(2) => {
                let entries = ring.fetched.iter().map(|&post| entry(post, author)).collect();
                let with = Replacement { entries, is_rebuild: true, ..Replacement::default() };
                assert!(store.replace(reader, edition, &with).await.unwrap());
                let kept = stored(store, reader.get()).await;
                ring.is_replaced(kept.into_iter().collect());
            }
            _ => {}
        }
    }
}
