//! The posts that an account likes, in the order of the posts.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use microblog_proto::{common::ErrorReason, post as pb};
use tonic::{Code, Status};

use crate::support::{System, Topology, assert_rejected, id, lists::List, names_fields};

const TOPOLOGIES: [Topology; 2] = [Topology::Single, Topology::Cluster];

/// Who likes.
const FAN: u64 = id(500);

async fn page(
    system: &System,
    user_id: u64,
    page_size: i32,
    page_token: &str,
) -> Result<(Vec<pb::LikedPost>, String), Status> {
    let page_token = page_token.to_owned();
    let request = pb::ListLikedPostsRequest { user_id, page_size, page_token };
    let page = system.client.clone().list_liked_posts(request).await?.into_inner();
    Ok((page.posts, page.next_page_token))
}

/// Returns what an account likes, read in pages of this size, all of which are full but the last one.
async fn whole(system: &System, user_id: u64, page_size: i32) -> Vec<pb::LikedPost> {
    let (mut whole, mut token) = (Vec::new(), String::new());
    loop {
        let (page, next) = page(system, user_id, page_size, &token).await.unwrap();
        let is_full = page.len() == page_size as usize;
        whole.extend(page);
        if next.is_empty() {
            return whole;
        }
        assert!(is_full, "more follow");
        token = next;
    }
}

/// Likes a post. Returns the entry of the list.
async fn like(system: &System, post_id: u64) -> Result<pb::LikedPost, Status> {
    let request = pb::LikeRequest { user_id: FAN, post_id };
    let like = system.client.clone().like(request).await?.into_inner().like.unwrap();
    Ok(pb::LikedPost { post_id, liked_at: like.liked_at })
}

/// Publishes posts of several authors. Returns them from the oldest to the newest.
async fn publish(system: &System, count: u64) -> Vec<u64> {
    let made = (0..count).map(|n| system.create(id(1 + n % 9), "like me"));
    let made = try_join_all(made).await.unwrap();
    let mut posts: Vec<_> = made.into_iter().map(|post| post.id).collect();
    posts.sort_unstable();
    posts
}

fn ids(liked: &[pb::LikedPost]) -> Vec<u64> {
    liked.iter().map(|liked| liked.post_id).collect()
}

#[tokio::test]
async fn the_newest_post_is_first_whenever_it_was_liked() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts = publish(&system, 205).await;
        let mut likes = BTreeMap::new();
        // In another order than that of the posts.
        let order: Vec<_> = (0..posts.len()).map(|n| posts[n * 77 % posts.len()]).collect();
        for some in order.chunks(20) {
            let liked = try_join_all(some.iter().map(|post| like(&system, *post))).await.unwrap();
            likes.extend(liked.into_iter().map(|liked| (liked.post_id, liked)));
        }
        system.like(id(501), posts[0]).await.unwrap();
        let expected: Vec<_> = likes.into_values().rev().collect();
        assert_eq!(ids(&expected).into_iter().rev().collect::<Vec<_>>(), posts);
        for size in [7, 41, 200] {
            assert_eq!(whole(&system, FAN, size).await, expected, "in pages of {size}");
        }
        for (size, count) in [(0, 20), (1, 1), (200, 200), (201, 200), (i32::MAX, 200)] {
            let (first, next) = page(&system, FAN, size, "").await.unwrap();
            assert_eq!((&*first, next.is_empty()), (&expected[..count], false), "{size}");
        }
        assert_eq!(ids(&whole(&system, id(501), 20).await), [posts[0]]);
        system.settles().await;
    }
}

#[tokio::test]
async fn a_like_that_ends_is_not_listed_and_may_begin_again() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts = publish(&system, 3).await;
        let likes = posts.iter().map(|post| like(&system, *post));
        let mut expected = try_join_all(likes).await.unwrap();
        expected.reverse();
        // A repeated one keeps the time of the first one.
        microblog_testkit::next_millisecond().await;
        assert_eq!(like(&system, posts[1]).await.unwrap(), expected[1]);
        assert_eq!(whole(&system, FAN, 20).await, expected);
        system.unlike(FAN, posts[1]).await.unwrap();
        system.unlike(FAN, posts[1]).await.unwrap();
        let mut without = expected.clone();
        without.remove(1);
        assert_eq!(whole(&system, FAN, 20).await, without);
        let again = like(&system, posts[1]).await.unwrap();
        assert_ne!(again.liked_at, expected[1].liked_at);
        expected[1] = again;
        assert_eq!(whole(&system, FAN, 20).await, expected);
        system.settles().await;
    }
}

#[tokio::test]
async fn the_list_can_be_read_to_its_end_while_it_changes() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts = publish(&system, 40).await;
        let (liked, later) = posts.split_at(30);
        try_join_all(liked.iter().map(|post| like(&system, *post))).await.unwrap();
        let mut later = later.iter();
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let (page, next) = page(&system, FAN, 7, &token).await.unwrap();
            seen.extend(ids(&page));
            if next.is_empty() {
                break;
            }
            // A newer one is added, and the one at the cursor is removed.
            like(&system, *later.next().unwrap()).await.unwrap();
            system.unlike(FAN, *seen.last().unwrap()).await.unwrap();
            token = next;
        }
        seen.reverse();
        assert_eq!(seen, liked);
        system.settles().await;
    }
}

#[tokio::test]
async fn likes_of_deleted_posts_are_left_out() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let kept = system.create(id(1), "kept").await.unwrap().id;
        let gone = system.create(id(1), "gone").await.unwrap().id;
        let of_gone = system.create(id(2), "of one who goes").await.unwrap().id;
        let newest = system.repost(id(3), kept).await.unwrap().id;
        for post in [kept, gone, of_gone, newest] {
            like(&system, post).await.unwrap();
        }
        assert_eq!(ids(&whole(&system, FAN, 20).await), [newest, of_gone, gone, kept]);
        system.delete(id(1), gone).await.unwrap();
        let forget = pb::ForgetUserRequest { user_id: id(2) };
        system.client.clone().forget_user(forget).await.unwrap();
        system.settles().await;
        assert_eq!(ids(&whole(&system, FAN, 1).await), [newest, kept]);
        assert_eq!(system.rows("likes").await, 2);

        let forget = pb::ForgetUserRequest { user_id: FAN };
        system.client.clone().forget_user(forget).await.unwrap();
        system.settles().await;
        assert_eq!(whole(&system, FAN, 20).await, []);
        assert_eq!(system.get(kept, 0).await.unwrap().likes, 0);
    }
}

#[tokio::test]
async fn an_account_that_likes_nothing_has_an_empty_list() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let empty = (Vec::new(), String::new());
        assert_eq!(page(&system, FAN, 0, "").await.unwrap(), empty);
        let post = publish(&system, 1).await[0];
        like(&system, post).await.unwrap();
        system.unlike(FAN, post).await.unwrap();
        assert_eq!(page(&system, FAN, 0, "").await.unwrap(), empty);
        names_fields(page(&system, 0, -1, "").await, &["user_id", "page_size"]);
        names_fields(page(&system, 1 << 53, 0, "").await, &["user_id"]);
    }
}

#[tokio::test]
async fn a_token_of_another_list_and_a_damaged_one_are_rejected() {
    for topology in TOPOLOGIES {
        let system = System::start(topology).await;
        let posts = publish(&system, 2).await;
        for &post in &posts {
            like(&system, post).await.unwrap();
            system.like(id(501), post).await.unwrap();
        }
        let (_, token) = page(&system, FAN, 1, "").await.unwrap();
        let (rest, next) = page(&system, FAN, 1, &token).await.unwrap();
        assert_eq!((ids(&rest), next), (vec![posts[0]], String::new()));
        let of_another = page(&system, id(501), 1, "").await.unwrap().1;
        let of_likers = List::Likers(posts[0]).page(&system.client, 1, "").await.unwrap().1;
        for token in [of_another, of_likers] {
            let answer = page(&system, FAN, 1, &token).await;
            assert_rejected(answer, Code::InvalidArgument, ErrorReason::PageTokenMismatch);
        }
        for token in [&token[1..], &format!("{token}A"), &token.to_lowercase(), "rubbish", " "] {
            let answer = page(&system, FAN, 1, token).await;
            assert_rejected(answer, Code::InvalidArgument, ErrorReason::PageTokenInvalid);
        }
    }
}
