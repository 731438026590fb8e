//! The service as a process: its start, its end, and its log.

use std::time::{Duration, Instant};

use microblog_proto::common::ErrorReason as Reason;
use microblog_testkit::{Database, PostgresServer, Process, Store, Topology, eventually};

use crate::support::{
    PASSWORD, PATIENCE, STRICT, assert_rejected, assert_valid, authenticate, change_password,
    client, connect, login, register, registration, set_bio, start_process,
};

#[tokio::test]
async fn it_starts_and_answers_without_redis() {
    for database in Database::both().await {
        let redis = Store::start(Topology::Single).await;
        redis.nodes()[0].kill();
        let process = start_process(&redis.url("user"), &database.url(), &[]).await;
        let client = connect(&process.address()).await;
        let ann = register(&client, "ann").await.id;
        let token = login(&client, "ann", PASSWORD).await.unwrap();
        assert_eq!(authenticate(&client, &token).await.unwrap(), ann);
        redis.nodes()[0].restart().await;
        assert_eq!(authenticate(&client, &token).await.unwrap(), ann);
        assert_eq!(set_bio(&client, ann, "here").await.unwrap().bio, "here");
        assert_valid(&client, 1).await;
    }
}

#[tokio::test]
async fn without_its_database_it_does_not_serve_and_then_recovers_by_itself() {
    STRICT.scope((), lose_the_database()).await;
}

async fn lose_the_database() {
    let (redis, database) = (Store::start(Topology::Single).await, PostgresServer::start().await);
    database.kill();
    let redis_url = redis.url("user");
    let url = database.url();
    let args = ["--redis-url", &redis_url, "--database-url", &url, "--log", "off"];
    let process = Process::spawn(env!("CARGO_BIN_EXE_microblog-user"), &args);
    let client = client(&process.address());
    let unready = "it answers that the database is away";
    eventually(unready, PATIENCE, async || {
        let answer = client.clone().register(registration("ann")).await;
        let reason = answer.err().and_then(|status| microblog_chassis::status::reason_of(&status));
        reason == Some(Reason::StoreUnavailable)
    })
    .await;
    assert!(!process.is_serving().await);
    database.restart().await;
    process.wait_until_serving().await;
    let ann = register(&client, "ann").await.id;
    let token = login(&client, "ann", PASSWORD).await.unwrap();

    database.kill();
    let started = Instant::now();
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::StoreUnavailable);
    assert_rejected(set_bio(&client, ann, "here").await, Reason::StoreUnavailable);
    assert_rejected(client.clone().register(registration("bob")).await, Reason::StoreUnavailable);
    // No call waits for its deadline.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    database.restart().await;
    eventually("it answers again", PATIENCE, async || {
        authenticate(&client, &token).await.is_ok_and(|id| id == ann)
    })
    .await;
    eventually("it writes again", PATIENCE, async || set_bio(&client, ann, "here").await.is_ok())
        .await;
    assert_valid(&client, 1).await;
}

#[tokio::test]
async fn no_secret_is_logged() {
    STRICT.scope((), log_and_fail()).await;
}

async fn log_and_fail() {
    let (redis, database) = (Store::start(Topology::Single).await, PostgresServer::start().await);
    let flags = ["--log", "debug", "--database-timeout-ms", "2000"];
    let process = start_process(&redis.url("user"), &database.url(), &flags).await;
    let client = connect(&process.address()).await;
    let ann = register(&client, "ann").await.id;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    authenticate(&client, &token).await.unwrap();
    change_password(&client, ann, PASSWORD, "battery staple").await;
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::BadCredentials);
    redis.nodes()[0].kill();
    login(&client, "ann", "battery staple").await.unwrap();
    // A statement that the database rejects.
    database.sql("ALTER TABLE sessions RENAME TO others");
    assert_rejected(login(&client, "ann", "battery staple").await, Reason::Internal);
    database.kill();
    assert_rejected(login(&client, "ann", "battery staple").await, Reason::StoreUnavailable);
    let log = process.log();
    assert!(log.contains("Login"), "calls are logged: {log}");
    let redis_password = microblog_testkit::password("user");
    let hash = "argon2";
    for secret in [PASSWORD, "battery staple", &token, "@example.org", hash, &redis_password] {
        assert!(!log.contains(secret), "{secret:?} shows in the log: {log}");
    }
}
