//! The database of a test, and what it has of accounts.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use microblog_domain::Partition;
use microblog_record::Recorder;
pub use microblog_testkit::Database;
use microblog_testkit::{
    Store as Redis, eventually,
    redis::{aio::MultiplexedConnection, cmd},
};
use microblog_user::{AccountTables, Accounts, Store};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Row as _, any::AnyRow};

use super::{PATIENCE, accounts_with_hold, config};

/// What is recorded of an account, besides its versions: card, address, password hash, request.
pub type Row = [String; 4];

/// What a database has of accounts.
pub trait Record {
    /// Returns rows; none if the database is away, or without tables.
    async fn query(&self, statement: String) -> Vec<AnyRow>;

    /// Changes a row by a statement.
    async fn change(&self, statement: &str);

    /// Returns the recorded accounts.
    async fn accounts(&self) -> BTreeMap<u64, Row>;

    /// Waits until the database has exactly these accounts, as they are in Redis.
    async fn has(&self, redis: &Redis, ids: &[u64]);
}

impl Record for Database {
    async fn query(&self, statement: String) -> Vec<AnyRow> {
        sqlx::any::install_default_drivers();
        let Ok(mut connection) = AnyConnection::connect(&self.url()).await else {
            return Vec::new();
        };
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(&mut connection).await;
        rows.unwrap_or_default()
    }

    async fn change(&self, statement: &str) {
        let mut connection = AnyConnection::connect(&self.url()).await.unwrap();
        let statement = sqlx::query(AssertSqlSafe(statement.to_owned()));
        assert_eq!(statement.execute(&mut connection).await.unwrap().rows_affected(), 1);
    }

    async fn accounts(&self) -> BTreeMap<u64, Row> {
        let text = "SELECT account, card, email, password, request FROM accounts";
        let row = |row: &AnyRow| {
            (row.get::<i64, _>(0) as u64, [1, 2, 3, 4].map(|column| row.get::<String, _>(column)))
        };
        self.query(text.to_owned()).await.iter().map(row).collect()
    }

    async fn has(&self, redis: &Redis, ids: &[u64]) {
        let expected = stored(redis, ids).await;
        eventually("the changes are recorded", PATIENCE, async || {
            self.accounts().await == expected
        })
        .await;
    }
}

pub async fn admin_of(redis: &Redis, key: &str) -> MultiplexedConnection {
    let node = match redis {
        Redis::Single(_) => 0,
        Redis::Cluster(cluster) => cluster.primary_of(key, 0).await,
    };
    redis.nodes()[node].admin().await
}

/// Returns what Redis has of accounts.
pub async fn stored(redis: &Redis, ids: &[u64]) -> BTreeMap<u64, Row> {
    let mut rows = BTreeMap::new();
    for &id in ids {
        let key = format!("user:{{{}}}:profile:{id}", Partition::of_id(id));
        let mut read = cmd("HMGET");
        read.arg(&key).arg(&["card", "email", "password", "request"]);
        let mut admin = admin_of(redis, &key).await;
        let (card, email, password, request): (Vec<u8>, String, String, String) =
            read.query_async(&mut admin).await.unwrap();
        rows.insert(id, [BASE64.encode(card), email, password, request]);
    }
    rows
}

/// Returns rules and a recorder of their own.
pub async fn recorder(
    redis: &Redis,
    database: &Database,
    hold: Duration,
) -> (Accounts, Store, Recorder<AccountTables>) {
    let flags = ["--database-timeout-ms=60000", &database.flag()];
    let config = config(redis, &flags);
    let opened = microblog_record::Database::open(&config.database).unwrap().unwrap();
    let (store, accounts) = accounts_with_hold(redis, hold).await;
    (accounts.clone(), store, microblog_user::recorder(accounts, opened))
}
