//! Redis over TLS, with a private certificate authority.

use microblog_keyspace::{Config, Error, Keyspace};
use microblog_testkit::{Authority, PATIENCE, Sentinels, eventually, free_port};

use crate::support::{LIBRARY, USER, certificates::Certificates, get, key, put, send};

fn open(config: &Config) -> Keyspace {
    Keyspace::open(config, LIBRARY).unwrap()
}

async fn wait_until_ready(keyspace: &Keyspace) {
    eventually("redis is ready", PATIENCE, async || keyspace.ready().await.is_ok()).await;
}

async fn check_unavailable(config: &Config) {
    assert!(open(config).ready().await.unwrap_err().is_unavailable());
}

/// Uses a shared and a dedicated connection.
async fn check_connections(keyspace: &Keyspace) {
    put(keyspace, &key(1, "a"), "over TLS").await.unwrap();
    assert_eq!(get(keyspace, &key(1, "a")).await.unwrap().as_deref(), Some("over TLS"));
    keyspace.dedicated_connection(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn certificate_of_the_configured_authority_is_trusted() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(false, &[]).await;
    let keyspace = open(&certificates.at(&server, USER, "rediss", "localhost", port));
    keyspace.ready().await.unwrap();
    check_connections(&keyspace).await;
}

#[tokio::test]
async fn cluster_works_over_tls() {
    let certificates = Certificates::make();
    let (server, port) = certificates.cluster(false).await;
    let keyspace = open(&certificates.at(&server, USER, "rediss-cluster", "localhost", port));
    wait_until_ready(&keyspace).await;
    send(&keyspace, 100, "over TLS").await.unwrap();
    keyspace.dedicated_connection(&key(1, "a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn other_certificates_are_not_trusted() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server(false, &[]).await;
    let at = |host| certificates.at(&server, USER, "rediss", host, port);
    check_unavailable(&Config { redis_ca_file: Some(other.path("ca.pem")), ..at("localhost") })
        .await;
    check_unavailable(&Config { redis_ca_file: None, ..at("localhost") }).await;
    // A certificate of the trusted authority for another host name.
    check_unavailable(&at("127.0.0.1")).await;
}

#[tokio::test]
async fn client_certificate_is_sent_to_a_server() {
    let (certificates, other) = (Certificates::make(), Certificates::make());
    let (server, port) = certificates.server(true, &[]).await;
    let anonymous = certificates.at(&server, USER, "rediss", "localhost", port);
    check_unavailable(&anonymous).await;
    let foreign = other.with_client_certificate(anonymous.clone());
    check_unavailable(&foreign).await;
    let keyspace = open(&certificates.with_client_certificate(anonymous));
    keyspace.ready().await.unwrap();
    check_connections(&keyspace).await;
}

#[tokio::test]
async fn client_certificate_is_sent_to_a_cluster() {
    let certificates = Certificates::make();
    let (server, port) = certificates.cluster(true).await;
    let anonymous = certificates.at(&server, USER, "rediss-cluster", "localhost", port);
    let keyspace = open(&certificates.with_client_certificate(anonymous.clone()));
    wait_until_ready(&keyspace).await;
    check_connections(&keyspace).await;
    check_unavailable(&anonymous).await;
}

#[tokio::test]
async fn client_certificate_is_sent_to_sentinels() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(true, &[]).await;
    let sentinel_port = free_port();
    let mut lines = certificates.files.redis_options(sentinel_port, true);
    // The Sentinel is a TLS client of its primary.
    lines.push(("tls-replication", "yes".to_owned()));
    lines.push(("sentinel resolve-hostnames", "yes".to_owned()));
    lines.push(("sentinel announce-hostnames", "yes".to_owned()));
    // Host names are resolved only in lines after this one.
    lines.push(("sentinel monitor other", format!("localhost {port} 1")));
    let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _sentinel = Sentinels::lone(&format!("127.0.0.1 {port}"), &lines);
    let mut anonymous =
        certificates.at(&server, USER, "rediss+sentinel", "localhost", sentinel_port);
    anonymous.redis_url.push_str("/other");
    let keyspace = open(&certificates.with_client_certificate(anonymous.clone()));
    wait_until_ready(&keyspace).await;
    check_connections(&keyspace).await;
    check_unavailable(&anonymous).await;
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart() {
    let certificates = Certificates::make();
    let (server, port) = certificates.server(true, &[]).await;
    // No server trusts this authority.
    certificates.files.certificate("client", &Authority::new().issue(&["client.test"]));
    let config = certificates.at(&server, USER, "rediss", "localhost", port);
    let keyspace = open(&certificates.with_client_certificate(config));
    assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    assert!(keyspace.dedicated_connection(&key(1, "a")).await.is_err());
    let renewed = certificates.authority.issue(&["client.test"]);
    // The key and the certificate do not match until both are written.
    certificates.files.write("client.key", &renewed.key);
    assert!(keyspace.ready().await.unwrap_err().is_unavailable());
    certificates.files.write("client.crt", &renewed.certificate);
    wait_until_ready(&keyspace).await;
    check_connections(&keyspace).await;
}

/// Returns the error of a configuration with its causes.
fn config_error(config: &Config) -> String {
    match Keyspace::open(config, LIBRARY) {
        Err(Error::Config(cause)) => {
            let causes = std::iter::successors(cause.source(), |&cause| cause.source());
            let causes = causes.map(|cause| format!(": {cause}")).collect::<String>();
            format!("{cause}{causes}")
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the configuration is valid"),
    }
}

#[test]
fn unusable_files_are_configuration_errors() {
    let certificates = Certificates::make();
    let config = certificates.with_client_certificate(Config::at("rediss://localhost"));
    let missing =
        config_error(&Config { redis_ca_file: Some("/no/such/file".into()), ..config.clone() });
    assert!(missing.contains("/no/such/file") && missing.contains("No such file"), "{missing}");
    let other = certificates.path("server.key");
    let unfit = config_error(&Config { redis_key_file: Some(other), ..config.clone() });
    assert!(unfit.contains("server.key") && unfit.contains("not that of"), "{unfit}");
    let none = certificates.path("client.key");
    let empty = config_error(&Config { redis_cert_file: Some(none), ..config });
    assert!(empty.contains("client.key") && empty.contains("no certificate"), "{empty}");
}
