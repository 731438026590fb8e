//! All calls succeed while the services check signed identities, over the network and within a
//! process.

use microblog_chassis::{identity::Identity, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, UserRef, user_ref::Ref},
    notice::NoticeKind,
    timeline, user,
};
use microblog_testkit::eventually;
use tokio::time::timeout;
use tonic::Code;

use crate::servers::{Calls, Member, PASSWORD, SOON, Servers, by_caller};

#[tokio::test]
async fn all_calls_succeed_with_a_server_for_each_service() {
    tour(&Servers::start(Calls::Remote).await).await;
}

#[tokio::test]
async fn all_calls_succeed_within_one_process() {
    tour(&Servers::start(Calls::Inside).await).await;
}

fn by_id(id: u64) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Id(id)) })
}

async fn tour(servers: &Servers) {
    let [ann, bob] = [servers.join("ann").await, servers.join("bob").await];
    profile(servers, &ann).await;
    graph(servers, &ann, &bob).await;
    let post_id = posts(servers, &ann, &bob).await;
    timelines(servers, &ann, &bob, post_id).await;
    notices(servers, &ann, &bob).await;
    service_callers(servers, &ann).await;
    end(servers, &ann, &bob, post_id).await;
}

async fn profile(servers: &Servers, ann: &Member) {
    let mut gateway = servers.gateway();
    let free = gateway::CheckAvailabilityRequest { name: "ann".to_owned() };
    let free = gateway.check_availability(free).await.unwrap().into_inner();
    assert_eq!(free.name_available, Some(false));
    let changes = user::ProfileChanges { bio: Some("about ann".to_owned()), ..<_>::default() };
    let update = gateway::UpdateProfileRequest { changes: Some(changes) };
    gateway.update_profile(ann.request(update)).await.unwrap();
    let me = gateway.me(ann.request(gateway::MeRequest {})).await.unwrap().into_inner();
    assert_eq!(me.account.unwrap().user.unwrap().bio, "about ann");
    let viewed = gateway.view_user(gateway::ViewUserRequest { user: by_id(ann.id) }).await.unwrap();
    assert_eq!(viewed.into_inner().user.unwrap().bio, "about ann");
}

async fn graph(servers: &Servers, ann: &Member, bob: &Member) {
    let mut gateway = servers.gateway();
    let user = by_id(bob.id);
    gateway.block(ann.request(gateway::BlockRequest { user: user.clone() })).await.unwrap();
    let blocks =
        gateway.view_blocks(ann.request(gateway::ViewBlocksRequest::default())).await.unwrap();
    assert_eq!(blocks.into_inner().users.len(), 1);
    gateway.unblock(ann.request(gateway::UnblockRequest { user: user.clone() })).await.unwrap();
    gateway.mute(ann.request(gateway::MuteRequest { user: user.clone() })).await.unwrap();
    gateway.view_mutes(ann.request(gateway::ViewMutesRequest::default())).await.unwrap();
    gateway.unmute(ann.request(gateway::UnmuteRequest { user: user.clone() })).await.unwrap();
    gateway.follow(ann.request(gateway::FollowRequest { user: user.clone() })).await.unwrap();
    gateway.unfollow(ann.request(gateway::UnfollowRequest { user: user.clone() })).await.unwrap();
    gateway.follow(ann.request(gateway::FollowRequest { user: user.clone() })).await.unwrap();
    gateway.follow(bob.request(gateway::FollowRequest { user: by_id(ann.id) })).await.unwrap();
    let shared = gateway::ViewFollowersIFollowRequest { user: user.clone(), ..<_>::default() };
    gateway.view_followers_i_follow(ann.request(shared)).await.unwrap();
    let common = gateway::ViewCommonFollowingRequest { user: user.clone(), ..<_>::default() };
    gateway.view_common_following(ann.request(common)).await.unwrap();
    lists(servers, ann, bob).await;
    let remove = gateway::RemoveFollowerRequest { user: user.clone() };
    gateway.remove_follower(ann.request(remove)).await.unwrap();
    gateway.follow(bob.request(gateway::FollowRequest { user: by_id(ann.id) })).await.unwrap();
    let users = user.clone().into_iter().collect();
    let named = gateway::ViewUsersRequest { users, include_counts: true };
    assert_eq!(gateway.view_users(ann.request(named)).await.unwrap().into_inner().users.len(), 1);
    let viewed = gateway.view_user(ann.request(gateway::ViewUserRequest { user })).await.unwrap();
    assert_eq!(
        viewed.into_inner().relation.unwrap().state(),
        microblog_proto::relation::RelationState::Mutual
    );
}

async fn service_callers(servers: &Servers, ann: &Member) {
    let mut gateway = servers.gateway();
    let ensure = gateway::EnsureUserRequest {
        issuer: "sso".to_owned(),
        external_id: "1".to_owned(),
        name: "carl".to_owned(),
        display_name: String::new(),
    };
    let carl = gateway.ensure_user(by_caller("own", None, ensure)).await.unwrap().into_inner();
    let carl = carl.user.unwrap().id;
    let (issuer, external_ids) = ("sso".to_owned(), vec!["1".to_owned()]);
    let resolve = gateway::BatchResolveExternalIdsRequest { issuer, external_ids };
    let resolve = by_caller("own", None, resolve);
    let found = gateway.batch_resolve_external_ids(resolve).await.unwrap().into_inner();
    assert_eq!(found.users[0].user_id, carl);
    for (caller, viewer) in [("own", carl), ("any", carl), ("any", ann.id)] {
        let (request_id, text) = (uuid::Uuid::new_v4().to_string(), "for you".to_owned());
        let publish = gateway::PublishRequest { request_id, text };
        let published = gateway.publish(by_caller(caller, Some(viewer), publish)).await.unwrap();
        assert_eq!(published.into_inner().post.unwrap().author_id, viewer);
        let home = by_caller(caller, Some(viewer), gateway::ViewHomeRequest::default());
        assert!(!gateway.view_home(home).await.unwrap().into_inner().posts.is_empty());
    }
}

/// The accounts follow each other. Bob's lists are public.
async fn lists(servers: &Servers, ann: &Member, bob: &Member) {
    let mut gateway = servers.gateway();
    let user = by_id(bob.id);
    let request = gateway::ViewFollowingRequest { user: user.clone(), ..<_>::default() };
    assert_eq!(gateway.view_following(request).await.unwrap().into_inner().users.len(), 1);
    let request = gateway::ViewFollowersRequest { user: user.clone(), ..<_>::default() };
    assert_eq!(
        gateway.view_followers(ann.request(request)).await.unwrap().into_inner().users.len(),
        1
    );
    let request = gateway::ViewMutualsRequest { user, ..<_>::default() };
    assert_eq!(
        gateway.view_mutuals(ann.request(request)).await.unwrap().into_inner().users.len(),
        1
    );
}

/// Returns a post of Bob.
async fn posts(servers: &Servers, ann: &Member, bob: &Member) -> u64 {
    let mut gateway = servers.gateway();
    let request_id = || uuid::Uuid::new_v4().to_string();
    let text = "hello @ann".to_owned();
    let publish = gateway::PublishRequest { request_id: request_id(), text: text.clone() };
    let post = gateway.publish(bob.request(publish)).await.unwrap().into_inner().post.unwrap();
    let post_id = post.id;
    gateway.like(ann.request(gateway::LikeRequest { post_id })).await.unwrap();
    gateway.unlike(ann.request(gateway::UnlikeRequest { post_id })).await.unwrap();
    gateway.like(ann.request(gateway::LikeRequest { post_id })).await.unwrap();
    let comment =
        gateway::CommentRequest { request_id: request_id(), post_id, text, in_reply_to_id: 0 };
    let comment =
        gateway.comment(ann.request(comment)).await.unwrap().into_inner().comment.unwrap();
    let comment_id = comment.id;
    gateway
        .view_comments(gateway::ViewCommentsRequest { post_id, order: 1, ..<_>::default() })
        .await
        .unwrap();
    // The post's author deletes a comment of another account.
    let delete = gateway::DeleteCommentRequest { post_id, comment_id };
    gateway.delete_comment(bob.request(delete)).await.unwrap();
    let repost = gateway::RepostRequest { request_id: request_id(), post_id, text: String::new() };
    let repost = gateway.repost(ann.request(repost)).await.unwrap().into_inner().post.unwrap();
    gateway
        .view_reposts(ann.request(gateway::ViewRepostsRequest { post_id, ..<_>::default() }))
        .await
        .unwrap();
    gateway.view_likers(gateway::ViewLikersRequest { post_id, ..<_>::default() }).await.unwrap();
    let delete = gateway::DeletePostRequest { post_id: repost.id };
    gateway.delete_post(ann.request(delete)).await.unwrap();
    for request in [
        ann.request(gateway::ViewPostRequest { post_id }),
        tonic::Request::new(gateway::ViewPostRequest { post_id }),
    ] {
        gateway.view_post(request).await.unwrap();
    }
    let named = gateway::ViewPostsRequest { post_ids: vec![post_id], unasked: true };
    for request in [ann.request(named.clone()), tonic::Request::new(named)] {
        assert_eq!(gateway.view_posts(request).await.unwrap().into_inner().posts.len(), 1);
    }
    post_id
}

async fn timelines(servers: &Servers, ann: &Member, bob: &Member, post_id: u64) {
    let mut gateway = servers.gateway();
    eventually("the post is in the home timeline", SOON, async || {
        let home =
            gateway.view_home(ann.request(gateway::ViewHomeRequest::default())).await.unwrap();
        let posts = home.into_inner().posts;
        posts.iter().any(|post| post.post.as_ref().is_some_and(|post| post.id == post_id))
    })
    .await;
    let friends =
        gateway.view_friends(ann.request(gateway::ViewFriendsRequest::default())).await.unwrap();
    assert_eq!(friends.into_inner().posts.len(), 1);
    let of_user = gateway::ViewUserTimelineRequest { user: by_id(bob.id), ..<_>::default() };
    assert_eq!(gateway.view_user_timeline(of_user).await.unwrap().into_inner().posts.len(), 1);
    gateway.count_new(ann.request(gateway::CountNewRequest::default())).await.unwrap();

    let watch =
        gateway.watch_home(ann.request(gateway::WatchHomeRequest::default())).await.unwrap();
    let mut watch = watch.into_inner();
    timeout(SOON, watch.message()).await.unwrap().unwrap().expect("watching begins");
    let publish = gateway::PublishRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        text: "updates".to_owned(),
    };
    let post = gateway.publish(bob.request(publish)).await.unwrap().into_inner().post.unwrap();
    let id = post.id;
    gateway.like(bob.request(gateway::LikeRequest { post_id: id })).await.unwrap();
    let update = timeout(SOON, watch.message()).await.unwrap().unwrap().expect("the updates");
    assert_eq!(update.posts[0].post.as_ref().unwrap().id, id);
}

/// Bob gets notices of what Ann does.
async fn notices(servers: &Servers, ann: &Member, bob: &Member) {
    let mut gateway = servers.gateway();
    let publish = gateway::PublishRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        text: "hello @bob".to_owned(),
    };
    gateway.publish(ann.request(publish)).await.unwrap();
    eventually("the mention is there", SOON, async || {
        let mentions = bob.request(gateway::ViewMentionsRequest::default());
        !gateway.view_mentions(mentions).await.unwrap().into_inner().posts.is_empty()
    })
    .await;
    let watch = bob.request(gateway::WatchNoticesRequest::default());
    let mut watch = gateway.watch_notices(watch).await.unwrap().into_inner();
    timeout(SOON, watch.message()).await.unwrap().unwrap().expect("watching begins");
    // Of another post than the one that Ann likes already.
    let publish = gateway::PublishRequest {
        request_id: uuid::Uuid::new_v4().to_string(),
        text: "like me".to_owned(),
    };
    let post = gateway.publish(bob.request(publish)).await.unwrap().into_inner().post.unwrap();
    gateway.like(ann.request(gateway::LikeRequest { post_id: post.id })).await.unwrap();
    let mut since_token = String::new();
    let kind: i32 = NoticeKind::Like.into();
    let mut has_arrived = false;
    while !has_arrived {
        let update = timeout(SOON, watch.message()).await.unwrap().unwrap().expect("the updates");
        let is_of_post = |notice: &gateway::ViewedNotice| {
            let id = notice.post.as_ref().and_then(|viewed| viewed.post.as_ref()).map(|it| it.id);
            notice.kind == kind && id == Some(post.id)
        };
        has_arrived = update.notices.iter().any(is_of_post);
        since_token = update.since_token;
    }
    let list = gateway::ViewNoticesRequest { kinds: vec![kind], ..<_>::default() };
    let list = gateway.view_notices(bob.request(list)).await.unwrap().into_inner();
    assert_eq!(list.notices.len(), 2);
    let count = || bob.request(gateway::CountUnreadRequest { kinds: vec![kind] });
    assert_eq!(gateway.count_unread(count()).await.unwrap().into_inner().counts.len(), 1);
    let seen = gateway::MarkSeenRequest { token: since_token };
    gateway.mark_seen(bob.request(seen)).await.unwrap();
    assert_eq!(gateway.count_unread(count()).await.unwrap().into_inner().counts, []);
}

/// Changes Bob's password and deletes his account; all services delete his data.
async fn end(servers: &Servers, ann: &Member, bob: &Member, post_id: u64) {
    let mut gateway = servers.gateway();
    let new_password = "another horse battery".to_owned();
    let change = gateway::ChangePasswordRequest {
        current_password: PASSWORD.to_owned(),
        new_password: new_password.clone(),
    };
    gateway.change_password(bob.request(change)).await.unwrap();
    let login = gateway::LoginRequest {
        login: "bob@example.com".to_owned(),
        password: new_password.clone(),
    };
    let token = gateway.login(login).await.unwrap().into_inner().token;
    let bob = Member { id: bob.id, token };
    gateway
        .delete_account(bob.request(gateway::DeleteAccountRequest { password: new_password }))
        .await
        .unwrap();
    let mut system = servers.user(Identity::System);
    let left = system.list_deletions(user::ListDeletionsRequest::default()).await.unwrap();
    assert!(left.into_inner().user_ids.is_empty(), "all have forgotten at once");
    let deleted =
        gateway.view_post(ann.request(gateway::ViewPostRequest { post_id })).await.unwrap_err();
    assert_eq!(
        (deleted.code(), status::reason_of(&deleted)),
        (Code::NotFound, Some(ErrorReason::PostNotFound))
    );
    let kind = timeline::TimelineKind::Home.into();
    let home = timeline::GetTimelineRequest { user_id: bob.id, kind, ..<_>::default() };
    let home = servers.timeline(Identity::System).get_timeline(home).await.unwrap().into_inner();
    assert!(home.entries.iter().all(|entry| entry.author_id != bob.id));
    gateway.logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
}
