//! WatchHome with a slow reader: messages that are sent after an Unfollow contain no posts of the
//! unfollowed account.

use std::time::Duration;

use microblog_chassis::Worker;
use microblog_proto::gateway::{
    self, WatchHomeResponse, gateway_service_client::GatewayServiceClient,
};
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Streaming, transport::Endpoint};

use crate::{
    process::served,
    system::{Member, System, by_id, config, gateway_service},
    timeline_actions::{SOON, texts},
};

/// The caller's flow-control window.
const WINDOW: u32 = 32 * 1024;

/// The gRPC prefix of a message on the wire: five bytes.
const PREFIX: usize = 5;

async fn next(watch: &mut Streaming<WatchHomeResponse>) -> WatchHomeResponse {
    let message = timeout(SOON, watch.message()).await.expect("a message");
    message.unwrap().expect("no end")
}

async fn unfollow(system: &System, viewer: &Member, target: &Member) {
    let request = gateway::UnfollowRequest { user: by_id(target.id) };
    system.gateway().unfollow(viewer.request(request)).await.unwrap();
}

/// Returns the since token of the current home timeline.
async fn since(system: &System, viewer: &Member) -> String {
    system.home(viewer, 1, "", "").await.since_token
}

#[tokio::test]
async fn an_unfollowed_author_is_in_no_later_message() {
    let system = System::start().await;
    let [ann, bob, carol] =
        [system.join("ann").await, system.join("bob").await, system.join("carol").await];
    system.follow(&ann, &bob).await;
    system.follow(&ann, &carol).await;
    let since = since(&system, &ann).await;
    system.publish(&carol, "carol's").await;
    system.publish(&ann, "ann's").await;
    system.publish_many(&bob, (0..60).map(|i| format!("bob's {i}")).collect()).await;
    system.until_new(&ann, &since, 62).await;
    let request = gateway::WatchHomeRequest { since_token: since };
    let mut updates = system.gateway().watch_home(ann.request(request)).await.unwrap().into_inner();
    assert_eq!(next(&mut updates).await.posts.len(), 12);
    unfollow(&system, &ann, &bob).await;
    let mut update = Vec::new();
    for _ in 0..5 {
        update.extend(texts(&next(&mut updates).await.posts));
    }
    assert_eq!(update, ["ann's", "carol's"]);
}

#[tokio::test]
async fn a_suppressed_repost_replaces_that_of_an_unfollowed_author() {
    let system = System::start().await;
    let [ann, bob, carol, dave] = [
        system.join("ann").await,
        system.join("bob").await,
        system.join("carol").await,
        system.join("dave").await,
    ];
    for author in [&bob, &carol] {
        system.follow(&ann, author).await;
    }
    let since = since(&system, &ann).await;
    let root = system.publish(&dave, "root").await;
    system.repost(&bob, root.id, "").await;
    let replacement = system.repost(&carol, root.id, "").await;
    system.publish_many(&carol, (0..12).map(|i| format!("carol's {i}")).collect()).await;
    // One of the reposts is suppressed in favour of the other.
    system.until_new(&ann, &since, 13).await;
    let request = gateway::WatchHomeRequest { since_token: since };
    let mut updates = system.gateway().watch_home(ann.request(request)).await.unwrap().into_inner();
    assert_eq!(next(&mut updates).await.posts.len(), 12);
    unfollow(&system, &ann, &bob).await;
    let update = next(&mut updates).await.posts;
    let update: Vec<_> = update.iter().map(|viewed| viewed.post.as_ref().unwrap().id).collect();
    assert_eq!(update, [replacement.id]);
}

#[tokio::test]
async fn only_messages_accepted_before_an_unfollow_arrive_after_it() {
    let system = System::start().await;
    let [ann, bob, carol] =
        [system.join("ann").await, system.join("bob").await, system.join("carol").await];
    system.follow(&ann, &bob).await;
    system.follow(&ann, &carol).await;
    let since = since(&system, &ann).await;
    let text = "x".repeat(1_000);
    system.publish_many(&bob, (0..200).map(|_| text.clone()).collect()).await;
    system.until_new(&ann, &since, 200).await;
    let address = served(gateway_service(&config(), system.peers.clone(), Worker::ONLY));
    let endpoint = Endpoint::from_shared(address).unwrap().initial_stream_window_size(WINDOW);
    let mut slow = GatewayServiceClient::new(endpoint.connect().await.unwrap());
    let request = gateway::WatchHomeRequest { since_token: since };
    let mut updates = slow.watch_home(ann.request(request)).await.unwrap().into_inner();
    // Time for the gateway to fill the window. If it sent less, fewer messages would arrive.
    loop {
        system.recorder.calls();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        if !system.recorder.calls().contains(&"post.BatchGetPosts".to_owned()) {
            break;
        }
    }
    unfollow(&system, &ann, &bob).await;
    system.publish(&carol, "carol's").await;
    let mut sizes = Vec::new();
    loop {
        let update = next(&mut updates).await;
        if texts(&update.posts).contains(&"carol's".to_owned()) {
            assert_eq!(update.posts.len(), 1);
            break;
        }
        if !update.posts.is_empty() {
            sizes.push(update.encoded_len() + PREFIX);
        }
    }
    // All but the message at the end of the window, and one after it, which the HTTP/2 server
    // accepts before it waits for capacity.
    sizes.truncate(sizes.len().saturating_sub(2));
    let sent: usize = sizes.iter().sum();
    assert!(sent <= WINDOW as usize, "{sent} bytes in {} messages and two more", sizes.len());
}
