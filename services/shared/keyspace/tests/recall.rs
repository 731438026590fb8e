//! What is remembered is never older than what Redis holds, whatever happens to keys and
//! connections; and Redis is spared most reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{Config, Error, Keyspace, Kind, Recall, decode, redis};
use microblog_testkit::{RedisServer, WAIT_TIMEOUT, eventually, free_port};
use rand::RngExt as _;
use redis::{aio::MultiplexedConnection, cmd};
use support::{LIBRARY, certificates::Certificates, cluster, sentinels, timed};

/// The one who may have what is read here tracked.
const TRACKED: &str = "user";

/// A read has two steps of three seconds at most, and a busy machine its pauses. What outlives its time
/// does so for ever.
const IN_TIME: Duration = Duration::from_secs(2 * 3 + 30);

/// Bytes for all that a test reads.
const ENOUGH: usize = 1 << 20;

/// Numbers, each in a hash of its own; absent ones are 0.
const NUMBERS: Kind<u64, u64> = Kind {
    command: |id| (partition(id), cmd("HGET").arg(key(id)).arg("n").take()),
    id: |key| std::str::from_utf8(key).ok()?.rsplit(':').next()?.parse().ok(),
    decode: |_, answer| Ok(decode::<Option<u64>>(answer)?.unwrap_or_default()),
    heap_bytes: |_| 1000,
};

fn partition(id: u64) -> Partition {
    Partition::new(id as u16)
}

fn key(id: u64) -> String {
    format!("user:{{{}}}:number:{id}", partition(id).number())
}

fn numbers(url: String, bytes_max: usize) -> Recall<u64, u64> {
    numbers_at(Config::at(url), bytes_max)
}

fn numbers_at(mut config: Config, bytes_max: usize) -> Recall<u64, u64> {
    config.redis_recall_bytes = bytes_max;
    Keyspace::open(&config, LIBRARY).unwrap().recall(NUMBERS)
}

async fn write(to: &mut MultiplexedConnection, id: u64, number: u64) {
    cmd("HSET").arg(key(id)).arg("n").arg(number).exec_async(to).await.unwrap();
}

/// Waits until something is remembered: then a second read sends nothing for it.
async fn remembers(server: &RedisServer, numbers: &Recall<u64, u64>) {
    eventually("something is remembered", WAIT_TIMEOUT, async || {
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
async fn what_does_not_change_is_read_twice_and_then_no_more() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    let mut writer = server.admin().await;
    for id in 0..50 {
        write(&mut writer, id, id + 7).await;
    }
    remembers(&server, &numbers).await;
    server.reset_commandstats().await;
    let ids: Vec<u64> = (0..60).chain(10..20).collect();
    let expected: Vec<u64> = ids.iter().map(|&id| if id < 50 { id + 7 } else { 0 }).collect();
    for _ in 0..100 {
        assert_eq!(numbers.read(&ids).await.unwrap(), expected);
    }
    assert_eq!(reads(&server).await, 2 * 60);
    // What was not there is remembered, too, until it is.
    write(&mut writer, 55, 1).await;
    assert_eq!(numbers.read(&[55, 54]).await.unwrap(), [1, 0]);
    cmd("FLUSHALL").exec_async(&mut writer).await.unwrap();
    assert_eq!(numbers.read(&ids).await.unwrap(), vec![0; ids.len()]);
    assert!(numbers.read(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn no_more_is_remembered_than_allowed() {
    let server = RedisServer::start().await;
    let few = numbers(server.url(TRACKED), 10 * 1100);
    remembers(&server, &few).await;
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

/// Returns numbers of which 100 fill the memory, and ten that are remembered in it.
async fn full(server: &RedisServer) -> (Recall<u64, u64>, Vec<u64>) {
    let numbers = numbers(server.url(TRACKED), 100 * 1100);
    remembers(server, &numbers).await;
    let often: Vec<u64> = (0..10).collect();
    for _ in 0..3 {
        numbers.read(&once(0)).await.unwrap();
    }
    // One after the other: those who come in between may push out the marks of some.
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
async fn what_is_read_once_does_not_displace_what_is_read_often() {
    let server = RedisServer::start().await;
    let (numbers, often) = full(&server).await;
    for round in 1..=20 {
        let ids = [&often[..], &once(round)].concat();
        assert_eq!(numbers.read(&ids).await.unwrap(), vec![0; ids.len()]);
    }
    assert_eq!(reads(&server).await, 20 * 110);
    // What comes again is remembered.
    let again = &once(20)[..5];
    for _ in 0..10 {
        numbers.read(again).await.unwrap();
    }
    assert!(reads(&server).await <= 20 * 110 + 2 * 5, "{}", reads(&server).await);
}

#[tokio::test]
async fn what_changes_is_remembered_again_in_a_full_memory() {
    let server = RedisServer::start().await;
    let (numbers, often) = full(&server).await;
    let mut writer = server.admin().await;
    for number in 1..=5 {
        // Strangers, for whom those who were seen before are forgotten.
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
async fn what_there_is_no_room_for_comes_in_its_place() {
    let server = RedisServer::start().await;
    let (numbers, often) = full(&server).await;
    let mut writer = server.admin().await;
    for id in 0..5 {
        write(&mut writer, id, id + 7).await;
        write(&mut writer, 9000 + id, id + 70).await;
    }
    let ids = [9002, often[1], 9000, 9002, often[4], often[1], 9004];
    assert_eq!(numbers.read(&ids).await.unwrap(), [72, 8, 70, 72, 11, 8, 74]);
}

#[tokio::test]
async fn who_reads_at_the_same_moment_asks_together() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    write(&mut server.admin().await, 3, 7).await;
    remembers(&server, &numbers).await;
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

// Its message about one comes between the answers to that one and the next then.
#[tokio::test]
async fn what_redis_ceases_to_track_while_it_is_read_is_not_remembered() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    remembers(&server, &numbers).await;
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

/// Counts a key up, and says so when Redis has acknowledged it.
async fn count_up(server: &RedisServer, id: u64, acknowledged: Arc<AtomicU64>, stop: &AtomicBool) {
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

/// Reads some keys at a time, and compares with what had been acknowledged before.
async fn never_behind(
    numbers: &Recall<u64, u64>,
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

/// Writers and readers in threads of their own, while connections are killed.
fn nobody_reads_what_was_before(bytes_max: usize, is_cut: bool, is_tls: bool) {
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
                count_up(&server, id as u64, acknowledged.clone(), &stop)
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
                    let readers = (0..8).map(|_| never_behind(&numbers, &known, &stop));
                    futures::future::join_all(readers).await.into_iter().sum()
                })
            }))
        })
        .collect();
    runtime.block_on(async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if is_cut {
                let kill = cmd("CLIENT").arg("KILL").arg("USER").arg(TRACKED).take();
                kill.exec_async(&mut server.admin().await).await.unwrap();
            }
        }
        let tracking: u64 = info(&server, "tracking_clients").await;
        assert!(is_cut || tracking == 2, "{tracking} connections are tracked");
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
fn a_read_sees_every_write_that_was_acknowledged_before() {
    nobody_reads_what_was_before(ENOUGH, false, false);
}

#[test]
fn so_does_one_with_little_memory() {
    nobody_reads_what_was_before(4 * 1100, false, false);
}

#[test]
fn so_does_one_whose_connections_are_killed() {
    nobody_reads_what_was_before(ENOUGH, true, false);
}

#[test]
fn so_does_one_over_tls_whose_connections_are_killed() {
    nobody_reads_what_was_before(ENOUGH, false, true);
    nobody_reads_what_was_before(ENOUGH, true, true);
}

#[tokio::test]
async fn a_redis_that_goes_away_is_unavailable_and_remembered_again_later() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    remembers(&server, &numbers).await;
    server.pause();
    let (answer, took) = timed(numbers.read(&[1000])).await;
    assert!(answer.is_err_and(|error| error.is_unavailable()));
    assert!(took < IN_TIME, "{took:?}");
    server.resume();
    remembers(&server, &numbers).await;
    server.kill();
    let (answer, took) = timed(numbers.read(&[1000])).await;
    assert!(answer.is_err_and(|error| error.is_unavailable()));
    assert!(took < IN_TIME, "{took:?}");
    server.restart().await;
    write(&mut server.admin().await, 1000, 3).await;
    eventually("redis is back", WAIT_TIMEOUT, async || {
        numbers.read(&[1000]).await.is_ok_and(|found| found == [3])
    })
    .await;
    remembers(&server, &numbers).await;
}

// Some of the ids are read beside the others then, over other connections.
#[tokio::test]
async fn so_is_one_that_freezes_while_the_memory_is_full() {
    let server = RedisServer::start().await;
    let (numbers, often) = full(&server).await;
    let ids = [&often[..], &once(1)].concat();
    server.pause();
    for _ in 0..5 {
        let (answer, took) = timed(numbers.read(&ids)).await;
        assert!(answer.is_err_and(|error| error.is_unavailable()));
        assert!(took < IN_TIME, "{took:?}");
    }
    server.resume();
    eventually("redis is back", WAIT_TIMEOUT, async || {
        numbers.read(&ids).await.is_ok_and(|found| found == vec![0; ids.len()])
    })
    .await;
}

#[tokio::test]
async fn what_is_remembered_outlives_a_moment_in_which_redis_is_slow() {
    let server = RedisServer::start().await;
    let config = Config { redis_timeout_ms: 8000, ..Config::at(server.url(TRACKED)) };
    let numbers = Keyspace::open(&config, LIBRARY).unwrap().recall(NUMBERS);
    remembers(&server, &numbers).await;
    // Longer than a read waits on this connection, half of the time-out, and shorter than on the next
    // one. The readers come one after the other, so that each sends something.
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
async fn who_may_not_have_it_tracked_reads_anew() {
    let server = RedisServer::start().await;
    let mut admin = server.admin().await;
    let refuse = cmd("ACL").arg("SETUSER").arg(TRACKED).arg("-client|tracking").take();
    refuse.exec_async(&mut admin).await.unwrap();
    reads_anew(server.url(TRACKED), &mut admin).await;
    assert!(reads(&server).await >= 10);
}

async fn reads_anew(url: String, writer: &mut MultiplexedConnection) {
    let numbers = numbers(url, ENOUGH);
    for number in 1..=10 {
        write(writer, 5, number).await;
        assert_eq!(numbers.read(&[5]).await.unwrap(), [number]);
    }
}

#[tokio::test]
async fn a_replica_is_read_anew() {
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
async fn a_sentinel_groups_primary_tracks() {
    let group = sentinels().await;
    let server = group.servers()[0];
    let numbers = numbers(group.url_of(TRACKED), ENOUGH);
    remembers(server, &numbers).await;
    reads_anew(group.url_of(TRACKED), &mut server.admin().await).await;
}

#[tokio::test]
async fn a_cluster_is_read_anew() {
    let cluster = cluster().await;
    let numbers = numbers(cluster.url_of(TRACKED), ENOUGH);
    for _ in 0..3 {
        assert_eq!(numbers.read(&[1, 2, 3, 500]).await.unwrap(), [0; 4]);
    }
    let reads: u64 = {
        let mut sum = 0;
        for server in cluster.servers() {
            sum += self::reads(server).await;
        }
        sum
    };
    assert_eq!(reads, 12);
}

#[tokio::test]
async fn what_cannot_be_read_is_the_callers_error() {
    let server = RedisServer::start().await;
    let numbers = numbers(server.url(TRACKED), ENOUGH);
    remembers(&server, &numbers).await;
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
