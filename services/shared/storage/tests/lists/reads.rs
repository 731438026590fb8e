//! Reads from the cache and from the database.

use futures::future::join_all;
use microblog_keyspace::redis::cmd;
use microblog_storage::Token;
use microblog_testkit::{Database as Server, Store, Topology};

use crate::lists::{Add, Process, layouts};

#[tokio::test]
async fn a_read_sees_what_was_acknowledged_with_and_without_trust() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        assert!(process.read(4).await.is_empty(), "there is no list");
        assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
        assert_eq!(process.read(4).await, [8], "not trusted: the database answers");
        assert_eq!(process.cached(4).await, None);
        process.verified(&mut process.verifier()).await;
        process.trusted(4).await;
        assert_eq!(process.read(4).await, [8]);
        assert!(process.cached(4).await.is_some(), "{}: trusted, and installed", server.kind());
        // Anybody may ask for what does not exist.
        assert!(process.read(8).await.is_empty());
        for (list, lifetime_s) in [(4, 61..=7 * 24 * 3600), (8, 1..=60)] {
            let ttl = cmd("TTL").arg(process.keys(list).await.entry).take();
            let ttl: i64 = process.keyspace.query(ttl).await.unwrap();
            assert!(lifetime_s.contains(&ttl), "{list}: {ttl} s");
        }
        for member in 9..30 {
            assert!(process.writer.write(Add { list: 4, member }).await.unwrap());
            assert_eq!(process.read(4).await, (8..=member).collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn a_read_beside_a_load_that_does_not_end_asks_the_database() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    process.verified(&mut process.verifier()).await;
    process.read(8).await;
    process.trusted(4).await;
    // A loader that was stopped.
    let keys = process.keys(4).await;
    assert!(process.cache.lease(&keys, Token(1)).await.unwrap());
    let reads = join_all((0..50).map(|_| process.read(4))).await;
    assert!(reads.iter().all(|members| members == &[8]));
    assert_eq!(process.cached(4).await, None, "the lease is another one's");
    process.cache.remove(&[keys]).await.unwrap();
    process.trusted(4).await;
    process.read(4).await;
    assert!(process.cached(4).await.is_some());
}

#[tokio::test]
async fn an_empty_redis_is_filled_by_reads() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        let lists = [4, 8, 12, 16, 20];
        for list in lists {
            assert!(process.writer.write(Add { list, member: 8 }).await.unwrap());
        }
        let mut verifier = process.verifier();
        process.verified(&mut verifier).await;
        join_all(lists.map(|list| process.read(list))).await;
        for _ in 0..5 {
            for node in redis.nodes() {
                cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
            }
            let reads = join_all(lists.map(|list| process.read(list))).await;
            assert!(reads.iter().all(|members| members == &[8]), "{reads:?}");
        }
        process.verified(&mut verifier).await;
        process.trusted(4).await;
        assert_eq!(process.read(4).await, [8]);
        assert!(process.cached(4).await.is_some());
    }
}
