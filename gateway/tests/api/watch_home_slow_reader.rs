//! Watching a home timeline more slowly than it grows: what was checked before somebody was unfollowed
//! is not shown after that.

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
    timeline_acts::{SOON, texts},
};

/// How much the caller lets the gateway send before it reads.
const WINDOW: u32 = 32 * 1024;

/// What a message has besides its posts on the wire: a prefix of five bytes.
const PREFIX: usize = 5;

async fn next(watch: &mut Streaming<WatchHomeResponse>) -> WatchHomeResponse {
    let message = timeout(SOON, watch.message()).await.expect("a message");
    message.unwrap().expect("no end")
}

async fn unfollow(system: &System, viewer: &Member, target: &Member) {
    let request = gateway::UnfollowRequest { user: by_id(target.id) };
    system.gateway().unfollow(viewer.asks(request)).await.unwrap();
}

/// Returns a token of a home timeline as it is now.
async fn since(system: &System, viewer: &Member) -> String {
    system.home(viewer, 1, "", "").await.since_token
}

#[tokio::test]
async fn who_is_unfollowed_is_in_no_message_that_is_taken_later() {
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
    let mut news = system.gateway().watch_home(ann.asks(request)).await.unwrap().into_inner();
    assert_eq!(next(&mut news).await.posts.len(), 25);
    unfollow(&system, &ann, &bob).await;
    let mut told = Vec::new();
    for _ in 0..2 {
        told.extend(texts(&next(&mut news).await.posts));
    }
    assert_eq!(told, ["ann's", "carol's"]);
}

#[tokio::test]
async fn what_stands_in_for_a_post_of_somebody_who_is_unfollowed_is_shown() {
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
    let standing_in = system.repost(&carol, root.id, "").await;
    system.publish_many(&carol, (0..25).map(|i| format!("carol's {i}")).collect()).await;
    // One of the reposts is left out for the other.
    system.until_new(&ann, &since, 26).await;
    let request = gateway::WatchHomeRequest { since_token: since };
    let mut news = system.gateway().watch_home(ann.asks(request)).await.unwrap().into_inner();
    assert_eq!(next(&mut news).await.posts.len(), 25);
    unfollow(&system, &ann, &bob).await;
    let told = next(&mut news).await.posts;
    let told: Vec<_> = told.iter().map(|viewed| viewed.post.as_ref().unwrap().id).collect();
    assert_eq!(told, [standing_in.id]);
}

#[tokio::test]
async fn only_what_the_connection_took_before_somebody_is_unfollowed_comes_after() {
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
    let mut news = slow.watch_home(ann.asks(request)).await.unwrap().into_inner();
    // Until the gateway has sent what it may. If it had sent less, less would come.
    loop {
        system.tap.calls();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        if !system.tap.calls().contains(&"post.BatchGetPosts".to_owned()) {
            break;
        }
    }
    unfollow(&system, &ann, &bob).await;
    system.publish(&carol, "carol's").await;
    let mut sizes = Vec::new();
    loop {
        let told = next(&mut news).await;
        if texts(&told.posts).contains(&"carol's".to_owned()) {
            assert_eq!(told.posts.len(), 1);
            break;
        }
        if !told.posts.is_empty() {
            sizes.push(told.encoded_len() + PREFIX);
        }
    }
    // All but the message in which the window ended, and one behind it, which the HTTP/2 server takes
    // before it waits for room.
    sizes.truncate(sizes.len().saturating_sub(2));
    let sent: usize = sizes.iter().sum();
    assert!(sent <= WINDOW as usize, "{sent} bytes in {} messages and two more", sizes.len());
}
