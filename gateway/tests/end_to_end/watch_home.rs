//! WatchHome.

use std::time::Duration;

use microblog_chassis::{Peer, Worker, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, WatchHomeResponse, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::eventually;
use tokio::time::timeout;
use tonic::{Code, Response, Status, Streaming};

use crate::{
    errors::{Expected, TOKEN_INVALID, TOKEN_MISSING, assert_error},
    system::{Member, System, config, configured, gateway_service, with_token},
    timeline_actions::{SOON, texts},
};

async fn watch(
    system: &System,
    viewer: &Member,
    since_token: &str,
) -> Streaming<WatchHomeResponse> {
    let request = gateway::WatchHomeRequest { since_token: since_token.to_owned() };
    system.gateway().watch_home(viewer.request(request)).await.unwrap().into_inner()
}

async fn next(watch: &mut Streaming<WatchHomeResponse>) -> WatchHomeResponse {
    let message = timeout(SOON, watch.message()).await.expect("a message");
    message.unwrap().expect("no end")
}

/// Returns the final status of a stream, after any messages.
async fn end(watch: &mut Streaming<WatchHomeResponse>) -> Status {
    loop {
        if let Err(status) = timeout(SOON, watch.message()).await.expect("an end") {
            return status;
        }
    }
}

/// Ann follows Bob.
async fn friends() -> (System, Member, Member) {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    (system, ann, bob)
}

#[tokio::test]
async fn new_posts_arrive_as_view_home_shows_them() {
    let (system, ann, bob) = friends().await;
    let muted = system.join("muted").await;
    system.follow(&ann, &muted).await;
    system.publish(&bob, "before").await;
    let mut updates = watch(&system, &ann, "").await;
    let begun = next(&mut updates).await;
    assert!(begun.posts.is_empty() && !begun.since_token.is_empty());

    let post = system.publish(&bob, "hello @ann").await;
    let update = next(&mut updates).await;
    assert_eq!(update.posts, system.home(&ann, 1, "", "").await.posts);
    assert_eq!(update.posts[0].post.as_ref().unwrap().id, post.id);
    assert_eq!(system.count_new(&ann, &update.since_token).await, 0);
    assert_eq!(system.count_new(&ann, &begun.since_token).await, 1);

    system.mute(&ann, &muted).await;
    system.publish(&muted, "not for ann").await;
    system.publish(&ann, "mine").await;
    let mut update = next(&mut updates).await;
    while update.posts.is_empty() {
        update = next(&mut updates).await;
    }
    assert_eq!(texts(&update.posts), ["mine"]);
}

#[tokio::test]
async fn a_watch_resumes_from_a_since_token() {
    let (system, ann, bob) = friends().await;
    let mut updates = watch(&system, &ann, "").await;
    let since = next(&mut updates).await.since_token;
    drop(updates);
    let ids = system.publish_many(&bob, vec!["one".into(), "two".into(), "three".into()]).await;
    system.until_new(&ann, &since, 3).await;
    system.delete_many(&bob, &ids[1..2]).await;
    let update = next(&mut watch(&system, &ann, &since).await).await;
    assert_eq!(texts(&update.posts), ["three", "one"]);
    // Nothing is sent twice.
    let mut updates = watch(&system, &ann, &update.since_token).await;
    assert!(next(&mut updates).await.posts.is_empty());
    // An update with deleted posts only is an empty message with a new token.
    let ids = system.publish_many(&bob, vec!["four".into()]).await;
    system.delete_many(&bob, &ids).await;
    let none = next(&mut watch(&system, &ann, &update.since_token).await).await;
    assert!(none.posts.is_empty());
}

#[tokio::test]
async fn a_large_update_is_split_into_messages() {
    let (system, ann, bob) = friends().await;
    let since = next(&mut watch(&system, &ann, "").await).await.since_token;
    let mut expected: Vec<_> = (0..60).map(|i| format!("post {i}")).collect();
    system.publish_many(&bob, expected.clone()).await;
    expected.reverse();
    system.until_new(&ann, &since, 60).await;
    let mut updates = watch(&system, &ann, &since).await;
    let (mut seen, mut tokens) = (Vec::new(), Vec::new());
    for size in [12, 12, 12, 12, 12] {
        let update = next(&mut updates).await;
        assert_eq!(update.posts.len(), size);
        seen.extend(texts(&update.posts));
        tokens.push(update.since_token);
    }
    assert_eq!(seen, expected);
    // A stream that breaks in between repeats all of it, and loses nothing.
    assert!(tokens[..4].iter().all(|token| *token == since));
    assert!(next(&mut watch(&system, &ann, &tokens[4]).await).await.posts.is_empty());
}

#[tokio::test]
async fn an_idle_watch_ends_with_its_session() {
    let (system, ann, _) = friends().await;
    let config = configured(&["--session-check-ms=50"]);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let mut gateway = GatewayServiceClient::new(Peer::local(&service, &config.chassis));
    let request = ann.request(gateway::WatchHomeRequest::default());
    let mut updates = gateway.watch_home(request).await.unwrap().into_inner();
    next(&mut updates).await;
    timeout(Duration::from_millis(200), updates.message()).await.expect_err("it goes on");
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    let status = end(&mut updates).await;
    assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenInvalid));
}

#[tokio::test]
async fn watches_of_a_viewer_are_limited() {
    let (system, ann, bob) = friends().await;
    let config = configured(&["--max-watches-per-viewer=2"]);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let gateway = GatewayServiceClient::new(Peer::local(&service, &config.chassis));
    let watch = async |viewer: &Member| {
        let request = viewer.request(gateway::WatchHomeRequest::default());
        gateway.clone().watch_home(request).await.map(Response::into_inner)
    };
    let [mut first, mut second] = [watch(&ann).await.unwrap(), watch(&ann).await.unwrap()];
    for updates in [&mut first, &mut second] {
        next(updates).await;
    }
    let too_many: Expected = (Code::ResourceExhausted, ErrorReason::WatchLimit, &[]);
    assert_error("a third one", watch(&ann).await.map(Response::new), too_many);
    next(&mut watch(&bob).await.unwrap()).await;
    // A rejected watch takes no permit, and an ended one releases its permit.
    drop(first);
    let mut third = None;
    eventually("there is room again", SOON, async || {
        third = watch(&ann).await.ok();
        third.is_some()
    })
    .await;
    let mut third = third.unwrap();
    next(&mut third).await;
    assert_error("a third one", watch(&ann).await.map(Response::new), too_many);
}

#[tokio::test]
async fn an_ended_session_receives_nothing() {
    let (system, ann, bob) = friends().await;
    let mut updates = watch(&system, &ann, "").await;
    next(&mut updates).await;
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    system.publish(&bob, "too late").await;
    let message = timeout(SOON, updates.message()).await.expect("an end");
    let status = message.expect_err("no message");
    assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenInvalid));
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_watch_without_reads_costs_nothing() {
    let (system, ann, bob) = friends().await;
    let mut updates = watch(&system, &ann, "").await;
    next(&mut updates).await;
    let since = system.home(&ann, 0, "", "").await.since_token;
    system.publish_many(&bob, (0..3).map(|i| format!("post {i}")).collect()).await;
    system.until_new(&ann, &since, 3).await;
    system.recorder.calls();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut calls = system.recorder.calls();
    calls.retain(|call| call != "user.ListDeletions");
    assert_eq!(calls, [""; 0], "but the relay's");
    let mut seen = Vec::new();
    // A message has the newest post first. The first one may have been made after the first post.
    while seen.len() < 3 {
        seen.splice(0..0, texts(&next(&mut updates).await.posts));
    }
    assert_eq!(seen, ["post 2", "post 1", "post 0"]);
}

#[tokio::test]
async fn a_failed_watch_can_be_resumed() {
    let (system, ann, bob) = friends().await;
    let mut updates = watch(&system, &ann, "").await;
    let since = next(&mut updates).await.since_token;
    let unavailable =
        status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, "unavailable");
    system.recorder.reject("post.BatchGetPosts", unavailable);
    system.publish(&bob, "hello").await;
    assert_eq!(end(&mut updates).await.code(), Code::Unavailable);
    system.recorder.reject_none();
    let update = next(&mut watch(&system, &ann, &since).await).await;
    assert_eq!(texts(&update.posts), ["hello"]);
}

#[tokio::test]
async fn an_invalid_watch_is_rejected_at_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let request = gateway::WatchHomeRequest::default();
    assert_error("none", system.gateway().watch_home(request.clone()).await, TOKEN_MISSING);
    let stranger = with_token("not one", request);
    assert_error("wrong", system.gateway().watch_home(stranger).await, TOKEN_INVALID);
    let request = gateway::WatchHomeRequest { since_token: "?".to_owned() };
    let damaged: Expected =
        (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["since_token"]);
    assert_error("damaged", system.gateway().watch_home(ann.request(request)).await, damaged);
    assert_eq!(config().session_check_ms, 30_000);
}
