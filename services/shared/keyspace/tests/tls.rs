//! Redis over TLS, with a certificate authority of one's own.

mod support;

use std::path::PathBuf;

use microblog_keyspace::{Config, Keyspace};
use microblog_testkit::{RedisServer, free_port};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{LIBRARY, USER, get, key, put};
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

    async fn server(&self) -> (RedisServer, u16) {
        let port = free_port();
        let path = |file| self.path(file).display().to_string();
        let server = RedisServer::start_with(&[
            ("tls-port", &port.to_string()),
            ("tls-cert-file", &path("server.pem")),
            ("tls-key-file", &path("server.key")),
            ("tls-ca-cert-file", &path("ca.pem")),
            ("tls-auth-clients", "no"),
        ])
        .await;
        (server, port)
    }
}

fn open(server: &RedisServer, host: &str, port: u16, ca_file: Option<PathBuf>) -> Keyspace {
    let plain = format!("127.0.0.1:{}", server.port());
    let url = server.url(USER).replace("redis://", "rediss://");
    let url = url.replace(&plain, &format!("{host}:{port}"));
    let config = Config { redis_ca_file: ca_file, ..Config::at(url) };
    Keyspace::open(&config, LIBRARY).unwrap()
}

#[tokio::test]
async fn a_server_with_a_certificate_of_the_given_authority_is_trusted() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server().await;
    let keyspace = open(&server, "localhost", port, Some(certificates.path("ca.pem")));
    keyspace.ready().await.unwrap();
    put(&keyspace, &key(1, "a"), "over TLS").await.unwrap();
    assert_eq!(get(&keyspace, &key(1, "a")).await.unwrap().as_deref(), Some("over TLS"));
    keyspace.exclusive(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn other_certificates_are_not_trusted() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server().await;
    for (host, ca_file) in [
        ("localhost", Some(other.path("ca.pem"))),
        ("localhost", None),
        // A certificate of the right authority for another name.
        ("127.0.0.1", Some(certificates.path("ca.pem"))),
    ] {
        let keyspace = open(&server, host, port, ca_file);
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
