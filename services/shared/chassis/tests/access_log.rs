//! Access log: one line per call, with method, status code and duration, however the call ends.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};

use futures::{StreamExt as _, stream};
use microblog_chassis::{Peer, context};
use microblog_proto::user::{VerifyRequest, VerifyResponse};
use support::{Port, Server, Stub, config, eventually, get, request};
use tokio::sync::Notify;
use tonic::Status;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    layer::{Context, SubscriberExt as _},
};

const GET: &str = "/microblog.user.v1.UserService/GetUserByName";
const VERIFY: &str = "/microblog.user.v1.UserService/Verify";

/// Recorded log lines of calls and peers in this thread, by field name.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

type Line = (Level, BTreeMap<&'static str, String>);

impl Lines {
    fn record(level: LevelFilter) -> (Self, DefaultGuard) {
        let lines = Self::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone().with_filter(level));
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// Waits for that many lines; returns the level, method and code of each.
    async fn wait(&self, count: usize) -> Vec<(Level, String, String)> {
        eventually("the lines are there", async || self.0.lock().unwrap().len() >= count).await;
        let lines = self.0.lock().unwrap();
        let field = |line: &BTreeMap<_, String>, name| line.get(name).cloned().unwrap_or_default();
        lines.iter().map(|(level, l)| (*level, field(l, "method"), field(l, "code"))).collect()
    }
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let is_about_peer = fields.0.contains_key("peer");
        if is_about_peer || event.metadata().target() == "microblog::call" {
            self.0.lock().unwrap().push((*event.metadata().level(), fields.0));
        }
    }
}

fn line(level: Level, method: &str, code: &str) -> (Level, String, String) {
    (level, method.to_owned(), code.to_owned())
}

#[tokio::test]
async fn access_log_has_one_line_per_call() {
    let (lines, _guard) = Lines::record(LevelFilter::INFO);
    let server = Server::start(Stub::new().service(), config());
    let mut request = request(None);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    request.metadata_mut().insert("traceparent", trace.parse().unwrap());
    server.client().get_user_by_name(request).await.unwrap();
    assert_eq!(lines.wait(1).await, [line(Level::INFO, GET, "Ok")]);
    let (_, fields) = lines.0.lock().unwrap()[0].clone();
    assert!(fields["duration_ms"].parse::<f64>().unwrap() > 0.0);
    assert!(fields["caller"].starts_with("127.0.0.1:"));
    assert_eq!(fields["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(!format!("{fields:?}").contains("alice"), "a request's content in the log");
}

#[tokio::test]
async fn access_log_has_the_final_status_code() {
    let (lines, _guard) = Lines::record(LevelFilter::INFO);
    let started = Arc::new(Notify::new());
    let notice = started.clone();
    let stub = Stub::new()
        .get(move |request| {
            let notice = notice.clone();
            async move {
                match request.into_inner().name.as_str() {
                    "missing" => return Err(Status::not_found("")),
                    "broken" => return Err(microblog_chassis::status::internal()),
                    "left" => notice.notify_one(),
                    _ => {}
                }
                futures::future::pending().await
            }
        })
        .verify(|| {
            let first = stream::iter([Ok(VerifyResponse::default())]);
            first.chain(stream::pending()).boxed()
        });
    let mut short = config();
    short.default_timeout_ms = 1000;
    let server = Server::start(stub.service(), short);
    let peer = server.peer();
    get(peer.clone(), "missing").await.unwrap_err();
    get(peer.clone(), "broken").await.unwrap_err();
    server.client().get_user_by_name(request(None)).await.unwrap_err();
    assert_eq!(
        lines.wait(3).await,
        [
            line(Level::INFO, GET, "NotFound"),
            line(Level::WARN, GET, "Internal"),
            line(Level::INFO, GET, "DeadlineExceeded"),
        ]
    );
    let call = tokio::spawn(async move { get(peer, "left").await });
    started.notified().await;
    call.abort();
    assert_eq!(lines.wait(4).await[3], line(Level::INFO, GET, "Cancelled"));
    let mut answers = server.client().verify(VerifyRequest::default()).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
    drop(answers);
    assert_eq!(lines.wait(5).await[4], line(Level::INFO, VERIFY, "Cancelled"));
}

#[tokio::test]
async fn watch_ended_by_shutdown_is_not_a_warning() {
    let (lines, _guard) = Lines::record(LevelFilter::INFO);
    let stub = Stub::new().verify(|| {
        context::watch().unwrap();
        let first = stream::iter([Ok(VerifyResponse::default())]);
        first.chain(stream::pending()).boxed()
    });
    let mut server = Server::start(stub.service(), config());
    let mut answers = server.client().verify(VerifyRequest::default()).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
    server.stop();
    answers.next().await.unwrap().unwrap_err();
    assert_eq!(lines.wait(1).await, [line(Level::INFO, VERIFY, "Unavailable")]);
}

#[tokio::test]
async fn local_call_is_logged_at_debug() {
    for (level, expected) in [(LevelFilter::INFO, 1), (LevelFilter::DEBUG, 2)] {
        let (lines, _guard) = Lines::record(level);
        let peer = Peer::local(&Stub::new().service(), &config());
        let outer = Stub::new().get(move |_| {
            let peer = peer.clone();
            async move { get(peer, "").await }
        });
        let server = Server::start(outer.service(), config());
        server.client().get_user_by_name(request(None)).await.unwrap();
        let lines = lines.wait(expected).await;
        assert_eq!(lines.len(), expected);
        assert_eq!(lines.last(), Some(&line(Level::INFO, GET, "Ok")));
    }
}

#[tokio::test]
async fn peer_outage_logs_only_its_start_and_end() {
    let (lines, _guard) = Lines::record(LevelFilter::INFO);
    let messages = || {
        let lines = lines.0.lock().unwrap();
        let about_peer = lines.iter().filter(|(_, fields)| fields.contains_key("peer"));
        about_peer.map(|(level, fields)| (*level, fields["message"].clone())).collect::<Vec<_>>()
    };
    let port = Port::take();
    let mut server = Server::start_on(port.listen(), Stub::new().service(), config());
    let peer = server.peer();
    get(peer.clone(), "").await.unwrap();
    server.stop();
    server.ended().await;
    for _ in 0..20 {
        get(peer.clone(), "").await.unwrap_err();
    }
    let left = (Level::WARN, "peer unavailable".to_owned());
    assert_eq!(messages(), std::slice::from_ref(&left));
    let _server = Server::start_on(port.listen(), Stub::new().service(), config());
    eventually("the peer is back", async || {
        let _ = get(peer.clone(), "").await;
        messages().len() > 1
    })
    .await;
    assert_eq!(messages(), [left, (Level::INFO, "peer available again".to_owned())]);
}
