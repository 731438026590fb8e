//! Reads that are answered by the client-side cache of a process.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use microblog_keyspace::{
    Config,
    redis::{InfoDict, cmd},
};
use microblog_testkit::{Database as Server, PATIENCE, RedisServer, Store, Topology, eventually};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    lists::{Add, Process, layouts},
    losses::start_cut_off,
};

pub(crate) async fn info(server: &RedisServer, name: &str) -> u64 {
    let info: InfoDict = cmd("INFO").query_async(&mut server.admin().await).await.unwrap();
    info.get(name).unwrap()
}

/// Returns the number of reads of whole entries.
async fn gets(server: &RedisServer) -> u64 {
    server.commandstats().await.get("get").copied().unwrap_or_default()
}

/// The key of the mark of a single server.
pub(crate) const MARK: &str = "rel:{0}:mark";

/// Waits until a process has list 4 in its client-side cache: a read sends no GET. On a single server.
pub(crate) async fn wait_until_cached(process: &Process, server: &RedisServer) {
    eventually("the list is cached", PATIENCE, async || {
        process.trusted(4).await;
        let before = gets(server).await;
        process.read(4).await;
        gets(server).await == before && info(server, "tracking_total_keys").await > 0
    })
    .await;
}

/// Starts a process with list 4, which has one member, and a fresh mark.
pub(crate) async fn start_with_list(server: &Server, redis: &Store) -> Process {
    let process = Process::start(server, redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    process.verified(&mut process.verifier()).await;
    process.trusted(4).await;
    process
}

#[tokio::test]
async fn a_change_is_seen_by_the_next_read_of_another_process() {
    const CHANGES: usize = 300;
    for (server, redis) in layouts().await {
        let writers =
            [Process::start(&server, &redis).await, Process::start(&server, &redis).await];
        let verifier = tokio::spawn(writers[0].verifier().run());
        assert!(writers[0].writer.write(Add { list: 4, member: 8 }).await.unwrap());
        let [_, reader] = &writers;
        reader.trusted(4).await;
        let acknowledged = AtomicUsize::new(1);
        let reads = async || {
            while acknowledged.load(Ordering::Relaxed) <= CHANGES {
                let least = acknowledged.load(Ordering::Relaxed);
                let members = reader.read(4).await.len();
                assert!(members >= least, "{}: {members} of {least}", server.kind());
            }
        };
        let changes = async {
            for change in 0..CHANGES {
                let add = Add { list: 4, member: 12 + 4 * change as u64 };
                assert!(writers[change % 2].writer.write(add).await.unwrap());
                acknowledged.fetch_add(1, Ordering::Relaxed);
                assert_eq!(reader.read(4).await.len(), change + 2, "{}", server.kind());
                // Until it is cached.
                for _ in 0..change % 4 {
                    reader.read(4).await;
                }
            }
        };
        tokio::join!(changes, reads(), reads(), reads());
        eventually("the list and the mark are cached", PATIENCE, async || {
            reader.read(4).await;
            let tracked = redis.nodes().iter().map(|node| info(node, "tracking_total_keys"));
            join_all(tracked).await.into_iter().sum::<u64>() >= 2
        })
        .await;
        verifier.abort();
    }
}

/// Starts a proxy before a server, which holds back what the server sends, or not.
async fn holding_proxy(server: u16) -> (u16, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (hold, is_held) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut is_held = is_held.clone();
            let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                    is_held.wait_for(|held| !held).await.unwrap();
                    to_client.write_all(&buffer[..read]).await.unwrap();
                }
            });
        }
    });
    (port, hold)
}

#[tokio::test]
async fn a_read_waits_for_what_redis_has_announced() {
    let (server, redis) = (Server::sqlite(), Store::start(Topology::Single).await);
    let writer = start_with_list(&server, &redis).await;
    let verifier = tokio::spawn(writer.verifier().run());
    let node = &redis.nodes()[0];
    let (port, hold) = holding_proxy(node.port()).await;
    let [of_server, of_proxy] = [node.port(), port].map(|port| format!(":{port}"));
    let config = Config::at(node.admin_url().replace(&of_server, &of_proxy));
    let reader = Process::start_at(&server, config).await;
    let mut expected = vec![8];
    for member in 12..16 {
        wait_until_cached(&reader, node).await;
        hold.send(true).unwrap();
        assert!(writer.writer.write(Add { list: 4, member }).await.unwrap());
        expected.push(member);
        let go_on = async {
            sleep(Duration::from_millis(100)).await;
            hold.send(false).unwrap();
        };
        let (members, ()) = tokio::join!(reader.read(4), go_on);
        assert_eq!(members, expected);
    }
    verifier.abort();
}

#[tokio::test]
async fn a_hit_costs_a_ping_and_concurrent_ones_share_it() {
    let (server, redis) = (Server::sqlite(), Store::start(Topology::Single).await);
    let process = start_with_list(&server, &redis).await;
    let node = &redis.nodes()[0];
    wait_until_cached(&process, node).await;
    // The mark stays fresh for longer than the reads take.
    process.verified(&mut process.verifier()).await;
    process.trusted(4).await;
    wait_until_cached(&process, node).await;
    process.read(4).await;
    let (read, began) = (async || assert_eq!(process.read(4).await, [8]), Instant::now());
    node.reset_commandstats().await;
    for _ in 0..200 {
        read().await;
    }
    let stats = node.commandstats().await;
    assert_eq!((stats.get("ping"), stats.get("get")), (Some(&200), None), "{stats:?}");
    // Those of the task that reads the mark of its own accord.
    let calls = stats.get("fcall").copied().unwrap_or_default();
    assert!(u128::from(calls) <= 1 + began.elapsed().as_millis() / 250, "{stats:?}");
    node.reset_commandstats().await;
    join_all((0..64).map(|_| read())).await;
    let stats = node.commandstats().await;
    assert_eq!((stats.get("ping"), stats.get("get")), (Some(&1), None), "{stats:?}");
}

/// A change that was not applied is not in the entry: a read that shows it found none.
#[tokio::test]
async fn an_entry_that_redis_loses_is_lost_to_the_process_too() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = start_with_list(&server, &redis).await;
    let (other, _redis) = start_cut_off(&server).await;
    let (node, mut expected) = (&redis.nodes()[0], vec![8]);
    let mut admin = node.admin().await;
    let entry = process.keys(4).await.entry;
    let limit = |bytes: u8| cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).take();
    let policy = cmd("CONFIG").arg("SET").arg("maxmemory-policy").arg("volatile-lfu").take();
    let losses = [
        vec![cmd("UNLINK").arg(&entry).take()],
        vec![cmd("PEXPIREAT").arg(&entry).arg(1).take()],
        vec![policy, limit(1), cmd("PING"), limit(0)],
        vec![cmd("FLUSHALL")],
    ];
    for (member, loss) in (12..).zip(losses) {
        process.verified(&mut process.verifier()).await;
        wait_until_cached(&process, node).await;
        assert!(other.writer.write(Add { list: 4, member }).await.unwrap());
        assert_eq!(process.read(4).await, expected, "it is cached");
        for command in loss {
            command.exec_async(&mut admin).await.unwrap();
        }
        expected.push(member);
        assert_eq!(process.read(4).await, expected);
    }
}

/// Redis may delete a key long after it has expired. Until then, it announces nothing.
#[tokio::test]
async fn a_change_of_an_entry_that_has_expired_is_seen() {
    let server = Server::sqlite();
    let redis = RedisServer::start_with(&[("enable-debug-command", "yes")]).await;
    let redis = Store::Single(redis);
    let process = start_with_list(&server, &redis).await;
    let verifier = tokio::spawn(process.verifier().run());
    let writer = Process::start(&server, &redis).await;
    let node = &redis.nodes()[0];
    let mut admin = node.admin().await;
    cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec_async(&mut admin).await.unwrap();
    let entry = process.keys(4).await.entry;
    let expired = loop {
        let expire = cmd("PEXPIRE").arg(&entry).arg(3_000).take();
        let is_there: bool = expire.query_async(&mut admin).await.unwrap();
        let expired = Instant::now() + Duration::from_millis(3_100);
        wait_until_cached(&process, node).await;
        if is_there && Instant::now() + Duration::from_millis(200) < expired {
            break expired;
        }
        // It has expired before it was cached.
        process.read(4).await;
    };
    sleep_until(expired).await;
    let before = gets(node).await;
    assert_eq!(process.read(4).await, [8]);
    assert_eq!(gets(node).await, before, "it is cached, and as the database has it");
    assert!(writer.writer.write(Add { list: 4, member: 12 }).await.unwrap());
    assert_eq!(process.read(4).await, [8, 12]);
    verifier.abort();
}

#[tokio::test]
async fn values_of_another_history_are_not_used() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = start_with_list(&server, &redis).await;
    let (reader, node) = (Process::start(&server, &redis).await, &redis.nodes()[0]);
    let mut expected = vec![8];
    for member in 12..20 {
        process.verified(&mut process.verifier()).await;
        wait_until_cached(&reader, node).await;
        let mark: BTreeMap<String, Vec<u8>> =
            cmd("HGETALL").arg(MARK).query_async(&mut node.admin().await).await.unwrap();
        let renew = "UPDATE history SET random = random + 1";
        sqlx::query(renew).execute(process.database.writers()).await.unwrap();
        assert!(process.writer.write(Add { list: 4, member }).await.unwrap());
        expected.push(member);
        if member % 2 == 0 {
            // As the verifier does, before the reader knows of the history.
            let mut write = cmd("HSET");
            write.arg(MARK).arg(mark).arg("history").arg(b"another.");
            write.exec_async(&mut node.admin().await).await.unwrap();
        }
        assert_eq!(reader.read(4).await, expected, "the mark is ended, or another one");
    }
}
