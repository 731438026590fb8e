//! Health checks and server reflection.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use futures::{FutureExt as _, StreamExt as _};
use microblog_testkit::PATIENCE;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{self, NAME, Server, Stub, config, eventually};

async fn health(server: &Server, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let response = HealthClient::new(server.channel()).check(request).await;
    response.map(|response| response.get_ref().status()).map_err(|status| status.code())
}

async fn eventually_is(server: &Server, service: &str, status: ServingStatus) {
    let what = format!("{service:?} is {status:?}");
    eventually(&what, async || health(server, service).await == Ok(status)).await;
}

#[tokio::test]
async fn health_follows_the_readiness_probe_and_liveness_does_not() {
    let ready = Arc::new(AtomicBool::new(false));
    let mut service = Stub::new().service();
    let probe = ready.clone();
    service.ready = Arc::new(move || futures::future::ready(probe.load(SeqCst)).boxed());
    let server = Server::start(service, config());

    for name in ["", NAME] {
        assert_eq!(health(&server, name).await, Ok(ServingStatus::NotServing));
    }
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    ready.store(true, SeqCst);
    eventually_is(&server, "", ServingStatus::Serving).await;
    eventually_is(&server, NAME, ServingStatus::Serving).await;
    ready.store(false, SeqCst);
    eventually_is(&server, NAME, ServingStatus::NotServing).await;
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    assert_eq!(health(&server, "no.such.Service").await, Err(Code::NotFound));
}

#[tokio::test]
async fn draining_server_reports_not_serving_and_still_answers() {
    let mut config = config();
    config.drain_delay_ms = 60_000;
    let mut server = Server::start(Stub::new().service(), config);
    eventually_is(&server, "", ServingStatus::Serving).await;
    server.stop();
    eventually_is(&server, "", ServingStatus::NotServing).await;
    assert_eq!(health(&server, "liveness").await, Ok(ServingStatus::Serving));
    server.client().get_user_by_name(support::request(None)).await.unwrap();
}

#[tokio::test]
async fn health_watch_reports_the_drain_and_ends() {
    let mut server = Server::start(Stub::new().service(), config());
    eventually_is(&server, "", ServingStatus::Serving).await;
    let watch = |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut client = HealthClient::new(server.channel());
        async move { client.watch(request).await.unwrap().into_inner() }
    };
    let mut known = watch("").await;
    let mut alive = watch("liveness").await;
    let mut unknown = watch("no.such.Service").await;
    let status = async |stream: &mut tonic::Streaming<_>| {
        let response: tonic_health::pb::HealthCheckResponse = stream.next().await.unwrap().unwrap();
        response.status()
    };
    assert_eq!(status(&mut known).await, ServingStatus::Serving);
    assert_eq!(status(&mut alive).await, ServingStatus::Serving);
    assert_eq!(status(&mut unknown).await, ServingStatus::ServiceUnknown);
    server.stop();
    assert_eq!(status(&mut known).await, ServingStatus::NotServing);
    assert!(known.next().await.is_none());
    tokio::time::timeout(PATIENCE, server.ended()).await.expect("the drain ends");
}

fn is_complete(mut services: Vec<String>, files: &[String]) {
    let expected_services = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        NAME,
    ];
    let expected_files = [
        "microblog/user/v1/user.proto",
        "microblog/common/v1/error.proto",
        "google/protobuf/timestamp.proto",
    ];
    services.sort();
    assert_eq!(services, expected_services);
    assert_eq!(files, expected_files);
}

macro_rules! reflection_test {
    ($name:ident, $version:ident) => {
        #[tokio::test]
        async fn $name() {
            use prost::Message as _;
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest,
                server_reflection_response::MessageResponse,
            };
            let server = Server::start(Stub::new().service(), config());
            let ask = [
                MessageRequest::ListServices(String::new()),
                MessageRequest::FileContainingSymbol(NAME.to_owned()),
                MessageRequest::FileContainingSymbol("microblog.common.v1.ErrorReason".to_owned()),
                MessageRequest::FileByFilename("google/protobuf/timestamp.proto".to_owned()),
            ];
            let requests = ask.map(|message| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(message),
            });
            let mut client = ServerReflectionClient::new(server.channel());
            let requests = futures::stream::iter(requests);
            let answers = client.server_reflection_info(requests).await.unwrap().into_inner();
            let (mut services, mut files) = (Vec::new(), Vec::new());
            for answer in answers.collect::<Vec<_>>().await {
                match answer.unwrap().message_response.unwrap() {
                    MessageResponse::ListServicesResponse(list) => {
                        services.extend(list.service.into_iter().map(|service| service.name));
                    }
                    MessageResponse::FileDescriptorResponse(response) => {
                        let file = &response.file_descriptor_proto[0][..];
                        let file = prost_types::FileDescriptorProto::decode(file).unwrap();
                        files.push(file.name().to_owned());
                    }
                    other => panic!("{other:?}"),
                }
            }
            is_complete(services, &files);
        }
    };
}

reflection_test!(reflection_v1_lists_and_describes_the_services, v1);
reflection_test!(reflection_v1alpha_lists_and_describes_the_services, v1alpha);
