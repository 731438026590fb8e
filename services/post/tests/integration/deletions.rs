//! Deletions take effect in every read at once, and leave nothing in Redis.

use microblog_domain::CommentId;
use microblog_proto::{common::ErrorReason, post as pb};
use microblog_testkit::{
    Topology::{Cluster, Single},
    redis,
};
use tonic::Code;

use crate::support::{self, System, assert_rejected, id, keys_of, lists::List};

#[tokio::test]
async fn a_deleted_post_is_gone_from_every_read_at_once() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (author, fan) = (id(1), id(2));
        let post = system.create(author, "short-lived").await.unwrap().id;
        let repost = system.repost(fan, post).await.unwrap().id;
        system.like(fan, post).await.unwrap();
        let comment = system.comment(fan, post, "well", 0).await.unwrap().id;

        let stranger = system.delete(fan, post).await;
        assert_rejected(stranger, Code::PermissionDenied, ErrorReason::NotTheAuthor);
        assert_eq!(system.get(post, fan).await.unwrap().likes, 1);
        system.delete(author, post).await.unwrap();

        let (code, reason) = (Code::NotFound, ErrorReason::PostNotFound);
        assert_rejected(system.get(post, fan).await, code, reason);
        assert_rejected(system.like(fan, post).await, code, reason);
        assert_rejected(system.comment(fan, post, "late", 0).await, code, reason);
        assert_rejected(system.comment(fan, post, "late", comment).await, code, reason);
        assert_rejected(system.repost(fan, post).await, code, reason);
        assert_rejected(system.repost(fan, repost).await, code, reason);
        assert_eq!(system.unlike(fan, post).await.unwrap(), 0);
        system.uncomment(fan, post, comment).await.unwrap();
        let [of_the_post @ .., posts] = List::all_of(post, author);
        for list in of_the_post {
            assert_rejected(list.page(&system.client, 0, "").await, code, reason);
        }
        assert_eq!(posts.whole(&system.client, 20).await, [0; 0]);
        let mut client = system.client.clone();
        let batch = pb::BatchGetPostsRequest {
            post_ids: vec![post, repost],
            viewer_id: fan,
            ..Default::default()
        };
        let found = client.batch_get_posts(batch).await.unwrap().into_inner().posts;
        assert_eq!(found.len(), 1);
        assert!(found[0].root_deleted && found[0].root.is_none() && found[0].root_id == post);
        let liked = pb::BatchGetLikedRequest { user_id: fan, post_ids: vec![post] };
        assert!(client.batch_get_liked(liked).await.unwrap().into_inner().post_ids.is_empty());

        system.delete(author, post).await.unwrap();
        system.delete(fan, post).await.unwrap();
        system.delete(author, id(99)).await.unwrap();
        system.settles().await;
        assert_eq!(keys_of(&system, post).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_deleted_repost_is_removed_from_all_counts() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let root = system.create(id(1), "root").await.unwrap().id;
        let first = system.repost(id(2), root).await.unwrap().id;
        let second = system.repost(id(3), first).await.unwrap().id;
        let third = system.repost(id(4), second).await.unwrap().id;
        let listed = async |post| List::Reposts(post).whole(&system.client, 20).await;
        let counted = async |post| system.get(post, 0).await.unwrap().reposts;
        assert_eq!(listed(root).await, [third, second, first]);
        assert_eq!(listed(first).await, [second]);
        assert_eq!((counted(root).await, counted(second).await), (3, 1));

        system.delete(id(3), second).await.unwrap();
        assert_eq!(listed(root).await, [third, first]);
        assert_eq!(listed(first).await, [0; 0]);
        assert_eq!((counted(root).await, counted(first).await), (2, 0));
        let seen = system.get(third, 0).await.unwrap();
        assert_eq!((seen.root.unwrap().id, seen.reposted_id), (root, second), "it stays");
        let answer = system.repost(id(5), second).await;
        assert_rejected(answer, Code::NotFound, ErrorReason::PostNotFound);
        system.settles().await;
        assert_eq!(keys_of(&system, second).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_comment_is_deleted_by_its_author_or_the_posts_author_and_its_replies_stay() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (author, commenter, stranger) = (id(1), id(2), id(3));
        let post = system.create(author, "discuss").await.unwrap().id;
        let first = system.comment(commenter, post, "first", 0).await.unwrap();
        let second = system.comment(commenter, post, "second", 0).await.unwrap();
        let answer = system.comment(stranger, post, "answer", first.id).await.unwrap();
        let comments = async || List::oldest(post).whole(&system.client, 20).await;

        let denied = system.uncomment(stranger, post, first.id).await;
        assert_rejected(denied, Code::PermissionDenied, ErrorReason::NotTheAuthor);
        assert_eq!(comments().await, [first.id, second.id, answer.id]);
        system.uncomment(commenter, post, first.id).await.unwrap();
        assert_eq!(comments().await, [second.id, answer.id]);
        system.uncomment(author, post, second.id).await.unwrap();
        assert_eq!(comments().await, [answer.id]);
        assert_eq!(system.get(post, 0).await.unwrap().comments, 1);

        // Repeated, by a stranger, on another post, and on a missing one.
        system.uncomment(stranger, post, first.id).await.unwrap();
        system.uncomment(stranger, post, id(98)).await.unwrap();
        system.uncomment(stranger, id(99), answer.id).await.unwrap();
        assert_eq!(comments().await, [answer.id]);
        let request = pb::ListCommentsRequest { post_id: post, ..Default::default() };
        let listed = system.client.clone().list_comments(request).await.unwrap().into_inner();
        assert_eq!(
            listed.comments,
            std::slice::from_ref(&answer),
            "what it answers is still named"
        );
        assert_eq!(answer.in_reply_to_id, first.id);
        system.settles().await;
    }
}

#[tokio::test]
async fn only_an_existing_comment_can_be_replied_to() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let post = system.create(id(1), "discuss").await.unwrap().id;
        let other = system.create(id(1), "something else").await.unwrap().id;
        let elsewhere = system.comment(id(2), other, "elsewhere", 0).await.unwrap().id;
        let deleted = system.comment(id(2), post, "deleted", 0).await.unwrap().id;
        system.uncomment(id(2), post, deleted).await.unwrap();
        for answered in [elsewhere, deleted, id(98), post] {
            let answer = system.comment(id(3), post, "answer", answered).await;
            assert_rejected(answer, Code::NotFound, ErrorReason::CommentNotFound);
        }
        assert_eq!(system.get(post, 0).await.unwrap().comments, 0);
        assert_eq!(List::newest(post).whole(&system.client, 20).await, [0; 0]);
        system.settles().await;
    }
}

#[tokio::test]
async fn malformed_posts_and_comments_hide_no_others_and_grant_no_rights() {
    let system = System::start(Single).await;
    let post = system.create(id(1), "hello").await.unwrap();
    let first = system.comment(id(2), post.id, "first", 0).await.unwrap();
    let second = system.comment(id(3), post.id, "second", 0).await.unwrap();
    let partition = support::post(post.id).partition();
    let key = |kind: &str| format!("post:{{{partition}}}:{kind}:{}", post.id);
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut damage = async |key: String, field: String| {
        let damage = redis::cmd("HSET").arg(key).arg(field).arg("rubbish").take();
        damage.exec_async(&mut admin).await.unwrap();
    };
    damage(key("comment_bodies"), first.id.to_string()).await;
    let request = pb::ListCommentsRequest { post_id: post.id, ..Default::default() };
    let listed = system.client.clone().list_comments(request).await.unwrap().into_inner();
    assert_eq!(listed.comments, std::slice::from_ref(&second));

    damage(key("post"), "b".to_owned()).await;
    system.uncomment(id(4), post.id, second.id).await.unwrap();
    let second = CommentId::new(second.id).unwrap();
    let kept = system.store.comments(&[(support::post(post.id), second)]).await.unwrap();
    assert_eq!(kept.len(), 1, "another author's comment still exists");
}
