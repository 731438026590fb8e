//! Servers end with the test that started them, even if the test is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use microblog_testkit::{ADMIN, RedisServer, WAIT_TIMEOUT, eventually, redis};

const TIMEOUT: Duration = WAIT_TIMEOUT;

fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test]
async fn drop_stops_the_server() {
    let server = RedisServer::start().await;
    let port = server.port();
    assert!(is_listening(port));
    drop(server);
    assert!(!is_listening(port));
}

#[tokio::test]
async fn data_survives_kill_and_restart() {
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

// The environment variable with the path to which the killed test writes its server's port.
const PORT_FILE: &str = "MICROBLOG_TESTKIT_PORT_FILE";

#[tokio::test]
async fn server_exits_when_the_test_process_is_killed() {
    if let Ok(file) = std::env::var(PORT_FILE) {
        let server = RedisServer::start().await;
        std::fs::write(file, server.port().to_string()).unwrap();
        std::future::pending::<()>().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("port");
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_exits_when_the_test_process_is_killed"])
        .env(PORT_FILE, &file)
        // The killed test cannot delete its directories, so they are inside this one.
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let port = || std::fs::read_to_string(&file).ok()?.parse().ok();
    eventually("the other test starts a server", TIMEOUT, async || {
        port().is_some_and(is_listening)
    })
    .await;
    test.kill().unwrap();
    test.wait().unwrap();
    let port = port().unwrap();
    eventually("the server has exited", TIMEOUT, async || !is_listening(port)).await;
}
