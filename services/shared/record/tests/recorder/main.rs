//! The recorder with tables that lose changes of Redis while they record them, and with a recovery
//! that pauses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod change_feed;
mod stalls;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use clap::Parser as _;
use futures::{FutureExt as _, future::BoxFuture};
use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, Call, Change, Journals, Keyspace, Library, Recovery, redis,
};
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Config, Damaged, Database, ExistingPage, Migration, POSITIONS, RecordError, Recorder, Replace,
    RowKey, Source, Tables, Work, WriteTransaction,
};
use microblog_testkit::{PATIENCE, PostgresServer, RedisServer, eventually};
use tempfile::TempDir;
use tokio::sync::Notify;

const JOURNALS: Journals = Journals { key };

fn key(partition: Partition) -> String {
    format!("post:{{{partition}}}:journal")
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    database: Config,
}

/// Tables without rows.
struct Losing {
    redis: Arc<RedisServer>,
    keyspace: Keyspace,
    /// The keyspace as calls have it.
    served: Keyspace,
    /// Whether the recorded entry is lost meanwhile, as in a failover.
    is_losing: Arc<AtomicBool>,
    /// What a recovery waits for before it writes, after it has said that it began.
    pause: Option<(Arc<Notify>, Arc<Notify>)>,
    /// When Redis loses everything: while this partition is filled.
    emptied_at: Option<Partition>,
    /// Whether calls were served while the first partition was filled.
    served_at_fill: Option<Arc<AtomicBool>>,
    /// How often PostgreSQL stops a transaction for another one.
    deadlocks: AtomicUsize,
    /// The server that goes silent while a partition is filled.
    silent: Option<Arc<stalls::SilentServer>>,
}

impl Losing {
    async fn lose(&self) {
        if self.is_losing.load(Ordering::Relaxed) {
            let delete = redis::cmd("XDEL").arg(key(Partition::new(1))).arg("1-1").take();
            let () = delete.query_async(&mut self.redis.admin().await).await.unwrap();
        }
    }
}

impl Tables for Losing {
    const MIGRATIONS: &[Migration] = &[POSITIONS, microblog_record::change_feed(2)];

    fn accounts_key(partition: Partition) -> String {
        format!("post:{{{partition}}}:users")
    }

    type Entry = String;

    fn parse(entry: &str) -> Option<String> {
        (entry != "unknown").then(|| entry.to_owned())
    }

    const CHANGE_KINDS: &[ChangeKind] = &[ChangeKind::Post];

    // The feed has entries of two numbers.
    fn change(entry: &String) -> Option<pb::Change> {
        let (user_id, version) = entry.split_once(' ')?;
        let (user_id, version) = (user_id.parse().ok()?, version.parse().ok()?);
        let kind = ChangeKind::Post.into();
        Some(pb::Change { kind, user_id, version, ..pb::Change::default() })
    }

    fn existing<'a>(
        &'a self,
        _: &'a Database,
        _: ChangeKind,
        _: RowKey,
    ) -> BoxFuture<'a, Result<ExistingPage, microblog_record::Error>> {
        async { Ok((Vec::new(), None)) }.boxed()
    }

    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [String],
        _: Replace,
    ) -> Work<'a> {
        async {
            let less = |count: usize| count.checked_sub(1);
            if self.deadlocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                let deadlock = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$";
                sqlx::raw_sql(deadlock).execute(&mut **transaction).await?;
            }
            if changes.iter().any(|change| change == "poison") {
                return Err(microblog_record::Error::Malformed("poison").into());
            }
            if !changes.is_empty() {
                self.lose().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn clear<'a>(&'a self, _: &'a mut WriteTransaction, _: Partition) -> Work<'a> {
        async { Ok(()) }.boxed()
    }

    fn restore<'a>(&'a self, _: &'a Database, recovery: Recovery, _: &'a Damaged) -> Work<'a> {
        async move {
            if let Some((begun, go_on)) = &self.pause {
                begun.notify_one();
                go_on.notified().await;
            }
            let write = Call::new("write").recovery(recovery, key(recovery.partition));
            let write = write.key(format!("post:{{{}}}:writer", recovery.partition));
            let writer = if self.pause.is_some() { "paused" } else { "other" };
            Ok(self.keyspace.call::<()>(write.arg(writer)).await?)
        }
        .boxed()
    }

    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> Work<'a> {
        async {
            if self.silent.as_ref().is_some_and(|server| server.is_due()) {
                sqlx::query("SELECT 1").execute(&mut **transaction).await?;
            }
            if self.emptied_at.is_some_and(|at| partitions.contains(&at)) {
                let mut admin = self.redis.admin().await;
                let () = redis::cmd("FLUSHALL").query_async(&mut admin).await.unwrap();
            }
            if let Some(served) = &self.served_at_fill
                && partitions.contains(&Partition::new(0))
            {
                let read = redis::cmd("GET").arg("post:{1}:writer").take();
                let is_served = self.served.query::<Option<String>>(read).await.is_ok();
                served.store(is_served, Ordering::Relaxed);
            }
            Ok(())
        }
        .boxed()
    }
}

const LIBRARY: Library = Library {
    name: "test",
    source: "register_recovery('write', function(keys, args)
        redis.call('SET', keys[1], args[1])
    end)",
};

struct Setup {
    redis: Arc<RedisServer>,
    /// Where SQLite has its file.
    _directory: Option<TempDir>,
    /// Of the database.
    url: String,
}

impl Setup {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/record.sqlite", directory.path().display());
        Self { _directory: Some(directory), ..Self::with(url).await }
    }

    async fn with(url: String) -> Self {
        Self { redis: Arc::new(RedisServer::start().await), _directory: None, url }
    }

    async fn add_account(&self, partition: Partition) {
        let mut admin = self.redis.admin().await;
        let add = redis::cmd("SADD").arg(Losing::accounts_key(partition)).arg(1).take();
        let () = add.query_async(&mut admin).await.unwrap();
    }

    fn keyspace(&self) -> Keyspace {
        let config = microblog_keyspace::Config::at(self.redis.url("post"));
        Keyspace::open(&config, LIBRARY).unwrap()
    }

    fn database(&self) -> Database {
        let flags = Flags::parse_from(["test", "--database-url", &self.url]);
        Database::open(&flags.database).unwrap().unwrap()
    }

    fn recorder(&self, losing: impl FnOnce(&mut Losing)) -> Recorder<Losing> {
        self.recorder_of(self.keyspace(), losing)
    }

    fn recorder_of(
        &self,
        keyspace: Keyspace,
        losing: impl FnOnce(&mut Losing),
    ) -> Recorder<Losing> {
        let mut tables = Losing {
            redis: self.redis.clone(),
            keyspace: keyspace.ignoring_closed(),
            served: keyspace.clone(),
            is_losing: Arc::default(),
            pause: None,
            emptied_at: None,
            served_at_fill: None,
            deadlocks: AtomicUsize::new(0),
            silent: None,
        };
        losing(&mut tables);
        Recorder::new("test", self.database(), keyspace, JOURNALS, tables)
    }
}

#[tokio::test]
async fn a_change_that_is_lost_while_it_is_recorded_is_not_recorded() {
    let setup = Setup::new().await;
    let (keyspace, is_losing) = (setup.keyspace(), Arc::new(AtomicBool::new(true)));
    let partition = Partition::new(1);
    let recorder = setup.recorder(|tables| tables.is_losing = is_losing.clone());
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

#[tokio::test]
async fn a_paused_recovery_writes_nothing_after_another_one() {
    let setup = Setup::new().await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let paused = setup.recorder(|tables| tables.pause = Some((begun.clone(), go_on.clone())));
    let other = setup.recorder(|_| {});
    paused.run().await.unwrap();
    let partition = Partition::new(1);
    let mut admin = setup.redis.admin().await;
    let () = redis::cmd("DEL").arg(key(partition)).query_async(&mut admin).await.unwrap();
    for recorder in [&paused, &other] {
        recorder.run().await.unwrap();
    }

    let pause = async {
        begun.notified().await;
        // As if it had ended during the pause.
        let lease = format!("{}:lease", key(partition));
        let () = redis::cmd("DEL").arg(lease).query_async(&mut admin).await.unwrap();
        other.recover_lost().await.unwrap();
        go_on.notify_one();
    };
    let (recovered, ()) = tokio::join!(paused.recover_lost(), pause);
    assert!(
        matches!(recovered, Err(RecordError::Redis(keyspace::Error::Recovering(_)))),
        "{recovered:?}"
    );
    let writer: String =
        redis::cmd("GET").arg("post:{1}:writer").query_async(&mut admin).await.unwrap();
    assert_eq!(writer, "other");
    assert!(other.record(&[partition]).await.unwrap().diverged.is_empty());
}

#[tokio::test]
async fn a_loss_of_what_the_process_has_seen_is_recovered() {
    let setup = Setup::new().await;
    let keyspace = setup.keyspace();
    let (states, partition) = (keyspace.states().clone(), Partition::new(1));
    let recorder = setup.recorder_of(keyspace, |_| {});
    recorder.run().await.unwrap();
    // Lost before it was recorded, with two epochs that other processes began.
    states.require(partition, "3-7".parse().unwrap());
    recorder.run().await.unwrap();
    assert!(states.is_closed(partition));
    recorder.recover_lost().await.unwrap();
    recorder.run().await.unwrap();
    assert!(!states.is_closed(partition));
    let newest = JOURNALS.newest(&setup.keyspace(), &[partition]).await.unwrap();
    assert_eq!(newest[0].as_ref().unwrap().version, "4-1".parse().unwrap());
}

#[tokio::test]
async fn a_partition_that_cannot_be_recorded_does_not_stop_the_others() {
    let setup = Setup::new().await;
    let keyspace = setup.keyspace();
    let recorder = setup.recorder(|_| {});
    recorder.run().await.unwrap();
    let [poisoned, lost, other] = [1, 2, 3].map(Partition::new);
    for (partition, text) in [(poisoned, "poison"), (other, "change")] {
        let change = Change { version: "1-1".parse().unwrap(), text: text.to_owned() };
        assert!(JOURNALS.append(&keyspace, partition, &change).await.unwrap());
    }
    let mut admin = setup.redis.admin().await;
    let () = redis::cmd("DEL").arg(key(lost)).query_async(&mut admin).await.unwrap();

    let done = recorder.run().await;
    assert!(
        matches!(done, Err(RecordError::Database(microblog_record::Error::Malformed(_)))),
        "{done:?}"
    );
    assert!(recorder.record(&[other]).await.unwrap().pages[&other].len() == 1, "it is recorded");
    // The lost one is found, and recovered.
    recorder.recover_lost().await.unwrap();
    let writer: Option<String> =
        redis::cmd("GET").arg("post:{2}:writer").query_async(&mut admin).await.unwrap();
    assert_eq!(writer.as_deref(), Some("other"));
}

#[tokio::test]
async fn a_change_of_an_unknown_kind_stops_no_other_partition_and_is_left_out_after_a_minute() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), setup.recorder(|_| {}));
    recorder.run().await.unwrap();
    let [stopped, other] = [1, 2].map(Partition::new);
    let append = async |partition, version: &str, text: &str| {
        let change = Change { version: version.parse().unwrap(), text: text.to_owned() };
        assert!(JOURNALS.append(&keyspace, partition, &change).await.unwrap());
    };
    for (version, text) in [("1-1", "before"), ("1-2", "unknown"), ("1-3", "after")] {
        append(stopped, version, text).await;
    }
    append(other, "1-1", "change").await;

    let recorded = recorder.record(&[stopped, other]).await.unwrap();
    assert_eq!(recorded.unknown, [stopped]);
    assert_eq!(recorded.pages[&stopped].last().unwrap().text, "before", "it is recorded");
    assert_eq!(recorded.pages[&other].last().unwrap().text, "change");
    let done = recorder.run().await;
    assert!(matches!(done, Err(RecordError::UnknownChange(at)) if at == stopped), "{done:?}");

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    recorder.run().await.unwrap();
    let recorded = recorder.record(&[stopped]).await.unwrap();
    assert_eq!(recorded.pages[&stopped].last().unwrap().text, "after");
    let damaged = recorder.damaged_rows(stopped).await.unwrap();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!((&*damaged[0].table, &*damaged[0].key), ("journal", "version=1-2"));
}

#[tokio::test]
async fn a_step_that_the_database_stops_for_another_one_is_repeated() {
    let postgres = PostgresServer::start().await;
    let setup = Setup::with(postgres.url()).await;
    let (keyspace, partition) = (setup.keyspace(), Partition::new(1));
    let recorder = setup.recorder(|tables| tables.deadlocks = AtomicUsize::new(3));
    recorder.run().await.unwrap();
    let change = Change { version: "1-1".parse().unwrap(), text: "change".to_owned() };
    assert!(JOURNALS.append(&keyspace, partition, &change).await.unwrap());
    recorder.run().await.unwrap();
    let recorded = recorder.record(&[partition]).await.unwrap();
    assert_eq!(recorded.pages[&partition], [change], "it is the position");
}

#[tokio::test]
async fn a_redis_that_is_lost_while_the_database_is_filled_is_not_the_truth() {
    let setup = Setup::new().await;
    let lost = Partition::new(40);
    setup.add_account(lost).await;
    let done = setup.recorder(|tables| tables.emptied_at = Some(lost)).run().await;
    assert!(matches!(done, Err(RecordError::Lost(at)) if at < lost), "{done:?}");

    let keyspace = setup.keyspace();
    let recorder = setup.recorder_of(keyspace.clone(), |_| {});
    let done = recorder.run().await;
    assert!(matches!(done, Err(RecordError::RedisMismatch(_))), "{done:?}");
    let read = redis::cmd("GET").arg("post:{1}:writer").take();
    let rejected = keyspace.query::<Option<String>>(read.clone()).await;
    assert!(matches!(rejected, Err(keyspace::Error::Mismatched)), "{rejected:?}");

    let restore = recorder.begin_restore(Source::Database, false).await.unwrap();
    let recorded = Partition::new(1);
    assert!(recorder.restore(&restore, recorded).await.unwrap(), "from the database");
    assert!(!recorder.restore(&restore, lost).await.unwrap(), "there is nothing to restore");
    assert_eq!(recorder.record(&[recorded, lost]).await.unwrap().diverged, []);
}

#[tokio::test]
async fn a_redis_that_is_lost_while_the_database_is_written_anew_erases_nothing() {
    let setup = Setup::new().await;
    let recorder = setup.recorder(|_| {});
    recorder.run().await.unwrap();
    let restore = recorder.begin_restore(Source::Redis, false).await.unwrap();
    let [before, after] = [1, 2].map(Partition::new);
    assert!(recorder.restore(&restore, before).await.unwrap());
    let mut admin = setup.redis.admin().await;
    let () = redis::cmd("FLUSHALL").query_async(&mut admin).await.unwrap();
    for partition in [before, after] {
        let done = recorder.restore(&restore, partition).await;
        assert!(matches!(done, Err(RecordError::WouldErase(at)) if at == partition), "{done:?}");
    }
    let done = recorder.begin_restore(Source::Redis, false).await;
    assert!(matches!(done, Err(RecordError::WouldErase(_))), "{done:?}");
    let forced = recorder.begin_restore(Source::Redis, true).await.unwrap();
    assert!(recorder.restore(&forced, after).await.unwrap());
}

#[tokio::test]
async fn a_redis_that_is_lost_while_a_partition_is_written_anew_erases_nothing() {
    let setup = Setup::new().await;
    setup.recorder(|_| {}).run().await.unwrap();
    let partition = Partition::new(1);
    let losing = setup.recorder(|tables| tables.emptied_at = Some(partition));
    let restore = losing.begin_restore(Source::Redis, false).await.unwrap();
    let done = losing.restore(&restore, partition).await;
    assert!(matches!(done, Err(RecordError::Lost(at)) if at == partition), "{done:?}");
    let recorder = setup.recorder(|_| {});
    let after = recorder.begin_restore(Source::Database, true).await.unwrap();
    assert_eq!(after.position(partition), restore.position(partition));
}

#[tokio::test]
async fn a_new_redis_that_is_lost_while_the_database_is_filled_is_filled_again() {
    let setup = Setup::new().await;
    let keyspace = setup.keyspace();
    let lost = Partition::new(40);
    let recorder = setup.recorder_of(keyspace.clone(), |tables| tables.emptied_at = Some(lost));
    let done = recorder.run().await;
    assert!(matches!(done, Err(RecordError::Lost(_))), "{done:?}");
    let read = redis::cmd("GET").arg("post:{1}:writer").take();
    let rejected = keyspace.query::<Option<String>>(read.clone()).await;
    assert!(rejected.is_err(), "nothing is recorded: {rejected:?}");

    let recorder = setup.recorder_of(keyspace.clone(), |_| {});
    recorder.run().await.unwrap();
    keyspace.query::<Option<String>>(read).await.unwrap();
    assert_eq!(recorder.record(&[lost]).await.unwrap().pages[&lost].len(), 1);
}

#[tokio::test]
async fn a_new_system_serves_when_its_change_feed_has_begun() {
    for has_accounts in [false, true] {
        let (setup, served) = (Setup::new().await, Arc::new(AtomicBool::new(!has_accounts)));
        if has_accounts {
            setup.add_account(Partition::new(1000)).await;
        }
        let recorder = setup.recorder(|tables| tables.served_at_fill = Some(served.clone()));
        recorder.run().await.unwrap();
        // Filling what is there takes long.
        assert_eq!(served.load(Ordering::Relaxed), has_accounts);
    }
}

#[tokio::test]
async fn tables_of_a_newer_version_are_neither_written_nor_served_beside() {
    let postgres = PostgresServer::start().await;
    for setup in [Setup::new().await, Setup::with(postgres.url()).await] {
        setup.recorder(|_| {}).run().await.unwrap();
        let newer = "INSERT INTO _sqlx_migrations \
                     (version, description, success, checksum, execution_time) \
                     SELECT 9, description, success, checksum, 0 FROM _sqlx_migrations WHERE version = 1";
        sqlx::query(newer).execute(setup.database().writers()).await.unwrap();

        let keyspace = setup.keyspace();
        let recorder = setup.recorder_of(keyspace.clone(), |_| {});
        for _ in 0..2 {
            let done = recorder.run().await;
            let error = done.expect_err("another version's tables");
            assert!(
                matches!(error, RecordError::Database(microblog_record::Error::OtherVersion(9))),
                "{error:?}"
            );
            assert!(error.to_string().contains("migration 9"), "{error}");
        }
        let read = redis::cmd("GET").arg("post:{1}:writer").take();
        let read = keyspace.query::<Option<String>>(read).await;
        assert!(read.is_err_and(|error| error.is_unavailable()));
    }
}

#[tokio::test]
async fn a_partition_that_could_not_be_compared_after_connecting_is_closed_until_it_is() {
    let setup = Setup::new().await;
    let serving = setup.keyspace();
    let recorder = setup.recorder_of(serving.clone(), |_| {});
    recorder.run().await.unwrap();

    // As if the primary of the partition did not answer yet.
    let [away, other] = [1, 2].map(Partition::new);
    let (journal, hidden) = (key(away), format!("{}:hidden", key(away)));
    let mut admin = setup.redis.admin().await;
    let () = redis::cmd("RENAME").arg(&journal).arg(&hidden).query_async(&mut admin).await.unwrap();
    let () = redis::cmd("SET").arg(&journal).arg("none").query_async(&mut admin).await.unwrap();
    let keyspace = setup.keyspace();
    let started = setup.recorder_of(keyspace.clone(), |_| {});
    for _ in 0..2 {
        let done = started.run().await;
        assert!(matches!(done, Err(RecordError::Redis(_))), "{done:?}");
        assert!(keyspace.states().is_closed(away), "Redis may have started empty");
        assert!(!keyspace.states().is_closed(other));
    }
    let done = recorder.run().await;
    assert!(matches!(done, Err(RecordError::Redis(_))), "{done:?}");
    assert!(!serving.states().is_closed(away), "its connection is the same");

    let () = redis::cmd("RENAME").arg(&hidden).arg(&journal).query_async(&mut admin).await.unwrap();
    started.run().await.unwrap();
    assert!(!keyspace.states().is_closed(away));
}

#[tokio::test]
async fn calls_wait_while_redis_does_not_answer_after_connecting() {
    let setup = Setup::new().await;
    setup.recorder(|_| {}).run().await.unwrap();
    let keyspace = setup.keyspace();
    let started = setup.recorder_of(keyspace.clone(), |_| {});
    setup.redis.pause();
    let done = started.run().await;
    setup.redis.resume();
    assert!(matches!(done, Err(RecordError::Redis(_))), "{done:?}");
    assert!(keyspace.states().is_unchecked(), "nothing was compared");
    eventually("Redis answers", PATIENCE, async || started.run().await.is_ok()).await;
    assert!(!keyspace.states().is_unchecked());
    assert!(!keyspace.states().is_closed(Partition::new(1)));
}
