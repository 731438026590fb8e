//! The gateway as a process of its own, its peers on the network.

use std::{net::TcpListener, time::Duration};

use microblog_chassis::{Peer, Service, serve};
use microblog_proto::gateway::{self, gateway_service_client::GatewayServiceClient};
use microblog_testkit::{Process, RedisServer};
use tonic::Code;

use crate::system::{by_name, config, registration, relation_service, user_service};

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
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let process =
        Process::start(program, &["--user-url", &user, "--relation-url", &relation]).await;
    let peer = Peer::remote(&process.address(), &config().chassis).unwrap();
    let mut gateway = GatewayServiceClient::new(peer);

    gateway.register(registration("ann")).await.unwrap();
    let request = gateway::ViewUserRequest { user: by_name("ann") };
    let view = gateway.view_user(request).await.unwrap().into_inner();
    assert_eq!(view.user.unwrap().name, "ann");
    let refusal = gateway.me(gateway::MeRequest {}).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unauthenticated);

    process.terminate();
    assert!(process.ended(Duration::from_secs(10)).await.success());
}

#[tokio::test]
async fn a_gateway_is_ready_although_its_peers_are_away() {
    let nowhere = format!("http://127.0.0.1:{}", microblog_testkit::free_port());
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let process =
        Process::start(program, &["--user-url", &nowhere, "--relation-url", &nowhere]).await;
    assert!(process.is_serving().await);
}
