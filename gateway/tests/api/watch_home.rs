//! Watching a home timeline.

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
    refused::{Refusal, TOKEN_INVALID, TOKEN_MISSING, assert_refused},
    system::{Member, System, config, configured, gateway_service, with_token},
    timeline_acts::{SOON, texts},
};

async fn watch(
    system: &System,
    viewer: &Member,
    since_token: &str,
) -> Streaming<WatchHomeResponse> {
    let request = gateway::WatchHomeRequest { since_token: since_token.to_owned() };
    system.gateway().watch_home(viewer.asks(request)).await.unwrap().into_inner()
}

async fn next(watch: &mut Streaming<WatchHomeResponse>) -> WatchHomeResponse {
    let message = timeout(SOON, watch.message()).await.expect("a message");
    message.unwrap().expect("no end")
}

/// Returns how a watch ends, whatever it tells before that.
async fn end(watch: &mut Streaming<WatchHomeResponse>) -> Status {
    loop {
        if let Err(status) = timeout(SOON, watch.message()).await.expect("an end") {
            return status;
        }
    }
}

/// Ann, who follows Bob.
async fn friends() -> (System, Member, Member) {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    (system, ann, bob)
}

#[tokio::test]
async fn what_is_posted_comes_as_a_page_would_show_it() {
    let (system, ann, bob) = friends().await;
    let muted = system.join("muted").await;
    system.follow(&ann, &muted).await;
    system.publish(&bob, "before").await;
    let mut news = watch(&system, &ann, "").await;
    let begun = next(&mut news).await;
    assert!(begun.posts.is_empty() && !begun.since_token.is_empty());

    let post = system.publish(&bob, "hello @ann").await;
    let told = next(&mut news).await;
    assert_eq!(told.posts, system.home(&ann, 1, "", "").await.posts);
    assert_eq!(told.posts[0].post.as_ref().unwrap().id, post.id);
    assert_eq!(system.count_new(&ann, &told.since_token).await, 0);
    assert_eq!(system.count_new(&ann, &begun.since_token).await, 1);

    system.mute(&ann, &muted).await;
    system.publish(&muted, "not for ann").await;
    system.publish(&ann, "mine").await;
    let mut told = next(&mut news).await;
    while told.posts.is_empty() {
        told = next(&mut news).await;
    }
    assert_eq!(texts(&told.posts), ["mine"]);
}

#[tokio::test]
async fn a_watch_goes_on_where_another_one_broke_off() {
    let (system, ann, bob) = friends().await;
    let mut news = watch(&system, &ann, "").await;
    let since = next(&mut news).await.since_token;
    drop(news);
    let ids = system.publish_many(&bob, vec!["one".into(), "two".into(), "three".into()]).await;
    system.until_new(&ann, &since, 3).await;
    system.delete_many(&bob, &ids[1..2]).await;
    let told = next(&mut watch(&system, &ann, &since).await).await;
    assert_eq!(texts(&told.posts), ["three", "one"]);
    // Nothing is told twice.
    let mut news = watch(&system, &ann, &told.since_token).await;
    assert!(next(&mut news).await.posts.is_empty());
    // What is all deleted is told as nothing, with a token of its own.
    let ids = system.publish_many(&bob, vec!["four".into()]).await;
    system.delete_many(&bob, &ids).await;
    let none = next(&mut watch(&system, &ann, &told.since_token).await).await;
    assert!(none.posts.is_empty());
}

#[tokio::test]
async fn what_came_together_comes_in_parts_that_fit_into_a_message() {
    let (system, ann, bob) = friends().await;
    let since = next(&mut watch(&system, &ann, "").await).await.since_token;
    let mut expected: Vec<_> = (0..60).map(|i| format!("post {i}")).collect();
    system.publish_many(&bob, expected.clone()).await;
    expected.reverse();
    system.until_new(&ann, &since, 60).await;
    let mut news = watch(&system, &ann, &since).await;
    let (mut seen, mut tokens) = (Vec::new(), Vec::new());
    for size in [25, 25, 10] {
        let told = next(&mut news).await;
        assert_eq!(told.posts.len(), size);
        seen.extend(texts(&told.posts));
        tokens.push(told.since_token);
    }
    assert_eq!(seen, expected);
    // Whoever breaks off in between gets all of it again, rather than not.
    assert_eq!(tokens[..2], [since.clone(), since]);
    assert!(next(&mut watch(&system, &ann, &tokens[2]).await).await.posts.is_empty());
}

#[tokio::test]
async fn a_watch_ends_with_its_session_although_nothing_comes() {
    let (system, ann, _) = friends().await;
    let config = configured(&["--session-check-ms=50"]);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let mut gateway = GatewayServiceClient::new(Peer::local(&service, &config.chassis));
    let request = ann.asks(gateway::WatchHomeRequest::default());
    let mut news = gateway.watch_home(request).await.unwrap().into_inner();
    next(&mut news).await;
    timeout(Duration::from_millis(200), news.message()).await.expect_err("it goes on");
    system.gateway().logout(ann.asks(gateway::LogoutRequest {})).await.unwrap();
    let status = end(&mut news).await;
    assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenInvalid));
}

#[tokio::test]
async fn a_viewer_has_a_few_watches_and_no_more() {
    let (system, ann, bob) = friends().await;
    let config = configured(&["--max-watches-per-viewer=2"]);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let gateway = GatewayServiceClient::new(Peer::local(&service, &config.chassis));
    let watch = async |viewer: &Member| {
        let request = viewer.asks(gateway::WatchHomeRequest::default());
        gateway.clone().watch_home(request).await.map(Response::into_inner)
    };
    let [mut first, mut second] = [watch(&ann).await.unwrap(), watch(&ann).await.unwrap()];
    for news in [&mut first, &mut second] {
        next(news).await;
    }
    let too_many: Refusal = (Code::ResourceExhausted, ErrorReason::WatchLimit, &[]);
    assert_refused("a third one", watch(&ann).await.map(Response::new), too_many);
    next(&mut watch(&bob).await.unwrap()).await;
    // A refused one takes nothing, and one that ends makes room.
    drop(first);
    let mut third = None;
    eventually("there is room again", SOON, async || {
        third = watch(&ann).await.ok();
        third.is_some()
    })
    .await;
    let mut third = third.unwrap();
    next(&mut third).await;
    assert_refused("a third one", watch(&ann).await.map(Response::new), too_many);
}

#[tokio::test]
async fn nothing_is_told_to_a_session_that_ended() {
    let (system, ann, bob) = friends().await;
    let mut news = watch(&system, &ann, "").await;
    next(&mut news).await;
    system.gateway().logout(ann.asks(gateway::LogoutRequest {})).await.unwrap();
    system.publish(&bob, "too late").await;
    let message = timeout(SOON, news.message()).await.expect("an end");
    let status = message.expect_err("nothing is told");
    assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenInvalid));
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn who_does_not_listen_costs_nothing() {
    let (system, ann, bob) = friends().await;
    let mut news = watch(&system, &ann, "").await;
    next(&mut news).await;
    let since = system.home(&ann, 0, "", "").await.since_token;
    system.publish_many(&bob, (0..3).map(|i| format!("post {i}")).collect()).await;
    system.until_new(&ann, &since, 3).await;
    system.tap.calls();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut calls = system.tap.calls();
    calls.retain(|call| call != "user.ListDeletions");
    assert_eq!(calls, [""; 0], "but the relay's");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(texts(&next(&mut news).await.posts));
    }
    assert_eq!(seen, ["post 2", "post 1", "post 0"]);
}

#[tokio::test]
async fn a_watch_that_fails_can_be_taken_up_again() {
    let (system, ann, bob) = friends().await;
    let mut news = watch(&system, &ann, "").await;
    let since = next(&mut news).await.since_token;
    let away = status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, "away");
    system.tap.refuse("post.BatchGetPosts", away);
    system.publish(&bob, "hello").await;
    assert_eq!(end(&mut news).await.code(), Code::Unavailable);
    system.tap.refuse_nothing();
    let told = next(&mut watch(&system, &ann, &since).await).await;
    assert_eq!(texts(&told.posts), ["hello"]);
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_at_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let request = gateway::WatchHomeRequest::default();
    assert_refused("none", system.gateway().watch_home(request.clone()).await, TOKEN_MISSING);
    let stranger = with_token("not one", request);
    assert_refused("wrong", system.gateway().watch_home(stranger).await, TOKEN_INVALID);
    let request = gateway::WatchHomeRequest { since_token: "?".to_owned() };
    let damaged: Refusal = (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["since_token"]);
    assert_refused("damaged", system.gateway().watch_home(ann.asks(request)).await, damaged);
    assert_eq!(config().session_check_ms, 30_000);
}
