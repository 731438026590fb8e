//! Files that change while server and caller run.

use std::{fs, net::TcpListener};

use microblog_chassis::Config;
use microblog_testkit::Authority;

use crate::{
    log::Log,
    support::{Server, Stub, eventually, get},
    world::{HOST, World},
};

#[tokio::test]
async fn new_connections_go_by_new_files_and_open_ones_go_on() {
    let world = World::new();
    let server = world.start();
    let before = world.peer(&server);
    get(before.clone(), "").await.unwrap();
    // Everything is signed by another authority from now on.
    let next = Authority::new();
    world.files.write("ca.crt", next.pem());
    world.give("server", &next.issue(&[HOST]));
    eventually("who trusts the next authority alone finds it", async || {
        world.give("caller", &next.issue(&["caller.test"]));
        get(world.peer(&server), "").await.is_ok()
    })
    .await;
    world.give("caller", &world.authority.issue(&["caller.test"]));
    eventually("what the former one has signed is refused", async || {
        get(world.peer(&server), "").await.is_err()
    })
    .await;
    get(before, "").await.expect("a connection that was open goes on");
}

#[tokio::test]
async fn a_caller_shows_its_new_certificate() {
    let world = World::new();
    let mut server = world.start();
    let peer = world.peer(&server);
    get(peer.clone(), "").await.unwrap();
    server.stop();
    server.ended().await;
    let next = Authority::new();
    world.files.write("server-ca.crt", next.pem());
    let authorities = Some(world.files.path("server-ca.crt"));
    let config = Config { tls_client_ca_file: authorities, ..world.server() };
    let listener = TcpListener::bind(server.address).unwrap();
    let _server = Server::start_on(listener, Stub::new().service(), config);
    get(peer.clone(), "").await.expect_err("its certificate is of the former authority");
    world.give("caller", &next.issue(&["caller.test"]));
    eventually("it shows the new one", async || get(peer.clone(), "").await.is_ok()).await;
}

#[tokio::test]
async fn files_that_cannot_be_used_change_nothing_and_are_warned_of() {
    let world = World::new();
    let server = world.start();
    get(world.peer(&server), "").await.unwrap();
    let goes_on = async |broken: &[&str]| {
        let (log, _guard) = Log::take();
        eventually("it is warned of", async || {
            get(world.peer(&server), "").await.expect("it goes on as before");
            !log.lines(&["WARN", "TLS goes on with the files as they were"]).is_empty()
        })
        .await;
        let warned = log.lines(&["WARN", "TLS goes on"]);
        assert!(broken.iter().all(|text| warned[0].contains(text)), "{warned:?}");
    };
    // A key without its certificate, as between two steps of somebody who copies them.
    let next = world.authority.issue(&[HOST]);
    let key = world.files.write("server.key", &next.key);
    goes_on(&["server.key cannot be used", "not that of the certificate", "server.crt"]).await;
    fs::remove_file(key).unwrap();
    goes_on(&["server.key cannot be used", "cannot be read"]).await;
    world.files.write("server.crt", "nothing");
    world.files.write("server.key", &next.key);
    goes_on(&["server.crt cannot be used", "no certificate"]).await;
    let (log, _guard) = Log::take();
    world.give("server", &next);
    eventually("it goes on with what is whole again", async || {
        get(world.peer(&server), "").await.unwrap();
        !log.lines(&["INFO", "TLS goes on with files that have changed"]).is_empty()
    })
    .await;
}
