//! The gateway as a separate process, with peers on the network.

use std::net::TcpListener;

use microblog_chassis::{self as chassis, Peer, Service, serve, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{PATIENCE, Process, RedisServer};
use tonic::Code;

use crate::{
    actions::request_id,
    system::{
        PASSWORD, by_name, config, email, notice_service, post_service, registration,
        relation_service, timeline_service, user_service, with_token,
    },
    timeline_actions::texts,
};

/// Serves a service on a free port for the lifetime of the runtime, and returns its address.
pub(crate) fn served(service: Service) -> String {
    served_with(service, config().chassis)
}

/// Serves a service with settings of its own.
pub(crate) fn served_with(service: Service, config: chassis::Config) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        serve(listener, service, &config, std::future::pending()).await.unwrap();
    });
    address
}

/// Starts all services on the network, and a gateway process.
async fn start() -> (RedisServer, Process, GatewayServiceClient<Peer>) {
    let redis = RedisServer::start().await;
    let peer = |address: &str| Peer::remote(address, &config().chassis).unwrap();
    let user = served(user_service(&redis.url("user"), &[]).await);
    let relation = served(relation_service(&redis.url("relation"), &[]).await);
    let timeline = timeline_service(&redis.url("timeline"), &[], peer(&relation)).await;
    let timeline = served(timeline);
    let post = post_service(&redis.url("post"), &[], Some(peer(&timeline))).await;
    let post = served(post);
    let peers = [peer(&user), peer(&relation), peer(&post)];
    let notice = served(notice_service(&redis.url("notice"), peers).await);
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let mut urls = vec!["--user-url", &user, "--relation-url", &relation, "--post-url", &post];
    urls.extend(["--timeline-url", &timeline, "--notice-url", &notice]);
    let process = Process::start(program, &urls).await;
    let gateway = GatewayServiceClient::new(peer(&process.address()));
    (redis, process, gateway)
}

#[tokio::test]
async fn a_gateway_process_calls_its_peers_over_the_network() {
    let (_redis, process, mut gateway) = start().await;
    gateway.register(registration("ann")).await.unwrap();
    let request = gateway::ViewUserRequest { user: by_name("ann") };
    let view = gateway.view_user(request).await.unwrap().into_inner();
    assert_eq!(view.user.unwrap().name, "ann");
    let request = gateway::ViewPostRequest { post_id: 4_096 };
    let error = gateway.view_post(request).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::PostNotFound));
    let error = gateway.me(gateway::MeRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
    let request = gateway::ViewUserTimelineRequest { user: by_name("ann"), ..Default::default() };
    let timeline = gateway.view_user_timeline(request).await.unwrap().into_inner();
    assert!(timeline.posts.is_empty() && timeline.next_page_token.is_empty());

    process.terminate();
    assert!(process.ended(PATIENCE).await.success());
}

#[tokio::test]
async fn a_watch_receives_posts_until_the_gateway_shuts_down() {
    let (_redis, process, mut gateway) = start().await;
    gateway.register(registration("ann")).await.unwrap();
    let login = gateway::LoginRequest { login: email("ann"), password: PASSWORD.to_owned() };
    let token = gateway.login(login).await.unwrap().into_inner().token;
    let request = with_token(&token, gateway::WatchHomeRequest::default());
    let mut updates = gateway.watch_home(request).await.unwrap().into_inner();
    assert!(updates.message().await.unwrap().unwrap().posts.is_empty());
    let request_id = request_id();
    let request = gateway::PublishRequest { request_id, text: "hello".to_owned() };
    gateway.publish(with_token(&token, request)).await.unwrap();
    let update = updates.message().await.unwrap().unwrap();
    assert_eq!(texts(&update.posts), ["hello"]);

    process.terminate();
    let end = updates.message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(process.ended(PATIENCE).await.success());
}

#[tokio::test]
async fn a_gateway_is_ready_while_its_peers_are_unavailable() {
    let unavailable_peer = format!("http://127.0.0.1:{}", microblog_testkit::free_port());
    let program = env!("CARGO_BIN_EXE_microblog-gateway");
    let mut urls = vec!["--user-url", &unavailable_peer, "--relation-url", &unavailable_peer];
    urls.extend(["--post-url", &unavailable_peer, "--timeline-url", &unavailable_peer]);
    urls.extend(["--notice-url", &unavailable_peer]);
    let process = Process::start(program, &urls).await;
    assert!(process.is_serving().await);
}
