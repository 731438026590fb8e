//! All topologies behave the same: commands, calls, batches, loading of functions, and errors.

use std::time::Duration;

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Call, Config, Keyspace, Library, decode, redis};
use microblog_testkit::RedisServer;

use crate::support::{
    self, Any, LIBRARY, USER, cluster, get, key, open, open_ready, put, send, sentinels, single,
    timed,
};

#[tokio::test]
async fn single_server_serves_all_kinds_of_calls() {
    serves_all_kinds_of_calls(single().await).await;
}

#[tokio::test]
async fn sentinel_group_serves_all_kinds_of_calls() {
    serves_all_kinds_of_calls(sentinels().await).await;
}

#[tokio::test]
async fn cluster_serves_all_kinds_of_calls() {
    serves_all_kinds_of_calls(cluster().await).await;
}

#[tokio::test]
async fn connections_violate_no_acl() {
    for store in [single().await, sentinels().await, cluster().await] {
        let mut admins = Vec::new();
        for server in store.servers() {
            let mut admin = server.admin().await;
            redis::cmd("ACL").arg("LOG").arg("RESET").exec_async(&mut admin).await.unwrap();
            admins.push(admin);
        }
        let keyspace = open_ready(store.url()).await;
        put(&keyspace, &key(7, "value"), "here").await.unwrap();
        keyspace.dedicated_connection(&key(7, "value")).await.map(drop).unwrap();
        for mut admin in admins {
            let violations: Vec<redis::Value> =
                redis::cmd("ACL").arg("LOG").query_async(&mut admin).await.unwrap();
            assert!(violations.is_empty(), "{violations:?}");
        }
    }
}

async fn serves_all_kinds_of_calls(store: Any) {
    let keyspace = open_ready(store.url()).await;
    for partition in [0, 1, 500, 1023] {
        let key = key(partition, "value");
        assert_eq!(get(&keyspace, &key).await.unwrap(), None);
        assert_eq!(put(&keyspace, &key, "here").await.unwrap(), "here");
        assert_eq!(get(&keyspace, &key).await.unwrap().as_deref(), Some("here"));
    }
    send(&keyspace, 1024, "value").await.unwrap();
    assert!(keyspace.send(Batch::new()).await.unwrap().is_empty());
    error_replies(&keyspace).await;
    cancelled_reads_leave_other_replies_intact(&keyspace).await;
    functions_are_reloaded(&keyspace, &store).await;
}

/// Reads values of all lengths concurrently, one of them longer than any buffer, and cancels some
/// of the reads.
async fn cancelled_reads_leave_other_replies_intact(keyspace: &Keyspace) {
    let value = |number: usize| {
        let length = if number == 77 { 3 << 20 } else { number * number / 100 };
        format!("{number}:{}", "x".repeat(length))
    };
    for number in 0..300 {
        put(keyspace, &key(7, number), &value(number)).await.unwrap();
    }
    let mut readers = Vec::new();
    for round in 0..10 {
        for number in 0..300 {
            let keyspace = keyspace.clone();
            let read = async move { get(&keyspace, &key(7, number)).await };
            readers.push((number, tokio::spawn(read)));
        }
        tokio::task::yield_now().await;
        readers.iter().skip(round).step_by(3).for_each(|(_, reader)| reader.abort());
    }
    let mut answered = 0;
    for (number, reader) in readers {
        match reader.await {
            Ok(answer) => {
                assert!(answer.unwrap() == Some(value(number)), "not the value of {number}");
                answered += 1;
            }
            Err(gone) => assert!(gone.is_cancelled()),
        }
    }
    assert!(answered > 100, "{answered}");
}

async fn error_replies(keyspace: &Keyspace) {
    let foreign = put(keyspace, "usr:{1}:profile:1", "x").await.unwrap_err();
    assert_eq!(foreign.code(), Some("NOPERM"));
    assert_eq!(foreign.to_string(), "redis refused the command: NOPERM");
    let mut forbidden = redis::cmd("SMEMBERS");
    forbidden.arg(key(1, "any"));
    let forbidden = keyspace.query::<()>(forbidden).await.unwrap_err();
    assert_eq!(forbidden.code(), Some("NOPERM"));
    let own = keyspace.call::<()>(Call::new("test_reject").key(key(1, "any"))).await.unwrap_err();
    assert_eq!(own.code(), Some("LIMIT"));
    for (function, text) in [("test_fail", "mistake"), ("test_overreach", "FLUSHALL")] {
        let error = keyspace.call::<()>(Call::new(function).key(key(1, "any"))).await.unwrap_err();
        assert!(error.code().is_some(), "{error:?}");
        assert!(!error.to_string().contains(text), "{error}");
    }

    let mut batch = Batch::new();
    batch.call(Partition::new(1), Call::new("test_put").key(key(1, "a")).arg(1));
    batch.call(Partition::new(2), Call::new("test_reject").key(key(2, "a")));
    assert_eq!(keyspace.send(batch).await.unwrap_err().code(), Some("LIMIT"));
    let mut push = redis::cmd("RPUSH");
    push.arg(key(7, "list")).arg("x");
    keyspace.query::<()>(push).await.unwrap();
    let wrong = get(keyspace, &key(7, "list")).await.unwrap_err();
    assert_eq!(wrong.code(), Some("WRONGTYPE"));
    let number = keyspace.query::<u64>({
        let mut command = redis::cmd("GET");
        command.arg(key(0, "value"));
        command
    });
    assert!(matches!(number.await, Err(microblog_keyspace::Error::Malformed(_))));
}

async fn functions_are_reloaded(keyspace: &Keyspace, store: &Any) {
    flush_functions(store).await;
    assert_eq!(put(keyspace, &key(3, "value"), "again").await.unwrap(), "again");
    flush_functions(store).await;
    send(keyspace, 300, "again").await.unwrap();
    flush_functions(store).await;
    // Concurrent calls of a missing function.
    let puts = (0..200).map(|number| {
        let key = key(number, "many");
        async move { put(keyspace, &key, "many").await }
    });
    for answer in futures::future::join_all(puts).await {
        assert_eq!(answer.unwrap(), "many");
    }
    flush_functions(store).await;
    keyspace.ready().await.unwrap();
    assert_eq!(put(&open(store.url()), &key(3, "value"), "other").await.unwrap(), "other");
}

async fn flush_functions(store: &Any) {
    for server in store.servers() {
        let mut flush = redis::cmd("FUNCTION");
        flush.arg("FLUSH").exec_async(&mut server.admin().await).await.unwrap();
    }
}

#[tokio::test]
async fn only_calls_of_missing_functions_are_repeated() {
    let store = cluster().await;
    let keyspace = open_ready(store.url()).await;
    for server in store.servers() {
        server.reset_commandstats().await;
    }
    let mut flush = redis::cmd("FUNCTION");
    flush.arg("FLUSH").exec_async(&mut store.servers()[0].admin().await).await.unwrap();

    let mut batch = Batch::new();
    for number in 0..300 {
        let partition = Partition::new(number);
        batch.call(partition, Call::new("test_put").key(key(number, "a")).arg(1));
    }
    assert_eq!(keyspace.send(batch).await.unwrap().len(), 300);
    let mut puts = 0;
    for server in store.servers() {
        puts += server.commandstats().await["set"];
    }
    assert_eq!(puts, 300);
}

#[tokio::test]
async fn call_is_one_command() {
    let Any::Single(server) = single().await else { unreachable!() };
    let keyspace = open_ready(server.url(support::USER)).await;
    put(&keyspace, &key(1, "a"), "x").await.unwrap();
    server.reset_commandstats().await;
    put(&keyspace, &key(1, "a"), "x").await.unwrap();
    send(&keyspace, 100, "value").await.unwrap();
    let stats = server.commandstats().await;
    assert_eq!(stats["fcall"], 101);
    assert_eq!(stats["exists"], 100);
    assert!(!stats.keys().any(|name| name.starts_with("function")), "{stats:?}");
}

#[tokio::test]
async fn ready_fills_the_shared_pool() {
    let Any::Single(server) = single().await else { unreachable!() };
    let config = microblog_keyspace::Config {
        redis_connections: 3,
        ..microblog_keyspace::Config::at(server.url(support::USER))
    };
    let keyspace = Keyspace::open(&config, support::LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    let puts = (0..500).map(|number| {
        let (keyspace, key) = (&keyspace, key(number, "shared"));
        async move { put(keyspace, &key, "x").await.unwrap() }
    });
    futures::future::join_all(puts).await;
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let clients: String = list.query_async(&mut server.admin().await).await.unwrap();
    let user = format!(" user={} ", support::USER);
    assert_eq!(clients.lines().filter(|line| line.contains(&user)).count(), 3);
}

#[tokio::test]
async fn two_versions_of_a_library_run_side_by_side() {
    let Any::Single(server) = single().await else { unreachable!() };
    let url = server.url(support::USER);
    let old = open_ready(url.clone()).await;
    let source: &'static str =
        support::LIBRARY.source.replace("return args[1]", "return 'new'").leak();
    let library = microblog_keyspace::Library { source, ..support::LIBRARY };
    let config = microblog_keyspace::Config::at(url);
    let new = Keyspace::open(&config, library).unwrap();
    assert_eq!(put(&new, &key(1, "a"), "x").await.unwrap(), "new");
    assert_eq!(put(&old, &key(1, "a"), "x").await.unwrap(), "x");
}

#[tokio::test]
async fn library_that_does_not_compile_is_rejected() {
    let Any::Single(server) = single().await else { unreachable!() };
    let library = microblog_keyspace::Library { name: "test", source: "this is no Lua" };
    let config = microblog_keyspace::Config::at(server.url(support::USER));
    let keyspace = Keyspace::open(&config, library).unwrap();
    assert_eq!(keyspace.ready().await.unwrap_err().code(), Some("ERR"));
}

#[tokio::test]
async fn batch_of_100_000_calls_succeeds_on_a_single_server() {
    batch_of_100_000_calls_succeeds(single().await).await;
}

#[tokio::test]
async fn batch_of_100_000_calls_succeeds_on_a_cluster() {
    batch_of_100_000_calls_succeeds(cluster().await).await;
}

async fn batch_of_100_000_calls_succeeds(store: Any) {
    let keyspace = open_ready(store.url()).await;
    let mut batch = Batch::with_capacity(100_000);
    for number in 0..100_000_u32 {
        let partition = Partition::of_id(u64::from(number) * 4);
        let key = key(partition.number(), number);
        batch.call(partition, Call::new("test_put").key(key).arg(number));
    }
    // Single calls run concurrently.
    let (sent, beside) = tokio::join!(timed(keyspace.send(batch)), async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let (answer, took) = timed(put(&keyspace, &key(1, "beside"), "x")).await;
            answer.unwrap();
            slowest = slowest.max(took);
        }
        slowest
    });
    let (answers, took) = sent;
    println!("100,000 calls in {took:?}; the slowest call beside them took {beside:?}");
    for (number, answer) in answers.unwrap().into_iter().enumerate() {
        assert_eq!(decode::<usize>(answer).unwrap(), number);
    }
}

#[tokio::test]
async fn two_services_with_the_same_functions_load_them_at_the_same_time() {
    let server = RedisServer::start().await;
    let open = |name| {
        let library = Library { name, ..LIBRARY };
        Keyspace::open(&Config::at(server.url(USER)), library).unwrap()
    };
    let (one, other) = (open("one"), open("other"));
    let mut flush = redis::cmd("FUNCTION");
    flush.arg("FLUSH");
    for _ in 0..20 {
        flush.exec_async(&mut server.admin().await).await.unwrap();
        let (key, value) = (key(3, "both"), "value");
        let (of_one, of_other) = tokio::join!(put(&one, &key, value), put(&other, &key, value));
        assert_eq!((of_one.unwrap(), of_other.unwrap()), (value.to_owned(), value.to_owned()));
    }
}
