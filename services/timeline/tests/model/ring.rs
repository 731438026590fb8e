//! Full home timelines.

use microblog_testkit::Topology;

use crate::support::{System, delivery, id, post_id};

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

// A post inserted earlier is also overwritten earlier, so a few posts around the end may differ.
fn is_full_of(home: &[u64], posts: &[u64]) -> bool {
    let newest: Vec<_> = posts.iter().rev().take(HOME_MAX).copied().collect();
    let certain = HOME_MAX - 2 * BATCH;
    home.len() == HOME_MAX && home[..certain] == newest[..certain]
}

#[tokio::test]
async fn a_home_timeline_has_the_newest_800_posts_at_each_ring_size() {
    let system = System::start_with(Topology::Single, &["--mode", "push"]).await;
    let (author, reader) = (id(1), id(2));
    system.follow(reader, author).await;
    assert_eq!(system.home(reader).await, [0; 0]);
    let mut posts: Vec<u64> = Vec::new();
    // Past each size of a ring, one by one around the first of them.
    for count in [9, 1, 1, 11, 1, 1, 24, 1, 51, 101, 204, 393, 1, 1, 1, 799, 1, 1, 350] {
        let new: Vec<u64> = (0..count).map(|_| post_id(author)).collect();
        system.deliver_all(&new, author).await;
        posts.extend(&new);
        let is_there = async |user| {
            let home = system.whole_home(user).await;
            let all: Vec<_> = posts.iter().rev().copied().collect();
            if posts.len() <= HOME_MAX { home == all } else { is_full_of(&home, &posts) }
        };
        assert!(is_there(author).await, "the author's own, with {} posts", posts.len());
        let what = format!("a follower has the newest of {} posts", posts.len());
        microblog_testkit::eventually(&what, crate::WAIT_TIMEOUT, async || is_there(reader).await)
            .await;
    }
    // A repeated delivery inserts nothing.
    let before = [system.whole_home(author).await, system.whole_home(reader).await];
    let again = &posts[posts.len() - 500..];
    system.deliver_all(again, author).await;
    let last = system.post(author).await;
    microblog_testkit::eventually("the last post arrives", crate::WAIT_TIMEOUT, async || {
        system.home(reader).await[0] == last
    })
    .await;
    for (before, user) in before.into_iter().zip([author, reader]) {
        let home = system.whole_home(user).await;
        assert_eq!((home.len(), &home[1..]), (HOME_MAX, &before[..HOME_MAX - 1]));
    }
}
