//! Redis over TLS, with a certificate authority of one's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{path::PathBuf, time::Duration};

use microblog_keyspace::{Config, Keyspace, redis};
use microblog_testkit::{RedisServer, eventually, free_port};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{LIBRARY, USER, get, key, put, send};
use tempfile::TempDir;

/// A server's certificate for `localhost`, signed by an authority, as files.
struct Certificates {
    directory: TempDir,
}

impl Certificates {
    fn make() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let server_key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let server = server.signed_by(&server_key, &authority).unwrap();
        let made = Self { directory: TempDir::new().unwrap() };
        std::fs::write(made.path("ca.pem"), authority.pem()).unwrap();
        std::fs::write(made.path("server.pem"), server.pem()).unwrap();
        std::fs::write(made.path("server.key"), server_key.serialize_pem()).unwrap();
        made
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    async fn server(&self, options: &[(&str, &str)]) -> (RedisServer, u16) {
        let port = free_port();
        let (path, port_text) = (|file| self.path(file).display().to_string(), port.to_string());
        let tls = [
            ("tls-port", port_text.as_str()),
            ("tls-cert-file", &path("server.pem")),
            ("tls-key-file", &path("server.key")),
            ("tls-ca-cert-file", &path("ca.pem")),
            ("tls-auth-clients", "no"),
        ];
        (RedisServer::start_with(&[&tls, options].concat()).await, port)
    }
}

fn open(
    server: &RedisServer,
    scheme: &str,
    host: &str,
    port: u16,
    ca_file: Option<PathBuf>,
) -> Keyspace {
    let plain = format!("127.0.0.1:{}", server.port());
    let url = server.url(USER).replace("redis://", &format!("{scheme}://"));
    let url = url.replace(&plain, &format!("{host}:{port}"));
    let config = Config { redis_ca_file: ca_file, ..Config::at(url) };
    Keyspace::open(&config, LIBRARY).unwrap()
}

#[tokio::test]
async fn a_server_with_a_certificate_of_the_given_authority_is_trusted() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(&[]).await;
    let ca_file = Some(certificates.path("ca.pem"));
    let keyspace = open(&server, "rediss", "localhost", port, ca_file);
    keyspace.ready().await.unwrap();
    put(&keyspace, &key(1, "a"), "over TLS").await.unwrap();
    assert_eq!(get(&keyspace, &key(1, "a")).await.unwrap().as_deref(), Some("over TLS"));
    keyspace.exclusive(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    let certificates = Certificates::make();
    let (server, port) = certificates
        .server(&[
            ("cluster-enabled", "yes"),
            // Or CLUSTER SLOTS names the port without TLS.
            ("tls-cluster", "yes"),
            ("cluster-port", &free_port().to_string()),
            ("cluster-announce-hostname", "localhost"),
            ("cluster-preferred-endpoint-type", "hostname"),
        ])
        .await;
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("ADDSLOTSRANGE").arg(0).arg(16_383);
    slots.exec_async(&mut server.admin().await).await.unwrap();
    let ca_file = Some(certificates.path("ca.pem"));
    let keyspace = open(&server, "rediss-cluster", "localhost", port, ca_file);
    let ready = async || keyspace.ready().await.is_ok();
    eventually("the cluster is ready", Duration::from_secs(10), ready).await;
    send(&keyspace, 100, "over TLS").await.unwrap();
    keyspace.exclusive(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn other_certificates_are_not_trusted() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server(&[]).await;
    for (host, ca_file) in [
        ("localhost", Some(other.path("ca.pem"))),
        ("localhost", None),
        // A certificate of the right authority for another name.
        ("127.0.0.1", Some(certificates.path("ca.pem"))),
    ] {
        let keyspace = open(&server, "rediss", host, port, ca_file);
        assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    }
}

#[test]
fn a_missing_file_is_an_error_of_the_configuration() {
    let config =
        Config { redis_ca_file: Some("/no/such/file".into()), ..Config::at("rediss://localhost") };
    let opened = Keyspace::open(&config, LIBRARY);
    assert!(matches!(opened, Err(microblog_keyspace::Error::Config(_))));
}
