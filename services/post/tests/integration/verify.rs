//! The check of invariants finds what is wrong, and nothing else.

use futures::future::join_all;
use microblog_testkit::redis::cmd;

use crate::support::{System, Topology, id, lists::List, violations};

#[tokio::test]
async fn damage_in_the_tables_is_found() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap().id;
        let repost = system.repost(id(2), root).await.unwrap().id;
        system.like(id(3), root).await.unwrap();
        system.comment(id(3), root, "well", 0).await.unwrap();
        system.settles().await;
        for (damage, mend, expected) in [
            (
                format!("UPDATE posts SET likes = 2 WHERE id = {root}"),
                format!("UPDATE posts SET likes = 1 WHERE id = {root}"),
                format!("likes of post {root}: it has 2, there are 1"),
            ),
            (
                format!("UPDATE posts SET comments = 0 WHERE id = {root}"),
                format!("UPDATE posts SET comments = 1 WHERE id = {root}"),
                format!("comments of post {root}: it has 0, there are 1"),
            ),
            (
                format!("UPDATE posts SET reposts = 5 WHERE id = {root}"),
                format!("UPDATE posts SET reposts = 1 WHERE id = {root}"),
                format!("reposts of post {root}: it has 5, there are 1"),
            ),
            (
                format!("UPDATE reposts SET repost = 4096 WHERE repost = {repost}"),
                format!("UPDATE reposts SET repost = {repost} WHERE repost = 4096"),
                format!("post {repost} is not on the list of a post that counts it"),
            ),
            (
                format!("UPDATE accounts SET posts = 7 WHERE id = {}", id(1)),
                format!("UPDATE accounts SET posts = 1 WHERE id = {}", id(1)),
                format!("posts of account {}: it has 7, there are 1", id(1)),
            ),
            (
                format!("UPDATE texts SET id = 4096 WHERE id = {repost}"),
                format!("UPDATE texts SET id = {repost} WHERE id = 4096"),
                format!("post {repost} has no text"),
            ),
            (
                "INSERT INTO deletions VALUES (4)".to_owned(),
                "DELETE FROM deletions".to_owned(),
                "4: the deletion of the account is in progress".to_owned(),
            ),
        ] {
            if topology == Topology::Cluster && damage.contains("SET id = 4096") {
                // It would be of a year without a partition.
                continue;
            }
            system.execute(&damage).await;
            // What the cache has differs then, too.
            let found = violations(&system.client).await;
            assert!(found.contains(&expected), "{damage}: {found:?}");
            system.execute(&mend).await;
            system.flush().await;
            system.settles().await;
        }
    }
}

#[tokio::test]
async fn a_wrong_entry_of_each_kind_is_found() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let post = system.create(id(1), "seen").await.unwrap().id;
        system.repost(id(2), post).await.unwrap();
        system.like(id(3), post).await.unwrap();
        system.comment(id(3), post, "well", 0).await.unwrap();
        let read = async || {
            system.get(post, id(3)).await.unwrap();
            join_all(List::all_of(post, id(1)).map(|list| list.page(&system.client, 20, ""))).await;
        };
        for (kind, of) in [
            ("post", post),
            ("comments", post),
            ("reposts", post),
            ("author", id(1)),
            ("liked", id(3)),
        ] {
            read().await;
            system.settles().await;
            let key = system.keys(&format!("pst:*:{kind}:*:{of}")).await.remove(0);
            // The last byte is of the text, or of a record.
            for node in system.redis.nodes() {
                let mut admin = node.admin().await;
                let length = cmd("STRLEN").arg(&key).query_async::<i64>(&mut admin).await;
                let Ok(length @ 1..) = length else { continue };
                let damage = cmd("SETRANGE").arg(&key).arg(length - 1).arg(b"\x04").take();
                damage.exec_async(&mut admin).await.unwrap();
            }
            let expected = format!("{kind} of {of}: the cache differs from the database");
            assert_eq!(violations(&system.client).await, [expected]);
            system.flush().await;
            system.caches().await;
        }
    }
}

#[tokio::test]
async fn the_check_of_an_account_is_of_its_posts() {
    let system = System::start(Topology::Single).await;
    let made = join_all((0..450).map(|n| system.create(id(1 + n % 2), "text"))).await;
    let post = made[0].as_ref().unwrap().id;
    system.settles().await;
    system.execute(&format!("UPDATE posts SET likes = 2 WHERE id = {post}")).await;
    system.flush().await;
    let check = async |user_id| {
        let request = microblog_proto::post::VerifyRequest { user_id };
        let mut reports = system.client.clone().verify(request).await.unwrap().into_inner();
        let (mut posts, mut violations) = (0, 0);
        while let Some(report) = reports.message().await.unwrap() {
            posts += report.posts_checked;
            violations += report.violations.len();
        }
        (posts, violations)
    };
    let own = made[0].as_ref().unwrap().author_id;
    let other = if own == id(1) { id(2) } else { id(1) };
    assert_eq!(check(own).await, (225, 1));
    assert_eq!(check(other).await, (225, 0));
    assert_eq!(check(0).await, (450, 1));
    assert_eq!(check(id(99)).await, (0, 0));
}
