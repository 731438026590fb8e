//! Concurrency: a repeated request executes once, counts equal the lists, and nothing outlives its
//! post.

use std::collections::{BTreeMap, HashSet};

use futures::future::{join, join_all};
use microblog_chassis::status::reason_of;
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::Topology::{Cluster, Single};

use crate::support::{self, Client, System, client, id, lists::List, request_id};

const CLIENTS: u64 = 64;

/// Returns clients with a connection each.
fn clients(system: &System) -> Vec<Client> {
    (0..CLIENTS).map(|_| client(&system.address)).collect()
}

#[tokio::test]
async fn one_request_of_64_clients_makes_one_post() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let request = pb::CreatePostRequest {
            author_id: id(1),
            request_id: request_id(),
            text: "once".to_owned(),
        };
        let mut clients = clients(&system);
        let calls = clients.iter_mut().map(|client| client.create_post(request.clone()));
        let made: HashSet<_> = join_all(calls)
            .await
            .into_iter()
            .map(|answer| answer.unwrap().into_inner().post.unwrap().id)
            .collect();
        let listed = List::UserPosts(id(1)).whole(&system.client, 20).await;
        assert_eq!(made.into_iter().collect::<Vec<_>>(), listed);
        assert_eq!(listed.len(), 1);
        assert!(system.timelines.times(listed[0]) >= 1);
        system.settles().await;
    }
}

#[tokio::test]
async fn one_request_of_64_clients_makes_one_repost_and_counts_it_once() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap().id;
        let between = system.repost(id(2), root).await.unwrap().id;
        let (text, request_id) = (String::new(), request_id());
        let request = pb::RepostRequest { author_id: id(3), request_id, post_id: between, text };
        let mut clients = clients(&system);
        let calls = clients.iter_mut().map(|client| client.repost(request.clone()));
        let answers = join_all(calls).await.into_iter();
        let made: Vec<_> =
            answers.map(|answer| answer.unwrap().into_inner().post.unwrap()).collect();
        let repost = made[0].id;
        assert!(made.iter().all(|post| post.id == repost));
        assert!(made.iter().all(|post| post.root.as_ref().unwrap().reposts <= 2));
        assert_eq!(List::Reposts(root).whole(&system.client, 20).await, [repost, between]);
        assert_eq!(List::Reposts(between).whole(&system.client, 20).await, [repost]);
        assert_eq!(system.get(root, 0).await.unwrap().reposts, 2);
        assert_eq!(system.get(between, 0).await.unwrap().reposts, 1);
        system.settles().await;
    }
}

#[tokio::test]
async fn one_request_of_64_clients_adds_one_comment_and_counts_it_once() {
    for topology in [Single, Cluster] {
        let system = System::start_with(topology, &["--comments-per-minute", "1"]).await;
        let post_id = system.create(id(1), "discuss").await.unwrap().id;
        let request = pb::AddCommentRequest {
            author_id: id(2),
            request_id: request_id(),
            post_id,
            text: "once".to_owned(),
            in_reply_to_id: 0,
        };
        let mut clients = clients(&system);
        let calls = clients.iter_mut().map(|client| client.add_comment(request.clone()));
        let answers = join_all(calls).await.into_iter();
        let made: Vec<_> =
            answers.map(|answer| answer.unwrap().into_inner().comment.unwrap()).collect();
        assert!(made.iter().all(|comment| *comment == made[0]));
        assert_eq!(List::oldest(post_id).whole(&system.client, 20).await, [made[0].id]);
        assert_eq!(system.get(post_id, 0).await.unwrap().comments, 1);
        system.settles().await;
    }
}

#[tokio::test]
async fn concurrent_likes_and_unlikes_leave_one_or_none() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (user_id, post_id) = (id(2), system.create(id(1), "like me").await.unwrap().id);
        let mut clients = clients(&system);
        for _ in 0..5 {
            let calls = clients.iter_mut().enumerate().map(|(n, client)| async move {
                if n.is_multiple_of(2) {
                    let like = client.like(pb::LikeRequest { user_id, post_id }).await;
                    like.unwrap().into_inner().likes
                } else {
                    let unlike = client.unlike(pb::UnlikeRequest { user_id, post_id }).await;
                    unlike.unwrap().into_inner().likes
                }
            });
            assert!(join_all(calls).await.into_iter().all(|likes| likes <= 1));
            let seen = system.get(post_id, user_id).await.unwrap();
            let listed = List::Likers(post_id).whole(&system.client, 20).await;
            let expected: &[u64] = if seen.liked { &[user_id] } else { &[] };
            assert_eq!((seen.likes, &*listed), (u64::from(seen.liked), expected));
        }
        system.settles().await;
    }
}

#[tokio::test]
async fn a_post_deleted_under_likes_and_comments_leaves_no_rows() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let author_id = id(1);
        let post_id = system.create(author_id, "short-lived").await.unwrap().id;
        let mut clients = clients(&system);
        let (fans, rest) = clients.split_at_mut(32);
        let fans = fans.iter_mut().zip(10..).map(async |(client, n)| {
            let mut refusals = Vec::new();
            // Until the post is seen to be deleted, and a little longer.
            while refusals.len() < 8 {
                let (user_id, author_id) = (id(n), id(n));
                let like = client.like(pb::LikeRequest { user_id, post_id }).await;
                refusals.extend(like.err());
                let (request_id, text) = (request_id(), "well".to_owned());
                let in_reply_to_id = 0;
                let request =
                    pb::AddCommentRequest { author_id, request_id, post_id, text, in_reply_to_id };
                refusals.extend(client.add_comment(request).await.err());
                let (request_id, text) = (support::request_id(), String::new());
                let request = pb::RepostRequest { author_id, request_id, post_id, text };
                refusals.extend(client.repost(request).await.err());
                client.unlike(pb::UnlikeRequest { user_id, post_id }).await.unwrap();
            }
            refusals
        });
        let deletes = async {
            microblog_testkit::eventually(
                "the comments are counted",
                support::PATIENCE,
                async || system.get(post_id, 0).await.unwrap().comments > 50,
            )
            .await;
            let client = &mut rest[0];
            client.delete_post(pb::DeletePostRequest { author_id, post_id }).await.unwrap();
        };
        let (refusals, ()) = join(join_all(fans), deletes).await;
        let reasons: HashSet<_> = refusals.iter().flatten().map(reason_of).collect();
        assert_eq!(reasons, [Some(ErrorReason::PostNotFound)].into());
        system.settles().await;
        for (table, post) in [("likes", "post"), ("comments", "post"), ("reposts", "target")] {
            assert_eq!(
                system.rows(&format!("{table} WHERE {post} = {post_id}")).await,
                0,
                "{table}"
            );
        }
    }
}

#[tokio::test]
async fn concurrently_made_and_deleted_reposts_are_counted_correctly() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap().id;
        let work = (10..26).map(async |n| {
            let mut kept = BTreeMap::new();
            for round in 0..6 {
                let made = system.repost(id(n), root).await.unwrap().id;
                let again = system.repost(id(n + 100), made).await.unwrap().id;
                if round % 2 == 0 {
                    system.delete(id(n), made).await.unwrap();
                } else {
                    kept.insert(made, [again]);
                }
            }
            kept
        });
        let kept: BTreeMap<_, _> = join_all(work).await.into_iter().flatten().collect();
        assert_eq!(system.get(root, 0).await.unwrap().reposts, 16 * 9);
        for (made, again) in kept {
            assert_eq!(List::Reposts(made).whole(&system.client, 20).await, again);
            assert_eq!(system.get(made, 0).await.unwrap().reposts, 1);
        }
        system.settles().await;
    }
}
