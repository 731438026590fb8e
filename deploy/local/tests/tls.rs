//! TLS of the client commands; `microblog up` has none.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{net::TcpListener, path::Path, process::Command, sync::Arc, time::Duration};

use clap::Parser;
use microblog_chassis::{Config, Service, serve};
use microblog_testkit::{Authority, Files, PATIENCE, eventually};
use tonic::service::Routes;

const HOST: &str = "127.0.0.1";
const TIME: Duration = PATIENCE;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    chassis: Config,
}

/// Serves only health checks, with required client certificates. Returns the URL.
async fn server(files: &Files) -> String {
    let config = Config {
        tls_cert_file: Some(files.path("server.crt")),
        tls_key_file: Some(files.path("server.key")),
        tls_client_ca_file: Some(files.path("ca.crt")),
        ..Flags::parse_from(["test"]).chassis
    };
    let service = Service {
        name: "microblog.gateway.v1.GatewayService",
        routes: Routes::default(),
        handler: None,
        web: None,
        ready: Arc::new(|| Box::pin(async { true })),
        background: Vec::new(),
    };
    let listener = TcpListener::bind((HOST, 0)).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { serve(listener, service, &config, std::future::pending()).await });
    url
}

/// Runs a failing command without MICROBLOG_ environment variables. Returns its exit code and its
/// standard error.
async fn failure(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_microblog"));
    command.args(arguments).env_clear();
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = run.await.unwrap();
    assert!(!output.status.success(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Runs a command that exits with 2, and returns its standard error.
async fn error_of(arguments: &[&str]) -> String {
    let (code, error) = failure(arguments).await;
    assert_eq!(code, Some(2), "{error}");
    error
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn commands_use_the_given_ca_and_client_certificate() {
    let (authority, files) = (Authority::new(), Files::new());
    let ca = files.write("ca.crt", authority.pem());
    files.certificate("server", &authority.issue(&[HOST]));
    let (certificate, key) = files.certificate("client", &authority.issue(&["client.test"]));
    let url = server(&files).await;
    let demo = ["demo", "--gateway-url", &url];
    let own = ["--ca-file", text(&ca), "--cert-file", text(&certificate), "--key-file", text(&key)];
    eventually(
        "the command reaches the calls, which this server does not implement",
        TIME,
        async || {
            let (code, error) = failure(&[&demo[..], &own].concat()).await;
            code == Some(1) && error.contains("Unimplemented")
        },
    )
    .await;
    let other = files.write("other.crt", Authority::new().pem());
    for (flags, why) in [
        (&[][..], "requires --ca-file"),
        (&own[..4], "must be given together"),
        (&own[2..], "require --ca-file"),
        (&["--ca-file", text(&other)], "UnknownIssuer"),
    ] {
        let error = error_of(&[&demo[..], flags].concat()).await;
        assert!(error.contains(why), "{flags:?}: {error}");
    }
    // The message depends on which side notices first.
    let assert_contains = |error: String, any: [&str; 2]| {
        assert!(any.iter().any(|text| error.contains(text)), "{error}");
    };
    let without_certificate = error_of(&[&demo[..], &own[..2]].concat()).await;
    assert_contains(
        without_certificate,
        ["CertificateRequired", "does it require a client certificate (--cert-file)?"],
    );
    let plain = error_of(&["demo", "--gateway-url", &url.replace("https", "http")]).await;
    assert_contains(plain, ["nothing answers", "does it use TLS (https)?"]);
}

#[tokio::test]
async fn up_rejects_tls_options() {
    let files = Files::new();
    let (certificate, key) = files.certificate("server", &Authority::new().issue(&[HOST]));
    let data = files.path("data");
    let up = ["up", "--data-dir", text(&data), "--tls-cert-file", text(&certificate)];
    let error = error_of(&[&up[..], &["--tls-key-file", text(&key)]].concat()).await;
    assert!(error.contains("has neither TLS"), "{error}");
    assert!(!data.exists(), "nothing was started");
}
