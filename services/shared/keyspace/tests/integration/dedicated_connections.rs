//! Dedicated connections: blocking reads do not delay other calls.

use std::time::Duration;

use microblog_keyspace::{Config, Keyspace, redis};
use microblog_testkit::{ADMIN, PATIENCE, RedisServer, Sentinels, Store, Topology, eventually};

use crate::support::{LIBRARY, key, open, put, timed};

const BLOCK: Duration = Duration::from_secs(8);
const LONGEST: Duration = PATIENCE;

fn blocking_read(list: &str) -> redis::Cmd {
    let mut command = redis::cmd("BLPOP");
    command.arg(list).arg(BLOCK.as_secs_f64());
    command
}

async fn blocking_read_delays_no_call(url: String) {
    let keyspace = open(url);
    let list = key(5, "list");
    let mut exclusive = keyspace.dedicated_connection(&list).await.unwrap();
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
async fn blocking_read_of_a_single_server_delays_no_call() {
    blocking_read_delays_no_call(RedisServer::start().await.url(ADMIN)).await;
}

#[tokio::test]
async fn blocking_read_of_a_sentinel_group_delays_no_call() {
    let group = Sentinels::start().await;
    blocking_read_delays_no_call(group.url(ADMIN)).await;
}

#[tokio::test]
async fn blocking_read_of_a_cluster_delays_no_call() {
    let store = Store::start(Topology::Cluster).await;
    blocking_read_delays_no_call(store.url(ADMIN)).await;
}

#[tokio::test]
async fn dedicated_pool_is_bounded_and_recycles_connections() {
    let server = RedisServer::start().await;
    let config = Config { redis_dedicated_connections: 1, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let mut first = keyspace.dedicated_connection(&list).await.unwrap();
    let (second, took) = timed(keyspace.dedicated_connection(&list)).await;
    assert!(second.is_err_and(|error| error.is_unavailable()));
    assert!(took < LONGEST, "{took:?}");

    // A timeout closes the connection and frees its slot in the pool.
    let late = first.query::<()>(&blocking_read(&list), Duration::from_millis(100)).await;
    assert!(late.unwrap_err().is_unavailable());
    assert!(first.query::<()>(&redis::cmd("PING"), LONGEST).await.unwrap_err().is_unavailable());
    let mut third = keyspace.dedicated_connection(&list).await.unwrap();
    assert_eq!(third.query::<String>(&redis::cmd("PING"), LONGEST).await.unwrap(), "PONG");

    server.restart().await;
    assert!(third.query::<()>(&redis::cmd("PING"), LONGEST).await.unwrap_err().is_unavailable());
    let mut fourth = keyspace.dedicated_connection(&list).await.unwrap();
    assert_eq!(fourth.query::<String>(&redis::cmd("PING"), LONGEST).await.unwrap(), "PONG");
}

#[tokio::test]
async fn cancelled_read_consumes_nothing_and_frees_its_connection() {
    let server = RedisServer::start().await;
    let config = Config { redis_dedicated_connections: 1, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let mut exclusive = keyspace.dedicated_connection(&list).await.unwrap();
    let mut read = redis::cmd("BLPOP");
    read.arg(&list).arg(60);
    tokio::select! {
        answer = exclusive.query::<()>(&read, 6 * LONGEST) => panic!("{answer:?}"),
        () = eventually("the read blocks", LONGEST, async || blocked(&server).await == 1) => {}
    }
    eventually("the read is cancelled", LONGEST, async || blocked(&server).await == 0).await;
    let closed = exclusive.query::<()>(&redis::cmd("PING"), LONGEST).await;
    assert!(closed.is_err_and(|error| error.is_unavailable()));

    let mut next = keyspace.dedicated_connection(&list).await.unwrap();
    let (mut push, mut length) = (redis::cmd("RPUSH"), redis::cmd("LLEN"));
    keyspace.query::<()>(push.arg(&list).arg("item").clone()).await.unwrap();
    assert_eq!(next.query::<u64>(length.arg(&list), LONGEST).await.unwrap(), 1);
}

async fn blocked(server: &RedisServer) -> u32 {
    let mut command = redis::cmd("INFO");
    let info = command.arg("clients").query_async(&mut server.admin().await).await;
    let info: String = info.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn failure_to_connect_does_not_change_the_bound() {
    let server = RedisServer::start().await;
    let config = Config { redis_dedicated_connections: 2, ..Config::at(server.url(ADMIN)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    let list = key(5, "list");
    let _first = keyspace.dedicated_connection(&list).await.unwrap();
    let mut admin = server.admin().await;
    let mut clients_max = async |number: u32| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxclients").arg(number);
        command.exec_async(&mut admin).await.unwrap();
    };
    clients_max(1).await;
    assert!(keyspace.dedicated_connection(&list).await.is_err_and(|error| error.is_unavailable()));
    clients_max(1000).await;
    let mut second = None;
    eventually("a second connection opens", LONGEST, async || {
        second = keyspace.dedicated_connection(&list).await.ok();
        second.is_some()
    })
    .await;
    assert!(keyspace.dedicated_connection(&list).await.is_err_and(|error| error.is_unavailable()));
}
