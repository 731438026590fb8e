//! Peers that are away, hang, or come back.

use std::{net::TcpListener, time::Duration};

use microblog_chassis::{Peer, Worker, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{Topology, eventually, free_port};
use tokio::time::Instant;
use tonic::Code;

use crate::system::{Jobs, System, by_id, config};

/// Returns a gateway that finds its peers at addresses.
fn gateway_to(user: Peer, relation: &str) -> GatewayServiceClient<Peer> {
    let relation = Peer::remote(relation, &config().chassis).unwrap();
    let service = microblog_gateway::service(&config(), Peers { user, relation }, Worker::ONLY);
    GatewayServiceClient::new(Peer::local(&service, &config().chassis))
}

#[tokio::test]
async fn a_peer_that_is_away_is_said_at_once_and_hinders_no_other() {
    let system = System::start_on(Topology::Single, Jobs::Rest, &[]).await;
    let ann = system.join("ann").await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let mut gateway = gateway_to(system.peers.user.clone(), &nowhere);

    let begun = Instant::now();
    let request = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
    let failure = gateway.view_followers(ann.asks(request)).await.unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable);
    assert_eq!(status::reason_of(&failure), Some(ErrorReason::PeerUnavailable));
    assert!(begun.elapsed() < Duration::from_secs(5));
    let request = gateway::CheckAvailabilityRequest { name: Some("bob".into()), email: None };
    gateway.check_availability(request).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_hangs_does_not_hold_a_call_beyond_its_deadline() {
    let system = System::start_on(Topology::Single, Jobs::Rest, &[]).await;
    let ann = system.join("ann").await;
    // Accepts connections, in the kernel, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let mut gateway = gateway_to(system.peers.user.clone(), &silent);

    let request = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
    let mut request = ann.asks(request);
    request.set_timeout(Duration::from_millis(700));
    let begun = Instant::now();
    let failure = gateway.view_followers(request).await.unwrap_err();
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure:?}");
    assert!(begun.elapsed() < Duration::from_millis(1_500), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_store_that_is_away_is_said_and_comes_back_by_itself() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    system.follows([(bob.id, ann.id)]).await;
    let request = || gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };

    let redis = &system.store.nodes()[0];
    redis.kill();
    let failure = system.gateway().view_followers(bob.asks(request())).await.unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable);
    assert_eq!(status::reason_of(&failure), Some(ErrorReason::StoreUnavailable));
    redis.restart().await;
    eventually("it answers again", Duration::from_secs(10), async || {
        let answer = system.gateway().view_followers(bob.asks(request())).await;
        answer.is_ok_and(|answer| answer.get_ref().users.len() == 1)
    })
    .await;
}
