//! Calls with JSON, as browsers and `curl` make them.

use http::{Request, StatusCode, request};
use http_body_util::BodyExt as _;
use microblog_chassis::Worker;
use microblog_proto::gateway::{
    self, change_service_client::ChangeServiceClient, gateway_service_client::GatewayServiceClient,
};
use microblog_testkit::{http, http_stream};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{Code, codec::CompressionEncoding, transport::Endpoint};

use crate::{
    process::served_with,
    system::{PASSWORD, System, configured, gateway_service},
    timeline_actions::SOON,
};

/// A gateway of a system, on a port.
struct Server {
    address: String,
}

impl Server {
    fn start(system: &System, flags: &[&str]) -> Self {
        let config = configured(flags);
        let gateway = gateway_service(&config, system.peers.clone(), Worker::ONLY);
        let url = served_with(gateway, config.chassis);
        Self { address: url.trim_start_matches("http://").to_owned() }
    }

    async fn call(&self, token: &str, method: &str, message: Value) -> (StatusCode, Value) {
        let request = post(method, token, "application/json").body(message.to_string()).unwrap();
        let response = http(&self.address, request).await;
        (response.status(), serde_json::from_slice(response.body()).unwrap())
    }
}

/// Returns the status code of a file, and its text.
async fn file(server: &Server, path: &str) -> (StatusCode, String) {
    let response = http(&server.address, Request::get(path).body("").unwrap()).await;
    (response.status(), String::from_utf8(response.body().to_vec()).unwrap())
}

fn post(method: &str, token: &str, content_type: &str) -> request::Builder {
    let path = format!("/microblog.gateway.v1.GatewayService/{method}");
    let request = Request::post(path).header("content-type", content_type);
    match token {
        "" => request,
        _ => request.header("authorization", format!("Bearer {token}")),
    }
}

#[tokio::test]
async fn a_session_reads_writes_and_watches_with_json() {
    let system = System::start().await;
    system.join("ann").await;
    let bob = system.join("bob").await;
    let server = Server::start(&system, &[]);
    let login = json!({"login": "ann", "password": PASSWORD});
    let (_, session) = server.call("", "Login", login).await;
    let token = session["token"].as_str().unwrap();
    let (code, followed) = server.call(token, "Follow", json!({"user": {"name": "bob"}})).await;
    assert_eq!(code, StatusCode::OK, "{followed}");

    let watch = post("WatchHome", token, "application/connect+json");
    let watch = watch.body(&b"\0\0\0\0\x02{}"[..]).unwrap();
    let mut watch = http_stream(&server.address, watch).await.into_body();
    timeout(SOON, watch.frame()).await.expect("what is there already").unwrap().unwrap();
    let id = system.publish(&bob, "hello").await.id.to_string();
    let mut update = Vec::new();
    while !String::from_utf8_lossy(&update).contains(&id) {
        let frame = timeout(SOON, watch.frame()).await.unwrap().unwrap().unwrap();
        update.extend(frame.into_data().unwrap());
    }

    let (_, home) = server.call(token, "ViewHome", json!({})).await;
    let first = &home["posts"][0];
    assert_eq!((&first["post"]["id"], &first["post"]["text"]), (&json!(id), &json!("hello")));
    let (code, error) = server.call("invalid", "ViewHome", json!({})).await;
    assert_eq!((code, &error["code"]), (StatusCode::UNAUTHORIZED, &json!("unauthenticated")));
    assert_eq!(error["details"][0]["debug"]["reason"], "TOKEN_INVALID");
    let snapshot = Request::post("/microblog.gateway.v1.ChangeService/Snapshot")
        .header("content-type", "application/connect+json")
        .body(&b"\0\0\0\0\x02{}"[..])
        .unwrap();
    let rejected = http(&server.address, snapshot).await;
    assert!(
        String::from_utf8_lossy(rejected.body()).contains("CALLER_NOT_ALLOWED"),
        "{rejected:?}"
    );
}

/// Returns the reason of an error of Connect, and the fields that it names.
fn reason_and_fields(error: &Value) -> (String, Vec<String>) {
    let details = error["details"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| {
        let detail = details.iter().find(|detail| detail["type"] == name);
        detail.map_or(Value::Null, |detail| detail["debug"].clone())
    };
    let fields = of("google.rpc.BadRequest")["fieldViolations"].as_array().cloned();
    let fields = fields.unwrap_or_default().into_iter();
    let fields = fields.map(|field| field["field"].as_str().unwrap().to_owned()).collect();
    (of("google.rpc.ErrorInfo")["reason"].as_str().unwrap_or_default().to_owned(), fields)
}

#[tokio::test]
async fn unknown_values_are_rejected_with_their_fields() {
    let system = System::start().await;
    let server = Server::start(&system, &[]);
    let cases = [
        ("ViewNotices", json!({"kinds": ["LIKE"]}), "kinds[0]"),
        ("CountUnread", json!({"unknown": 1}), ""),
        ("ViewFollowing", json!({"order": "OLDEST_FIRST"}), "order"),
        ("ViewComments", json!({"order": "newest", "postId": "7"}), "order"),
        ("ChangeService/Snapshot", json!({"kinds": ["CHANGE_KIND_POST", "ACCOUNT"]}), "kinds[1]"),
        ("ChangeService/Watch", json!({"kinds": ["ACCOUNT"]}), "kinds[0]"),
    ];
    for (method, message, field) in cases {
        let error = if let Some(method) = method.strip_prefix("ChangeService/") {
            let message = message.to_string();
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            let body = [&[0], &length[..], message.as_bytes()].concat();
            let request = Request::post(format!("/microblog.gateway.v1.ChangeService/{method}"))
                .header("content-type", "application/connect+json")
                .body(body)
                .unwrap();
            let response = http(&server.address, request).await;
            serde_json::from_slice::<Value>(&response.body()[5..]).unwrap()["error"].clone()
        } else {
            server.call("", method, message.clone()).await.1
        };
        let (reason, fields) = reason_and_fields(&error);
        match field {
            "" => assert_eq!(reason, "TOKEN_MISSING", "{error}"),
            field => {
                assert_eq!(
                    (reason.as_str(), &fields[..]),
                    ("INVALID_FIELD", &[field.to_owned()][..])
                );
            }
        }
        if !method.contains('/') && !field.is_empty() {
            let query = percent_encode(&message.to_string());
            let path = format!(
                "/microblog.gateway.v1.GatewayService/{method}?encoding=json&message={query}"
            );
            let response = http(&server.address, Request::get(path).body("").unwrap()).await;
            let error = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(reason_and_fields(&error).1, [field], "{error}");
        }
    }
}

fn percent_encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn rejections_by_a_limit_say_when_to_retry() {
    let system = System::start().await;
    let server = Server::start(&system, &["--logins-per-minute=1"]);
    let login = || {
        let request = post("Login", "", "application/json").body(r#"{"login": "nobody"}"#).unwrap();
        http(&server.address, request)
    };
    login().await;
    let rejected = login().await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    let error = serde_json::from_slice(rejected.body()).unwrap();
    assert_eq!(reason_and_fields(&error).0, "RATE_LIMITED");
    let seconds: u64 = rejected.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    let health = http(&server.address, Request::get("/healthz").body("").unwrap()).await;
    assert!([200, 503].contains(&health.status().as_u16()), "{health:?}");
}

#[tokio::test]
async fn messages_of_all_services_of_the_gateway_may_be_compressed() {
    let system = System::start().await;
    let server = Server::start(&system, &[]);
    let channel = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let channel = channel.connect_lazy();
    let mut gateway = GatewayServiceClient::new(channel.clone())
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    let error = gateway.view_home(gateway::ViewHomeRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    let mut changes = ChangeServiceClient::new(channel).send_compressed(CompressionEncoding::Gzip);
    let error = changes.snapshot(gateway::SnapshotRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
}

#[tokio::test]
async fn the_page_and_the_metrics_on_it_are_served_only_with_their_flags() {
    let system = System::start().await;
    let flags: [&[&str]; 4] = [
        &[],
        &["--page"],
        // Without metrics that are collected.
        &["--page", "--page-metrics"],
        &["--page", "--page-metrics", "--metrics-listen=127.0.0.1:0"],
    ];
    for (count, flags) in flags.into_iter().enumerate() {
        let server = Server::start(&system, flags);
        for path in ["/", "/openapi.json", "/settings.js"] {
            assert_eq!(
                file(&server, path).await.0 == StatusCode::OK,
                count > 0,
                "{path} {flags:?}"
            );
        }
        let (_, settings) = file(&server, "/settings.js").await;
        assert_eq!(settings.contains("hasMetrics = true"), count >= 2, "{settings}");
        let get = |site| {
            let request = Request::get("/metrics").header("sec-fetch-site", site);
            http(&server.address, request.body("").unwrap())
        };
        let (own, foreign) = (get("same-origin").await, get("cross-site").await);
        assert_eq!(own.status() == StatusCode::OK, count == 3, "{own:?} {flags:?}");
        assert_ne!(foreign.status(), StatusCode::OK, "{flags:?}");
        if count == 3 {
            assert_eq!(own.headers()["x-content-type-options"], "nosniff");
        }
    }
}
