//! What expires.

use microblog_testkit::{Topology, eventually};

use crate::support::{PATIENCE, System, id};

#[tokio::test]
async fn notices_and_mentions_expire_after_the_last_act() {
    for topology in [Topology::Single, Topology::Cluster] {
        let mut system = System::start(topology).await;
        let [ann, bob] = [system.register("ann").await, system.register("bob").await];
        for text in ["@ann", "@bob", "@ann again"] {
            system.publish(id(3), text).await;
        }
        system.settle(&[id(3)]).await;
        let page = system.page(ann, &[], false).await;
        assert_eq!(page.notices.len(), 2);
        system.mark_seen(ann, &page.seen_token).await;
        system.stop().await;
        let set = |user: u64, days: u64| {
            format!("UPDATE accounts SET changed_day = changed_day - {days} WHERE id = {user}")
        };
        system.execute(&set(ann, 92)).await;
        system.execute(&set(bob, 88)).await;
        // The job's first round is at its start.
        system.restart().await;
        eventually("they have expired", PATIENCE, async || system.notices(ann).await.is_empty())
            .await;
        let rows = async |table: &str, user: u64| {
            let count = format!("SELECT count(*) FROM {table} WHERE account = {user}");
            system.numbers(&count).await[0]
        };
        assert_eq!([rows("notices", ann).await, rows("mentions", ann).await], [0, 0]);
        assert_eq!([rows("notices", bob).await, rows("mentions", bob).await], [1, 1]);
        // What comes later is new, and in its order.
        let before = system.page(ann, &[], false).await.seen_token;
        let post = system.publish(id(3), "@ann once more").await;
        eventually("it has arrived", PATIENCE, async || {
            let unseen = system.page(ann, &[], true).await.notices;
            unseen.iter().map(|notice| notice.post_id).eq([post])
        })
        .await;
        assert_ne!(system.page(ann, &[], false).await.seen_token, before);
    }
}
