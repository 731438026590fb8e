//! Paging through changing lists, and refilled pages.

use std::collections::HashSet;

use microblog_proto::{gateway, relation::RelationState, user};
use microblog_testkit::Topology;

use crate::system::{Flags, Jobs, PASSWORD, System, by_id, ids};

#[tokio::test]
async fn paging_lists_each_follower_once_while_new_ones_arrive() {
    let system = System::start().await;
    let viewer = system.join("viewer").await;
    let star = system.join("star").await;
    let crowd = system.crowd("fan", 95).await;
    let (before, arriving) = crowd.split_at(80);
    system.follows(before.iter().map(|&fan| (fan, star.id))).await;
    system.follows([(viewer.id, before[7]), (before[8], viewer.id)]).await;

    let mut seen = Vec::new();
    let mut token = String::new();
    let mut arriving = arriving.iter();
    loop {
        let page = system.followers(Some(&viewer), star.id, 9, &token).await;
        for listed in &page.users {
            let id = listed.user.as_ref().unwrap().id;
            let expected = match id {
                id if id == before[7] => RelationState::Following,
                id if id == before[8] => RelationState::Follower,
                _ => RelationState::None,
            };
            assert_eq!(listed.relation(), expected);
        }
        seen.extend(ids(&page.users));
        if page.next_page_token.is_empty() {
            break;
        }
        assert_eq!(page.users.len(), 9, "a page is short only at the end");
        token = page.next_page_token;
        if let Some(&fan) = arriving.next() {
            system.follows([(fan, star.id)]).await;
        }
    }
    let everybody: HashSet<u64> = before.iter().copied().collect();
    assert_eq!(seen.len(), before.len(), "no repeats");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), everybody);
}

#[tokio::test]
async fn deleted_accounts_are_omitted_and_the_page_is_full() {
    // No background jobs, so the relation service is not notified of the deletions.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let star = system.join("star").await;
    let mut fans = Vec::new();
    for part in ["a", "b", "c"] {
        let leaving = system.join(&format!("leaving_{part}")).await;
        fans.push(leaving.id);
        fans.extend(system.crowd(part, 9).await);
    }
    system.follows(fans.iter().map(|&fan| (fan, star.id))).await;
    let order = ids(&system.followers(None, star.id, 30, "").await.users);
    assert_eq!(order.len(), fans.len());

    let deleted = [fans[0], fans[10], fans[20]];
    for user_id in deleted {
        let request = user::DeleteUserRequest { user_id, password: PASSWORD.to_owned() };
        system.user().delete_user(request).await.unwrap();
    }
    let rest: Vec<u64> = order.into_iter().filter(|id| !deleted.contains(id)).collect();
    let mut token = String::new();
    for expected in [&rest[..12], &rest[12..24], &rest[24..]] {
        let page = system.followers(None, star.id, 12, &token).await;
        assert_eq!(ids(&page.users), expected);
        token = page.next_page_token;
    }
    assert_eq!(token, "");
}

#[tokio::test]
async fn pages_of_a_sparse_list_are_full() {
    let system = System::start().await;
    let viewer = system.join("viewer").await;
    let star = system.join("star").await;
    let crowd = system.crowd("fan", 3_000).await;
    // Only every 100th is in common, so each read of the list finds few.
    system.follows(crowd.iter().map(|&fan| (fan, star.id))).await;
    system.follows(crowd.iter().step_by(100).map(|&fan| (viewer.id, fan))).await;

    let mut seen = HashSet::new();
    let mut token = String::new();
    loop {
        let request = gateway::ViewFollowersIFollowRequest {
            user: by_id(star.id),
            page_size: 10,
            page_token: token,
        };
        let page = system.gateway().view_followers_i_follow(viewer.request(request)).await.unwrap();
        let page = page.into_inner();
        assert!(page.users.iter().all(|listed| listed.relation() == RelationState::Following));
        assert!(ids(&page.users).into_iter().all(|id| seen.insert(id)), "no repeats");
        if page.next_page_token.is_empty() {
            break;
        }
        assert_eq!(page.users.len(), 10);
        token = page.next_page_token;
    }
    assert_eq!(seen, crowd.iter().step_by(100).copied().collect());
}

#[tokio::test]
async fn a_long_run_of_deleted_accounts_ends_the_page_but_not_the_list() {
    let system = System::start().await;
    let star = system.join("star").await;
    let crowd = system.crowd("fan", 12).await;
    // Ids without accounts, which the relation service accepts.
    let unknown = (1..=40).map(|n| (n << 12) | 4);
    system.follows(crowd.iter().map(|&fan| (fan, star.id))).await;
    system.follows(unknown.map(|fan| (fan, star.id))).await;

    let mut seen = Vec::new();
    let mut token = String::new();
    for _ in 0..50 {
        let page = system.followers(None, star.id, 4, &token).await;
        seen.extend(ids(&page.users));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(token, "");
    assert_eq!(seen.len(), 12);
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), crowd.into_iter().collect());
}
