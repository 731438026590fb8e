//! Deletions of posts in either tier take effect at once, even before they are archived.

use microblog_proto::{common::ErrorReason, post as pb};
use tonic::{Code, Status};

use crate::{
    aging::{Aging, on_both},
    support::{System, archives::ArchiveServer, assert_rejected, id, lists::List},
};

on_both! {
    a_deleted_post_is_gone_before_its_tombstone_is_archived
    posts_are_deleted_in_either_tier
}

const AUTHOR: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

#[track_caller]
fn is_no_post<T: std::fmt::Debug>(answer: Result<T, Status>) {
    assert_rejected(answer, Code::NotFound, ErrorReason::PostNotFound);
}

/// Asserts that a post is deleted for every call.
async fn is_gone(system: &System, post: u64, others: &[u64]) {
    is_no_post(system.get(post, 0).await);
    is_no_post(system.get(post, FAN).await);
    for list in [List::Likers(post), List::oldest(post), List::newest(post), List::Reposts(post)] {
        is_no_post(list.page(&system.client, 5, "").await);
    }
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 1).await, others);
    let client = || system.client.clone();
    let mut post_ids = others.to_vec();
    post_ids.push(post);
    let request = pb::BatchGetPostsRequest {
        post_ids: post_ids.clone(),
        viewer_id: FAN,
        ..Default::default()
    };
    let found = client().batch_get_posts(request).await.unwrap().into_inner().posts;
    assert_eq!(crate::support::lists::ids(&found), others);
    for page_size in [1, 50] {
        let (mut found, mut before_id) = (Vec::new(), 0);
        loop {
            let author_ids = vec![AUTHOR];
            let request = pb::ListAuthorsPostsRequest {
                author_ids,
                page_size,
                before_id,
                ..Default::default()
            };
            let page = client().list_authors_posts(request).await.unwrap().into_inner();
            found.extend(page.posts.iter().map(|post| post.id));
            before_id = page.next_before_id;
            if before_id == 0 {
                break;
            }
        }
        assert_eq!(found, others);
    }
    let request = pb::BatchGetLikedRequest { user_id: FAN, post_ids: vec![post] };
    let liked = client().batch_get_liked(request).await.unwrap().into_inner().post_ids;
    assert_eq!(liked, Vec::<u64>::new(), "a deleted post has no likes");

    is_no_post(system.like(FAN, post).await);
    is_no_post(system.comment(FAN, post, "hello?", 0).await);
    is_no_post(system.repost(FAN, post).await);
    assert_eq!(system.unlike(FAN, post).await.unwrap(), 0);
    system.uncomment(FAN, post, 4096).await.unwrap();
    system.delete(AUTHOR, post).await.unwrap();
    assert_eq!(crate::support::keys_of(system, post).await, Vec::<String>::new());
}

async fn a_deleted_post_is_gone_before_its_tombstone_is_archived(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let others = [system.create(AUTHOR, "stays").await.unwrap().id];
    let post = system.create(AUTHOR, "goes").await.unwrap().id;
    system.like(FAN, post).await.unwrap();
    system.comment(FAN, post, "well", 0).await.unwrap();
    let repost = system.quote(OTHER, post, "look").await.unwrap().id;
    aging.evict(&[others[0], post, repost]).await;
    let not_ones_own = system.delete(OTHER, post).await;
    assert_rejected(not_ones_own, Code::PermissionDenied, ErrorReason::NotTheAuthor);
    assert_eq!(system.get(post, 0).await.unwrap().text, "goes");

    system.delete(AUTHOR, post).await.unwrap();
    is_gone(system, post, &others).await;
    assert!(system.get(repost, 0).await.unwrap().root_deleted);
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts WHERE text = 'goes'").await, 1);
    aging.archive().await;
    is_gone(system, post, &others).await;
    let orphan = system.get(repost, 0).await.unwrap();
    assert!(orphan.root_deleted && orphan.text == "look");
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts WHERE text = 'goes'").await, 0);
    for table in ["likes", "reposts", "comments"] {
        let left = format!("SELECT COUNT(*) FROM {table} WHERE post = {post}");
        assert_eq!(aging.count(&left).await, 0, "{table}");
    }
    // The row without content expires after weeks.
    aging.evictor.purge().await.unwrap();
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts WHERE deleted <> 0").await, 1);
    while aging.archive.purge_before(i64::MAX as u64, 0).await.unwrap() > 0 {}
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts").await, 2);
    is_gone(system, post, &others).await;
    aging.is_sound().await;
}

async fn posts_are_deleted_in_either_tier(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..5 {
        let post = system.create(AUTHOR, &format!("number {n}")).await.unwrap().id;
        system.like(FAN, post).await.unwrap();
        posts.insert(0, post);
    }
    aging.evict(&posts[3..]).await;
    // The newest is hot. The next is evictable and changed, so it stays for a while. The third is
    // evicted, the fourth restored. The last one is evicted, and its deletion is not archived.
    let hot = system.create(AUTHOR, "hot").await.unwrap().id;
    posts.insert(0, hot);
    aging.archive().await;
    let author = crate::support::user(1);
    assert_eq!(
        system.store.make_evictable(author, &[crate::support::post(posts[1])]).await.unwrap(),
        1
    );
    system.like(OTHER, posts[4]).await.unwrap();
    for post in posts.split_off(1).into_iter().chain([hot]) {
        system.delete(AUTHOR, post).await.unwrap();
        is_no_post(system.get(post, 0).await);
        assert_eq!(crate::support::keys_of(system, post).await, Vec::<String>::new());
    }
    assert_eq!(List::UserPosts(AUTHOR).whole(&system.client, 2).await, Vec::<u64>::new());
    aging.is_sound_everywhere().await;
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts WHERE deleted = 0").await, 0);
    assert_eq!(aging.age(&[AUTHOR]).await, microblog_post::Evictions::default());
}
