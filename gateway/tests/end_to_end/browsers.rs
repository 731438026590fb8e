//! Calls with JSON, as browsers and `curl` make them.

use http::{Request, StatusCode, request};
use http_body_util::BodyExt as _;
use microblog_chassis::Worker;
use microblog_testkit::{http, http_stream};
use serde_json::{Value, json};
use tokio::time::timeout;

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
