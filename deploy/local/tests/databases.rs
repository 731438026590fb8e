//! Services with PostgreSQL: behind PgBouncer, with a password that changes, and with a database that no
//! service can use.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{fs, time::Duration};

use microblog_proto::relation::{FollowRequest, relation_service_client::RelationServiceClient};
use microblog_testkit::{
    PATIENCE, PgBouncer, PoolMode, PostgresServer, Process, RedisServer, eventually, free_port,
};
use tonic::{Status, transport::Endpoint};

const PROGRAM: &str = env!("CARGO_BIN_EXE_microblog");

/// A replica of the relation service. A change is acknowledged when the database has it.
struct Replica {
    process: Process,
    port: u16,
}

impl Replica {
    /// Starts a replica, without waiting.
    fn spawn(redis: &RedisServer, flags: &[&str]) -> Self {
        let port = free_port();
        let listen = format!("--relation-listen=127.0.0.1:{port}");
        let redis = format!("--relation-redis-url={}", redis.url("relation"));
        // Many connections may have to be made, on a slow machine.
        let own = ["serve", "--services=relation", "--threads=2", "--database-timeout-ms=20000"];
        let args = [&own, &[&*listen, &*redis][..], flags].concat();
        Self { process: Process::spawn_services(PROGRAM, &args), port }
    }

    async fn follow(&self, target_id: u64) -> Result<(), Status> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port)).unwrap();
        let mut client = RelationServiceClient::new(endpoint.connect_lazy());
        client.follow(FollowRequest { follower_id: 4, target_id }).await.map(|_| ())
    }

    /// Waits until it acknowledges a change: the database has its tables.
    async fn wait_until_written(&self) {
        self.process.wait_until_serving().await;
        eventually("a change is acknowledged", PATIENCE, async || self.follow(8).await.is_ok())
            .await;
    }
}

#[tokio::test]
async fn replicas_that_start_at_once_behind_a_pooler_all_serve() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let (redis, server) = (RedisServer::start().await, PostgresServer::start().await);
        server.create_roles("secret");
        let pooler = PgBouncer::start(&server, mode).await;
        let url = format!("--relation-database-url={}", pooler.url_of("relation"));
        let replicas: Vec<_> = (0..3).map(|_| Replica::spawn(&redis, &[&url])).collect();
        for replica in &replicas {
            replica.wait_until_written().await;
        }
        for (replica, target) in replicas.iter().cycle().zip(2..32) {
            let followed = replica.follow(target << 12).await;
            followed.unwrap_or_else(|status| panic!("{mode:?}: {status:?}"));
        }
    }
}

#[tokio::test]
async fn a_password_that_changes_needs_no_restart() {
    let (redis, server) = (RedisServer::start().await, PostgresServer::start().await);
    server.create_roles("first");
    let rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "first\n").unwrap();
    let url = format!("postgres://relation@127.0.0.1:{}/postgres", server.port());
    let url = format!("--relation-database-url={url}");
    let path = format!("--relation-database-password-file={}", file.display());
    let replica = Replica::spawn(&redis, &[&url, &path]);
    replica.wait_until_written().await;
    for (round, password) in ["second", "third % & \u{e4}"].into_iter().enumerate() {
        server.create_roles(password);
        fs::write(&file, password).unwrap();
        server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relation'",
        );
        for target in 1..=5 {
            replica.follow((round as u64 * 5 + target) << 12).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_service_does_not_start_with_a_database_that_it_cannot_use() {
    let (redis, server) = (RedisServer::start().await, PostgresServer::start().await);
    server.sql("CREATE DATABASE latin1 ENCODING 'LATIN1' TEMPLATE template0");
    server.sql("CREATE ROLE reader LOGIN");
    let url = |role, name| {
        format!("--relation-database-url=postgres://{role}@127.0.0.1:{}/{name}", server.port())
    };
    for (url, expected) in [
        (url("postgres", "latin1"), "the encoding of the database is LATIN1"),
        (url("reader", "postgres"), "may not create tables in its schema"),
        (url("postgres", "postgres?statement-cache-capacity=0"), "leave the parameter out"),
    ] {
        let replica = Replica::spawn(&redis, &[&url]);
        let status = replica.process.ended(Duration::from_secs(60)).await;
        let log = replica.process.log();
        assert_eq!(status.code(), Some(1), "{expected}: {log}");
        assert!(log.contains(expected), "{expected}: {log}");
    }
}
