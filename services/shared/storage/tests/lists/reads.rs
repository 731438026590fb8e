//! Reads from the cache and from the database.

use futures::future::join_all;
use microblog_keyspace::redis::cmd;
use microblog_testkit::{Database as Server, Store, Topology};

use crate::lists::{Add, Process, layouts};

/// Returns how often the database was asked for an item since the server started.
async fn loads(process: &Process) -> u64 {
    let scans = "SELECT COALESCE(SUM(seq_scan + idx_scan), 0)::bigint FROM pg_stat_user_tables \
        WHERE relname = 'lists'";
    let row = sqlx::query(scans).fetch_one(process.database.writers()).await.unwrap();
    microblog_record::sql::read(&row, 0).unwrap()
}

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
        for member in 9..30 {
            assert!(process.writer.write(Add { list: 4, member }).await.unwrap());
            assert_eq!(process.read(4).await, (8..=member).collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn readers_of_one_item_share_a_load() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    process.verified(&mut process.verifier()).await;
    process.read(8).await;
    process.trusted(4).await;
    let before = loads(&process).await;
    let reads = join_all((0..50).map(|_| process.read(4))).await;
    assert!(reads.iter().all(|members| members == &[8]));
    assert_eq!(process.cached(4).await.unwrap().1.len(), 1);
    // The server counts with a delay of its own, so other loads could be missed, but not invented.
    assert!(loads(&process).await - before <= 2);
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
