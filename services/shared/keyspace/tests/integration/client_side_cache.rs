//! The client-side cache never returns stale values, whatever happens to keys and connections, and
//! saves most reads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{ClientSideCache, Config, Error, Keyspace, Kind, decode, redis};
use microblog_testkit::{ADMIN, PATIENCE, RedisCluster, RedisServer, eventually, free_port};
use rand::RngExt as _;
use redis::{aio::MultiplexedConnection, cmd};

use crate::support::{
    LIBRARY, certificates::Certificates, migration::Migration, open_ready, sentinels, timed,
};

/// The Redis user with access to CLIENT TRACKING and the keys of these tests.
const TRACKED: &str = "post";

/// Two steps of three seconds at most, and a margin for a busy machine. A read that hangs exceeds
/// any limit.
const IN_TIME: Duration = Duration::from_secs(2 * 3 + 30);

/// Cache bytes for all values of a test.
const ENOUGH: usize = 1 << 20;

/// Numbers, each in a hash; absent ones are 0.
const NUMBERS: Kind<u64, u64> = Kind {
    partition,
    command: |id| cmd("HGET").arg(key(id)).arg("n").take(),
    id: |key| std::str::from_utf8(key).ok()?.rsplit(':').next()?.parse().ok(),
    decode: |_, answer| Ok(decode::<Option<u64>>(answer)?.unwrap_or_default()),
    heap_bytes: |_| 1000,
};

fn partition(id: u64) -> Partition {
    Partition::new(id as u16)
}

fn key(id: u64) -> String {
    format!("pst:{{{}}}:number:{id}", partition(id).number())
}

fn numbers(url: String, bytes_max: usize) -> ClientSideCache<u64, u64> {
    numbers_at(Config::at(url), bytes_max)
}

fn numbers_at(mut config: Config, bytes_max: usize) -> ClientSideCache<u64, u64> {
    config.redis_cache_bytes = bytes_max;
    Keyspace::open(&config, LIBRARY).unwrap().client_side_cache(NUMBERS)
}

async fn write(to: &mut MultiplexedConnection, id: u64, number: u64) {
    cmd("HSET").arg(key(id)).arg("n").arg(number).exec_async(to).await.unwrap();
}

/// Waits until the cache works: a second read sends no HGET.
async fn wait_until_cached(server: &RedisServer, numbers: &ClientSideCache<u64, u64>) {
    eventually("values are cached", PATIENCE, async || {
        let before = reads(server).await;
        let answers = (numbers.read(&[1000]).await, numbers.read(&[1000]).await);
        matches!(answers, (Ok(_), Ok(_))) && reads(server).await - before < 2
    })
    .await;
}

async fn reads(server: &RedisServer) -> u64 {
    server.commandstats().await.get("hget").copied().unwrap_or_default()
}

#[tokio::test]
async fn unchanged_values_are_read_twice_and_then_cached() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    let mut writer = server.admin().await;
    for id in 0..50 {
        write(&mut writer, id, id + 7).await;
    }
    wait_until_cached(&server, &numbers).await;
    server.reset_commandstats().await;
    let ids: Vec<u64> = (0..60).chain(10..20).collect();
    let expected: Vec<u64> = ids.iter().map(|&id| if id < 50 { id + 7 } else { 0 }).collect();
    for _ in 0..100 {
        assert_eq!(numbers.read(&ids).await.unwrap(), expected);
    }
    assert_eq!(reads(&server).await, 2 * 60);
    // Absent values are cached too, until they are written.
    write(&mut writer, 55, 1).await;
    assert_eq!(numbers.read(&[55, 54]).await.unwrap(), [1, 0]);
    cmd("FLUSHALL").exec_async(&mut writer).await.unwrap();
    assert_eq!(numbers.read(&ids).await.unwrap(), vec![0; ids.len()]);
    assert!(numbers.read(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn cache_size_is_bounded() {
    let server = RedisServer::start().await;
    let few = numbers(server.url(TRACKED), 10 * 1100);
    wait_until_cached(&server, &few).await;
    server.reset_commandstats().await;
    let ids: Vec<u64> = (0..30).collect();
    for _ in 0..10 {
        few.read(&ids).await.unwrap();
    }
    assert!(reads(&server).await >= 10 * 20, "{}", reads(&server).await);
    let none = numbers(server.url(TRACKED), 0);
    server.reset_commandstats().await;
    for _ in 0..10 {
        none.read(&[1]).await.unwrap();
    }
    assert_eq!(reads(&server).await, 10);
}

/// Returns a full cache of 100 numbers, and ten ids that are cached in it.
async fn full_cache(server: &RedisServer) -> (ClientSideCache<u64, u64>, Vec<u64>) {
    let numbers = numbers(server.url(TRACKED), 100 * 1100);
    wait_until_cached(server, &numbers).await;
    let often: Vec<u64> = (0..10).collect();
    for _ in 0..3 {
        numbers.read(&once(0)).await.unwrap();
    }
    // Several times: the ids read between may evict fingerprints of the admission filter.
    for _ in 0..3 {
        numbers.read(&often).await.unwrap();
    }
    server.reset_commandstats().await;
    (numbers, often)
}

fn once(round: u64) -> Vec<u64> {
    (2000 + 110 * round..2110 + 110 * round).collect()
}

#[tokio::test]
async fn values_read_once_do_not_evict_values_read_often() {
    let server = RedisServer::start().await;
    let (numbers, often) = full_cache(&server).await;
    for round in 1..=20 {
        let ids = [&often[..], &once(round)].concat();
        assert_eq!(numbers.read(&ids).await.unwrap(), vec![0; ids.len()]);
    }
    assert_eq!(reads(&server).await, 20 * 110);
    // Values that are read again are cached.
    let again = &once(20)[..5];
    for _ in 0..10 {
        numbers.read(again).await.unwrap();
    }
    assert!(reads(&server).await <= 20 * 110 + 2 * 5, "{}", reads(&server).await);
}

#[tokio::test]
async fn invalidated_values_are_cached_again_in_a_full_cache() {
    let server = RedisServer::start().await;
    let (numbers, often) = full_cache(&server).await;
    let mut writer = server.admin().await;
    for number in 1..=5 {
        // Other ids, which evict the fingerprints of earlier ones.
        for round in 8 * number..8 * (number + 1) {
            numbers.read(&once(round)).await.unwrap();
        }
        write(&mut writer, 3, number).await;
        for _ in 0..5 {
            assert_eq!(numbers.read(&often).await.unwrap()[3], number);
        }
    }
    assert!(reads(&server).await <= 5 * (8 * 110 + 1) + 2, "{}", reads(&server).await);
}

#[tokio::test]
async fn cached_and_uncached_values_are_in_the_order_of_the_ids() {
    let server = RedisServer::start().await;
    let (numbers, often) = full_cache(&server).await;
    let mut writer = server.admin().await;
    for id in 0..5 {
        write(&mut writer, id, id + 7).await;
        write(&mut writer, 9000 + id, id + 70).await;
    }
    let ids = [9002, often[1], 9000, 9002, often[4], often[1], 9004];
    assert_eq!(numbers.read(&ids).await.unwrap(), [72, 8, 70, 72, 11, 8, 74]);
}

#[tokio::test]
async fn concurrent_reads_share_one_ping() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    write(&mut server.admin().await, 3, 7).await;
    wait_until_cached(&server, &numbers).await;
    for _ in 0..2 {
        assert_eq!(numbers.read(&[3]).await.unwrap(), [7]);
    }
    server.reset_commandstats().await;
    let reads = (0..64).map(|_| numbers.read(&[3]));
    for read in futures::future::join_all(reads).await {
        assert_eq!(read.unwrap(), [7]);
    }
    let stats = server.commandstats().await;
    assert_eq!((stats.get("ping"), stats.get("hget")), (Some(&1), None), "{stats:?}");
}

// The invalidation of an evicted key then comes between its reply and the next one.
#[tokio::test]
async fn keys_evicted_from_the_tracking_table_during_a_read_are_not_cached() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    wait_until_cached(&server, &numbers).await;
    let mut writer = server.admin().await;
    let limit = cmd("CONFIG").arg("SET").arg("tracking-table-max-keys").arg(1).take();
    limit.exec_async(&mut writer).await.unwrap();
    let ids = [1, 2, 3];
    for number in 1..=10 {
        for id in ids {
            write(&mut writer, id, number).await;
        }
        for _ in 0..3 {
            assert_eq!(numbers.read(&ids).await.unwrap(), [number; 3]);
        }
    }
}

/// Increments a number, and publishes each acknowledged value.
async fn increment(server: &RedisServer, id: u64, acknowledged: Arc<AtomicU64>, stop: &AtomicBool) {
    let mut writer = server.admin().await;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        write(&mut writer, id, number).await;
        acknowledged.store(number, Ordering::SeqCst);
        if rand::rng().random_bool(0.2) {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }
}

/// Reads some numbers at a time, and compares them with the values acknowledged before the read.
async fn check_recency(
    numbers: &ClientSideCache<u64, u64>,
    known: &[Arc<AtomicU64>],
    stop: &AtomicBool,
) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let ids: Vec<u64> =
            (0..3).map(|_| rand::rng().random_range(0..known.len() as u64)).collect();
        let floors: Vec<u64> =
            ids.iter().map(|&id| known[id as usize].load(Ordering::SeqCst)).collect();
        match numbers.read(&ids).await {
            Ok(found) => {
                for ((id, floor), number) in ids.iter().zip(floors).zip(found) {
                    assert!(number >= floor, "{id} was {floor} before, and is {number}");
                }
                rounds += 1;
            }
            Err(error) => assert!(error.is_unavailable(), "{error:?}"),
        }
    }
    rounds
}

/// Runs writers and readers in threads, optionally while connections are killed.
fn reads_see_acknowledged_writes(bytes_max: usize, kills: bool, is_tls: bool) {
    const KEYS: usize = 12;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let certificates = Certificates::make();
    let (server, port) = runtime.block_on(certificates.server(false, &[]));
    let config = if is_tls {
        certificates.at(&server, TRACKED, "rediss", "localhost", port)
    } else {
        Config::at(server.url(TRACKED))
    };
    let server = Arc::new(server);
    let stop = Arc::new(AtomicBool::new(false));
    let known: Vec<Arc<AtomicU64>> = (0..KEYS).map(|_| Arc::default()).collect();
    let in_thread = |work: Box<dyn FnOnce(&tokio::runtime::Runtime) -> u64 + Send>| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            work(&runtime.unwrap())
        })
    };
    let writing = {
        let (server, stop, known) = (server.clone(), stop.clone(), known.clone());
        in_thread(Box::new(move |runtime| {
            let writers = known.iter().enumerate().map(|(id, acknowledged)| {
                increment(&server, id as u64, acknowledged.clone(), &stop)
            });
            runtime.block_on(futures::future::join_all(writers));
            0
        }))
    };
    let reading: Vec<_> = (0..2)
        .map(|_| {
            let (config, stop, known) = (config.clone(), stop.clone(), known.clone());
            in_thread(Box::new(move |runtime| {
                runtime.block_on(async {
                    let numbers = numbers_at(config, bytes_max);
                    let readers = (0..8).map(|_| check_recency(&numbers, &known, &stop));
                    futures::future::join_all(readers).await.into_iter().sum()
                })
            }))
        })
        .collect();
    runtime.block_on(async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if kills {
                let kill = cmd("CLIENT").arg("KILL").arg("USER").arg(TRACKED).take();
                kill.exec_async(&mut server.admin().await).await.unwrap();
            }
        }
        let tracking: u64 = info(&server, "tracking_clients").await;
        assert!(kills || tracking == 2, "{tracking} connections are tracked");
    });
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    let rounds: u64 = reading.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(rounds > 100, "only {rounds} reads");
}

async fn info(server: &RedisServer, name: &str) -> u64 {
    let info: redis::InfoDict = cmd("INFO").query_async(&mut server.admin().await).await.unwrap();
    info.get(name).unwrap()
}

#[test]
fn read_sees_every_acknowledged_write() {
    reads_see_acknowledged_writes(ENOUGH, false, false);
}

#[test]
fn read_sees_every_acknowledged_write_with_a_small_cache() {
    reads_see_acknowledged_writes(4 * 1100, false, false);
}

#[test]
fn read_sees_every_acknowledged_write_while_connections_are_killed() {
    reads_see_acknowledged_writes(ENOUGH, true, false);
}

#[test]
fn read_sees_every_acknowledged_write_over_tls_while_connections_are_killed() {
    reads_see_acknowledged_writes(ENOUGH, false, true);
    reads_see_acknowledged_writes(ENOUGH, true, true);
}

#[tokio::test]
async fn cache_recovers_after_redis_freezes_and_restarts() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    wait_until_cached(&server, &numbers).await;
    server.pause();
    let (answer, took) = timed(numbers.read(&[1000])).await;
    assert!(answer.is_err_and(|error| error.is_unavailable()));
    assert!(took < IN_TIME, "{took:?}");
    server.resume();
    wait_until_cached(&server, &numbers).await;
    server.kill();
    let (answer, took) = timed(numbers.read(&[1000])).await;
    assert!(answer.is_err_and(|error| error.is_unavailable()));
    assert!(took < IN_TIME, "{took:?}");
    server.restart().await;
    write(&mut server.admin().await, 1000, 3).await;
    eventually("redis is available", PATIENCE, async || {
        numbers.read(&[1000]).await.is_ok_and(|found| found == [3])
    })
    .await;
    wait_until_cached(&server, &numbers).await;
}

// While Redis closes each tracked connection, reads must not make one after the other.
#[tokio::test]
async fn closed_tracked_connection_is_replaced_after_the_backoff() {
    const BACKOFF: Duration = Duration::from_secs(1);
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    wait_until_cached(&server, &numbers).await;
    let closed_at = std::time::Instant::now();
    let kill = cmd("CLIENT").arg("KILL").arg("USER").arg(TRACKED).take();
    kill.exec_async(&mut server.admin().await).await.unwrap();
    // Until the cache notices, between two reads.
    tokio::time::sleep(BACKOFF / 10).await;
    loop {
        numbers.read(&[1000]).await.unwrap();
        let tracking = info(&server, "tracking_clients").await;
        if closed_at.elapsed() >= BACKOFF {
            break;
        }
        assert_eq!(tracking, 0, "after {:?}", closed_at.elapsed());
    }
    wait_until_cached(&server, &numbers).await;
}

// The admission filter rejects some ids, which are then read over the shared pool.
#[tokio::test]
async fn full_cache_recovers_after_redis_freezes() {
    let server = RedisServer::start().await;
    let (numbers, often) = full_cache(&server).await;
    let ids = [&often[..], &once(1)].concat();
    server.pause();
    for _ in 0..5 {
        let (answer, took) = timed(numbers.read(&ids)).await;
        assert!(answer.is_err_and(|error| error.is_unavailable()));
        assert!(took < IN_TIME, "{took:?}");
    }
    server.resume();
    eventually("redis is available", PATIENCE, async || {
        numbers.read(&ids).await.is_ok_and(|found| found == vec![0; ids.len()])
    })
    .await;
}

#[tokio::test]
async fn cache_survives_a_short_freeze() {
    let server = RedisServer::start().await;
    let config = Config { redis_timeout_ms: 8000, ..Config::at(server.url(TRACKED)) };
    let numbers = Keyspace::open(&config, LIBRARY).unwrap().client_side_cache(NUMBERS);
    wait_until_cached(&server, &numbers).await;
    // Longer than half of the timeout, which is the limit on the tracked connection, and shorter than
    // the limit on the shared pool. The readers start one after the other, so that each sends a
    // command.
    server.pause();
    let late = (0..5).map(|place| {
        let numbers = &numbers;
        async move {
            tokio::time::sleep(Duration::from_millis(20 * place)).await;
            numbers.read(&[1000]).await.unwrap()
        }
    });
    let resume = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        server.resume();
    };
    let (late, ()) = tokio::join!(futures::future::join_all(late), resume);
    assert_eq!(late, vec![[0]; 5]);
    let before = reads(&server).await;
    for _ in 0..10 {
        assert_eq!(numbers.read(&[1000]).await.unwrap(), [0]);
    }
    assert_eq!(reads(&server).await, before);
}

#[tokio::test]
async fn user_without_client_tracking_bypasses_the_cache() {
    let server = RedisServer::start().await;
    let mut admin = server.admin().await;
    let refuse = cmd("ACL").arg("SETUSER").arg(TRACKED).arg("-client|tracking").take();
    refuse.exec_async(&mut admin).await.unwrap();
    check_reads(server.url(TRACKED), &mut admin).await;
    assert!(reads(&server).await >= 10);
}

async fn check_reads(url: String, writer: &mut MultiplexedConnection) {
    let numbers = numbers(url, ENOUGH);
    for number in 1..=10 {
        write(writer, 5, number).await;
        assert_eq!(numbers.read(&[5]).await.unwrap(), [number]);
    }
}

#[tokio::test]
async fn replica_bypasses_the_cache() {
    let server = RedisServer::start().await;
    let follow = cmd("REPLICAOF").arg("127.0.0.1").arg(free_port()).take();
    follow.exec_async(&mut server.admin().await).await.unwrap();
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    for _ in 0..20 {
        assert_eq!(numbers.read(&[5]).await.unwrap(), [0]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(reads(&server).await, 20);
}

#[tokio::test]
async fn cache_works_with_sentinel() {
    let group = sentinels().await;
    let server = group.servers()[0];
    let numbers = numbers(group.url_of(TRACKED), ENOUGH);
    wait_until_cached(server, &numbers).await;
    check_reads(group.url_of(TRACKED), &mut server.admin().await).await;
}

/// Increments a number on a cluster, and publishes each acknowledged value.
async fn increment_on_cluster(writer: &Keyspace, id: u64, acknowledged: &AtomicU64) {
    let number = acknowledged.load(Ordering::SeqCst) + 1;
    let set = cmd("HSET").arg(key(id)).arg("n").arg(number).take();
    while let Err(error) = writer.query::<()>(set.clone()).await {
        assert!(error.is_unavailable(), "{error:?}");
    }
    acknowledged.store(number, Ordering::SeqCst);
}

/// Runs writers and readers, which compare, during a change of a cluster.
async fn reads_of_a_cluster_see_acknowledged_writes(
    cluster: &RedisCluster,
    change: impl AsyncFnOnce(&Keyspace),
) {
    // At first absent.
    const KEYS: u64 = 60;
    let writer = open_ready(cluster.url(ADMIN)).await;
    let config = Config { redis_cache_bytes: ENOUGH, ..Config::at(cluster.url(TRACKED)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    let numbers = keyspace.client_side_cache(NUMBERS);
    let stop = AtomicBool::new(false);
    let known: Vec<Arc<AtomicU64>> = (0..KEYS).map(|_| Arc::default()).collect();
    let writing = async {
        while !stop.load(Ordering::Relaxed) {
            let id = rand::rng().random_range(0..KEYS);
            increment_on_cluster(&writer, id, &known[id as usize]).await;
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    };
    let changing = async {
        eventually("connections are tracked", PATIENCE, async || {
            tracking_clients(cluster).await == 3
        })
        .await;
        change(&keyspace).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        stop.store(true, Ordering::Relaxed);
    };
    let readers = (0..8).map(|_| check_recency(&numbers, &known, &stop));
    let (rounds, (), ()) = tokio::join!(futures::future::join_all(readers), writing, changing);
    assert!(rounds.iter().sum::<u64>() > 100, "only {rounds:?} reads");
    // Reads are tracked again.
    eventually("all primaries are tracked", PATIENCE, async || {
        numbers.read(&(0..KEYS).collect::<Vec<_>>()).await.unwrap();
        tracking_clients(cluster).await == 3
    })
    .await;
}

async fn tracking_clients(cluster: &RedisCluster) -> u64 {
    let mut sum = 0;
    for node in cluster.nodes() {
        sum += info(node, "tracking_clients").await;
    }
    sum
}

#[tokio::test]
async fn read_sees_every_acknowledged_write_while_slots_migrate() {
    let cluster = RedisCluster::start(3, 0).await;
    reads_of_a_cluster_see_acknowledged_writes(&cluster, async |_| {
        for id in 0..20 {
            Migration::begin(&cluster, &key(id)).await.complete().await;
        }
    })
    .await;
}

// A lossless failover: the old primary keeps its connections.
#[tokio::test]
async fn read_sees_every_acknowledged_write_during_a_cluster_failover() {
    let cluster = RedisCluster::start(3, 1).await;
    reads_of_a_cluster_see_acknowledged_writes(&cluster, async |keyspace| {
        for replica in &cluster.nodes()[3..] {
            cmd("CLUSTER").arg("FAILOVER").exec_async(&mut replica.admin().await).await.unwrap();
            eventually("the replica is promoted", PATIENCE, async || {
                let role = cmd("ROLE").query_async(&mut replica.admin().await).await;
                let role: Vec<redis::Value> = role.unwrap();
                role.first() == Some(&redis::Value::BulkString("master".into()))
            })
            .await;
        }
        eventually("the cluster is ready", PATIENCE, async || keyspace.ready().await.is_ok()).await;
    })
    .await;
}

/// Returns a cache in which the values of two partitions with one primary are read, and their ids.
async fn two_of_one_primary(
    cluster: &RedisCluster,
) -> (ClientSideCache<u64, u64>, [u64; 2], usize) {
    let primary = cluster.primary_of(&key(0), 0).await;
    let mut other = 1;
    while cluster.primary_of(&key(other), 0).await != primary {
        other += 1;
    }
    let config = Config { redis_cache_bytes: ENOUGH, ..Config::at(cluster.url(TRACKED)) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    let numbers = keyspace.client_side_cache(NUMBERS);
    eventually("the primary is tracked", PATIENCE, async || {
        numbers.read(&[0, other]).await.unwrap();
        info(&cluster.nodes()[primary], "tracking_clients").await == 1
    })
    .await;
    for _ in 0..3 {
        numbers.read(&[0, other]).await.unwrap();
    }
    (numbers, [0, other], primary)
}

#[tokio::test]
async fn tracked_reads_are_of_one_connection() {
    let cluster = RedisCluster::start(3, 0).await;
    let (numbers, [one, two], primary) = two_of_one_primary(&cluster).await;
    let (read, rejected) = numbers.begin_tracked(vec![one], two).unwrap();
    assert_eq!(numbers.end_tracked(read).await.unwrap(), [Some(0), Some(0)]);
    assert_eq!(rejected, [0; 0]);
    let mut cold = two + 1;
    while cluster.primary_of(&key(cold), 0).await != primary {
        cold += 1;
    }
    for is_rejected in [true, false] {
        let (read, rejected) = numbers.begin_tracked(vec![cold, one], two).unwrap();
        assert_eq!(rejected, if is_rejected { vec![cold] } else { Vec::new() });
        let values = numbers.end_tracked(read).await.unwrap();
        assert_eq!(values, vec![Some(0); if is_rejected { 2 } else { 3 }]);
    }
    let mut other = two + 1;
    while cluster.primary_of(&key(other), 0).await == primary {
        other += 1;
    }
    assert!(numbers.begin_tracked(vec![one], other).is_none(), "they have two servers");
    let (read, _) = numbers.begin_tracked(vec![one], two).unwrap();
    let kill = cmd("CLIENT").arg("KILL").arg("USER").arg(TRACKED).take();
    kill.exec_async(&mut cluster.nodes()[primary].admin().await).await.unwrap();
    // Until the cache notices.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(numbers.end_tracked(read).await.unwrap_err().is_unavailable());
    assert!(numbers.begin_tracked(vec![one], two).is_none());
    assert_eq!(numbers.read(&[one, two]).await.unwrap(), [0, 0], "by another connection");
}

// The old primary of a migrating slot does not know of keys created on the new one.
#[tokio::test]
async fn key_created_during_the_migration_of_its_slot_is_read() {
    let cluster = RedisCluster::start(3, 0).await;
    let writer = open_ready(cluster.url(ADMIN)).await;
    increment_on_cluster(&writer, 0, &AtomicU64::new(6)).await;
    let (numbers, [kept, created], _) = two_of_one_primary(&cluster).await;
    assert_eq!(numbers.read(&[kept, created]).await.unwrap(), [7, 0]);
    let _migration = Migration::begin(&cluster, &key(created)).await;
    increment_on_cluster(&writer, created, &AtomicU64::new(2)).await;
    assert_eq!(numbers.read(&[kept, created]).await.unwrap(), [7, 3]);
}

// The old primary, whose replication does not work, replies to PING and sends no invalidations.
#[tokio::test]
async fn values_of_a_demoted_primary_are_not_used() {
    let cluster = RedisCluster::start(3, 1).await;
    let writer = open_ready(cluster.url(ADMIN)).await;
    increment_on_cluster(&writer, 0, &AtomicU64::new(6)).await;
    let (numbers, ids, primary) = two_of_one_primary(&cluster).await;
    let mut admin = cluster.nodes()[primary].admin().await;
    let break_replication = cmd("CONFIG").arg("SET").arg("masterauth").arg("wrong").take();
    break_replication.exec_async(&mut admin).await.unwrap();
    let replica = &cluster.nodes()[3 + primary];
    cmd("CLUSTER").arg("FAILOVER").exec_async(&mut replica.admin().await).await.unwrap();
    eventually("the primary is demoted", PATIENCE, async || {
        let role: Vec<redis::Value> = cmd("ROLE").query_async(&mut admin).await.unwrap();
        role.first() == Some(&redis::Value::BulkString("slave".into()))
    })
    .await;
    increment_on_cluster(&writer, 0, &AtomicU64::new(7)).await;
    assert_eq!(numbers.read(&ids[..1]).await.unwrap(), [8]);
}

#[tokio::test]
async fn cluster_values_are_cached_unless_absent() {
    let cluster = RedisCluster::start(3, 0).await;
    let writer = open_ready(cluster.url(ADMIN)).await;
    let numbers = numbers(cluster.url(TRACKED), ENOUGH);
    for id in 0..50 {
        increment_on_cluster(&writer, id, &AtomicU64::new(id)).await;
    }
    let ids: Vec<u64> = (0..50).rev().collect();
    let expected: Vec<u64> = ids.iter().map(|&id| id + 1).collect();
    let all_reads = async || {
        let mut sum = 0;
        for node in cluster.nodes() {
            sum += reads(node).await;
        }
        sum
    };
    // One command with a key to each primary.
    eventually("values are cached", PATIENCE, async || {
        let before = all_reads().await;
        assert_eq!(numbers.read(&ids).await.unwrap(), expected);
        all_reads().await - before == 3
    })
    .await;
    let before = all_reads().await;
    for _ in 0..10 {
        assert_eq!(numbers.read(&[7, 500]).await.unwrap(), [8, 0]);
    }
    assert!(all_reads().await - before >= 10, "absent values are not cached");
    increment_on_cluster(&writer, 500, &AtomicU64::new(3)).await;
    increment_on_cluster(&writer, 7, &AtomicU64::new(8)).await;
    assert_eq!(numbers.read(&[7, 500, 8]).await.unwrap(), [9, 4, 9]);
}

#[tokio::test]
async fn error_replies_and_malformed_values_fail_the_read() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    wait_until_cached(&server, &numbers).await;
    let mut admin = server.admin().await;
    cmd("SET").arg(key(1)).arg("no hash").exec_async(&mut admin).await.unwrap();
    let error = numbers.read(&[1]).await.unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    cmd("DEL").arg(key(1)).exec_async(&mut admin).await.unwrap();
    cmd("HSET").arg(key(1)).arg("n").arg("x").exec_async(&mut admin).await.unwrap();
    assert!(matches!(numbers.read(&[2, 1]).await, Err(Error::Malformed(_))));
    write(&mut admin, 1, 4).await;
    assert_eq!(numbers.read(&[1]).await.unwrap(), [4]);
}
