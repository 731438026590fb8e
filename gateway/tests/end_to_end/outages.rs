//! Peers that are unavailable, hang, or recover.

use std::{net::TcpListener, time::Duration};

use microblog_chassis::{Peer, Worker, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{PATIENCE, Topology, eventually, free_port};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    actions::request_id,
    system::{Flags, Jobs, System, by_id, config, gateway_service},
};

pub(crate) fn peer_at(address: &str) -> Peer {
    Peer::remote(address, &config().chassis).unwrap()
}

/// Returns another gateway for a system's services, with one replaced.
pub(crate) fn gateway_to(peers: Peers) -> GatewayServiceClient<Peer> {
    let service = gateway_service(&config(), peers, Worker::ONLY);
    GatewayServiceClient::new(Peer::local(&service, &config().chassis))
}

#[tokio::test]
async fn an_unavailable_peer_fails_its_calls_at_once_and_no_others() {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    let unavailable_peer = format!("http://127.0.0.1:{}", free_port());
    let peers = Peers { relation: peer_at(&unavailable_peer), ..system.peers.clone() };
    let mut gateway = gateway_to(peers);

    let begun = Instant::now();
    let request = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
    let failure = gateway.view_followers(ann.request(request)).await.unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable);
    assert_eq!(status::reason_of(&failure), Some(ErrorReason::PeerUnavailable));
    // Before the call's own deadline of ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(9));
    let request = gateway::CheckAvailabilityRequest { name: "bob".into() };
    gateway.check_availability(request).await.unwrap();
}

#[tokio::test]
async fn accounts_and_follows_work_without_the_post_service() {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let unavailable_peer = format!("http://127.0.0.1:{}", free_port());
    let mut gateway =
        gateway_to(Peers { post: peer_at(&unavailable_peer), ..system.peers.clone() });

    macro_rules! check {
        ($method:ident, $request:expr) => {
            let failure = gateway.$method(bob.request($request)).await.unwrap_err();
            let found = (failure.code(), status::reason_of(&failure));
            let expected = (Code::Unavailable, Some(ErrorReason::PeerUnavailable));
            assert_eq!(found, expected, stringify!($method));
        };
    }
    let text = || "hello".to_owned();
    check!(publish, gateway::PublishRequest { request_id: request_id(), text: text() });
    let request = gateway::RepostRequest { request_id: request_id(), post_id, text: text() };
    check!(repost, request);
    check!(delete_post, gateway::DeletePostRequest { post_id });
    check!(view_post, gateway::ViewPostRequest { post_id });
    let post_ids = vec![post_id];
    check!(view_posts, gateway::ViewPostsRequest { post_ids, ..Default::default() });
    check!(like, gateway::LikeRequest { post_id });
    check!(unlike, gateway::UnlikeRequest { post_id });
    check!(view_likers, gateway::ViewLikersRequest { post_id, ..Default::default() });
    let (request_id, text) = (request_id(), text());
    check!(comment, gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 });
    check!(delete_comment, gateway::DeleteCommentRequest { post_id, comment_id: 12 });
    check!(view_comments, gateway::ViewCommentsRequest { post_id, ..Default::default() });
    check!(view_reposts, gateway::ViewRepostsRequest { post_id, ..Default::default() });

    let me = gateway.me(bob.request(gateway::MeRequest {})).await.unwrap().into_inner();
    assert_eq!(me.posts, None, "the count is unknown");
    gateway.follow(bob.request(gateway::FollowRequest { user: by_id(ann.id) })).await.unwrap();
    let request = gateway::ViewUserRequest { user: by_id(ann.id) };
    let view = gateway.view_user(bob.request(request)).await.unwrap().into_inner();
    assert_eq!((view.counts.unwrap().followers, view.posts), (1, None));
    let request = gateway::ViewUsersRequest {
        users: by_id(ann.id).into_iter().collect(),
        include_counts: true,
    };
    let views = gateway.view_users(bob.request(request)).await.unwrap().into_inner().users;
    assert_eq!((views[0].counts.unwrap().followers, views[0].posts), (1, None));
    // With the service, everything works again.
    assert_eq!(system.like(&bob, post_id).await, 1);
}

#[tokio::test]
async fn a_hanging_peer_does_not_delay_a_call_beyond_its_deadline() {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let ann = system.join("ann").await;
    // Accepts connections in the kernel, and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let peers = Peers { relation: peer_at(&silent), ..system.peers.clone() };
    let mut gateway = gateway_to(peers);

    let request = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
    let mut request = ann.request(request);
    request.set_timeout(Duration::from_millis(700));
    let begun = Instant::now();
    let failure = gateway.view_followers(request).await.unwrap_err();
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure:?}");
    // Not the default deadline of ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_unavailable_store_is_reported_and_calls_recover() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    system.follows([(bob.id, ann.id)]).await;
    let post_id = system.publish(&ann, "hello").await.id;
    let home =
        async || system.gateway().view_home(bob.request(gateway::ViewHomeRequest::default())).await;
    eventually("bob sees the post", PATIENCE, async || {
        home().await.is_ok_and(|page| !page.get_ref().posts.is_empty())
    })
    .await;

    let redis = &system.store.nodes()[0];
    redis.kill();
    let failure = home().await.unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable);
    assert_eq!(status::reason_of(&failure), Some(ErrorReason::StoreUnavailable));
    // Of accounts, the follow graph and posts, the databases answer.
    let request = gateway::ViewPostRequest { post_id };
    let viewed = system.gateway().view_post(bob.request(request)).await.unwrap().into_inner();
    assert_eq!(viewed.post.unwrap().post.unwrap().text, "hello");
    let followers = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
    let followers = system.gateway().view_followers(bob.request(followers)).await.unwrap();
    assert_eq!(followers.get_ref().users.len(), 1);
    redis.restart().await;
    eventually("it answers again", PATIENCE, async || {
        home().await.is_ok_and(|page| page.get_ref().posts.len() == 1)
    })
    .await;
}
