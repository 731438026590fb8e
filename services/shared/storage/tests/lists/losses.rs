//! Changes that did not reach the cache, and a cache that has lost some.

use std::{path::Path, process::Command};

use microblog_testkit::{Database as Server, PATIENCE, RedisServer, Store, Topology, eventually};

use tempfile::TempDir;

use crate::lists::{Add, Process, layouts};

/// Starts a process with a Redis of its own, whose writes do not reach that of the others: like one that
/// dies after each commit.
pub(crate) async fn start_cut_off(server: &Server) -> (Process, Store) {
    let redis = Store::start(Topology::Single).await;
    (Process::start(server, &redis).await, redis)
}

#[tokio::test]
async fn a_change_that_was_not_applied_is_found() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Cluster).await);
    let process = Process::start(&server, &redis).await;
    let (other, _redis) = start_cut_off(&server).await;
    let mut verifier = process.verifier();
    for list in [4, 8] {
        assert!(process.writer.write(Add { list, member: 8 }).await.unwrap());
        process.load(list).await;
    }
    process.verified(&mut verifier).await;
    assert_eq!(process.read(4).await, [8], "the process knows the history");
    assert!(other.writer.write(Add { list: 4, member: 12 }).await.unwrap());
    assert_eq!(process.cached(4).await.unwrap().1.len(), 1, "it is stale");
    eventually("the entry is deleted", PATIENCE, async || {
        process.verified(&mut verifier).await;
        process.cached(4).await.is_none()
    })
    .await;
    process.trusted(4).await;
    assert_eq!(process.read(4).await, [8, 12]);
    assert!(process.cached(8).await.is_some(), "the other entry was left alone");
}

#[tokio::test]
async fn a_replica_that_was_behind_is_not_trusted_until_it_is_gone_over() {
    let server = Server::postgres().await;
    let primary = RedisServer::start().await;
    let replica = primary.start_replica().await;
    let (primary, replica) = (Store::Single(primary), Store::Single(replica));
    let old = Process::start(&server, &primary).await;
    let mut verifier = old.verifier();
    assert!(old.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    old.load(4).await;
    old.verified(&mut verifier).await;
    wait_for_replica(&primary).await;
    promote(&replica).await;
    assert!(old.writer.write(Add { list: 4, member: 12 }).await.unwrap());
    old.verified(&mut verifier).await;

    let new = Process::start(&server, &replica).await;
    assert_eq!(new.cached(4).await.unwrap().1.len(), 1, "it is stale");
    for _ in 0..20 {
        assert_eq!(new.read(4).await, [8, 12], "and not trusted");
    }
    let round = new.verified(&mut new.verifier()).await;
    assert_eq!((round.gone_over, round.deleted), (1, 1));
    new.trusted(4).await;
    assert_eq!(new.read(4).await, [8, 12]);
}

#[tokio::test]
async fn a_feed_that_does_not_reach_back_ends_all_entries() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        let mut verifier = process.verifier();
        assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
        process.load(4).await;
        process.verified(&mut verifier).await;
        for member in 9..20 {
            assert!(process.writer.write(Add { list: 8, member }).await.unwrap());
        }
        let purge = "DELETE FROM feed WHERE position < 10";
        sqlx::query(purge).execute(process.database.writers()).await.unwrap();
        let mut another = process.verifier();
        let mut renewed = false;
        eventually("a round ends", PATIENCE, async || {
            let round = another.round().await.unwrap();
            renewed = round.renewed;
            round.renewed || round.marked > 0
        })
        .await;
        assert!(renewed, "{}", server.kind());
        assert_eq!(process.cached(4).await, None);
        assert_eq!(process.read(4).await, [8]);
        process.verified(&mut another).await;
        process.trusted(4).await;
        process.read(4).await;
        assert!(process.cached(4).await.is_some());
    }
}

#[tokio::test]
async fn an_empty_redis_is_trusted_again_however_long_the_feed_is() {
    const ROWS: u64 = 60_000;
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
        let rows = format!(
            "INSERT INTO feed (position, time_ms, items, change) WITH RECURSIVE more(n) AS \
             (SELECT 2 UNION ALL SELECT n + 1 FROM more WHERE n < {ROWS}) \
             SELECT n, 1, '', 'nothing' FROM more"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(rows)).execute(process.database.writers()).await.unwrap();
        // What is known of the primaries is lost, as by a restart of both.
        let (mut verifier, mut renewals) = (process.verifier(), 0);
        eventually("all primaries are marked", PATIENCE, async || {
            let round = verifier.round().await.unwrap();
            renewals += usize::from(round.renewed);
            round.verified.is_some()
        })
        .await;
        assert_eq!(renewals, 1, "{}", server.kind());
        assert_eq!(process.read(4).await, [8]);
        process.trusted(4).await;
        process.read(4).await;
        assert!(process.cached(4).await.is_some());
    }
}

#[tokio::test]
async fn a_database_that_is_an_older_copy_of_itself_ends_all_entries() {
    let (server, redis) = (Server::postgres().await, Store::start(Topology::Single).await);
    let process = Process::start(&server, &redis).await;
    let mut verifier = process.verifier();
    assert!(process.writer.write(Add { list: 4, member: 8 }).await.unwrap());
    let Server::Postgres(postgres) = &server else { unreachable!() };
    let directory = TempDir::new().unwrap();
    let (data, copy) = (postgres.data(), directory.path().join("data"));
    postgres.kill();
    copy_directory(&data, &copy);
    postgres.restart().await;
    let wrote = async |member| process.writer.write(Add { list: 4, member }).await.is_ok();
    eventually("the database is back", PATIENCE, async || wrote(12).await).await;
    process.load(4).await;
    process.verified(&mut verifier).await;
    process.trusted(4).await;
    assert_eq!(process.read(4).await, [8, 12]);

    postgres.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy_directory(&copy, &data);
    postgres.restart().await;
    // As many rows as were lost, before the verifier looks.
    eventually("the database is back", PATIENCE, async || wrote(16).await).await;
    let mut renewed = false;
    eventually("a round ends", PATIENCE, async || {
        let round = verifier.round().await.unwrap_or_default();
        renewed |= round.renewed;
        round.marked > 0
    })
    .await;
    assert!(renewed);
    assert_eq!(process.read(4).await, [8, 16], "the process learns the history");
    process.trusted(4).await;
    assert_eq!(process.read(4).await, [8, 16]);
}

// With owners and permissions, on which PostgreSQL insists.
fn copy_directory(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

pub(crate) async fn promote(replica: &Store) {
    let mut admin = replica.nodes()[0].admin().await;
    microblog_keyspace::redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .exec_async(&mut admin)
        .await
        .unwrap();
}

// Waits until a replica has all that its primary has.
pub(crate) async fn wait_for_replica(primary: &Store) {
    let mut admin = primary.nodes()[0].admin().await;
    let mut wait = microblog_keyspace::redis::cmd("WAIT");
    let replicas: u64 = wait.arg(1).arg(60_000).query_async(&mut admin).await.unwrap();
    assert_eq!(replicas, 1);
}
