//! The time to record a Redis full of accounts, and to restore it, with the process's peak memory
//! meanwhile.
//!
//! `cargo bench -p microblog-user --bench recovery [-- ACCOUNTS]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails panics")]

#[path = "../../shared/record/benches/support/mod.rs"]
mod recording;

use std::{sync::Arc, time::Duration};

use clap::Parser as _;
use microblog_keyspace::Keyspace;
use microblog_testkit::{Database, RedisServer};
use microblog_user::{
    Accounts, Config, Email, Hasher, Name, Store, import::ImportEntry, recorder, store,
};

/// Accounts of one import.
const BATCH: usize = 5_000;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let accounts = recording::argument(0).unwrap_or(100_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for database in Database::both().await {
            println!("{}:", database.kind());
            measure(&database, accounts).await;
        }
    });
}

async fn measure(database: &Database, count: u64) {
    let server = RedisServer::start().await;
    let url = server.url("user");
    let config = Config::parse_from(["user", "--redis-url", &url, &database.flag()]);
    let store = Store::new(Keyspace::open(&config.redis, store::LIBRARY).unwrap());
    store.ready().await.unwrap();
    let accounts = Accounts::new(store, Hasher::of_process(1), DAY, DAY);
    let mut entries = (0..count).map(entry);
    loop {
        let batch: Vec<_> = entries.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            break;
        }
        accounts.import(batch, None).await.unwrap();
    }
    let database = microblog_record::Database::open(&config.database).unwrap().unwrap();
    let recorder = Arc::new(recorder(accounts, database));
    recording::record(&recorder, (count, "accounts")).await;
    recording::restore_all(&server, &recorder, (count, "accounts")).await;
}

fn entry(n: u64) -> ImportEntry {
    let name = format!("account{n}");
    let email = Email::parse("email", &format!("{name}@example.org")).unwrap();
    ImportEntry { name: Name::parse("name", &name).unwrap(), email }
}
