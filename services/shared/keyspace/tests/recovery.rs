//! Redis stops, freezes, fails over and returns. Meanwhile every call fails with Unavailable within
//! its timeout; afterwards calls succeed without intervention.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use microblog_keyspace::{Config, Keyspace, redis};
use microblog_testkit::{PATIENCE, RedisCluster, RedisServer, Sentinels, eventually};
use support::{LIBRARY, USER, get, key, open, open_ready, put, send, timed};

// The default timeout of a call's three steps, and a margin for a busy machine. A call that hangs
// exceeds any limit.
const IN_TIME: Duration = Duration::from_secs(3 * 3 + 30);

// A timeout that no call reaches.
const LONG: Duration = Duration::from_secs(120);

// Long enough for a failover on a busy machine.
const RECOVERY: Duration = PATIENCE;

async fn recovers(keyspace: &Keyspace) {
    eventually("the keyspace recovers", RECOVERY, async || {
        let (answer, took) = timed(put(keyspace, &key(1, "again"), "back")).await;
        assert!(took < IN_TIME, "{took:?}: {answer:?}");
        assert!(answer.is_ok() || is_unavailable(&answer), "{answer:?}");
        answer.is_ok()
    })
    .await;
    eventually("the keyspace is ready", RECOVERY, async || keyspace.ready().await.is_ok()).await;
    // A node that returns may reject commands for a moment.
    eventually("every partition answers", RECOVERY, async || {
        let answer = send(keyspace, 300, "back").await;
        assert!(answer.is_ok() || is_unavailable(&answer), "{answer:?}");
        answer.is_ok()
    })
    .await;
}

fn is_unavailable<T>(answer: &Result<T, microblog_keyspace::Error>) -> bool {
    answer.as_ref().is_err_and(microblog_keyspace::Error::is_unavailable)
}

#[tokio::test]
async fn open_succeeds_while_redis_is_down() {
    let server = RedisServer::start().await;
    server.kill();
    let keyspace = open(server.url(USER));
    let (answer, took) = timed(put(&keyspace, &key(1, "a"), "x")).await;
    assert!(is_unavailable(&answer), "{answer:?}");
    assert!(took < IN_TIME, "{took:?}");
    assert!(is_unavailable(&keyspace.ready().await));
    server.restart().await;
    recovers(&keyspace).await;
}

#[tokio::test]
async fn recovers_after_a_server_is_killed_and_restarted() {
    let server = RedisServer::start().await;
    let config =
        Config { redis_timeout_ms: LONG.as_millis() as u64, ..Config::at(server.url(USER)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    put(&keyspace, &key(1, "kept"), "value").await.unwrap();
    server.kill();
    let some_key = key(1, "a");
    let calls = (0..1000).map(|_| timed(put(&keyspace, &some_key, "x")));
    for (answer, took) in futures::future::join_all(calls).await {
        assert!(is_unavailable(&answer), "{answer:?}");
        // Fails at once, not after the timeout.
        assert!(took < LONG / 2, "{took:?}");
    }
    assert!(is_unavailable(&send(&keyspace, 300, "x").await));
    server.restart().await;
    recovers(&keyspace).await;
    assert_eq!(get(&keyspace, &key(1, "kept")).await.unwrap().as_deref(), Some("value"));
}

#[tokio::test]
async fn restart_between_two_calls_fails_no_call() {
    let server = RedisServer::start().await;
    let keyspace = open_ready(server.url(USER)).await;
    server.restart().await;
    for _ in 0..10 {
        assert_eq!(put(&keyspace, &key(1, "a"), "x").await.unwrap(), "x");
    }
}

#[tokio::test]
async fn calls_to_a_frozen_server_end_within_the_timeout() {
    let server = RedisServer::start().await;
    let keyspace = open_ready(server.url(USER)).await;
    let some_key = key(1, "a");
    server.pause();
    for round in 0..6 {
        let calls = (0..100).map(|_| timed(put(&keyspace, &some_key, "x")));
        for (answer, took) in futures::future::join_all(calls).await {
            assert!(is_unavailable(&answer), "round {round}: {answer:?}");
            assert!(took < IN_TIME, "round {round}: {took:?}");
        }
    }
    let (answer, took) = timed(keyspace.ready()).await;
    assert!(is_unavailable(&answer));
    assert!(took < 2 * IN_TIME, "{took:?}");
    server.resume();
    recovers(&keyspace).await;
}

#[tokio::test]
async fn timeout_is_configurable() {
    let server = RedisServer::start().await;
    let config = Config { redis_timeout_ms: 200, ..Config::at(server.url(USER)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    eventually("the keyspace is ready", RECOVERY, async || keyspace.ready().await.is_ok()).await;
    server.pause();
    let (answer, took) = timed(put(&keyspace, &key(1, "a"), "x")).await;
    assert!(is_unavailable(&answer));
    // Below the default of three seconds.
    assert!(took >= Duration::from_millis(200) && took < Duration::from_millis(2_900), "{took:?}");
    server.resume();
    recovers(&keyspace).await;
}

#[tokio::test]
async fn recovers_after_the_primary_becomes_a_replica() {
    let (server, other) = (RedisServer::start().await, RedisServer::start().await);
    let keyspace = open_ready(server.url(USER)).await;
    follow(&server, "127.0.0.1", &other.port().to_string()).await;
    for _ in 0..5 {
        let answer = put(&keyspace, &key(1, "a"), "x").await;
        assert!(is_unavailable(&answer), "{answer:?}");
    }
    assert!(is_unavailable(&send(&keyspace, 10, "x").await));
    follow(&server, "NO", "ONE").await;
    recovers(&keyspace).await;
}

#[tokio::test]
async fn replica_is_not_ready() {
    let (server, other) = (RedisServer::start().await, RedisServer::start().await);
    let keyspace = open_ready(server.url(USER)).await;
    follow(&server, "127.0.0.1", &other.port().to_string()).await;
    // A replica answers reads and has the functions. Only its role differs.
    get(&keyspace, &key(1, "a")).await.unwrap();
    for _ in 0..5 {
        let answer = keyspace.ready().await;
        assert!(is_unavailable(&answer), "{answer:?}");
    }
    // With Sentinels, the next connections are to the new primary.
    eventually("the connections are closed", RECOVERY, async || clients(&server).await.is_empty())
        .await;
    follow(&server, "NO", "ONE").await;
    recovers(&keyspace).await;
}

// Returns the client ids of the keyspaces.
async fn clients(server: &RedisServer) -> Vec<u64> {
    let mut list = redis::cmd("CLIENT");
    let list = list.arg("LIST").query_async(&mut server.admin().await).await;
    let list: String = list.unwrap();
    let ours = list.lines().filter(|line| line.contains(&format!(" user={USER} ")));
    ours.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok()).collect()
}

#[tokio::test]
async fn user_without_role_command_is_ready_on_a_primary() {
    let server = RedisServer::start().await;
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(USER).arg("-role");
    command.exec_async(&mut server.admin().await).await.unwrap();
    open_ready(server.url(USER)).await;
}

async fn follow(server: &RedisServer, host: &str, port: &str) {
    let mut command = redis::cmd("REPLICAOF");
    command.arg(host).arg(port).exec_async(&mut server.admin().await).await.unwrap();
}

#[tokio::test]
async fn follows_a_sentinel_failover() {
    let group = Sentinels::start_with_quick_failover().await;
    let keyspace = open_ready(group.url(USER)).await;
    put(&keyspace, &key(1, "kept"), "value").await.unwrap();
    replicated(group.primary()).await;
    group.kill_sentinel(0);
    group.primary().kill();
    recovers(&keyspace).await;
    assert_eq!(get(&keyspace, &key(1, "kept")).await.unwrap().as_deref(), Some("value"));
    // The old primary returns as a replica. Writes go to the new one.
    group.primary().restart().await;
    for _ in 0..50 {
        put(&keyspace, &key(1, "a"), "x").await.unwrap();
    }
    assert!(group.replica().commandstats().await["fcall"] >= 50);
}

#[tokio::test]
async fn follows_the_failover_of_a_frozen_primary() {
    let group = Sentinels::start_with_quick_failover().await;
    let keyspace = open_ready(group.url(USER)).await;
    replicated(group.primary()).await;
    group.primary().pause();
    recovers(&keyspace).await;
    group.primary().resume();
    recovers(&keyspace).await;
}

#[tokio::test]
async fn calls_continue_on_one_connection_while_another_cannot_be_made() {
    let group = Sentinels::start().await;
    let config = Config { redis_links: 2, redis_timeout_ms: 20_000, ..Config::at(group.url(USER)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    group.pause_sentinels();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("ID").arg(clients(group.primary()).await[0]);
    kill.exec_async(&mut group.primary().admin().await).await.unwrap();
    // A call on the closed connection is retried on the other one.
    for _ in 0..4 {
        put(&keyspace, &key(1, "a"), "x").await.unwrap();
    }
    let (ready, slowest) = tokio::join!(timed(keyspace.ready()), async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let (answer, took) = timed(put(&keyspace, &key(1, "a"), "x")).await;
            answer.unwrap();
            slowest = slowest.max(took);
        }
        slowest
    });
    assert!(is_unavailable(&ready.0), "{:?}", ready.0);
    assert!(slowest < ready.1 / 2, "{slowest:?} of {:?}", ready.1);
}

// Waits until the replica has all writes.
async fn replicated(primary: &RedisServer) {
    let mut wait = redis::cmd("WAIT");
    wait.arg(1).arg(5000).exec_async(&mut primary.admin().await).await.unwrap();
}

#[tokio::test]
async fn follows_a_cluster_failover() {
    let cluster = RedisCluster::start(3, 1).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    put(&keyspace, &key(1, "kept"), "value").await.unwrap();
    let primary = cluster.primary_of(&key(1, "kept"), 0).await;
    replicated(&cluster.nodes()[primary]).await;
    cluster.kill(primary);
    recovers(&keyspace).await;
    assert_eq!(get(&keyspace, &key(1, "kept")).await.unwrap().as_deref(), Some("value"));
    cluster.restart(primary).await;
    recovers(&keyspace).await;
}

#[tokio::test]
async fn follows_the_failover_of_a_frozen_cluster_node() {
    let cluster = RedisCluster::start(3, 1).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    let primary = cluster.primary_of(&key(1, "again"), 0).await;
    replicated(&cluster.nodes()[primary]).await;
    cluster.nodes()[primary].pause();
    recovers(&keyspace).await;
    cluster.nodes()[primary].resume();
    recovers(&keyspace).await;
}

#[tokio::test]
async fn recovers_after_a_whole_cluster_is_killed() {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    send(&keyspace, 100, "kept").await.unwrap();
    (0..3).for_each(|node| cluster.kill(node));
    for _ in 0..5 {
        let (answer, took) = timed(put(&keyspace, &key(1, "a"), "x")).await;
        assert!(is_unavailable(&answer), "{answer:?}");
        assert!(took < IN_TIME, "{took:?}");
        assert!(is_unavailable(&send(&keyspace, 300, "x").await));
    }
    for node in 0..3 {
        cluster.restart(node).await;
    }
    recovers(&keyspace).await;
    assert!(get(&keyspace, &key(1, "batch")).await.unwrap().is_some());
}

/// Migrates the slot of a key from one primary to another, a key at a time.
async fn migrate(cluster: &RedisCluster, key: &str, from: usize, to: usize) {
    let nodes = cluster.nodes();
    let cluster_command = async |node: usize, parts: &[&str]| -> String {
        let command = redis::cmd("CLUSTER").arg(parts).take();
        command.query_async(&mut nodes[node].admin().await).await.unwrap()
    };
    let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).take();
    let slot: u16 = keyslot.query_async(&mut nodes[from].admin().await).await.unwrap();
    let slot = slot.to_string();
    let (from_id, to_id) =
        (cluster_command(from, &["MYID"]).await, cluster_command(to, &["MYID"]).await);
    cluster_command(to, &["SETSLOT", &slot, "IMPORTING", &from_id]).await;
    cluster_command(from, &["SETSLOT", &slot, "MIGRATING", &to_id]).await;
    let admin = redis::Client::open(nodes[to].admin_url()).unwrap();
    let admin = admin.get_connection_info().redis_settings();
    let (user, password) = (admin.username().unwrap(), admin.password().unwrap());
    loop {
        let mut keys = redis::cmd("CLUSTER");
        keys.arg("GETKEYSINSLOT").arg(&slot).arg(1);
        let keys: Vec<String> = keys.query_async(&mut nodes[from].admin().await).await.unwrap();
        let Some(key) = keys.first() else { break };
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(nodes[to].port()).arg("").arg(0).arg(60_000);
        migrate.arg("AUTH2").arg(user).arg(password).arg("KEYS").arg(key);
        migrate.exec_async(&mut nodes[from].admin().await).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for node in [to, from] {
        cluster_command(node, &["SETSLOT", &slot, "NODE", &to_id]).await;
    }
}

/// Returns the number of MOVED redirections of a node.
async fn redirections(server: &RedisServer) -> u64 {
    let mut info = redis::cmd("INFO");
    info.arg("errorstats");
    let info: String = info.query_async(&mut server.admin().await).await.unwrap();
    let count = |line: &str| line.strip_prefix("errorstat_MOVED:count=")?.trim().parse().ok();
    info.lines().find_map(count).unwrap_or(0)
}

#[tokio::test]
async fn follows_a_slot_migration() {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    for number in 0..50 {
        put(&keyspace, &key(1, number), "kept").await.unwrap();
    }
    let moved = key(1, 0);
    let from = cluster.primary_of(&moved, 0).await;
    let to = (from + 1) % 3;
    // A call may be unavailable for a moment, while the nodes disagree.
    let read = async |key: &str| {
        loop {
            let answer = get(&keyspace, key).await;
            match answer {
                Ok(value) => return value,
                Err(_) => assert!(is_unavailable(&answer), "{answer:?}"),
            }
        }
    };
    let traffic = async {
        let mut written = 0;
        loop {
            written += 1;
            let written = written.to_string();
            while let Err(error) = put(&keyspace, &key(1, "count"), &written).await {
                assert!(error.is_unavailable(), "{error:?}");
            }
            assert_eq!(read(&key(1, "count")).await, Some(written.clone()));
            for number in 0..50 {
                assert_eq!(read(&key(1, number)).await.as_deref(), Some("kept"), "{number}");
            }
            while let Err(error) = send(&keyspace, 20, &written).await {
                assert!(error.is_unavailable(), "{error:?}");
            }
        }
    };
    tokio::select! {
        () = migrate(&cluster, &moved, from, to) => {}
        () = traffic => {}
    }
    // With a new slot map, no command goes to the old primary.
    eventually("commands go to the new primary", RECOVERY, async || {
        let before = redirections(&cluster.nodes()[from]).await;
        for _ in 0..20 {
            get(&keyspace, &key(1, 0)).await.unwrap();
        }
        redirections(&cluster.nodes()[from]).await == before
    })
    .await;
    recovers(&keyspace).await;
}
