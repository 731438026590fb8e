//! Calls that share transactions.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::future::{BoxFuture, FutureExt as _, join_all};
use microblog_storage::{
    Decided, Group, Transaction, WriteError, Writer,
    feed::{self, Point},
};

use crate::lists::{Add, Process, REJECTED, layouts};

fn add(list: u64, member: u64) -> Add {
    Add { list, member }
}

#[tokio::test]
async fn a_call_is_committed_applied_and_in_the_feed() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        assert!(process.writer.write(add(4, 8)).await.unwrap());
        assert_eq!(process.cached(4).await, None, "{}: nobody has read it", server.kind());
        process.load(4).await;
        assert!(process.writer.write(add(4, 12)).await.unwrap());
        assert!(!process.writer.write(add(4, 12)).await.unwrap(), "it is there");
        let (revision, members) = process.stored(4).await;
        assert_eq!(revision, 2);
        assert_eq!(process.cached(4).await, Some((revision, members)));
        let rows = feed::read_behind(&process.database, 0, 10).await.unwrap();
        let changes: Vec<_> = rows.iter().map(|row| (row.position, &*row.row.change)).collect();
        assert_eq!(changes, [(1, "add 4 8"), (2, "add 4 12")]);
        assert_eq!(rows[1].row.items[0].revision, 2);
        let [oldest, newest] = [&rows[0], &rows[1]];
        assert_eq!(feed::oldest(&process.database).await.unwrap().as_ref(), Some(oldest));
        assert_eq!(&feed::newest(&process.database).await.unwrap(), newest);
        let behind = feed::rows_behind(&process.database, oldest.point(), 10).await.unwrap();
        assert_eq!(behind.as_deref(), Some(&rows[1..]));
        let other = Point { time_ms: newest.time_ms + 1, ..newest.point() };
        assert_eq!(feed::rows_behind(&process.database, other, 10).await.unwrap(), None);
        assert_eq!(feed::read_behind(&process.database, 2, 10).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_call_that_the_database_rejects_fails_alone() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        let calls = (1..=40).map(|n| add(n % 7 * 4, if n == 23 { REJECTED } else { n }));
        let calls: Vec<_> = calls.collect();
        let results = join_all(calls.iter().map(|&call| process.writer.write(call))).await;
        for (call, result) in calls.iter().zip(results) {
            let fails = matches!(result, Err(WriteError::Failed(_)));
            assert_eq!(fails, call.member == REJECTED, "{call:?}: {result:?}");
        }
        let rows = feed::read_behind(&process.database, 0, 100).await.unwrap();
        assert_eq!(rows.len(), 39);
    }
}

/// A group that meets a row which another one has made, at its first attempt.
#[derive(Default)]
struct Beaten {
    attempts: AtomicUsize,
}

impl Group for Beaten {
    type Call = ();
    /// The attempts before.
    type Outcome = usize;

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        _calls: &'a [()],
    ) -> BoxFuture<'a, Result<Decided<usize>, sqlx::Error>> {
        let work = async move {
            let before = self.attempts.fetch_add(1, Ordering::Relaxed);
            if before == 0 {
                for _ in 0..2 {
                    let make = sqlx::query("INSERT INTO lists VALUES (4, 0, 0)");
                    make.execute(transaction.connection()).await?;
                }
            }
            let (changes, feed) = (Vec::new(), Vec::new());
            Ok(Decided {
                outcomes: vec![before],
                changes,
                created: Vec::new(),
                feed,
                has_others: false,
            })
        };
        work.boxed()
    }
}

#[tokio::test]
async fn a_call_that_makes_a_row_which_another_one_made_is_repeated() {
    for (server, redis) in layouts().await {
        let process = Process::start(&server, &redis).await;
        let Process { tables, cache, trust, .. } = &process;
        let (tables, cache, trust) = (tables.clone(), cache.clone(), trust.clone());
        let writer = Writer::start(Beaten::default(), tables, cache, trust);
        assert_eq!(writer.write(()).await.unwrap(), 1, "{}", server.kind());
    }
}

#[tokio::test]
async fn concurrent_processes_agree_with_the_database() {
    for (server, redis) in layouts().await {
        let first = Process::start(&server, &redis).await;
        // SQLite is for one process.
        let others = match server.kind() {
            "SQLite" => Vec::new(),
            _ => vec![Process::start(&server, &redis).await, Process::start(&server, &redis).await],
        };
        let processes: Vec<&Process> = [&first].into_iter().chain(&others).collect();
        for list in [4, 8, 12] {
            first.load(list).await;
        }
        // Each member is added twice.
        let calls = (0..600).map(|n| (n as usize, add(4 + 4 * (n % 3), 1 + n % 300)));
        let written = calls.map(|(n, call)| processes[n % processes.len()].writer.write(call));
        let results = join_all(written).await;
        let added = results.into_iter().filter(|result| *result.as_ref().unwrap()).count();
        assert_eq!(added, 300);
        let rows = feed::read_behind(&first.database, 0, 1_000).await.unwrap();
        let positions: Vec<_> = rows.iter().map(|row| row.position).collect();
        assert_eq!(positions, (1..=300).collect::<Vec<_>>());
        for list in [4, 8, 12] {
            let (revision, members) = first.stored(list).await;
            assert_eq!(members.iter().map(|one| one.id).collect::<BTreeSet<_>>().len(), 100);
            let of_list = rows.iter().filter(|row| row.row.items[0].id == list);
            let revisions: Vec<_> = of_list.map(|row| row.row.items[0].revision).collect();
            assert!(revisions.is_sorted() && revisions.last() == Some(&revision));
            // Deleted, or as the database has it.
            let cached = first.cached(list).await;
            assert!(cached.is_none_or(|cached| cached == (revision, members)), "{list}");
        }
    }
}
