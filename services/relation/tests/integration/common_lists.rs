//! Intersections of lists, in the order of the first list, whichever is shorter.

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::Topology::{Cluster, Single};

use crate::support::{System, id, ids, list_all, list_for, list_of};

/// Pages through the followers of a user whom a viewer follows.
async fn followers_i_follow(
    system: &System,
    user_id: u64,
    viewer_id: u64,
    page_size: i32,
) -> Vec<pb::Edge> {
    system.list_all(list_for(viewer_id, EdgeList::FollowersIFollow, user_id, page_size)).await
}

/// Pages through the accounts that a viewer and a user follow.
async fn common_following(
    system: &System,
    viewer_id: u64,
    user_id: u64,
    page_size: i32,
) -> Vec<pb::Edge> {
    system.list_all(list_for(viewer_id, EdgeList::CommonFollowing, user_id, page_size)).await
}

/// Pages through all followers of a user.
async fn followers(system: &System, user_id: u64) -> Vec<pb::Edge> {
    system.list_all(list_of(EdgeList::Followers, user_id, 200)).await
}

#[tokio::test]
async fn followers_i_follow_are_newest_first() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let [viewer, target, x, y] = [1, 2, 3, 4].map(id);
        for (follower, followed) in [(viewer, x), (viewer, y), (y, target), (x, target)] {
            system.follow(follower, followed).await.unwrap();
        }
        // The target has two followers, then five; the viewer always follows two.
        for strangers in [0..0, 10..13] {
            for stranger in strangers.clone() {
                system.follow(id(stranger), target).await.unwrap();
            }
            let all = followers(&system, target).await;
            assert_eq!(all.len() as u64, 2 + strangers.end - strangers.start);
            let mut expected = all;
            expected.retain(|edge| [x, y].contains(&edge.user_id));
            for page_size in [1, 2, 20] {
                let found = followers_i_follow(&system, target, viewer, page_size).await;
                assert_eq!(ids(&found), ids(&expected), "{strangers:?}, by {page_size}");
                assert_eq!(found, expected, "since when they follow the target");
            }
        }
    }
}

#[tokio::test]
async fn common_followings_have_the_order_of_the_viewer() {
    let system = System::start(Single).await;
    let [one, other] = [1, 2].map(id);
    let of_one: Vec<_> = [3, 4, 5].map(|n| (one, id(n))).into();
    let of_other: Vec<_> = [5, 3, 4].map(|n| (other, id(n))).into();
    system.import(&of_one).await;
    system.import(&of_other).await;
    for more_of in [one, other] {
        for page_size in [1, 2] {
            let found = common_following(&system, one, other, page_size).await;
            assert_eq!(ids(&found), [5, 4, 3].map(id), "by {page_size}");
            let found = common_following(&system, other, one, page_size).await;
            assert_eq!(ids(&found), [4, 3, 5].map(id), "by {page_size}");
        }
        // One list becomes longer, then the other.
        let count = if more_of == one { 5 } else { 9 };
        let more: Vec<_> = (0..count).map(|n| (more_of, id(100 * more_of + n))).collect();
        system.import(&more).await;
    }
}

#[tokio::test]
async fn pages_continue_when_the_other_list_becomes_shorter() {
    let system = System::start(Single).await;
    let [viewer, target] = [1, 2].map(id);
    system.import(&(10..20).map(|n| (viewer, id(n))).collect::<Vec<_>>()).await;
    // One by one, in another order than the viewer followed them.
    for n in [14, 11, 19, 16, 10, 18, 13, 17, 12, 15] {
        system.follow(id(n), target).await.unwrap();
    }
    let expected = ids(&followers(&system, target).await);
    let strangers: Vec<_> = (100..130).map(|n| (id(n), target)).collect();

    for begin_with_strangers in [false, true] {
        if begin_with_strangers {
            system.import(&strangers).await;
        }
        let mut request = list_for(viewer, EdgeList::FollowersIFollow, target, 3);
        let mut seen = Vec::new();
        loop {
            let page = system.list(&request).await.unwrap();
            seen.extend(ids(&page.edges));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
            if begin_with_strangers {
                for &(stranger, target) in &strangers {
                    system.unfollow(stranger, target).await.unwrap();
                }
            } else {
                system.import(&strangers).await;
            }
        }
        assert_eq!(seen, expected, "begun with strangers: {begin_with_strangers}");
        for &(stranger, target) in &strangers {
            system.unfollow(stranger, target).await.unwrap();
        }
    }
}

// More followings than one read returns, and then more than the following limit.
#[tokio::test]
async fn long_lists_have_the_same_order() {
    let system = System::start_with(Single, &["--following-limit", "20000"]).await;
    let limited = system.another(&[]).await;
    let [viewer, target] = [1, 2].map(id);
    let fans: Vec<_> = (0..7_000).map(|n| (id(10 + (n * 3_001) % 7_000), target)).collect();
    system.import(&fans).await;
    let all = followers(&system, target).await;
    for (from, followed) in [(0, 4_500), (4_500, 6_500)] {
        let follows: Vec<_> = (10 + from..10 + followed).map(|n| (viewer, id(n))).collect();
        system.import(&follows).await;
        let mut expected = all.clone();
        expected.retain(|edge| edge.user_id < id(10 + followed));
        assert_eq!(expected.len() as u64, followed);
        for client in [&system.client, &limited] {
            let request = list_for(viewer, EdgeList::FollowersIFollow, target, 200);
            let found = ids(&list_all(client, request).await);
            assert!(found == ids(&expected), "{followed} in the order of the followers");
        }
    }
}
