//! Rejected handshakes, and their log lines.

use std::time::Duration;

use microblog_chassis::Config;
use microblog_testkit::Authority;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    fixture::{Fixture, HOST, peer},
    log::Log,
    support::{self, Server, Stub, code_and_reason, eventually, get},
};

/// Asserts that a client's call fails fast. The client must log one text as a warning; the server
/// must log the other one.
async fn assert_rejected(server: Config, scheme: &str, caller: &Config, warning: &str, seen: &str) {
    let (log, _guard) = Log::take();
    let server = Server::start(Stub::new().service(), server);
    let started = Instant::now();
    let status = get(peer(&server, scheme, caller), "alice").await.unwrap_err();
    // Below the three seconds that a call may wait for a connection.
    assert!(started.elapsed() < Duration::from_millis(2_900), "fails fast");
    assert_eq!(
        code_and_reason(&status),
        (Code::Unavailable, "ERROR_REASON_PEER_UNAVAILABLE".to_owned())
    );
    let warned = log.lines(&["WARN", "peer unavailable", warning]);
    assert_eq!(warned.len(), 1, "no {warning:?} in:\n{}", log.all());
    eventually("the server logs the failure", async || !log.lines(&["DEBUG", seen]).is_empty())
        .await;
}

#[tokio::test]
async fn server_certificate_of_an_unknown_authority() {
    let fixture = Fixture::new();
    fixture.issue("server", &Authority::new().issue(&[HOST]));
    assert_rejected(
        fixture.server(),
        "https",
        &fixture.caller(),
        "invalid peer certificate: UnknownIssuer",
        r#"reason="alert""#,
    )
    .await;
}

#[tokio::test]
async fn server_certificate_for_another_name() {
    let fixture = Fixture::new();
    fixture.issue("server", &fixture.authority.issue(&["other.test", "127.0.0.2"]));
    assert_rejected(
        fixture.server(),
        "https",
        &fixture.caller(),
        "certificate not valid for name",
        r#"reason="alert""#,
    )
    .await;
}

#[tokio::test]
async fn expired_server_certificate() {
    let fixture = Fixture::new();
    fixture.issue("server", &fixture.authority.issue_expired(&[HOST]));
    assert_rejected(
        fixture.server(),
        "https",
        &fixture.caller(),
        "certificate expired",
        r#"reason="alert""#,
    )
    .await;
}

#[tokio::test]
async fn missing_client_certificate() {
    let fixture = Fixture::new();
    let no_certificate = Config { peer_cert_file: None, peer_key_file: None, ..fixture.caller() };
    assert_rejected(
        fixture.server(),
        "https",
        &no_certificate,
        "CertificateRequired",
        r#"reason="no certificate""#,
    )
    .await;
}

#[tokio::test]
async fn client_certificate_of_an_unknown_authority() {
    let fixture = Fixture::new();
    fixture.issue("caller", &Authority::new().issue(&["caller.test"]));
    assert_rejected(
        fixture.server(),
        "https",
        &fixture.caller(),
        "UnknownCA",
        r#"reason="certificate""#,
    )
    .await;
}

#[tokio::test]
async fn expired_client_certificate() {
    let fixture = Fixture::new();
    fixture.issue("caller", &fixture.authority.issue_expired(&["caller.test"]));
    assert_rejected(
        fixture.server(),
        "https",
        &fixture.caller(),
        "CertificateExpired",
        r#"reason="certificate""#,
    )
    .await;
}

#[tokio::test]
async fn plaintext_client() {
    let fixture = Fixture::new();
    assert_rejected(
        fixture.server(),
        "http",
        &support::config(),
        "does not speak HTTP/2: its address may be one of https",
        r#"reason="plaintext""#,
    )
    .await;
}

#[tokio::test]
async fn plaintext_server() {
    let fixture = Fixture::new();
    let (caller, seen) = (fixture.caller(), "connection error");
    assert_rejected(support::config(), "https", &caller, "the server does not speak TLS", seen)
        .await;
}
