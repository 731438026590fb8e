//! The check of invariants finds what is wrong, and nothing else.

use microblog_testkit::{Topology, eventually, redis::cmd};

use crate::support::{PATIENCE, System, id};

#[tokio::test]
async fn damage_in_the_tables_is_found() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let [ann, bob] = [system.register("ann").await, id(2)];
        let post = system.publish(ann, "post").await;
        system.like(bob, post).await;
        system.publish(bob, "@ann").await;
        system.settle(&[ann, bob]).await;
        system.verifies().await;
        for (column, expected) in [
            ("notices", format!("notices of account {ann}: it has 9, there are 2")),
            ("mentions", format!("mentions of account {ann}: it has 9, there are 1")),
            ("top", format!("a notice of account {ann} is newer than its newest act")),
        ] {
            let sql = format!("SELECT {column} FROM accounts WHERE id = {ann}");
            let before = system.numbers(&sql).await[0];
            let set = |value| format!("UPDATE accounts SET {column} = {value} WHERE id = {ann}");
            system.execute(&set(9)).await;
            // What the cache has differs then, too.
            assert!(system.violations().await.contains(&expected), "{expected}");
            system.execute(&set(before)).await;
            system.verifies().await;
        }
    }
}

#[tokio::test]
async fn damage_in_the_cache_is_found() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let [ann, bob] = [1, 2].map(id);
        let post = system.publish(ann, "post").await;
        system.like(bob, post).await;
        system.settle(&[ann]).await;
        let pattern = format!("note:*:notices:*:{ann}");
        eventually("the notices are cached", PATIENCE, async || {
            let _ = system.notices(ann).await;
            !system.keys(&pattern).await.is_empty()
        })
        .await;
        let key = system.keys(&pattern).await.remove(0);
        for node in system.redis.nodes() {
            // Another node of a cluster rejects it. The byte is one of the front.
            let set = cmd("SETRANGE").arg(&key).arg(20).arg("x").take();
            let _ = set.exec_async(&mut node.admin().await).await;
        }
        let expected = format!("notices of {ann}: the cache differs from the database");
        assert_eq!(system.violations().await, [expected]);
        system.flush().await;
        system.verifies().await;
    }
}
