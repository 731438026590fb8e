//! Redis over TLS, with a certificate authority of one's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use microblog_keyspace::{Config, Error, Keyspace};
use microblog_testkit::{Sentinels, TestCa, WAIT_TIMEOUT, eventually, free_port};
use support::{LIBRARY, USER, certificates::Certificates, get, key, put, send};

fn open(config: &Config) -> Keyspace {
    Keyspace::open(config, LIBRARY).unwrap()
}

async fn becomes_ready(keyspace: &Keyspace) {
    eventually("redis is ready", WAIT_TIMEOUT, async || keyspace.ready().await.is_ok()).await;
}

async fn is_refused(config: &Config) {
    assert!(open(config).ready().await.unwrap_err().is_unavailable());
}

/// Uses a connection of each kind.
async fn works(keyspace: &Keyspace) {
    put(keyspace, &key(1, "a"), "over TLS").await.unwrap();
    assert_eq!(get(keyspace, &key(1, "a")).await.unwrap().as_deref(), Some("over TLS"));
    keyspace.exclusive(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn a_server_with_a_certificate_of_the_given_authority_is_trusted() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(false, &[]).await;
    let keyspace = open(&certificates.at(&server, USER, "rediss", "localhost", port));
    keyspace.ready().await.unwrap();
    works(&keyspace).await;
}

#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    let certificates = Certificates::make();
    let (server, port) = certificates.cluster(false).await;
    let keyspace = open(&certificates.at(&server, USER, "rediss-cluster", "localhost", port));
    becomes_ready(&keyspace).await;
    send(&keyspace, 100, "over TLS").await.unwrap();
    keyspace.exclusive(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn other_certificates_are_not_trusted() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server(false, &[]).await;
    let at = |host| certificates.at(&server, USER, "rediss", host, port);
    is_refused(&Config { redis_ca_file: Some(other.path("ca.pem")), ..at("localhost") }).await;
    is_refused(&Config { redis_ca_file: None, ..at("localhost") }).await;
    // A certificate of the right authority for another name.
    is_refused(&at("127.0.0.1")).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server(true, &[]).await;
    let nameless = certificates.at(&server, USER, "rediss", "localhost", port);
    is_refused(&nameless).await;
    let foreign = other.shown(nameless.clone());
    is_refused(&foreign).await;
    let keyspace = open(&certificates.shown(nameless));
    keyspace.ready().await.unwrap();
    works(&keyspace).await;
}

#[tokio::test]
async fn a_cluster_that_asks_for_certificates_gets_them() {
    let certificates = Certificates::make();
    let (server, port) = certificates.cluster(true).await;
    let nameless = certificates.at(&server, USER, "rediss-cluster", "localhost", port);
    let keyspace = open(&certificates.shown(nameless.clone()));
    becomes_ready(&keyspace).await;
    works(&keyspace).await;
    is_refused(&nameless).await;
}

#[tokio::test]
async fn sentinels_that_ask_for_certificates_get_them() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(true, &[]).await;
    let sentinel_port = free_port();
    let mut lines = certificates.options(sentinel_port, true);
    // To its primary, it is a client.
    lines.push(("tls-replication", "yes".to_owned()));
    lines.push(("sentinel resolve-hostnames", "yes".to_owned()));
    lines.push(("sentinel announce-hostnames", "yes".to_owned()));
    // Names are resolved only in lines that come after that.
    lines.push(("sentinel monitor other", format!("localhost {port} 1")));
    let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _sentinel = Sentinels::lone(&format!("127.0.0.1 {port}"), &lines);
    let mut nameless =
        certificates.at(&server, USER, "rediss+sentinel", "localhost", sentinel_port);
    nameless.redis_url.push_str("/other");
    let keyspace = open(&certificates.shown(nameless.clone()));
    becomes_ready(&keyspace).await;
    works(&keyspace).await;
    is_refused(&nameless).await;
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(true, &[]).await;
    // Nobody lets it in.
    certificates.files.certificate("client", &TestCa::new().issue(&["client.test"]));
    let config = certificates.at(&server, USER, "rediss", "localhost", port);
    let keyspace = open(&certificates.shown(config));
    assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    assert!(keyspace.exclusive(&key(1, "a")).await.is_err());
    let renewed = certificates.authority.issue(&["client.test"]);
    // Written one after the other: in between, they do not fit together.
    certificates.files.write("client.key", &renewed.key);
    assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    certificates.files.write("client.crt", &renewed.certificate);
    becomes_ready(&keyspace).await;
    works(&keyspace).await;
}

/// Returns what is wrong with a configuration.
fn wrong(config: &Config) -> String {
    match Keyspace::open(config, LIBRARY) {
        Err(Error::Config(cause)) => {
            let causes = std::iter::successors(cause.source(), |&cause| cause.source());
            let causes = causes.map(|cause| format!(": {cause}")).collect::<String>();
            format!("{cause}{causes}")
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens"),
    }
}

#[test]
fn a_file_that_cannot_be_used_is_an_error_of_the_configuration() {
    let certificates = Certificates::make();
    let config = certificates.shown(Config::at("rediss://localhost"));
    let missing = wrong(&Config { redis_ca_file: Some("/no/such/file".into()), ..config.clone() });
    assert!(missing.contains("/no/such/file") && missing.contains("No such file"), "{missing}");
    let other = certificates.path("server.key");
    let unfit = wrong(&Config { redis_key_file: Some(other), ..config.clone() });
    assert!(unfit.contains("server.key") && unfit.contains("not that of"), "{unfit}");
    let none = certificates.path("client.key");
    let empty = wrong(&Config { redis_cert_file: Some(none), ..config });
    assert!(empty.contains("client.key") && empty.contains("no certificate"), "{empty}");
}
