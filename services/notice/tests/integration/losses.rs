//! Redis may vanish at any moment: nothing is lost, nothing is wrong, and no call fails.

use std::{cell::Cell, time::Duration};

use futures::future::{join, join_all};
use microblog_proto::notice::NoticeKind;
use microblog_testkit::{Topology, eventually};
use tokio::time::{Instant, sleep};

use crate::support::{PATIENCE, System, id};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

/// Acts on a post, reads the notices of its author, and marks them as seen, until a time.
async fn lane(system: &System, number: u64, until: Instant) {
    let author = id(1_000 + number);
    let post = system.publish(author, "post").await;
    let mut liked = 0;
    while Instant::now() < until || liked == 0 {
        system.like(id(2_000 + liked), post).await;
        liked += 1;
        eventually("the like is counted", PATIENCE, async || {
            let [notice] = &system.notices(author).await[..] else { return false };
            notice.acts.len() as u64 + notice.earlier == liked
        })
        .await;
        let page = system.page(author, &[NoticeKind::Like], true).await;
        assert_eq!(page.notices.len(), 1, "it is new");
        system.mark_seen(author, &page.seen_token).await;
        assert!(system.page(author, &[], true).await.notices.is_empty(), "it is marked as seen");
    }
}

#[tokio::test]
async fn nothing_is_lost_and_no_call_fails_while_redis_is_emptied() {
    const RUN: Duration = Duration::from_secs(8);
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        system.caches().await;
        let (until, is_over) = (Instant::now() + RUN, Cell::new(false));
        let emptied = async {
            let mut times = 0;
            while !is_over.get() {
                system.flush().await;
                // In the longer ones, reads rely on the cache again.
                sleep(Duration::from_millis([200, 500, 900][times % 3])).await;
                times += 1;
            }
            times
        };
        let lanes = async {
            join_all((0..4).map(|number| lane(&system, number, until))).await;
            is_over.set(true);
        };
        let (times, ()) = join(emptied, lanes).await;
        assert!(times > 5, "{times}");
        system.caches().await;
        system.verifies().await;
    }
}

#[tokio::test]
async fn all_is_there_after_a_loss_and_a_restart() {
    for topology in TOPOLOGIES {
        let mut system = System::start(topology).await;
        let [ann, bob, cleo] = [1, 2, 3].map(id);
        let post = system.publish(ann, "post").await;
        system.like(bob, post).await;
        system.settle(&[ann]).await;
        let seen = system.page(ann, &[], false).await.seen_token;
        system.mark_seen(ann, &seen).await;
        system.follow(cleo, ann).await;
        system.settle(&[ann, cleo]).await;
        let before = [system.page(ann, &[], false).await, system.page(ann, &[], true).await];
        assert_eq!(before.each_ref().map(|page| page.notices.len()), [2, 1]);
        system.stop().await;
        system.flush().await;
        system.restart().await;
        let after = [system.page(ann, &[], false).await, system.page(ann, &[], true).await];
        assert_eq!(after, before);
    }
}

/// The database answers, and calls go on.
#[tokio::test]
async fn calls_go_on_while_redis_does_not_answer() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        system.caches().await;
        for node in system.redis.nodes() {
            node.pause();
        }
        lane(&system, 1, Instant::now()).await;
        for node in system.redis.nodes() {
            node.resume();
        }
        let author = id(1_001);
        assert_eq!(system.notices(author).await.len(), 1);
        assert!(system.page(author, &[], true).await.notices.is_empty());
        system.verifies().await;
    }
}
