//! Certificate reload while server and client run.

use std::fs;

use microblog_chassis::Config;
use microblog_testkit::{Authority, listen_again};

use crate::{
    fixture::{Fixture, HOST},
    log::Log,
    support::{Server, Stub, eventually, get},
};

#[tokio::test]
async fn new_connections_use_reloaded_certificates_and_open_ones_continue() {
    let fixture = Fixture::new();
    let server = fixture.start();
    let before = fixture.peer(&server);
    get(before.clone(), "").await.unwrap();
    // From now on, another authority signs everything.
    let next = Authority::new();
    fixture.files.write("ca.crt", next.pem());
    fixture.issue("server", &next.issue(&[HOST]));
    eventually("a client that trusts only the next authority connects", async || {
        fixture.issue("caller", &next.issue(&["caller.test"]));
        get(fixture.peer(&server), "").await.is_ok()
    })
    .await;
    fixture.issue("caller", &fixture.authority.issue(&["caller.test"]));
    eventually("certificates of the previous authority are rejected", async || {
        get(fixture.peer(&server), "").await.is_err()
    })
    .await;
    get(before, "").await.expect("open connections continue");
}

#[tokio::test]
async fn client_certificate_is_reloaded() {
    let fixture = Fixture::new();
    let mut server = fixture.start();
    let peer = fixture.peer(&server);
    get(peer.clone(), "").await.unwrap();
    server.stop();
    server.ended().await;
    let next = Authority::new();
    fixture.files.write("server-ca.crt", next.pem());
    let authorities = Some(fixture.files.path("server-ca.crt"));
    let config = Config { tls_client_ca_file: authorities, ..fixture.server() };
    let listener = listen_again(server.address);
    let _server = Server::start_on(listener, Stub::new().service(), config);
    get(peer.clone(), "").await.expect_err("the certificate is of the previous authority");
    fixture.issue("caller", &next.issue(&["caller.test"]));
    eventually("the new certificate is used", async || get(peer.clone(), "").await.is_ok()).await;
}

#[tokio::test]
async fn invalid_files_keep_the_previous_certificates_and_are_logged() {
    let fixture = Fixture::new();
    let server = fixture.start();
    get(fixture.peer(&server), "").await.unwrap();
    let assert_previous_kept = async |broken: &[&str]| {
        let (log, _guard) = Log::take();
        eventually("a warning is logged", async || {
            get(fixture.peer(&server), "").await.expect("the previous certificate is kept");
            !log.lines(&["WARN", "cannot reload files", "TLS"]).is_empty()
        })
        .await;
        let warned = log.lines(&["WARN", "cannot reload files", "TLS"]);
        assert!(broken.iter().all(|text| warned[0].contains(text)), "{warned:?}");
    };
    // A key without its certificate, as between two steps of a renewal.
    let next = fixture.authority.issue(&[HOST]);
    let key = fixture.files.write("server.key", &next.key);
    assert_previous_kept(&[
        "server.key cannot be used",
        "not that of the certificate",
        "server.crt",
    ])
    .await;
    fs::remove_file(key).unwrap();
    assert_previous_kept(&["server.key cannot be used", "cannot be read"]).await;
    fixture.files.write("server.crt", "nothing");
    fixture.files.write("server.key", &next.key);
    assert_previous_kept(&["server.crt cannot be used", "no certificate"]).await;
    let (log, _guard) = Log::take();
    fixture.issue("server", &next);
    eventually("the certificate is reloaded", async || {
        get(fixture.peer(&server), "").await.unwrap();
        !log.lines(&["INFO", "files reloaded", "TLS"]).is_empty()
    })
    .await;
}
