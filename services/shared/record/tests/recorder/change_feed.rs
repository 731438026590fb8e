//! The change feed, which recorders write and streams read.

use std::{collections::BTreeMap, sync::Arc};

use futures::{TryStreamExt as _, future::join_all, stream::BoxStream};
use microblog_chassis::status;
use microblog_domain::Partition;
use microblog_keyspace::{Change, Keyspace, redis};
use microblog_proto::common::{ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery};
use microblog_record::{RecordedChanges, Recorder, Source, no_change_feed, stream_changes};
use microblog_testkit::{PATIENCE, PostgresServer};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{JOURNALS, Losing, Setup, key};

type Pages = BoxStream<'static, Result<FeedPage, Status>>;

fn query(after: Option<FeedPosition>) -> FeedQuery {
    FeedQuery { kinds: vec![ChangeKind::Post.into()], after, ..FeedQuery::default() }
}

async fn open(
    recorder: &Arc<Recorder<Losing>>,
    after: Option<FeedPosition>,
) -> Result<Pages, Status> {
    stream_changes(RecordedChanges(recorder.clone()), query(after)).await
}

async fn page(pages: &mut Pages) -> Result<FeedPage, Status> {
    // It comes in time, and the stream has no end.
    timeout(PATIENCE, pages.try_next()).await.unwrap().map(Option::unwrap)
}

fn assert_expired<T>(result: Result<T, Status>) {
    let Err(status) = result else { panic!("the position has ended") };
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(status::reason_of(&status), Some(ErrorReason::CursorExpired));
}

async fn append(keyspace: &Keyspace, partition: Partition, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        let version = format!("1-{number}").parse().unwrap();
        let change = Change { version, text: format!("{} {number}", partition.number()) };
        assert!(JOURNALS.append(keyspace, partition, &change).await.unwrap());
    }
}

/// Three recorders race for the changes of eight partitions, which are made meanwhile. A reader is
/// interrupted after each message, and continues at the position of the last one.
async fn readers_get_all_changes_in_order(setup: Setup) {
    const PARTITIONS: std::ops::Range<u16> = 0..8;
    const CHANGES: u64 = 60;
    let recorders: Vec<_> = (0..3).map(|_| Arc::new(setup.recorder(|_| {}))).collect();
    recorders[0].run().await.unwrap();
    let reader = recorders[0].clone();
    let first = page(&mut open(&reader, None).await.unwrap()).await.unwrap();
    assert!(first.changes.is_empty());

    let keyspace = setup.keyspace();
    let make =
        PARTITIONS.map(|partition| append(&keyspace, Partition::new(partition), 1..=CHANGES));
    let record = async |recorder: &Arc<Recorder<Losing>>, from: u16| {
        let mut step = from;
        loop {
            let partitions: Vec<_> = PARTITIONS
                .filter(|at| !(at * 7 + step).is_multiple_of(3))
                .map(Partition::new)
                .collect();
            recorder.record(&partitions).await.unwrap();
            step = step.wrapping_add(1);
            tokio::task::yield_now().await;
        }
    };
    let record_all = join_all(recorders.iter().zip(0..).map(|(recorder, n)| record(recorder, n)));
    let read = async {
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let mut position = first.position;
        while seen.len() < PARTITIONS.len() || seen.values().any(|&newest| newest < CHANGES) {
            let mut pages = open(&reader, position).await.unwrap();
            for _ in 0..2 {
                let page = page(&mut pages).await.unwrap();
                for change in &page.changes {
                    let newest = seen.entry(change.user_id).or_default();
                    assert_eq!(change.version, *newest + 1, "partition {}", change.user_id);
                    *newest = change.version;
                }
                position = page.position;
            }
        }
    };
    tokio::select! {
        _ = async { tokio::join!(join_all(make), record_all) } => unreachable!("recorders go on"),
        done = timeout(PATIENCE * 4, read) => done.unwrap(),
    }
}

#[tokio::test]
async fn readers_get_all_changes_in_order_from_sqlite() {
    readers_get_all_changes_in_order(Setup::new().await).await;
}

#[tokio::test]
async fn readers_get_all_changes_in_order_from_postgresql() {
    let postgres = PostgresServer::start().await;
    readers_get_all_changes_in_order(Setup::with(postgres.url()).await).await;
}

#[tokio::test]
async fn there_is_no_feed_before_all_partitions_are_filled_or_without_a_database() {
    let setup = Setup::new().await;
    let recorder = Arc::new(setup.recorder(|tables| tables.emptied_at = Some(Partition::new(40))));
    assert!(recorder.run().await.is_err());
    let status = open(&recorder, None).await.err().unwrap();
    assert_eq!(status::reason_of(&status), Some(ErrorReason::StoreUnavailable), "{status:?}");

    let status = no_change_feed();
    assert_eq!(status::reason_of(&status), Some(ErrorReason::NoDatabase), "{status:?}");
}

#[tokio::test]
async fn a_recovery_ends_all_positions() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), Arc::new(setup.recorder(|_| {})));
    recorder.run().await.unwrap();
    let mut pages = open(&recorder, None).await.unwrap();
    page(&mut pages).await.unwrap();
    let [lost, other] = [1, 2].map(Partition::new);
    append(&keyspace, other, 1..=1).await;
    recorder.run().await.unwrap();
    let before = page(&mut pages).await.unwrap();
    assert_eq!(before.changes.len(), 1);
    let () =
        redis::cmd("DEL").arg(key(lost)).query_async(&mut setup.redis.admin().await).await.unwrap();
    recorder.run().await.unwrap();
    recorder.recover_lost().await.unwrap();

    assert_expired(page(&mut pages).await);
    let mut pages = open(&recorder, before.position).await.unwrap();
    assert_expired(page(&mut pages).await);
    // The feed goes on.
    let mut pages = open(&recorder, None).await.unwrap();
    let first = page(&mut pages).await.unwrap();
    append(&keyspace, other, 2..=2).await;
    recorder.run().await.unwrap();
    assert_eq!(page(&mut pages).await.unwrap().changes[0].version, 2);
    let mut again = open(&recorder, first.position).await.unwrap();
    assert_eq!(page(&mut again).await.unwrap().changes[0].version, 2);
}

#[tokio::test]
async fn what_is_written_to_the_database_anew_ends_all_positions() {
    let setup = Setup::new().await;
    let recorder = Arc::new(setup.recorder(|_| {}));
    recorder.run().await.unwrap();
    let mut rewritten = open(&recorder, None).await.unwrap();
    page(&mut rewritten).await.unwrap();
    let restore = recorder.begin_restore(Source::Redis, false).await.unwrap();
    assert!(recorder.restore(&restore, Partition::new(1)).await.unwrap());
    assert_expired(page(&mut rewritten).await);

    // A partition that was lost before it was recorded.
    let mut filled = open(&recorder, None).await.unwrap();
    page(&mut filled).await.unwrap();
    let forget = sqlx::query("DELETE FROM journal_positions WHERE partition = 2");
    forget.execute(setup.database().writers()).await.unwrap();
    let restore = recorder.begin_restore(Source::Database, true).await.unwrap();
    recorder.restore(&restore, Partition::new(2)).await.unwrap();
    assert_expired(page(&mut filled).await);
}

#[tokio::test]
async fn a_missing_row_ends_the_positions_before_it() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), Arc::new(setup.recorder(|_| {})));
    recorder.run().await.unwrap();
    let first = page(&mut open(&recorder, None).await.unwrap()).await.unwrap().position.unwrap();
    for number in 1..=3 {
        append(&keyspace, Partition::new(1), number..=number).await;
        recorder.run().await.unwrap();
    }
    let delete = sqlx::query("DELETE FROM change_feed WHERE sequence = $1");
    let missing = first.sequence as i64 + 2;
    delete.bind(missing).execute(setup.database().writers()).await.unwrap();
    let mut pages = open(&recorder, Some(first)).await.unwrap();
    assert_expired(page(&mut pages).await);
}

#[tokio::test]
async fn a_position_ends_where_the_database_is_another_or_older_one() {
    let setup = Setup::new().await;
    let recorder = Arc::new(setup.recorder(|_| {}));
    recorder.run().await.unwrap();
    let newest = page(&mut open(&recorder, None).await.unwrap()).await.unwrap().position.unwrap();
    let FeedPosition { sequence, token } = newest;
    for position in [
        FeedPosition { sequence: sequence + 1, token },
        FeedPosition { sequence, token: token ^ 1 },
        FeedPosition { sequence: u64::MAX, token },
        FeedPosition::default(),
    ] {
        let mut pages = open(&recorder, Some(position)).await.unwrap();
        assert_expired(page(&mut pages).await);
    }
    let mut pages = open(&recorder, Some(newest)).await.unwrap();
    assert_eq!(page(&mut pages).await.unwrap().position, Some(newest));
}

#[tokio::test]
async fn an_idle_stream_has_messages_and_other_kinds_only_move_the_position() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), Arc::new(setup.recorder(|_| {})));
    recorder.run().await.unwrap();
    let query = FeedQuery { kinds: vec![ChangeKind::Like.into()], ..FeedQuery::default() };
    let mut pages = stream_changes(RecordedChanges(recorder.clone()), query).await.unwrap();
    let first = page(&mut pages).await.unwrap();
    append(&keyspace, Partition::new(1), 1..=3).await;
    recorder.run().await.unwrap();
    let next = page(&mut pages).await.unwrap();
    assert_eq!(next.changes, []);
    assert!(next.position.unwrap().sequence > first.position.unwrap().sequence);
    assert!(next.is_end && next.recorded_at.is_some());
    let idle = page(&mut pages).await.unwrap();
    assert_eq!((idle.changes, idle.position), (Vec::new(), next.position));
    assert!(idle.recorded_at.unwrap().seconds >= next.recorded_at.unwrap().seconds);
}

#[tokio::test]
async fn a_stream_from_the_start_has_all_that_the_feed_has() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), Arc::new(setup.recorder(|_| {})));
    let query = FeedQuery { from_start: true, ..query(None) };
    let versions = async || {
        let mut pages =
            stream_changes(RecordedChanges(recorder.clone()), query.clone()).await.unwrap();
        let (mut versions, mut numbers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let page = page(&mut pages).await.unwrap();
            assert_eq!(page.numbers.len(), page.changes.len());
            versions.extend(page.changes.iter().map(|change| change.version));
            numbers.extend(page.numbers);
        }
        assert!(numbers.is_sorted_by(|a, b| a < b));
        versions
    };
    recorder.run().await.unwrap();
    for number in 1..=3 {
        append(&keyspace, Partition::new(1), number..=number).await;
        recorder.run().await.unwrap();
    }
    assert_eq!(versions().await, [1, 2, 3]);
    // Also of its first row.
    const PURGE: &str = "DELETE FROM change_feed \
        WHERE sequence < (SELECT newest - 1 FROM change_feed_state)";
    sqlx::query(PURGE).execute(setup.database().writers()).await.unwrap();
    assert_eq!(versions().await, [2, 3]);
    // What was before the end of all positions is not there.
    let lost = key(Partition::new(2));
    let () = redis::cmd("DEL").arg(lost).query_async(&mut setup.redis.admin().await).await.unwrap();
    recorder.run().await.unwrap();
    recorder.recover_lost().await.unwrap();
    append(&keyspace, Partition::new(1), 4..=4).await;
    recorder.run().await.unwrap();
    assert_eq!(versions().await, [4]);
}

#[tokio::test]
async fn what_is_older_than_the_retention_is_removed_but_the_newest() {
    let setup = Setup::new().await;
    let (keyspace, recorder) = (setup.keyspace(), Arc::new(setup.recorder(|_| {})));
    recorder.run().await.unwrap();
    let mut positions = Vec::new();
    let mut pages = open(&recorder, None).await.unwrap();
    positions.push(page(&mut pages).await.unwrap().position.unwrap());
    for number in 1..=4 {
        append(&keyspace, Partition::new(1), number..=number).await;
        recorder.run().await.unwrap();
        positions.push(page(&mut pages).await.unwrap().position.unwrap());
    }
    // Also one behind a newer one, as by a process whose clock is wrong.
    let age = sqlx::query("UPDATE change_feed SET recorded_at = 0 WHERE sequence <> $1")
        .bind(positions[2].sequence as i64);
    age.execute(setup.database().writers()).await.unwrap();
    let jobs = recorder.jobs().into_iter().map(|job| tokio::spawn(job)).collect::<Vec<_>>();
    let remaining = async || {
        let rows = sqlx::query_scalar::<_, i64>("SELECT sequence FROM change_feed ORDER BY 1");
        rows.fetch_all(setup.database().readers()).await.unwrap()
    };
    let expected: Vec<i64> = positions[2..].iter().map(|at| at.sequence as i64).collect();
    microblog_testkit::eventually("old rows are removed", PATIENCE, async || {
        remaining().await == expected
    })
    .await;
    jobs.into_iter().for_each(|job| job.abort());

    let mut pages = open(&recorder, Some(positions[0])).await.unwrap();
    assert_expired(page(&mut pages).await);
    let mut pages = open(&recorder, Some(positions[2])).await.unwrap();
    assert_eq!(page(&mut pages).await.unwrap().changes[0].version, 3);
    // The newest is not removed, so a reader of an idle feed does not expire.
    let mut pages = open(&recorder, Some(positions[4])).await.unwrap();
    assert_eq!(page(&mut pages).await.unwrap().changes, []);
}

#[tokio::test]
async fn the_feed_of_a_new_system_begins_once() {
    let postgres = PostgresServer::start().await;
    for setup in [Setup::new().await, Setup::with(postgres.url()).await] {
        let recorders: Vec<_> = (0..3).map(|_| Arc::new(setup.recorder(|_| {}))).collect();
        // The first one serves before the others are done.
        let first = async |recorder: &Arc<Recorder<Losing>>| {
            recorder.run().await.unwrap();
            page(&mut open(recorder, None).await.unwrap()).await.unwrap().position
        };
        let positions = join_all(recorders.iter().map(first)).await;
        append(&setup.keyspace(), Partition::new(1), 1..=1).await;
        recorders[0].run().await.unwrap();
        for position in positions {
            let mut pages = open(&recorders[0], position).await.unwrap();
            assert_eq!(page(&mut pages).await.unwrap().changes.len(), 1);
        }
    }
}
