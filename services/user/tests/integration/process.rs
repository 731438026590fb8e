//! The service as a process: crashes, Redis outages, and its log.

use std::time::{Duration, Instant};

use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Process, RedisServer, Store as Redis, Topology, eventually};

use crate::support::{
    PASSWORD, PATIENCE, System, assert_rejected, assert_valid, authenticate, connect,
    database::{Database, Record as _},
    login, on_each_store, register, registration,
};

on_each_store! {
    a_crash_keeps_acknowledged_registrations_and_frees_the_rest
}

async fn a_crash_keeps_acknowledged_registrations_and_frees_the_rest(topology: Topology) {
    assert_crash_keeps_registrations(topology, None).await;
}

#[tokio::test]
async fn a_crash_leaves_no_account_unrecorded() {
    assert_crash_keeps_registrations(Topology::Single, Some(Database::sqlite())).await;
}

/// Kills the service during registrations.
async fn assert_crash_keeps_registrations(topology: Topology, database: Option<Database>) {
    const TASKS: usize = 12;
    let redis = Redis::start(topology).await;
    let url = redis.url("user");
    let program = env!("CARGO_BIN_EXE_microblog-user");
    let own = ["--redis-url", url.as_str(), "--threads", "1", "--write-budget-ms", "1000"];
    let database_flag = database.as_ref().map(Database::flag);
    let flags: Vec<_> = own.into_iter().chain(database_flag.as_deref()).collect();
    let process = Process::start(program, &flags).await;
    let client = connect(&process.address()).await;
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let tasks = (0..TASKS).map(|task| {
        let (mut client, answered) = (client.clone(), answered.clone());
        tokio::spawn(async move {
            for i in 0.. {
                let request = registration(&format!("user_{task}_{i}"));
                match client.register(request.clone()).await {
                    Ok(answer) => answered.send(answer.into_inner().user.unwrap()).unwrap(),
                    Err(_) => return request,
                }
            }
            unreachable!("it is killed before")
        })
    });
    let tasks: Vec<_> = tasks.collect();
    drop(answered);
    let mut acknowledged = Vec::new();
    while acknowledged.len() < 25 {
        acknowledged.push(answers.recv().await.expect("all tasks were rejected"));
    }
    process.kill9();
    let mut unanswered = Vec::new();
    for task in tasks {
        unanswered.push(task.await.unwrap());
    }
    while let Some(user) = answers.recv().await {
        acknowledged.push(user);
    }
    assert_eq!(unanswered.len(), TASKS);

    let process = Process::start(program, &flags).await;
    let client = connect(&process.address()).await;
    for user in &acknowledged {
        login(&client, &user.name, PASSWORD).await.unwrap();
    }
    for request in &unanswered {
        // The name is free, unless the registration completed and only its response was lost.
        let other = pb::RegisterRequest {
            request_id: registration("x").request_id,
            password: "another password".to_owned(),
            ..request.clone()
        };
        eventually("the name can be registered", PATIENCE, async || {
            let mut client = client.clone();
            client.register(other.clone()).await.is_ok()
                || client.register(request.clone()).await.is_ok()
        })
        .await;
    }
    let count = acknowledged.len() + TASKS;
    assert_valid(&client, count as u64).await;
    if let Some(database) = database {
        eventually("all accounts are recorded", PATIENCE, async || {
            database.accounts().await.len() == count
        })
        .await;
    }
}

#[tokio::test]
async fn without_redis_calls_end_in_time_and_it_recovers_by_itself() {
    let system = System::start(Topology::Single).await;
    let mut client = system.client.clone();
    let ann = register(&client, "ann").await;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    system.redis.nodes()[0].kill();
    let started = Instant::now();
    let get = client.get_user(pb::GetUserRequest { user_id: ann.id }).await;
    assert_rejected(get, Reason::StoreUnavailable);
    assert_rejected(authenticate(&client, &token).await, Reason::StoreUnavailable);
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::StoreUnavailable);
    assert_rejected(client.register(registration("bob")).await, Reason::StoreUnavailable);
    // No call waits for its deadline, which is a minute here.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());

    system.redis.nodes()[0].restart().await;
    eventually("it answers again", PATIENCE, async || {
        authenticate(&client, &token).await.is_ok_and(|id| id == ann.id)
    })
    .await;
    register(&client, "bob").await;
    assert_valid(&client, 2).await;
}

#[tokio::test]
async fn no_secret_is_logged() {
    let redis = RedisServer::start().await;
    let url = redis.url("user");
    let program = env!("CARGO_BIN_EXE_microblog-user");
    let process = Process::start(program, &["--redis-url", &url, "--log", "debug"]).await;
    let mut client = connect(&process.address()).await;
    let ann = register(&client, "ann").await;
    let token = login(&client, "ann", PASSWORD).await.unwrap();
    authenticate(&client, &token).await.unwrap();
    let change = pb::ChangePasswordRequest {
        user_id: ann.id,
        current_password: PASSWORD.to_owned(),
        new_password: "battery staple".to_owned(),
    };
    client.change_password(change).await.unwrap();
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::BadCredentials);
    redis.kill();
    assert_rejected(login(&client, "ann", PASSWORD).await, Reason::StoreUnavailable);
    let log = process.log();
    assert!(log.contains("UserService/Login") || log.contains("Login"), "calls are logged: {log}");
    let redis_password = microblog_testkit::password("user");
    for secret in [PASSWORD, "battery staple", &token, "@example.org", "argon2", &redis_password] {
        assert!(!log.contains(secret), "{secret:?} shows in the log: {log}");
    }
}
