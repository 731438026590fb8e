//! Redis stops, freezes, fails over and returns. Meanwhile every call fails with Unavailable within
//! its timeout; afterwards calls succeed without intervention.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Call, Config, Keyspace, decode, redis};
use microblog_testkit::{PATIENCE, RedisCluster, RedisServer, Sentinels, eventually};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    LIBRARY, USER, get, key,
    migration::{Migration, cluster_command},
    open, open_ready, put, send, timed,
};

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
    let config =
        Config { redis_connections: 2, redis_timeout_ms: 20_000, ..Config::at(group.url(USER)) };
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
    let migration = Migration::begin(&cluster, &moved).await;
    tokio::select! {
        () = migration.complete() => {}
        () = traffic => {}
    }
    // With a new slot map, no command goes to the old primary.
    eventually("commands go to the new primary", RECOVERY, async || {
        let before = redirections(&cluster.nodes()[migration.from]).await;
        for _ in 0..20 {
            get(&keyspace, &key(1, 0)).await.unwrap();
        }
        redirections(&cluster.nodes()[migration.from]).await == before
    })
    .await;
    recovers(&keyspace).await;
}

// The source redirects each command about an absent key (ASK), and the target executes a redirected
// command only after ASKING.
#[tokio::test]
async fn redirected_commands_of_a_batch_run_in_order() {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    let key = key(1, "absent");
    let _migration = Migration::begin(&cluster, &key).await;
    let mut batch = Batch::new();
    for number in 0..20 {
        batch.call(Partition::new(1), Call::new("test_put").key(&key).arg(number));
        batch.query(Partition::new(1), redis::cmd("GET").arg(&key).take());
    }
    let answers = keyspace.send(batch).await.unwrap();
    let numbers: Vec<u64> = answers.into_iter().map(|answer| decode(answer).unwrap()).collect();
    assert_eq!(numbers, (0..40).map(|index| index / 2).collect::<Vec<_>>());
}

// A repeat could run after later writes of others, or before the first copy.
#[tokio::test]
async fn call_that_timed_out_is_not_repeated() {
    let (server, cluster) = (RedisServer::start().await, RedisCluster::start(3, 0).await);
    let key = key(1, "a");
    let primary = cluster.primary_of(&key, 0).await;
    for (url, primary) in
        [(server.url(USER), &server), (cluster.url(USER), &cluster.nodes()[primary])]
    {
        let config = Config { redis_timeout_ms: 1000, ..Config::at(url) };
        let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
        eventually("the keyspace is ready", RECOVERY, async || keyspace.ready().await.is_ok())
            .await;
        put(&keyspace, &key, "before").await.unwrap();
        primary.reset_commandstats().await;
        primary.pause();
        assert!(is_unavailable(&put(&keyspace, &key, "late").await));
        // Longer than the library would need for its repeats.
        tokio::time::sleep(Duration::from_secs(5)).await;
        primary.resume();
        eventually("the call runs", RECOVERY, async || {
            primary.commandstats().await.contains_key("fcall")
        })
        .await;
        recovers_reads(&keyspace, &key).await;
        assert_eq!(primary.commandstats().await["fcall"], 1);
    }
}

async fn recovers_reads(keyspace: &Keyspace, key: &str) {
    eventually("reads recover", RECOVERY, async || get(keyspace, key).await.is_ok()).await;
}

#[tokio::test]
async fn silent_connection_is_replaced_although_all_callers_cancel() {
    let server = RedisServer::start().await;
    let config = Config { redis_timeout_ms: 1000, ..Config::at(server.url(USER)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    eventually("the keyspace is ready", RECOVERY, async || keyspace.ready().await.is_ok()).await;
    let [silent] = clients(&server).await[..] else { panic!("one connection is open") };
    server.pause();
    for _ in 0..60 {
        let some_key = key(1, "a");
        let call = put(&keyspace, &some_key, "x");
        let _cancelled = tokio::time::timeout(Duration::from_millis(50), call).await;
    }
    server.resume();
    eventually("the connection is closed", RECOVERY, async || {
        !clients(&server).await.contains(&silent)
    })
    .await;
    recovers(&keyspace).await;
}

#[tokio::test]
async fn frozen_primary_delays_no_calls_to_others() {
    // Reading the slot map takes up to a quarter of the timeout while a primary is frozen.
    const TIMEOUT: Duration = Duration::from_secs(8);
    const FREEZE: Duration = Duration::from_secs(20);
    let cluster = RedisCluster::start(3, 0).await;
    for node in cluster.nodes() {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg("cluster-require-full-coverage").arg("no");
        config.exec_async(&mut node.admin().await).await.unwrap();
    }
    let config =
        Config { redis_timeout_ms: TIMEOUT.as_millis() as u64, ..Config::at(cluster.url(USER)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    // Calls only the others: what delays them is the machine.
    let undisturbed = open_ready(cluster.url(USER)).await;
    let frozen = key(1, "a");
    let primary = cluster.primary_of(&frozen, 0).await;
    let mut others = Vec::new();
    for partition in 2..30 {
        let key = key(partition, "a");
        if cluster.primary_of(&key, 0).await != primary {
            others.push(key);
        }
    }
    cluster.nodes()[primary].pause();
    let waiting = async {
        loop {
            let (answer, took) = timed(put(&keyspace, &frozen, "x")).await;
            assert!(is_unavailable(&answer) && took < TIMEOUT + IN_TIME, "{took:?}: {answer:?}");
            assert!(is_unavailable(&send(&keyspace, 30, "x").await));
            assert!(is_unavailable(&keyspace.ready().await));
        }
    };
    let cancelling = async {
        loop {
            let call = put(&keyspace, &frozen, "x");
            let _cancelled = tokio::time::timeout(Duration::from_millis(100), call).await;
        }
    };
    let calling = async {
        let start = std::time::Instant::now();
        let mut longest_delay = Duration::ZERO;
        while start.elapsed() < FREEZE {
            for key in &others {
                let put = |keyspace| timed(put(keyspace, key, "x"));
                let ((answer, took), (_, usual)) = tokio::join!(put(&keyspace), put(&undisturbed));
                answer.unwrap();
                longest_delay = longest_delay.max(took.saturating_sub(usual));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        longest_delay
    };
    let longest_delay = tokio::select! {
        longest_delay = calling => longest_delay,
        () = waiting => unreachable!(),
        () = cancelling => unreachable!(),
    };
    assert!(longest_delay < TIMEOUT / 4, "{longest_delay:?}");
    cluster.nodes()[primary].resume();
    recovers(&keyspace).await;
}

#[tokio::test]
async fn batch_is_one_write_to_each_primary() {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    send(&keyspace, 300, "warm").await.unwrap();
    let reads = async || {
        let mut sum = 0;
        for node in cluster.nodes() {
            let mut info = redis::cmd("INFO");
            info.arg("stats");
            let info: String = info.query_async(&mut node.admin().await).await.unwrap();
            let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
            sum += reads.unwrap().trim().parse::<u64>().unwrap();
        }
        sum
    };
    let own_reads = {
        let before = reads().await;
        reads().await - before
    };
    // Takes the minimum: the nodes also exchange messages, and read long writes in pieces.
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        let before = reads().await;
        send(&keyspace, 50, "value").await.unwrap();
        fewest = fewest.min(reads().await - before - own_reads);
    }
    assert!(fewest <= 3, "{fewest} reads for a batch of 100 commands to 50 partitions");
}

#[tokio::test]
async fn cancelled_calls_share_one_attempt_to_connect() {
    // The kernel accepts connections, and no reply follows.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config {
        redis_timeout_ms: LONG.as_millis() as u64,
        ..Config::at(format!("redis://{}", silent.local_addr().unwrap()))
    };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    for _ in 0..10 {
        let some_key = key(1, "a");
        let call = put(&keyspace, &some_key, "x");
        let cancelled = tokio::time::timeout(Duration::from_millis(50), call).await;
        assert!(cancelled.is_err());
    }
    let _first = silent.accept().await.unwrap();
    let another = tokio::time::timeout(Duration::from_millis(200), silent.accept()).await;
    assert!(another.is_err(), "each call connects");
}

#[tokio::test]
async fn slot_map_is_read_again_after_clusterdown() {
    let cluster = RedisCluster::start(3, 0).await;
    let keyspace = open_ready(cluster.url(USER)).await;
    let key = key(1, "a");
    put(&keyspace, &key, "x").await.unwrap();
    let primary = &cluster.nodes()[cluster.primary_of(&key, 0).await];
    let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key).take();
    let slot: u16 = slot.query_async(&mut primary.admin().await).await.unwrap();
    primary.reset_commandstats().await;
    cluster_command(primary, &["DELSLOTS", &slot.to_string()]).await;
    assert!(is_unavailable(&get(&keyspace, &key).await));
    eventually("the slot map is read", RECOVERY, async || {
        primary.commandstats().await.contains_key("cluster|slots")
    })
    .await;
}

/// Serves a connection to a cluster of one node. Never replies to ECHO on the first connection that
/// sends one, as after a lost connection.
async fn serve_cluster(stream: TcpStream, port: u16, was_silent: Arc<AtomicBool>) {
    let mut stream = BufReader::new(stream);
    let mut is_silent = false;
    let mut words = Vec::new();
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        match line.trim_end().strip_prefix('*') {
            Some(count) => words = Vec::with_capacity(2 * count.parse::<usize>().unwrap()),
            None => words.push(std::mem::take(&mut line)),
        }
        line.clear();
        if words.is_empty() || words.len() < words.capacity() {
            continue;
        }
        let reply = match words[1].trim_end() {
            "CLUSTER" => format!(
                "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nx\r\n"
            ),
            "PING" => "+PONG\r\n".to_owned(),
            "ECHO" => {
                is_silent |= !was_silent.swap(true, Ordering::Relaxed);
                "+back\r\n".to_owned()
            }
            _ => "+OK\r\n".to_owned(),
        };
        words = Vec::new();
        if !is_silent {
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn silent_cluster_client_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let was_silent = Arc::<AtomicBool>::default();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_cluster(stream, port, was_silent.clone()));
        }
    });
    let url = format!("redis-cluster://127.0.0.1:{port}");
    let config = Config { redis_timeout_ms: 1000, ..Config::at(url) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    // The cluster client sends commands without a key.
    let echo = redis::cmd("ECHO").arg("back").take();
    let answer = keyspace.query::<String>(echo.clone()).await;
    assert!(is_unavailable(&answer), "{answer:?}");
    assert_eq!(keyspace.query::<String>(echo).await.unwrap(), "back");
}
