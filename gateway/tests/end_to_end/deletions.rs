//! Deletion of accounts, and its completion after a gateway crash.

use std::time::Duration;

use microblog_chassis::{Peer, Worker, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway, post, relation, timeline,
    user::{self, user_service_client::UserServiceClient},
};
use microblog_testkit::{PATIENCE, Topology, eventually, free_port};
use tonic::Code;

use crate::{
    errors::{POST_NOT_FOUND, assert_error},
    system::{
        Flags, Jobs, Member, PASSWORD, System, by_id, by_name, config, email, gateway_service,
        registration,
    },
};

const SOON: Duration = PATIENCE;

async fn deletions(system: &System) -> Vec<u64> {
    let request = user::ListDeletionsRequest::default();
    system.user().list_deletions(request).await.unwrap().into_inner().user_ids
}

async fn followers_count(system: &System, user: &Member) -> u64 {
    let request = relation::BatchGetCountsRequest { user_ids: vec![user.id] };
    let counts = system.relation().batch_get_counts(request).await.unwrap().into_inner().counts;
    counts[0].followers
}

/// Returns whether the timeline service has no posts of an account in the account's home timeline.
async fn is_forgotten(system: &System, user: &Member) -> bool {
    let kind = timeline::TimelineKind::Home.into();
    let request = timeline::GetTimelineRequest { user_id: user.id, kind, ..Default::default() };
    let response = system.timeline().get_timeline(request).await.unwrap().into_inner();
    response.entries.iter().all(|entry| entry.author_id != user.id)
}

/// Returns whether the post service has no such post.
async fn is_deleted(system: &System, post_id: u64) -> bool {
    let answer = system.post().get_post(post::GetPostRequest { post_id, viewer_id: 0 }).await;
    let reason = answer.err().and_then(|status| status::reason_of(&status));
    reason == Some(ErrorReason::PostNotFound)
}

#[tokio::test]
async fn deleting_an_account_deletes_its_data() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    system.follows([(ann.id, bob.id), (bob.id, ann.id)]).await;
    let post_id = system.publish(&ann, "farewell").await.id;
    let bobs = system.publish(&bob, "stay").await.id;
    system.like(&ann, bobs).await;
    system.comment(&ann, bobs, "no").await;

    let wrong = gateway::DeleteAccountRequest { password: "not this one".to_owned() };
    let error = system.gateway().delete_account(ann.request(wrong)).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::BadCredentials));
    let request = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    system.gateway().delete_account(ann.request(request)).await.unwrap();

    assert!(deletions(&system).await.is_empty());
    let error = system.gateway().me(ann.request(gateway::MeRequest {})).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::TokenInvalid));
    for user in [by_id(ann.id), by_name("ann")] {
        let request = gateway::ViewUserRequest { user: user.clone() };
        let error = system.gateway().view_user(request).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        let request = bob.request(gateway::FollowRequest { user });
        let error = system.gateway().follow(request).await.unwrap_err();
        assert_eq!(status::reason_of(&error), Some(ErrorReason::UserNotFound));
    }
    assert!(system.followers(None, bob.id, 0, "").await.users.is_empty());
    eventually("the follows end", SOON, async || followers_count(&system, &bob).await == 0).await;
    let request = gateway::ViewPostRequest { post_id };
    let answer = system.gateway().view_post(bob.request(request)).await;
    assert_error("the post", answer, POST_NOT_FOUND);
    assert!(system.comments(Some(&bob), bobs, 0, "").await.comments.is_empty());
    assert!(system.likers(Some(&bob), bobs, 0, "").await.users.is_empty());
    eventually("the posts go", SOON, async || is_deleted(&system, post_id).await).await;
    assert!(is_forgotten(&system, &ann).await);
    // A deleted account can still be unfollowed, and its e-mail address is available.
    let request = bob.request(gateway::UnfollowRequest { user: by_id(ann.id) });
    system.gateway().unfollow(request).await.unwrap();
    let back = gateway::RegisterRequest { email: email("ann"), ..registration("ann2") };
    system.gateway().register(back).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_deletion_is_done_completely_or_not_at_all() {
    // No background jobs, so only the call itself can complete the deletion.
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let mut cut_short = Vec::new();
    for wait_ms in [0, 1, 2, 4, 8, 16, 32, 5_000] {
        let leaving = system.join(&format!("leaving{wait_ms}")).await;
        let request = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
        let mut gateway = system.gateway();
        let call = gateway.delete_account(leaving.request(request));
        let _ = tokio::time::timeout(Duration::from_millis(wait_ms), call).await;
        cut_short.push(leaving.id);
    }
    eventually("every deletion that was begun is finished", SOON, async || {
        deletions(&system).await.is_empty()
    })
    .await;
    let user_ids = cut_short.clone();
    let request = user::BatchGetUsersRequest { user_ids, ..Default::default() };
    let left = system.user().batch_get_users(request).await.unwrap().into_inner().users;
    assert!(left.len() < cut_short.len(), "the last one was not cut short");
}

#[tokio::test]
async fn an_interrupted_deletion_is_completed() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    system.follows([(ann.id, bob.id)]).await;
    let post_id = system.publish(&ann, "farewell").await.id;
    // As if the gateway crashed after this call.
    let request = user::DeleteUserRequest { user_id: ann.id, password: PASSWORD.to_owned() };
    system.user().delete_user(request).await.unwrap();
    eventually("the relay takes it off the list", SOON, async || {
        deletions(&system).await.is_empty()
    })
    .await;
    eventually("the follow ends", SOON, async || followers_count(&system, &bob).await == 0).await;
    eventually("the post goes", SOON, async || is_deleted(&system, post_id).await).await;
    assert!(is_forgotten(&system, &ann).await);
}

#[tokio::test]
async fn an_account_is_deleted_without_the_relation_service() {
    let unavailable = |peers: &Peers| Peers { relation: unavailable_peer(), ..peers.clone() };
    an_account_is_deleted_without(unavailable).await;
}

#[tokio::test]
async fn an_account_is_deleted_without_the_post_service() {
    let unavailable = |peers: &Peers| Peers { post: unavailable_peer(), ..peers.clone() };
    an_account_is_deleted_without(unavailable).await;
}

#[tokio::test]
async fn an_account_is_deleted_without_the_timeline_service() {
    let unavailable = |peers: &Peers| Peers { timeline: unavailable_peer(), ..peers.clone() };
    an_account_is_deleted_without(unavailable).await;
}

fn unavailable_peer() -> Peer {
    Peer::remote(&format!("http://127.0.0.1:{}", free_port()), &config().chassis).unwrap()
}

async fn an_account_is_deleted_without(unavailable: impl Fn(&Peers) -> Peers) {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    let mut service = gateway_service(&config(), unavailable(&system.peers), Worker::ONLY);
    let relay = tokio::spawn(service.background.pop().unwrap());
    let gateway = Peer::local(&service, &config().chassis);
    let mut gateway = gateway::gateway_service_client::GatewayServiceClient::new(gateway);

    let request = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    gateway.delete_account(ann.request(request)).await.unwrap();
    let login = gateway::LoginRequest { login: email("ann"), password: PASSWORD.to_owned() };
    assert_eq!(gateway.login(login).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(deletions(&system).await, [ann.id]);
    relay.abort();

    // Another gateway that reaches all services continues.
    let service = gateway_service(&config(), system.peers.clone(), Worker::ONLY);
    let relay = tokio::spawn(futures::future::join_all(service.background));
    let mut user = UserServiceClient::new(system.peers.user.clone());
    eventually("another gateway finishes it", SOON, async || {
        let list = user.list_deletions(user::ListDeletionsRequest::default()).await.unwrap();
        list.into_inner().user_ids.is_empty()
    })
    .await;
    relay.abort();
}

#[test]
fn only_the_first_worker_of_a_process_runs_the_deletion_job() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    for (index, jobs) in [(0, 1), (1, 0)] {
        let peers = Peers::remote(&config()).unwrap();
        let worker = Worker { index, count: 2 };
        assert_eq!(gateway_service(&config(), peers, worker).background.len(), jobs);
    }
}
