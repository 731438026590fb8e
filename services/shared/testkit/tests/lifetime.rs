//! What the kit starts ends with the test that started it, however that ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use microblog_testkit::{ADMIN, PATIENCE, RedisServer, eventually, redis};

const SOON: Duration = PATIENCE;

fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let server = RedisServer::start().await;
    let port = server.port();
    assert!(is_listening(port));
    drop(server);
    assert!(!is_listening(port));
}

#[tokio::test]
async fn a_server_keeps_its_data_over_a_crash() {
    let server = RedisServer::start().await;
    let mut set = redis::cmd("SET");
    set.arg("a").arg("kept").exec_async(&mut server.admin().await).await.unwrap();
    server.kill();
    assert!(!is_listening(server.port()));
    server.restart().await;
    let mut get = redis::cmd("GET");
    let kept: String = get.arg("a").query_async(&mut server.admin().await).await.unwrap();
    assert_eq!(kept, "kept");
    assert_eq!(server.commandstats().await["get"], 1);
    server.reset_commandstats().await;
    assert!(!server.commandstats().await.contains_key("get"));
    assert!(server.admin_url().contains(ADMIN));
}

// The name of the file in which the test below finds the port of the server of a process to kill.
const PORT_FILE: &str = "MICROBLOG_TESTKIT_PORT_FILE";

#[tokio::test]
async fn a_server_dies_with_a_test_that_is_killed() {
    if let Ok(file) = std::env::var(PORT_FILE) {
        let server = RedisServer::start().await;
        std::fs::write(file, server.port().to_string()).unwrap();
        std::future::pending::<()>().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("port");
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_dies_with_a_test_that_is_killed"])
        .env(PORT_FILE, &file)
        // The killed test cannot remove its directories: they go with this one.
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let port = || std::fs::read_to_string(&file).ok()?.parse().ok();
    eventually("the other test has a server", SOON, async || port().is_some_and(is_listening))
        .await;
    test.kill().unwrap();
    test.wait().unwrap();
    let port = port().unwrap();
    eventually("its server is gone", SOON, async || !is_listening(port)).await;
}
