//! The recorder with tables that lose changes of Redis while they record them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use clap::Parser as _;
use futures::{FutureExt as _, future::BoxFuture};
use microblog_domain::Partition;
use microblog_keyspace::{Change, Journals, Keyspace, Library, redis};
use microblog_record::{
    Config, Database, Migration, POSITIONS, RecordError, Recorder, Tables, WriteTransaction,
};
use microblog_testkit::RedisServer;

const JOURNALS: Journals = Journals { key };

fn key(partition: Partition) -> String {
    format!("rel:{{{partition}}}:journal")
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

/// Tables without rows.
struct Losing {
    redis: RedisServer,
    /// Whether the recorded entry is lost meanwhile, as in a failover.
    is_losing: Arc<AtomicBool>,
}

impl Losing {
    async fn lose(&self, change: &Change) {
        if self.is_losing.load(Ordering::Relaxed) {
            let version = change.version.to_string();
            let delete = redis::cmd("XDEL").arg(key(Partition::new(1))).arg(version).take();
            let () = delete.query_async(&mut self.redis.admin().await).await.unwrap();
        }
    }
}

impl Tables for Losing {
    const MIGRATIONS: &[Migration] = &[POSITIONS];

    fn accounts_key(partition: Partition) -> String {
        format!("rel:{{{partition}}}:users")
    }

    fn apply<'a>(
        &'a self,
        _: &'a mut WriteTransaction,
        changes: &'a [Change],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        async {
            self.lose(changes.last().unwrap()).await;
            Ok(())
        }
        .boxed()
    }

    fn merge<'a>(
        &'a self,
        _: &'a mut WriteTransaction,
        _: &'a [Change],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        async { Ok(()) }.boxed()
    }

    fn clear<'a>(
        &'a self,
        _: &'a mut WriteTransaction,
        _: Partition,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        async { Ok(()) }.boxed()
    }

    fn restore<'a>(
        &'a self,
        _: &'a Database,
        _: Partition,
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        async { Ok(()) }.boxed()
    }

    fn fill<'a>(
        &'a self,
        _: &'a mut WriteTransaction,
        _: &'a [Partition],
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn a_change_that_is_lost_while_it_is_recorded_is_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/record.sqlite", directory.path().display());
    let flags = Flags::parse_from(["test", "--database-url", &url]);
    let redis = RedisServer::start().await;
    let config = microblog_keyspace::Config::at(redis.url("relation"));
    let keyspace = Keyspace::open(&config, Library { name: "test", source: "" }).unwrap();
    let database = Database::open(&flags.database).unwrap().unwrap();
    let is_losing = Arc::new(AtomicBool::new(true));
    let tables = Losing { redis, is_losing: is_losing.clone() };
    let partition = Partition::new(1);
    let recorder = Recorder::new("test", database, keyspace.clone(), JOURNALS, tables);
    recorder.run().await.unwrap();

    let append = async |number| {
        let version = format!("1-{number}").parse().unwrap();
        let change = Change { version, text: format!("change {number}") };
        assert!(JOURNALS.append(&keyspace, partition, &change).await.unwrap());
    };
    append(1).await;
    let lost = recorder.record(&[partition]).await;
    assert!(matches!(lost, Err(RecordError::Lost(at)) if at == partition), "{lost:?}");

    is_losing.store(false, Ordering::Relaxed);
    append(2).await;
    let recorded = recorder.record(&[partition]).await.unwrap();
    assert!(recorded.diverged.is_empty(), "the position is the one before the lost change");
    assert_eq!(recorded.pages[&partition].len(), 2);
}
