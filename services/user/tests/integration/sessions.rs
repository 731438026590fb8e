//! Sessions: which ones end, what is noted of their use, and what other processes accept.

use std::time::SystemTime;

use futures::future::join_all;
use microblog_proto::{common::ErrorReason as Reason, user as pb};
use microblog_testkit::{Database, Store, eventually, redis::cmd};

use crate::support::{
    Client, PASSWORD, PATIENCE, System, Topology, WITHOUT_JOBS, assert_rejected, authenticate,
    change_password, delete, fingerprint, login, logout, now_ms, on_each_store, register, serve,
    unknown_token,
};

/// The most sessions of an account.
const SESSIONS_MAX: usize = 50;

const HOUR_MS: u64 = 3_600_000;

on_each_store! {
    the_least_recently_used_session_ends
    the_use_of_a_session_is_noted_once_an_hour
    an_ended_session_is_refused_at_once_by_a_process_that_has_cached_it
    a_batch_of_users_authenticates_a_session
}

async fn log_in_often(client: &Client, name: &str, times: usize) -> Vec<String> {
    let mut tokens = Vec::new();
    for _ in 0..times {
        tokens.push(login(client, name, PASSWORD).await.unwrap());
    }
    tokens
}

/// Returns the statement that sets when a session was used last.
fn set_used(token: &str, ms: u64) -> String {
    format!("UPDATE sessions SET used = {ms} WHERE token = '{}';", fingerprint(token))
}

/// Returns when a session was used last, by the database.
async fn used(system: &System, token: &str) -> u64 {
    let token = fingerprint(token);
    let used = system.number(&format!("SELECT used FROM sessions WHERE token = '{token}'")).await;
    used as u64
}

async fn the_least_recently_used_session_ends(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let ann = register(client, "ann").await.id;
    register(client, "bob").await;
    let others = login(client, "bob", PASSWORD).await.unwrap();
    let tokens = log_in_often(client, "ann", SESSIONS_MAX).await;
    // The first ones were used longest ago.
    let begun = now_ms();
    let set_all = tokens
        .iter()
        .zip(1..)
        .map(|(token, minutes)| set_used(token, begun - 10 * HOUR_MS + minutes * 60_000));
    system.execute(&set_all.collect::<String>()).await;
    system.flush().await;
    assert_eq!(authenticate(client, &tokens[0]).await.unwrap(), ann);
    eventually("the use is noted", PATIENCE, async || used(&system, &tokens[0]).await >= begun)
        .await;

    let newest = log_in_often(client, "ann", 2).await;
    for ended in &tokens[1..3] {
        assert_rejected(authenticate(client, ended).await, Reason::TokenInvalid);
    }
    for alive in tokens[..1].iter().chain(&tokens[3..]).chain(&newest) {
        assert_eq!(authenticate(client, alive).await.unwrap(), ann);
    }
    let count = format!("SELECT count(*) FROM sessions WHERE account = {ann}");
    assert_eq!(system.number(&count).await, SESSIONS_MAX as i64);
    assert!(authenticate(client, &others).await.is_ok(), "each account has its own");

    // One that has expired ends before any other.
    let last = fingerprint(newest.last().unwrap());
    let expire = format!("UPDATE sessions SET expires = {begun} WHERE token = '{last}'");
    system.execute(&expire).await;
    login(client, "ann", PASSWORD).await.unwrap();
    assert!(authenticate(client, &tokens[3]).await.is_ok());
    let gone = format!("SELECT count(*) FROM sessions WHERE token = '{last}'");
    assert_eq!(system.number(&gone).await, 0);
    system.assert_valid(2).await;
}

async fn the_use_of_a_session_is_noted_once_an_hour(topology: Topology) {
    let system = System::start(topology).await;
    let clients = [system.client.clone(), system.another(&[]).await];
    let ann = register(&system.client, "ann").await.id;
    let token = login(&system.client, "ann", PASSWORD).await.unwrap();
    let notes = format!("SELECT count(*) FROM feed WHERE change = 'use {ann}'");
    let check = async || {
        let checks = (0..100).map(|n| authenticate(&clients[n % 2], &token));
        assert!(join_all(checks).await.into_iter().all(|id| id.unwrap() == ann));
    };
    let first = used(&system, &token).await;
    check().await;
    for hours in 1..=3 {
        let begun = now_ms();
        // A minute less than an hour ago, and a minute more.
        system.execute(&set_used(&token, begun - HOUR_MS + 60_000)).await;
        system.flush().await;
        check().await;
        assert_eq!(used(&system, &token).await, begun - HOUR_MS + 60_000);
        assert_eq!(system.number(&notes).await, hours - 1);
        system.execute(&set_used(&token, begun - HOUR_MS - 60_000)).await;
        system.flush().await;
        check().await;
        eventually("the use is noted", PATIENCE, async || used(&system, &token).await >= begun)
            .await;
        for _ in 0..5 {
            check().await;
        }
        assert_eq!(system.number(&notes).await, hours, "by one of them, once");
    }
    assert!(used(&system, &token).await > first);
    system.assert_valid(1).await;
}

/// Has a service cache a session, which no other one reads. A single server then gets no GET. One of a
/// cluster does, and tracks two keys: the entry and its mark.
async fn cache_session(system: &System, client: &Client, token: &str, id: u64) {
    eventually("the session is in the client-side cache", PATIENCE, async || {
        let before = system.entries_read().await;
        for _ in 0..3 {
            assert_eq!(authenticate(client, token).await.unwrap(), id);
        }
        match system.redis {
            Store::Single(_) => system.entries_read().await == before,
            Store::Cluster(_) => system.tracked_keys().await >= 2,
        }
    })
    .await;
}

async fn an_ended_session_is_refused_at_once_by_a_process_that_has_cached_it(topology: Topology) {
    let system = System::start(topology).await;
    let [client, other] = [&system.client, &system.another(&[]).await];
    let ann = register(client, "ann").await.id;
    let mut passwords = [PASSWORD, "battery staple"];
    let mut kept = login(client, "ann", PASSWORD).await.unwrap();
    for round in 0..100 {
        let token = login(client, "ann", passwords[0]).await.unwrap();
        cache_session(&system, other, &token, ann).await;
        let ends_all = round % 10 == 9;
        match ends_all {
            true => change_password(client, ann, passwords[0], passwords[1]).await,
            false => logout(client, &token).await,
        }
        assert_rejected(authenticate(other, &token).await, Reason::TokenInvalid);
        assert_eq!(authenticate(other, &kept).await.is_err(), ends_all, "{round}");
        assert_rejected(authenticate(client, &token).await, Reason::TokenInvalid);
        if ends_all {
            passwords.reverse();
            kept = login(client, "ann", passwords[0]).await.unwrap();
        }
    }
    let token = login(client, "ann", passwords[0]).await.unwrap();
    cache_session(&system, other, &token, ann).await;
    delete(client, ann, passwords[0]).await.unwrap();
    assert_rejected(authenticate(other, &token).await, Reason::TokenInvalid);
    system.assert_valid(0).await;
}

#[tokio::test]
async fn a_cached_session_expires() {
    let flags = ["--session-ttl-s", "2"];
    for database in Database::both().await {
        let redis = Store::start(Topology::Single).await;
        let system = System::start_on(redis, database, &flags).await;
        let client = system.client.clone();
        register(&client, "ann").await;
        let request = pb::LoginRequest { login: "ann".to_owned(), password: PASSWORD.to_owned() };
        let opened = client.clone().login(request).await.unwrap().into_inner();
        let end = SystemTime::try_from(opened.expires_at.unwrap()).unwrap();
        // On a machine of any speed: reads that start after the expiry are rejected, those before
        // succeed.
        let mut was_rejected = false;
        while !was_rejected {
            let before = SystemTime::now();
            was_rejected = authenticate(&client, &opened.token).await.is_err();
            let after = SystemTime::now();
            assert!(!was_rejected || after >= end, "rejected before its expiry");
            assert!(was_rejected || before < end, "accepted after its expiry");
        }
        // Its entry is still there, and no violation.
        system.assert_valid(1).await;
    }
}

async fn a_batch_of_users_authenticates_a_session(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let (ann, bob) = (register(client, "ann").await.id, register(client, "bob").await.id);
    let batch = async |session_token: &str| {
        let (user_ids, session_token) = (vec![bob], session_token.to_owned());
        let request = pb::BatchGetUsersRequest { user_ids, session_token, ..Default::default() };
        let answer = client.clone().batch_get_users(request).await?.into_inner();
        assert_eq!(answer.users[0].id, bob);
        Ok(answer.session_user_id)
    };
    let short_lived = system.another(&["--session-ttl-s", "1"]).await;
    let [token, short] = [
        login(client, "ann", PASSWORD).await.unwrap(),
        login(&short_lived, "ann", PASSWORD).await.unwrap(),
    ];
    let unknown = unknown_token(ann);

    assert_eq!(batch("").await.unwrap(), 0, "no session");
    assert_eq!(batch(&token).await.unwrap(), ann);
    for invalid in [&unknown, " ", "?", &token[1..], &format!("{token} "), &"x".repeat(1 << 20)] {
        assert_rejected(batch(invalid).await, Reason::TokenInvalid);
    }
    eventually("it expires", PATIENCE, async || batch(&short).await.is_err()).await;
    assert_rejected(batch(&short).await, Reason::TokenInvalid);
    logout(client, &token).await;
    assert_rejected(batch(&token).await, Reason::TokenInvalid);
}

/// A process that is new to all of it.
#[tokio::test]
async fn sessions_do_not_end_with_the_process() {
    let (redis, database) = (Store::start(Topology::Single).await, Database::postgres().await);
    let system = System::start_on(redis, database, &[]).await;
    let ann = register(&system.client, "ann").await.id;
    let token = login(&system.client, "ann", PASSWORD).await.unwrap();
    let later = system.another(&[]).await;
    assert_eq!(authenticate(&later, &token).await.unwrap(), ann);
    logout(&later, &token).await;
    assert_rejected(authenticate(&system.client, &token).await, Reason::TokenInvalid);
}

/// The process that has ended it was killed before it has told the cache; another one, which does not know
/// whether to trust the cache, is asked again.
#[tokio::test]
async fn a_repeated_log_out_is_told_to_all() {
    let system = System::start(Topology::Single).await;
    let node = &system.redis.nodes()[0];
    let mut admin = node.admin().await;
    // Reads of marks are denied.
    let user = ["SETUSER", "limited", "on", ">secret", "~usr:*", "+@all", "-hmget"];
    cmd("ACL").arg(&user).exec_async(&mut admin).await.unwrap();
    let url = format!("redis://limited:secret@127.0.0.1:{}", node.port());
    let limited = serve(&url, &system.database.url(), WITHOUT_JOBS, &[]).await;

    let ann = register(&system.client, "ann").await.id;
    let token = login(&system.client, "ann", PASSWORD).await.unwrap();
    assert_eq!(authenticate(&system.client, &token).await.unwrap(), ann);
    let key = system.keys(&format!("usr:*:sessions:*:{ann}")).await.remove(0);
    let entry: Vec<u8> = cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    logout(&system.client, &token).await;
    cmd("SET").arg(&key).arg(entry).exec_async(&mut admin).await.unwrap();
    assert_eq!(authenticate(&system.client, &token).await.unwrap(), ann, "it was not told");
    logout(&limited, &token).await;
    assert_rejected(authenticate(&system.client, &token).await, Reason::TokenInvalid);
}
