//! What is deleted later than the call that deletes it: what belonged to a post, and what an account has.

use futures::future::join_all;
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::eventually;
use tonic::Code;

use crate::support::{PATIENCE, System, Topology, assert_rejected, id, lists::List, violations};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

async fn forget(system: &System, account: u64) {
    let request = pb::ForgetUserRequest { user_id: id(account) };
    system.client.clone().forget_user(request).await.unwrap();
}

async fn post_count(system: &System, account: u64) -> u64 {
    let request = pb::BatchGetPostCountsRequest { user_ids: vec![id(account)] };
    let answer = system.client.clone().batch_get_post_counts(request).await.unwrap();
    answer.into_inner().counts[0].posts
}

#[tokio::test]
async fn what_belonged_to_a_deleted_post_is_removed() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap().id;
        let post = system.repost(id(2), root).await.unwrap().id;
        let again = system.repost(id(3), post).await.unwrap().id;
        join_all((10..500).map(|n| system.like(id(n), post))).await;
        join_all((10..250).map(|n| system.comment(id(n), post, "well", 0))).await;
        system.delete(id(2), post).await.unwrap();
        // At once, for everybody.
        let missing = system.get(post, 0).await;
        assert_rejected(missing, Code::NotFound, ErrorReason::PostNotFound);
        let liked = pb::BatchGetLikedRequest { user_id: id(10), post_ids: vec![post] };
        let liked = system.client.clone().batch_get_liked(liked).await.unwrap().into_inner();
        assert_eq!(liked.post_ids, [0; 0]);
        assert_eq!(List::UserPosts(id(2)).whole(&system.client, 20).await, [0; 0]);
        assert_eq!(List::Reposts(root).whole(&system.client, 20).await, [again]);
        assert_eq!(system.get(root, 0).await.unwrap().reposts, 1);
        for list in List::all_of(post, id(2)).into_iter().take(4) {
            let answer = list.page(&system.client, 0, "").await;
            assert_rejected(answer, Code::NotFound, ErrorReason::PostNotFound);
        }
        let comments = pb::ListUserCommentsRequest { author_id: id(10), ..Default::default() };
        let comments = system.client.clone().list_user_comments(comments).await.unwrap();
        assert_eq!(comments.into_inner().comments, []);
        system.settles().await;
        for table in ["likes", "comments", "deleted_posts"] {
            assert_eq!(system.rows(table).await, 0, "{table}");
        }
        assert_eq!(system.rows(&format!("reposts WHERE target = {post}")).await, 0);
        // Nobody's entry says that it is liked.
        assert!(violations(&system.client).await.is_empty());
    }
}

#[tokio::test]
async fn an_account_is_deleted_with_all_that_it_wrote() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let (gone, stays) = (1, 2);
        let theirs = system.create(id(stays), "theirs").await.unwrap().id;
        let made = join_all((0..250).map(|_| system.create(id(gone), "own"))).await;
        let own: Vec<u64> = made.into_iter().map(|made| made.unwrap().id).collect();
        let quote = system.quote(id(gone), theirs, "quote").await.unwrap().id;
        let of_own = system.repost(id(stays), own[0]).await.unwrap().id;
        system.like(id(gone), theirs).await.unwrap();
        system.like(id(stays), own[1]).await.unwrap();
        // Also on its own post, which is deleted first.
        system.comment(id(gone), own[2], "own", 0).await.unwrap();
        let comment = system.comment(id(gone), theirs, "well", 0).await.unwrap();
        let reply = system.comment(id(stays), theirs, "yes", comment.id).await.unwrap();
        assert_eq!(post_count(&system, gone).await, 251);

        forget(&system, gone).await;
        forget(&system, gone).await;
        let refused = system.create(id(gone), "more").await;
        assert_rejected(refused, Code::NotFound, ErrorReason::UserNotFound);
        let refused = system.like(id(gone), theirs).await;
        assert_rejected(refused, Code::NotFound, ErrorReason::UserNotFound);
        let refused = system.comment(id(gone), theirs, "more", 0).await;
        assert_rejected(refused, Code::NotFound, ErrorReason::UserNotFound);
        system.settles().await;
        assert_eq!(post_count(&system, gone).await, 0);
        assert_eq!(List::UserPosts(id(gone)).whole(&system.client, 200).await, [0; 0]);
        let seen = system.get(theirs, 0).await.unwrap();
        assert_eq!((seen.likes, seen.comments, seen.reposts), (0, 1, 0));
        assert_eq!(List::oldest(theirs).whole(&system.client, 20).await, [reply.id]);
        assert_rejected(system.get(quote, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        assert!(system.get(of_own, 0).await.unwrap().root_deleted, "a repost by another stays");
        for table in ["deletions", "deleted_posts"] {
            assert_eq!(system.rows(table).await, 0, "{table}");
        }
        for column in ["posts WHERE author", "likes WHERE account", "comments WHERE author"] {
            assert_eq!(system.rows(&format!("{column} = {}", id(gone))).await, 0, "{column}");
        }
    }
}

/// Writes of the account that are under way when it is deleted leave nothing.
#[tokio::test]
async fn what_races_the_deletion_of_its_account_does_not_stay() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let other = system.another(&[]).await;
        let theirs = system.create(id(1), "theirs").await.unwrap().id;
        for account in 10..20 {
            let writes = (0..20).map(async |n| {
                let user_id = id(account);
                match n % 3 {
                    0 => _ = system.create(user_id, "own").await,
                    1 => _ = system.comment(user_id, theirs, "well", 0).await,
                    _ => {
                        let like = pb::LikeRequest { user_id, post_id: theirs };
                        _ = other.clone().like(like).await;
                    }
                }
            });
            futures::join!(join_all(writes), forget(&system, account));
        }
        system.settles().await;
        eventually("nothing is left", PATIENCE, async || {
            let seen = system.get(theirs, 0).await.unwrap();
            (seen.likes, seen.comments) == (0, 0)
        })
        .await;
        assert_eq!(system.rows("posts").await, 1);
        assert_eq!(system.rows("likes").await + system.rows("comments").await, 0);
    }
}

/// One deletion does not wait for another that is longer, and that one ends, too.
#[tokio::test]
async fn a_long_deletion_does_not_hold_up_others() {
    let system = System::start(Topology::Cluster).await;
    let theirs = system.create(id(1), "theirs").await.unwrap().id;
    // More than some rounds of the job remove.
    for sql in [
        "INSERT INTO accounts SELECT n * 4096, 0, 0, 1, 0, 0, 0, 0 FROM generate_series(1000, 17000) AS n",
        "INSERT INTO likes SELECT n * 4096, POST, 7 FROM generate_series(1000, 17000) AS n",
        "INSERT INTO comments SELECT POST, POST + n, 4096, 0, 0, 'well' FROM generate_series(1, 6001) AS n",
        "UPDATE posts SET likes = 16001, comments = 6001 WHERE id = POST",
    ] {
        system.execute(&sql.replace("POST", &theirs.to_string())).await;
    }
    system.delete(id(1), theirs).await.unwrap();
    let quick = system.create(id(2), "quick").await.unwrap().id;
    system.like(id(3), quick).await.unwrap();
    forget(&system, 2).await;
    eventually("the short one is done", PATIENCE, async || system.rows("deletions").await == 0)
        .await;
    assert!(system.rows("likes").await > 0, "the long one is not");
    assert_rejected(system.get(quick, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    for table in ["deleted_posts", "deletions", "likes", "comments"] {
        eventually("the long one is done", PATIENCE, async || system.rows(table).await == 0).await;
    }
    // What they like has changed.
    let changed = "SELECT COUNT(*) FROM accounts WHERE id % 4096 = 0 AND liked_revision = 2";
    assert_eq!(system.numbers(changed).await, [16_001]);
}
