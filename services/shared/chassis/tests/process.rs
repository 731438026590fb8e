//! A whole process: workers on one port, signals, a second instance, traces to a collector. The
//! process is this test binary, started again for its one test that does nothing otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    convert::Infallible,
    env,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{Config, Listening, Worker, mutate};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    trace::v1::Span,
};
use serde_json::Value;
use support::{Server, Stub, eventually, get, request};
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Request, Response, Status, body::Body, server::NamedService, service::Routes};
use tonic_prost::ProstCodec;

const FLAGS: &str = "CHASSIS_TEST_FLAGS";

#[derive(Parser)]
struct Flags {
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    config: Config,
}

#[test]
fn the_process_that_the_other_tests_start() {
    let Ok(flags) = env::var(FLAGS) else { return };
    let Flags { listen: address, config } = Flags::parse_from(flags.split(' '));
    let code = microblog_chassis::run(&config, move |worker: Worker| async move {
        let stub = Stub::new().get(move |request| {
            mutate(async move {
                let name = request.into_inner().name;
                let mut terminate = signal(SignalKind::terminate()).unwrap();
                let mut interrupt = signal(SignalKind::interrupt()).unwrap();
                eprintln!(r#"{{"begun":"{name}"}}"#);
                match name.as_str() {
                    "slow" => {
                        // Until the process is told to end, and a while longer.
                        tokio::select! {
                            _ = terminate.recv() => {}
                            _ = interrupt.recv() => {}
                        }
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        eprintln!(r#"{{"written":true}}"#);
                    }
                    "private" => panic!("what {name} wrote"),
                    "stuck" => futures::future::pending().await,
                    _ => {}
                }
                Ok(worker.index.to_string())
            })
        });
        Ok::<_, Infallible>(vec![Listening { address, service: stub.service() }])
    });
    std::process::exit(i32::from(code != ExitCode::SUCCESS));
}

/// The process, and what it logs.
struct Process {
    child: Child,
    log: mpsc::Receiver<Value>,
}

impl Process {
    fn start(listen: &str, flags: &str) -> Self {
        let test = "the_process_that_the_other_tests_start";
        let flags = format!("test --listen {listen} --threads 2 --log-format json {flags}");
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(FLAGS, flags.trim())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        Self { child, log }
    }

    /// Waits for a log line.
    fn wait(&self, mut found: impl FnMut(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if found(&line) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no such line ({error}): {seen:#?}"),
            }
        }
    }

    fn address(&self) -> SocketAddr {
        let line = self.wait(|line| line["message"] == "listening");
        line["address"].as_str().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the process does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn peer(address: SocketAddr) -> microblog_chassis::Peer {
    microblog_chassis::Peer::remote(&format!("http://{address}"), &support::config()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_workers_answer_on_one_port() {
    let process = Process::start("127.0.0.1:0", "");
    let address = process.address();
    let mut seen = [false; 2];
    // The kernel picks a worker for each connection.
    eventually("both workers have answered", async || {
        let worker: usize = get(peer(address), "").await.unwrap().parse().unwrap();
        seen[worker] = true;
        seen == [true; 2]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_process_after_the_writes_under_way() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = Process::start("127.0.0.1:0", "");
        let address = process.address();
        let peer = peer(address);
        let write = tokio::spawn(async move { get(peer, "slow").await });
        process.wait(|line| line["begun"] == "slow");
        // The write is under way for a while; its caller leaves.
        write.abort();
        process.signal(signal);
        process.wait(|line| line["message"] == "stopping" && line["signal"] == signal.as_str());
        process.wait(|line| line["written"] == true);
        assert!(process.ended().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_logged_by_its_place_and_not_by_what_it_says() {
    let process = Process::start("127.0.0.1:0", "");
    get(peer(process.address()), "private").await.unwrap_err();
    let line = process.wait(|line| line["message"] == "panic");
    assert!(line["location"].as_str().unwrap().contains("process.rs"), "{line}");
    assert!(!line.to_string().contains("private"), "{line}");
}

async fn get_answered(address: SocketAddr) {
    get(peer(address), "").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once() {
    let mut process = Process::start("127.0.0.1:0", "--write-budget-ms 60000");
    let address = process.address();
    let peer = peer(address);
    let write = tokio::spawn(async move { get(peer, "stuck").await });
    process.wait(|line| line["begun"] == "stuck");
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "stopping");
    process.signal(Signal::SIGTERM);
    // This waits for less than the drain would take.
    assert!(!process.ended().success());
    write.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_takes_too_long_is_cut_off() {
    let mut process = Process::start("127.0.0.1:0", "--drain-timeout-ms 300");
    let address = process.address();
    let peer = peer(address);
    let write = tokio::spawn(async move { get(peer, "stuck").await });
    process.wait(|line| line["begun"] == "stuck");
    process.signal(Signal::SIGTERM);
    process.wait(|line| line["message"] == "drain timed out, cutting off");
    process.ended();
    write.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_on_a_port_is_refused_with_a_clear_message() {
    let first = Process::start("127.0.0.1:0", "");
    let address = first.address();
    let mut second = Process::start(&address.to_string(), "");
    let line = second.wait(|line| line["message"] == "a worker failed");
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("cannot listen on {address}: another process")), "{error}");
    assert!(!second.ended().success());
    get_answered(address).await;
}

/// Takes spans as an OpenTelemetry collector does.
#[derive(Clone)]
struct Collector(tokio::sync::mpsc::UnboundedSender<Vec<Span>>);

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl tower::Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let spans = self.0.clone();
        async move {
            let handler = tower::service_fn(|request: Request<ExportTraceServiceRequest>| {
                let resources = request.into_inner().resource_spans;
                let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
                spans.send(scopes.flat_map(|scope| scope.spans).collect()).unwrap();
                futures::future::ready(Ok::<_, Status>(Response::new(
                    ExportTraceServiceResponse::default(),
                )))
            });
            let codec =
                ProstCodec::<ExportTraceServiceResponse, ExportTraceServiceRequest>::default();
            Ok(tonic::server::Grpc::new(codec).unary(handler, request).await)
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sampled_calls_are_sent_to_the_collector_at_the_end_at_the_latest() {
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let mut service = Stub::new().service();
    service.routes = Routes::new(Collector(sender));
    let collector = Server::start(service, support::config());
    let flags = format!("--otlp-endpoint {} --trace-sampling 0", collector.url());
    let mut process = Process::start("127.0.0.1:0", &flags);
    let address = process.address();
    for flag in ["00", "01"] {
        let mut request = request(None);
        let trace = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flag}");
        request.metadata_mut().insert("traceparent", trace.parse().unwrap());
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        let channel = channel.unwrap().connect_lazy();
        let mut client =
            microblog_proto::user::user_service_client::UserServiceClient::new(channel);
        client.get_user_by_name(request).await.unwrap();
    }
    get_answered(address).await;
    process.signal(Signal::SIGTERM);
    assert!(process.ended().success());
    let mut spans = Vec::new();
    while let Ok(batch) = received.try_recv() {
        spans.extend(batch);
    }
    let [span] = &spans[..] else { panic!("one call was sampled: {spans:#?}") };
    assert_eq!(span.name, "microblog.user.v1.UserService/GetUserByName");
    let trace_id = 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes();
    assert_eq!(span.trace_id, trace_id);
    assert_eq!(span.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!(span.kind, 2, "a server's span");
}
