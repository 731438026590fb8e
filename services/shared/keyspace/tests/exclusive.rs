//! What blocks does so on a connection of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use microblog_keyspace::{Config, Keyspace, redis};
use microblog_testkit::{ADMIN, RedisServer, Sentinels, Store, Topology, WAIT_TIMEOUT, eventually};
use support::{LIBRARY, key, open, put, timed};

const BLOCK: Duration = Duration::from_secs(8);
const LONGEST: Duration = WAIT_TIMEOUT;

fn blocking_read(list: &str) -> redis::Cmd {
    let mut command = redis::cmd("BLPOP");
    command.arg(list).arg(BLOCK.as_secs_f64());
    command
}

async fn a_blocking_read_holds_up_nobody(url: String) {
    let keyspace = open(url);
    let list = key(5, "list");
    let mut exclusive = keyspace.exclusive(&list).await.unwrap();
    let read = blocking_read(&list);
    let read = timed(exclusive.query::<Option<(String, String)>>(&read, LONGEST));
    let (blocked, slowest) = tokio::join!(read, async {
        let mut slowest = Duration::ZERO;
        for _ in 0..100 {
            let (answer, took) = timed(put(&keyspace, &key(5, "a"), "x")).await;
            answer.unwrap();
            slowest = slowest.max(took);
        }
        slowest
    });
    assert!(matches!(blocked.0, Ok(None)), "{:?}", blocked.0);
    assert!(blocked.1 >= BLOCK, "{:?}", blocked.1);
    assert!(slowest < BLOCK / 2, "{slowest:?}");

    let (mut push, read) = (redis::cmd("RPUSH"), blocking_read(&list));
    push.arg(&list).arg("item");
    let (pushed, read) = tokio::join!(
        keyspace.query::<u64>(push),
        exclusive.query::<Option<(String, String)>>(&read, LONGEST)
    );
    pushed.unwrap();
    assert_eq!(read.unwrap(), Some((list, "item".to_owned())));
}

#[tokio::test]
async fn a_blocking_read_of_a_single_server_holds_up_nobody() {
    a_blocking_read_holds_up_nobody(RedisServer::start().await.url(ADMIN)).await;
}

#[tokio::test]
async fn a_blocking_read_of_a_sentinel_group_holds_up_nobody() {
    let group = Sentinels::start().await;
    a_blocking_read_holds_up_nobody(group.url(ADMIN)).await;
}

#[tokio::test]
async fn a_blocking_read_of_a_cluster_holds_up_nobody() {
    let store = Store::start(Topology::Cluster).await;
    a_blocking_read_holds_up_nobody(store.url(ADMIN)).await;
}

#[tokio::test]
async fn exclusive_connections_are_bounded_and_come_back() {
    let server = RedisServer::start().await;
    let config = Config { redis_exclusive_links: 1, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let mut first = keyspace.exclusive(&list).await.unwrap();
    let (second, took) = timed(keyspace.exclusive(&list)).await;
    assert!(second.is_err_and(|error| error.is_unavailable()));
    assert!(took < LONGEST, "{took:?}");

    // A read that outlives its bound closes the connection, and its place is free again.
    let late = first.query::<()>(&blocking_read(&list), Duration::from_millis(100)).await;
    assert!(late.unwrap_err().is_unavailable());
    assert!(first.query::<()>(&redis::cmd("PING"), LONGEST).await.unwrap_err().is_unavailable());
    let mut third = keyspace.exclusive(&list).await.unwrap();
    assert_eq!(third.query::<String>(&redis::cmd("PING"), LONGEST).await.unwrap(), "PONG");

    server.restart().await;
    assert!(third.query::<()>(&redis::cmd("PING"), LONGEST).await.unwrap_err().is_unavailable());
    let mut fourth = keyspace.exclusive(&list).await.unwrap();
    assert_eq!(fourth.query::<String>(&redis::cmd("PING"), LONGEST).await.unwrap(), "PONG");
}

#[tokio::test]
async fn a_read_that_is_given_up_takes_nothing_and_hinders_nobody() {
    let server = RedisServer::start().await;
    let config = Config { redis_exclusive_links: 1, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let mut exclusive = keyspace.exclusive(&list).await.unwrap();
    let mut read = redis::cmd("BLPOP");
    read.arg(&list).arg(60);
    tokio::select! {
        answer = exclusive.query::<()>(&read, 6 * LONGEST) => panic!("{answer:?}"),
        () = eventually("the read blocks", LONGEST, async || blocked(&server).await == 1) => {}
    }
    eventually("the read is given up", LONGEST, async || blocked(&server).await == 0).await;
    let closed = exclusive.query::<()>(&redis::cmd("PING"), LONGEST).await;
    assert!(closed.is_err_and(|error| error.is_unavailable()));

    let mut next = keyspace.exclusive(&list).await.unwrap();
    let (mut push, mut length) = (redis::cmd("RPUSH"), redis::cmd("LLEN"));
    keyspace.query::<()>(push.arg(&list).arg("item").clone()).await.unwrap();
    assert_eq!(next.query::<u64>(length.arg(&list), LONGEST).await.unwrap(), 1);
}

async fn blocked(server: &RedisServer) -> u32 {
    let mut question = redis::cmd("INFO");
    let info = question.arg("clients").query_async(&mut server.admin().await).await;
    let info: String = info.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_failure_to_connect_leaves_the_bound_as_it_is() {
    let server = RedisServer::start().await;
    let config = Config { redis_exclusive_links: 2, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let _first = keyspace.exclusive(&list).await.unwrap();
    let mut admin = server.admin().await;
    let mut clients_max = async |number: u32| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxclients").arg(number);
        command.exec_async(&mut admin).await.unwrap();
    };
    clients_max(1).await;
    assert!(keyspace.exclusive(&list).await.is_err_and(|error| error.is_unavailable()));
    clients_max(1000).await;
    let mut second = None;
    eventually("there is room for a second one", LONGEST, async || {
        second = keyspace.exclusive(&list).await.ok();
        second.is_some()
    })
    .await;
    assert!(keyspace.exclusive(&list).await.is_err_and(|error| error.is_unavailable()));
}
