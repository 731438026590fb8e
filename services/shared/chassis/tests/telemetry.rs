//! Traces and metrics of a whole process, exported to a collector.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use microblog_proto::user::user_service_client::UserServiceClient;
use microblog_testkit::WAIT_TIMEOUT;
use nix::sys::signal::Signal;
use support::{
    Port,
    collector::{Collector, Numbers, text},
    get,
    process::{Process, get_answered, peer, run_if_started},
    request,
};
use tonic::transport::Endpoint;

#[test]
fn child_process() {
    run_if_started();
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_spans_are_exported_before_exit() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {} --trace-sampling 0", collector.url());
    let mut process = Process::start("127.0.0.1:0", &flags);
    let address = process.address();
    for flag in ["00", "01"] {
        let mut request = request(None);
        let trace = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flag}");
        request.metadata_mut().insert("traceparent", trace.parse().unwrap());
        let channel = Endpoint::from_shared(format!("http://{address}"));
        let mut client = UserServiceClient::new(channel.unwrap().connect_lazy());
        client.get_user_by_name(request).await.unwrap();
    }
    get_answered(address).await;
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let spans = collector.spans();
    let [span] = &spans[..] else { panic!("one call was sampled: {spans:#?}") };
    assert_eq!(span.name, "microblog.user.v1.UserService/GetUserByName");
    let trace_id = 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes();
    assert_eq!(span.trace_id, trace_id);
    assert_eq!(span.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!(span.kind, 2, "a server's span");
    let attribute = |key| text(&span.attributes, key);
    assert_eq!(attribute("rpc.system.name"), "grpc");
    assert_eq!(attribute("rpc.method"), span.name);
    assert_eq!(attribute("rpc.response.status_code"), "OK");
    assert_eq!(attribute("server.address"), "127.0.0.1");
    assert_eq!(attribute("network.peer.address"), "127.0.0.1");
    assert_eq!(span.status.as_ref().map_or(0, |status| status.code), 0, "no error");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_error_is_recorded_in_the_span() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {} --trace-sampling 1", collector.url());
    let mut process = Process::start("127.0.0.1:0", &flags);
    get(peer(process.address()), "private").await.unwrap_err();
    let trace_id_logged = process.wait(|line| line["message"] == "panic")["trace_id"].clone();
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let spans = collector.spans();
    let [call] = &spans[..] else { panic!("health checks have no traces: {spans:#?}") };
    assert_eq!(text(&call.attributes, "error.type"), "INTERNAL");
    assert_eq!(call.status.as_ref().unwrap().code, 2, "an error");
    let id = u128::from_be_bytes(call.trace_id.clone().try_into().unwrap());
    assert_eq!(trace_id_logged, format!("{id:032x}"), "log lines of a call have its trace id");
}

#[tokio::test(flavor = "multi_thread")]
async fn otel_environment_variables_apply() {
    let mut collector = Collector::start();
    let url = collector.url();
    let variables = [
        // For traces only; samples every call, regardless of the caller.
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*url),
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let process = Process::start_in(&variables, "127.0.0.1:0", "");
    let address = process.address();
    let mut request = request(None);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    request.metadata_mut().insert("traceparent", trace.parse().unwrap());
    let channel = Endpoint::from_shared(format!("http://{address}"));
    UserServiceClient::new(channel.unwrap().connect_lazy())
        .get_user_by_name(request)
        .await
        .unwrap();
    let sent = tokio::time::timeout(WAIT_TIMEOUT, collector.traces.recv());
    sent.await.expect("soon").expect("spans");
    assert!(collector.metrics.try_recv().is_err(), "metrics have no endpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn otel_sdk_disabled_exports_nothing() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {} --trace-sampling 1", collector.url());
    let off = [("OTEL_SDK_DISABLED", "true")];
    let mut process = Process::start_in(&off, "127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    assert!(collector.traces.try_recv().is_err() && collector.metrics.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_exported_before_exit() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {}", collector.url());
    let attributes = "service.instance.id=here,service.name=not this,deployment=test";
    let name = [("OTEL_SERVICE_NAME", "tested"), ("OTEL_RESOURCE_ATTRIBUTES", attributes)];
    let mut process = Process::start_in(&name, "127.0.0.1:0", &flags);
    let address = process.address();
    for _ in 0..3 {
        get_answered(address).await;
    }
    get(peer(address), "private").await.unwrap_err();
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let numbers = collector.numbers();
    assert_eq!(numbers.resource("service.name"), "tested");
    assert_eq!(numbers.resource("service.instance.id"), "here");
    assert_eq!(numbers.resource("deployment"), "test");
    assert_eq!(numbers.count("test.calls"), 4);
    let calls = numbers.calls();
    let get = "grpc microblog.user.v1.UserService/GetUserByName";
    let (answered, took) = calls[&format!("{get} OK")];
    assert!(answered == 3 && took > 0.0 && took < 3.0, "{calls:?}");
    assert_eq!(calls[&format!("{get} INTERNAL")].0, 1);
    assert_eq!(calls.len(), 2, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_exported_periodically() {
    let mut collector = Collector::start();
    let flags = format!("--otlp-endpoint {}", collector.url());
    let often = [("OTEL_METRIC_EXPORT_INTERVAL", "50")];
    let process = Process::start_in(&often, "127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    let sent = async {
        while let Some(request) = collector.metrics.recv().await {
            if Numbers(request).of("test.calls").is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, sent).await.expect("it is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_does_not_delay_exit() {
    let unused = Port::take();
    let flags = format!("--otlp-endpoint http://{}", unused.address());
    let mut process = Process::start("127.0.0.1:0", &flags);
    get_answered(process.address()).await;
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "traces and metrics not flushed");
    assert!(process.ended().success());
}
