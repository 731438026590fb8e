//! Batch reads of posts, comments and likes.

use std::collections::BTreeSet;

use futures::future::{join_all, try_join_all};
use microblog_proto::post as pb;
use microblog_testkit::{
    Topology::{Cluster, Single},
    eventually,
    redis::cmd,
};
use prost::Message as _;
use tonic::Status;

use crate::support::{self, PATIENCE, System, id, lists::ids, names_fields};

async fn batch(system: &System, post_ids: &[u64], viewer: u64) -> Result<Vec<pb::Post>, Status> {
    let request = pb::BatchGetPostsRequest {
        post_ids: post_ids.to_vec(),
        viewer_id: viewer,
        ..Default::default()
    };
    Ok(system.client.clone().batch_get_posts(request).await?.into_inner().posts)
}

async fn liked(system: &System, user_id: u64, post_ids: &[u64]) -> Result<Vec<u64>, Status> {
    let request = pb::BatchGetLikedRequest { user_id, post_ids: post_ids.to_vec() };
    Ok(system.client.clone().batch_get_liked(request).await?.into_inner().post_ids)
}

#[tokio::test]
async fn a_batch_is_deduplicated_and_in_the_given_order() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let made = join_all((0..500).map(|n| system.create(id(n + 1), "one of many"))).await;
        let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
        let all = ids(&made);
        assert_eq!(batch(&system, &all, 0).await.unwrap(), made);
        assert_eq!(batch(&system, &[], 0).await.unwrap(), []);

        let [a, b, c] = [all[7], all[3], all[400]];
        let gone = all[5];
        system.delete(id(6), gone).await.unwrap();
        let found = batch(&system, &[a, id(999), b, a, gone, c, b], 0).await.unwrap();
        assert_eq!(ids(&found), [a, b, c]);

        let too_many: Vec<_> = all.iter().copied().chain([1]).collect();
        names_fields(batch(&system, &too_many, 0).await, &["post_ids"]);
        names_fields(batch(&system, &[a, 0, b], 1 << 53).await, &["viewer_id"]);
        let found = batch(&system, &[0, a, 1 << 53, b, u64::MAX], 0).await.unwrap();
        assert_eq!(ids(&found), [a, b]);
        let same = vec![a; 500];
        assert_eq!(ids(&batch(&system, &same, 0).await.unwrap()), [a]);
        system.settles().await;
    }
}

#[tokio::test]
async fn a_partial_batch_names_what_does_not_fit() {
    let system = System::start(Single).await;
    let text = "微".repeat(2_000);
    let made = join_all((0..400).map(|n| system.create(id(n + 1), &text))).await;
    let all: Vec<_> = made.into_iter().map(|made| made.unwrap().id).collect();
    let mut request =
        pb::BatchGetPostsRequest { post_ids: all.clone(), viewer_id: 0, allow_partial: true };
    request.post_ids.extend([all[0], id(999)]);
    let mut found = Vec::new();
    loop {
        let response = system.client.clone().batch_get_posts(request.clone()).await.unwrap();
        assert!(response.get_ref().encoded_len() < 2 * 1024 * 1024 + 16 * 1024);
        let response = response.into_inner();
        assert!(!response.posts.is_empty());
        found.extend(ids(&response.posts));
        if response.remaining_ids.is_empty() {
            break;
        }
        request.post_ids = response.remaining_ids;
    }
    assert_eq!(found, all);
    let few = &all[..10];
    request.post_ids = few.to_vec();
    let response = system.client.clone().batch_get_posts(request).await.unwrap().into_inner();
    assert_eq!((ids(&response.posts), response.remaining_ids), (few.to_vec(), vec![]));
}

#[tokio::test]
async fn a_batch_includes_roots() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let viewer = id(50);
        let root = system.create(id(1), "root").await.unwrap();
        let other = system.create(id(2), "other root").await.unwrap();
        let lost = system.create(id(3), "lost root").await.unwrap();
        let first = system.repost(id(4), root.id).await.unwrap();
        let second = system.repost(id(5), first.id).await.unwrap();
        let of_other = system.repost(id(6), other.id).await.unwrap();
        let orphan = system.repost(id(7), lost.id).await.unwrap();
        system.delete(id(3), lost.id).await.unwrap();
        system.like(viewer, root.id).await.unwrap();
        system.like(viewer, second.id).await.unwrap();
        let root = system.get(root.id, viewer).await.unwrap();

        let asked = [second.id, root.id, of_other.id, orphan.id, first.id];
        let found = batch(&system, &asked, viewer).await.unwrap();
        assert_eq!(ids(&found), asked);
        let roots: Vec<_> = found.iter().map(|post| post.root.as_deref().cloned()).collect();
        let other = system.get(other.id, viewer).await.unwrap();
        assert_eq!(roots, [Some(root.clone()), None, Some(other), None, Some(root.clone())]);
        let flags: Vec<_> = found.iter().map(|post| (post.liked, post.root_deleted)).collect();
        let neither = (false, false);
        assert_eq!(flags, [(true, false), (true, false), neither, (false, true), neither]);
        assert_eq!((root.liked, root.reposts, root.likes), (true, 2, 1));
        for post in found {
            assert_eq!(system.get(post.id, viewer).await.unwrap(), post, "alone as in a batch");
        }
    }
}

#[tokio::test]
async fn whether_a_post_is_liked_depends_on_the_viewer() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (fan, other, nobody) = (id(50), id(51), 0);
        let post = system.create(id(1), "like me").await.unwrap().id;
        let repost = system.repost(id(2), post).await.unwrap().id;
        for liked_one in [post, repost] {
            system.like(fan, liked_one).await.unwrap();
        }
        system.like(other, repost).await.unwrap();
        for (viewer, likes_post, likes_repost) in
            [(fan, true, true), (other, false, true), (nobody, false, false)]
        {
            let seen = system.get(repost, viewer).await.unwrap();
            assert_eq!((seen.liked, seen.root.unwrap().liked), (likes_repost, likes_post));
            let found = batch(&system, &[post, repost], viewer).await.unwrap();
            let flags: Vec<_> = found.iter().map(|post| post.liked).collect();
            assert_eq!(flags, [likes_post, likes_repost]);
            let page = |author_id| {
                let mut client = system.client.clone();
                let request =
                    pb::ListUserPostsRequest { author_id, viewer_id: viewer, ..Default::default() };
                async move { client.list_user_posts(request).await.unwrap().into_inner().posts }
            };
            assert_eq!(page(id(1)).await[0].liked, likes_post);
            let reposted = page(id(2)).await.remove(0);
            assert_eq!((reposted.liked, reposted.root.unwrap().liked), (likes_repost, likes_post));
            let request =
                pb::ListRepostsRequest { post_id: post, viewer_id: viewer, ..Default::default() };
            let listed = system.client.clone().list_reposts(request).await.unwrap().into_inner();
            assert_eq!(listed.posts[0].liked, likes_repost);
            assert_eq!(listed.posts[0].root, None, "reposts are listed without their root");
        }

        assert_eq!(liked(&system, fan, &[repost, id(9), post]).await.unwrap(), [repost, post]);
        assert_eq!(liked(&system, other, &[post, repost]).await.unwrap(), [repost]);
        assert_eq!(liked(&system, id(52), &[post, repost]).await.unwrap(), [0; 0]);
        assert_eq!(liked(&system, fan, &[]).await.unwrap(), [0; 0]);
        assert_eq!(liked(&system, fan, &[post; 500]).await.unwrap()[0], post);
        names_fields(liked(&system, 0, &[1; 501]).await, &["user_id", "post_ids"]);
        assert_eq!(liked(&system, fan, &[0, post, u64::MAX]).await.unwrap(), [post]);

        system.unlike(fan, post).await.unwrap();
        assert_eq!(liked(&system, fan, &[post, repost]).await.unwrap(), [repost]);
        system.delete(id(2), repost).await.unwrap();
        assert_eq!(liked(&system, fan, &[post, repost]).await.unwrap(), [0; 0]);
    }
}

#[tokio::test]
async fn a_repeated_like_keeps_the_first_time() {
    let system = System::start(Single).await;
    let post_id = system.create(id(1), "like me").await.unwrap().id;
    let like = async || {
        let request = pb::LikeRequest { user_id: id(2), post_id };
        system.client.clone().like(request).await.unwrap().into_inner()
    };
    let first = like().await;
    assert_eq!((first.like.as_ref().unwrap().user_id, first.likes), (id(2), 1));
    assert_eq!(like().await, first);
    let request = pb::ListLikersRequest { post_id, ..Default::default() };
    let listed = system.client.clone().list_likers(request).await.unwrap().into_inner();
    assert_eq!(listed.likes, first.like.as_slice());
    assert!(listed.likes[0].liked_at.unwrap().seconds >= support::seconds(post_id));
    assert_eq!(system.unlike(id(2), post_id).await.unwrap(), 0);
    assert_eq!(like().await.likes, 1);
}

/// Returns comments by their posts and ids: all, or the call fails.
async fn comments(system: &System, keys: &[(u64, u64)]) -> Result<Vec<pb::Comment>, Status> {
    let response = system.batch_comments(keys, false).await?;
    assert!(response.remaining.is_empty());
    Ok(response.comments)
}

fn key(comment: &pb::Comment) -> (u64, u64) {
    (comment.post_id, comment.id)
}

#[tokio::test]
async fn a_batch_of_comments_is_deduplicated_and_in_the_given_order() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let posts = join_all((0..50).map(|n| system.create(id(n + 1), "discuss"))).await;
        let posts: Vec<_> = posts.into_iter().map(|post| post.unwrap().id).collect();
        let comment =
            |n: u64| system.comment(id(100 + n), posts[n as usize % 50], "one of many", 0);
        let made = join_all((0..500).map(comment)).await;
        let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
        let all: Vec<_> = made.iter().map(key).collect();
        assert_eq!(comments(&system, &all).await.unwrap(), made);
        assert_eq!(comments(&system, &[]).await.unwrap(), []);
        for comment in &made[..3] {
            let request =
                pb::GetCommentRequest { post_id: comment.post_id, comment_id: comment.id };
            let alone = system.client.clone().get_comment(request).await.unwrap().into_inner();
            assert_eq!(alone.comment.as_ref(), Some(comment), "alone as in a batch");
        }

        let [a, b, c] = [all[7], all[57], all[400]];
        let (deleted, on_deleted) = (all[107], all[5]);
        system.uncomment(id(207), deleted.0, deleted.1).await.unwrap();
        system.delete(id(6), on_deleted.0).await.unwrap();
        // On another post, on no post, and one that never was.
        let others = [(b.0, c.1), (id(999), a.1), (a.0, id(999))];
        let asked = [&[a, deleted, b, a, on_deleted], &others[..], &[c, b]].concat();
        let found = comments(&system, &asked).await.unwrap();
        assert_eq!(found.iter().map(key).collect::<Vec<_>>(), [a, b, c]);

        let too_many: Vec<_> = all.iter().copied().chain([a]).collect();
        names_fields(comments(&system, &too_many).await, &["comments"]);
        let odd = [a, (0, b.1), (b.0, 1 << 53), (0, 0), c];
        let found = comments(&system, &odd).await.unwrap();
        assert_eq!(found.iter().map(key).collect::<Vec<_>>(), [a, c]);
        assert_eq!(comments(&system, &[a; 500]).await.unwrap(), [made[7].clone()]);
        system.settles().await;
    }
}

#[tokio::test]
async fn a_partial_batch_of_comments_names_what_does_not_fit() {
    let system = System::start(Single).await;
    let post = system.create(id(1), "discuss").await.unwrap().id;
    let text = "微".repeat(2_000);
    let made = join_all((0..400).map(|n| system.comment(id(n + 1), post, &text, 0))).await;
    let all: Vec<_> = made.into_iter().map(|made| key(&made.unwrap())).collect();
    let mut asked = [&all[..], &[all[0], (post, id(999))]].concat();
    let mut found = Vec::new();
    while !asked.is_empty() {
        let response = system.batch_comments(&asked, true).await.unwrap();
        assert!(response.encoded_len() < 2 * 1024 * 1024 + 16 * 1024);
        assert!(!response.comments.is_empty());
        found.extend(response.comments.iter().map(key));
        let remaining = response.remaining.iter();
        asked = remaining.map(|key| (key.post_id, key.comment_id)).collect();
    }
    assert_eq!(found, all);
    let response = system.batch_comments(&all[..10], true).await.unwrap();
    assert_eq!((response.comments.len(), response.remaining.len()), (10, 0));
    assert_eq!(comments(&system, &all[..300]).await.unwrap().len(), 300, "all without the option");
}

#[tokio::test]
async fn an_entry_that_is_damaged_or_gone_is_loaded_again() {
    let system = System::start(Single).await;
    let made = join_all((1..=4).map(|n| system.create(id(n), "one of many"))).await;
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let all = ids(&made);
    assert_eq!(batch(&system, &all, id(9)).await.unwrap(), made);
    let mut admin = system.redis.nodes()[0].admin().await;
    let keys = system.keys("pst:*:post:*").await;
    let of = |post: u64| keys.iter().find(|key| key.ends_with(&format!(":{post}"))).unwrap();
    let set = |post: u64, value: &[u8]| cmd("SET").arg(of(post)).arg(value).take();
    set(all[0], b"rubbish").exec_async(&mut admin).await.unwrap();
    set(all[1], b"").exec_async(&mut admin).await.unwrap();
    cmd("DEL").arg(of(all[2])).exec_async(&mut admin).await.unwrap();
    assert_eq!(batch(&system, &all, id(9)).await.unwrap(), made);
}

/// From the cache, and from the database alone.
#[tokio::test]
async fn a_batch_is_the_same_with_and_without_redis() {
    let system = System::start(Cluster).await;
    let (fan, author) = (id(50), id(1));
    let root = system.create(author, "root").await.unwrap().id;
    let made = join_all((2..40).map(|n| system.quote(id(n), root, "quote"))).await;
    let mut all: Vec<_> = made.into_iter().map(|made| made.unwrap().id).collect();
    all.push(root);
    for post in all.iter().step_by(2) {
        system.like(fan, *post).await.unwrap();
    }
    let cached = batch(&system, &all, fan).await.unwrap();
    assert_eq!(batch(&system, &all, fan).await.unwrap(), cached);
    for node in system.redis.nodes() {
        node.pause();
    }
    assert_eq!(batch(&system, &all, fan).await.unwrap(), cached);
    for node in system.redis.nodes() {
        node.resume();
    }
}

/// Checks what is answered of some posts: which of them an account likes.
async fn are_known(system: &System, user: u64, asked: &[u64], likes: &BTreeSet<u64>) {
    for asked in asked.chunks(400) {
        let expected: Vec<_> = asked.iter().copied().filter(|post| likes.contains(post)).collect();
        assert_eq!(liked(system, user, asked).await.unwrap(), expected);
    }
}

/// More likes than an entry has: the database knows the others. The entry is read early, grows from one load to
/// the next, and is read before and after each.
#[tokio::test]
async fn likes_of_old_posts_are_known() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (fan, another) = (id(90), id(91));
        let mut all = Vec::new();
        for _ in 0..16 {
            let made = try_join_all((1..=50).map(|n| system.create(id(n), "like me"))).await;
            all.extend(made.unwrap().into_iter().map(|made| made.id));
        }
        all.sort_unstable();
        // Of a post that nobody likes, nothing need be looked up.
        let (others, own): (Vec<_>, Vec<_>) =
            (0..800).partition(|at: &usize| at.is_multiple_of(16));
        let by_another = others.iter().map(|&at| system.like(another, all[at]));
        try_join_all(by_another).await.unwrap();
        // In another order than that of the posts.
        let order: Vec<u64> = (0..750).map(|n| all[own[n * 337 % 750]]).collect();
        let mut likes = BTreeSet::new();
        are_known(&system, fan, &all, &likes).await;
        for some in order.chunks(50) {
            // With the last one of 50, the entry is loaded again.
            for some in [&some[..49], &some[49..]] {
                try_join_all(some.iter().map(|post| system.like(fan, *post))).await.unwrap();
                likes.extend(some);
                are_known(&system, fan, &all, &likes).await;
            }
        }
        eventually("there is an entry", PATIENCE, async || {
            are_known(&system, fan, &all, &likes).await;
            !system.keys(&format!("pst:*:liked:*:{fan}")).await.is_empty()
        })
        .await;
        // One that only the database knows, and one of the entry.
        for gone in [all[1], all[799]] {
            system.unlike(fan, gone).await.unwrap();
            likes.remove(&gone);
            are_known(&system, fan, &all, &likes).await;
        }
        system.flush().await;
        are_known(&system, fan, &all, &likes).await;
        system.settles().await;
    }
}
