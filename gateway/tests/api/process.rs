//! The gateway as a process of its own, its peers on the network.

use std::{net::TcpListener, time::Duration};

use microblog_chassis::{Peer, Service, serve, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{Process, RedisServer};
use tonic::Code;

use crate::system::{by_name, config, post_service, registration, relation_service, user_service};

/// Serves a service on a free port, for as long as the runtime lives, and returns its address.
fn served(service: Service) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        serve(listener, service, &config().chassis, std::future::pending()).await.unwrap();
    });
    address
}

#[tokio::test]
async fn a_gateway_process_serves_what_its_peers_on_the_network_answer() {
    let redis = RedisServer::start().await;
    let user = served(user_service(&redis.url("user")).await);
    let relation = served(relation_service(&redis.url("relation"), &[]).await);
    let post = served(post_service(&redis.url("post"), &[]).await);
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let urls = ["--user-url", &user, "--relation-url", &relation, "--post-url", &post];
    let process = Process::start(program, &urls).await;
    let peer = Peer::remote(&process.address(), &config().chassis).unwrap();
    let mut gateway = GatewayServiceClient::new(peer);

    gateway.register(registration("ann")).await.unwrap();
    let request = gateway::ViewUserRequest { user: by_name("ann") };
    let view = gateway.view_user(request).await.unwrap().into_inner();
    assert_eq!(view.user.unwrap().name, "ann");
    let request = gateway::ViewPostRequest { post_id: 4_096 };
    let refusal = gateway.view_post(request).await.unwrap_err();
    assert_eq!(status::reason_of(&refusal), Some(ErrorReason::PostNotFound));
    let refusal = gateway.me(gateway::MeRequest {}).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unauthenticated);

    process.terminate();
    assert!(process.ended(Duration::from_secs(10)).await.success());
}

#[tokio::test]
async fn a_gateway_is_ready_although_its_peers_are_away() {
    let nowhere = format!("http://127.0.0.1:{}", microblog_testkit::free_port());
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let urls = ["--user-url", &nowhere, "--relation-url", &nowhere, "--post-url", &nowhere];
    let process = Process::start(program, &urls).await;
    assert!(process.is_serving().await);
}
