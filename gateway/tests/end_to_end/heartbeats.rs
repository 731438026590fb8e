//! Heartbeats: messages of silent streams.

use std::time::Duration;

use microblog_chassis::{Peer, Worker, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{
        self, WatchHomeResponse, WatchNoticesResponse, gateway_service_client::GatewayServiceClient,
    },
};
use microblog_testkit::PATIENCE;
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming, transport::Endpoint};

use crate::{
    notices::{next, with_notices},
    process::served,
    service_callers::{ACTING, Callers, acting_for},
    system::{Member, System, configured, gateway_service},
    timeline_actions::texts,
};

/// The caller's flow-control window.
const WINDOW: usize = 16 * 1024;

/// How long a stream lasts that fills this window, also on a busy machine.
const LIFE: Duration = Duration::from_secs(10);

/// The gRPC prefix of a message on the wire.
const PREFIX: usize = 5;

/// Returns a gateway of a system with these flags.
fn with_flags(system: &System, flags: &[&str]) -> GatewayServiceClient<Peer> {
    let config = configured(flags);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    GatewayServiceClient::new(Peer::local(&service, &config.chassis))
}

async fn watch_home(
    gateway: &GatewayServiceClient<Peer>,
    request: Request<gateway::WatchHomeRequest>,
) -> Streaming<WatchHomeResponse> {
    gateway.clone().watch_home(request).await.unwrap().into_inner()
}

fn home(viewer: &Member, since_token: &str) -> Request<gateway::WatchHomeRequest> {
    viewer.request(gateway::WatchHomeRequest { since_token: since_token.to_owned() })
}

/// Returns the final status of a stream, after any messages.
async fn end<T>(watch: &mut Streaming<T>) -> Status {
    let ended = async {
        loop {
            if let Err(status) = watch.message().await {
                return status;
            }
        }
    };
    timeout(PATIENCE, ended).await.expect("an end")
}

#[tokio::test]
async fn a_silent_stream_repeats_its_token_and_costs_no_call() {
    let (system, [ann, bob]) = with_notices().await;
    system.follow(&ann, &bob).await;
    let gateway = with_flags(&system, &["--watch-heartbeat-ms=20"]);
    let mut posts = watch_home(&gateway, home(&ann, "")).await;
    let request = ann.request(gateway::WatchNoticesRequest::default());
    let mut notices = gateway.clone().watch_notices(request).await.unwrap().into_inner();
    let begun: WatchHomeResponse = next(&mut posts).await;
    let noted: WatchNoticesResponse = next(&mut notices).await;
    assert!(!begun.since_token.is_empty() && !noted.since_token.is_empty());
    system.recorder.calls();
    for _ in 0..10 {
        assert_eq!(next(&mut posts).await, begun);
        assert_eq!(next(&mut notices).await, noted);
    }
    let mut calls = system.recorder.calls();
    // Of the services themselves.
    calls.retain(|call| call != "user.ListDeletions");
    assert_eq!(calls, [""; 0]);

    // The token continues the stream, and so does the stream itself.
    system.publish(&bob, "anew @ann").await;
    for mut posts in [posts, watch_home(&gateway, home(&ann, &begun.since_token)).await] {
        let mut update = next(&mut posts).await;
        while update.posts.is_empty() {
            update = next(&mut posts).await;
        }
        assert_eq!(texts(&update.posts), ["anew @ann"]);
        let silent = next(&mut posts).await;
        assert_eq!((silent.posts, silent.since_token), (vec![], update.since_token));
    }
    let mut update = next(&mut notices).await;
    while update.notices.is_empty() {
        assert_eq!(update, noted);
        update = next(&mut notices).await;
    }
    let silent = next(&mut notices).await;
    assert_eq!((silent.notices, silent.since_token), (vec![], update.since_token));
}

#[tokio::test]
async fn heartbeats_can_be_disabled() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let gateway = with_flags(&system, &["--watch-heartbeat-ms=0"]);
    let mut updates = watch_home(&gateway, home(&ann, "")).await;
    next(&mut updates).await;
    timeout(Duration::from_millis(300), updates.message()).await.expect_err("silence");
}

#[tokio::test]
async fn a_stream_with_heartbeats_ends_with_its_session() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let flags = ["--watch-heartbeat-ms=20", "--session-check-ms=200"];
    let gateway = with_flags(&system, &flags);
    let mut updates = watch_home(&gateway, home(&ann, "")).await;
    for _ in 0..20 {
        next(&mut updates).await;
    }
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    let ended = end(&mut updates).await;
    assert_eq!(status::reason_of(&ended), Some(ErrorReason::TokenInvalid));
}

#[tokio::test]
async fn a_stream_with_heartbeats_ends_with_the_rights_of_its_caller() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let heartbeat = "--watch-heartbeat-ms=20";
    let callers = Callers::start_with(&system, &["WatchHome"], ACTING, &[heartbeat]);
    let request = acting_for(ann.id, gateway::WatchHomeRequest::default());
    let mut updates = watch_home(&callers.gateway, request).await;
    next(&mut updates).await;
    callers.write("search", &["ViewHome"], ACTING);
    let ended = end(&mut updates).await;
    assert_eq!(status::reason_of(&ended), Some(ErrorReason::CallerNotAllowed));
}

#[tokio::test]
async fn heartbeats_do_not_pile_up_before_a_slow_reader() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let config = configured(&["--watch-heartbeat-ms=1"]);
    let address = served(gateway_service(&config, system.peers.clone(), Worker::ONLY));
    let endpoint =
        Endpoint::from_shared(address).unwrap().initial_stream_window_size(WINDOW as u32);
    let mut slow = GatewayServiceClient::new(endpoint.connect().await.unwrap());
    let mut request = home(&ann, "");
    request.set_timeout(LIFE);
    let mut updates = slow.watch_home(request).await.unwrap().into_inner();
    // The stream ends on its side of the window meanwhile: what arrives after that was accepted before.
    tokio::time::sleep(LIFE + Duration::from_secs(1)).await;
    let mut sizes = Vec::new();
    let ended = loop {
        match timeout(PATIENCE, updates.message()).await.expect("an end") {
            Ok(message) => sizes.push(message.expect("a status").encoded_len() + PREFIX),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::DeadlineExceeded);
    // The window was used up: without it, there would be more.
    let largest = *sizes.iter().max().unwrap();
    assert!(sizes.iter().sum::<usize>() + largest > WINDOW, "{} messages", sizes.len());
    // One at the end of the window, and one after it.
    let most = WINDOW + 2 * largest;
    assert!(sizes.iter().sum::<usize>() <= most, "{} messages", sizes.len());
}
