//! A password in a file, which changes while connections are in use.

use std::fs;

use microblog_testkit::PostgresServer;
use sqlx::Executor as _;

use crate::open_with;

/// Starts a server whose role `post` needs a password.
async fn server(password: &str) -> PostgresServer {
    let server = PostgresServer::start().await;
    server.create_roles(password);
    let rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    server
}

#[tokio::test]
async fn new_connections_have_the_password_that_is_in_the_file_then() {
    let (first, second) = ("first & only", "%second\u{e4}+#/@");
    let server = server(first).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, format!("{first}\n")).unwrap();
    let url = format!("postgres://post@127.0.0.1:{}/postgres", server.port());
    let path = file.to_str().unwrap();
    let timeout = "--database-timeout-ms=20000";
    let database = open_with(&[timeout, "--database-url", &url, "--database-password-file", path]);
    let call = async || {
        let read = async { database.readers().execute("SELECT 1").await.map(|_| ()) };
        // Without the circuit breaker, which would let the next ones fail.
        database.write("SELECT", read).await?;
        let write = async { database.writers().execute("SELECT 1").await.map(|_| ()) };
        database.write("SELECT", write).await
    };
    call().await.unwrap();

    server.create_roles(second);
    fs::write(&file, format!("{second}\n")).unwrap();
    call().await.unwrap();
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'post'");
    call().await.unwrap();

    // A replacement that is not there yet, and one that is being written.
    fs::remove_file(&file).unwrap();
    call().await.unwrap();
    fs::write(&file, "").unwrap();
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'post'");
    call().await.unwrap();
    fs::write(&file, "another").unwrap();
    server.create_roles("another");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'post'");
    call().await.unwrap();
}
