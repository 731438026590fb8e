//! The verifier of a service: applies to the cache what the feed tells, a moment after the writers have.
//! It finds what a writer that died after its commit did not apply, and what a primary has lost.
//!
//! In each round, for each primary, over one connection, so that it is one server:
//!
//! 1. It reads the replication id, the server's time and the mark. From the mark's position on, the primary
//!    may lack changes.
//! 2. It applies the items of the feed behind that position, page by page: an older entry is deleted. For a
//!    server that has not written the mark, up to the newest position; otherwise up to what was the newest
//!    one 300 ms ago, since the writers apply what is newer.
//! 3. It writes the mark, unless the server has another replication id, or another mark, by then.
//!
//! A primary without a mark of this history is gone over from where the last round ended that verified all
//! primaries, if it was one of them: entries that it may have are newer than that. Otherwise, from where the
//! history began. Partitions that came from another primary are gone over from the oldest mark.
//!
//! The history is renewed, which ends all entries, if the feed does not reach back so far, if it would take
//! long, or if the feed has another row at a mark: the database is an older copy of itself.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use microblog_domain::Partition;
use microblog_keyspace::{
    self as keyspace, Call, DedicatedConnection, Keyspace, decode, redis::cmd,
};
use microblog_record as record;
use tokio::time::Instant;

use crate::{
    cache::{Applied, applied, apply},
    entry::{EntryKeys, EntryLimits, History},
    feed::{self, Point, Positioned},
    keeper::Keeper,
    lease::Lease,
    mark::{Mark, PartitionSet, Primary, mark_key, read_mark, write_mark},
    tables::Tables,
    transaction,
};

/// How long the verifier leaves a change to its writer.
const BEHIND: Duration = Duration::from_millis(300);

/// The period of the rounds.
const PERIOD: Duration = Duration::from_millis(500);

/// How long the deletion of a mark may take.
const UNLINK_TIMEOUT: Duration = Duration::from_secs(1);

/// The most rows of the feed that are read at once.
const ROWS: usize = 2_000;

/// The most rows that a primary is gone over. Those of more take seconds, in which it is not trusted.
const GONE_OVER_MAX: u64 = 50_000;

/// Why a round did not end.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] record::Error),
    /// The cache failed.
    #[error("the cache failed")]
    Cache(#[from] keyspace::Error),
}

impl VerifyError {
    fn is_database_away(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_unavailable())
    }
}

/// What a round has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Whether the feed does not reach back to a mark: the history was renewed.
    pub renewed: bool,
    /// The primaries with a new mark.
    pub marked: usize,
    /// The primaries that were gone over from further back than the last round.
    pub gone_over: usize,
    /// The entries that were deleted.
    pub deleted: usize,
    /// Where the round ended, if it verified all primaries.
    pub verified: Option<Point>,
}

/// Verifies the cache of a service. One process at a time needs to, and several may.
pub struct Verifier {
    tables: Tables,
    keyspace: Keyspace,
    prefix: &'static str,
    /// The newest positions of the last rounds of a history, with the time at which they were read.
    newest: (Option<History>, Vec<(Instant, Point)>),
    verified: Option<Verified>,
    keeper: Arc<Keeper>,
}

/// The last round that verified all primaries.
struct Verified {
    history: History,
    /// Where it ended.
    point: Point,
    /// Of the primaries.
    replication_ids: Vec<String>,
}

/// A primary in a round.
struct Visited {
    /// Its partitions, in order.
    partitions: Vec<Partition>,
    mark_key: String,
    primary: Primary,
    connection: DedicatedConnection,
    /// Behind which row it may lack changes, and up to which they are applied.
    start: u64,
    end: Point,
    /// Whether all changes were applied.
    is_verified: bool,
    deleted: usize,
}

impl Verifier {
    /// Returns the verifier of a keyspace, whose keys have a prefix.
    pub fn new(tables: Tables, keyspace: Keyspace, prefix: &'static str) -> Self {
        let (newest, keeper) = (Default::default(), Arc::new(Keeper::new(keyspace.clone())));
        Self { tables, keyspace, prefix, newest, verified: None, keeper }
    }

    /// Verifies, for ever, while this process is the one of its service that does. Removes what the feed has
    /// from before its retention. While the database is away, keeps the marks.
    pub async fn run(mut self) {
        let (lease, keeper) = (Lease::new("verifier"), self.keeper.clone());
        let round = async move || {
            let ended = self.round_under(&lease).await;
            if ended.as_ref().is_err_and(|error| !error.is_database_away()) {
                self.keeper.forget();
            }
            ended
        };
        let rounds = microblog_chassis::run_periodically("verifying the cache", PERIOD, round);
        tokio::join!(rounds, keeper.run());
    }

    // Does a round if this process has the lease, or gets it.
    async fn round_under(&mut self, lease: &Lease) -> Result<(), VerifyError> {
        if !lease.take(self.tables.database().await?).await? {
            // Another process goes on, and may remove what these are about.
            (self.newest, self.verified) = Default::default();
            self.keeper.forget();
            return Ok(());
        }
        let round = self.round().await?;
        if round.renewed {
            tracing::warn!("the whole cache was discarded: it may lack too many changes");
        }
        if let Some(point) = round.verified {
            self.purge(point).await?;
        }
        Ok(())
    }

    // Keeps what a primary that is away may lack for as long as callers may continue the feed.
    async fn purge(&self, point: Point) -> Result<(), record::Error> {
        let database = self.tables.database().await?;
        let retention = database.change_feed_retention();
        let before = SystemTime::now().checked_sub(retention).unwrap_or(SystemTime::UNIX_EPOCH);
        let before = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        feed::purge(database, point.position, before.as_millis() as u64).await
    }

    /// Does a round. Fails if the database does.
    pub async fn round(&mut self) -> Result<Round, VerifyError> {
        // In this order: a mark of a later history must not be taken for none of an earlier one, and what
        // is committed later than the time of a mark need not be applied.
        let mut visited = self.visit().await?;
        let history = transaction::read_history(self.tables.database().await?).await?;
        self.keeper.forget_others(&history);
        let (_, newest) = feed::ends(self.tables.database().await?).await?;
        if self.has_gone_back(&history, &visited).await? {
            return self.renew(&mut visited).await;
        }
        let Some(end) = self.end_of_round(&history, newest) else { return Ok(Round::default()) };
        let beginning = transaction::history_position(self.tables.database().await?).await?;
        self.set_starts(&history, &mut visited, beginning);
        for one in &mut visited {
            // A promoted replica may lack what was acknowledged a moment ago.
            let mark = one.primary.mark.as_ref().filter(|mark| mark.history == history);
            let is_own = mark.is_some_and(|mark| mark.replication_id == one.primary.replication_id);
            one.end = match mark.filter(|_| is_own) {
                Some(mark) => end.max(mark.point),
                None => newest,
            };
        }
        if visited.iter().any(|one| one.end.position.saturating_sub(one.start) > GONE_OVER_MAX) {
            return self.renew(&mut visited).await;
        }
        self.go_over(&history, &mut visited).await?;
        // Read after the rows, some of which may have been deleted meanwhile.
        let (oldest, _) = feed::ends(self.tables.database().await?).await?;
        if visited.iter().any(|one| one.start < oldest.saturating_sub(1)) {
            return self.renew(&mut visited).await;
        }
        let marked = self.mark(&history, &mut visited).await;
        let is_further_back = |start: u64| {
            self.verified
                .as_ref()
                .is_none_or(|last| last.history != history || start < last.point.position)
        };
        let mut round = Round {
            renewed: false,
            verified: None,
            marked,
            gone_over: visited.iter().filter(|one| is_further_back(one.start)).count(),
            deleted: visited.iter().map(|one| one.deleted).sum(),
        };
        let partitions: usize = visited.iter().map(|one| one.partitions.len()).sum();
        if marked == visited.len() && partitions == usize::from(Partition::COUNT) {
            round.verified = Some(end);
            let ids = visited.into_iter().map(|one| one.primary.replication_id);
            let replication_ids = ids.collect();
            self.verified = Some(Verified { history, point: end, replication_ids });
        }
        Ok(round)
    }

    // Returns the primaries that answer.
    async fn visit(&self) -> Result<Vec<Visited>, keyspace::Error> {
        let all = self.keyspace.partitions_by_primary().await?;
        let visited = all.into_iter().map(async |partitions| {
            let mark_key = mark_key(self.prefix, *partitions.first()?);
            let mut connection = self.keyspace.dedicated_connection(&mark_key).await.ok()?;
            let calls = [read_mark(&mark_key)];
            let results = self.keyspace.call_each_on(&mut connection, &calls).await.ok()?;
            let primary = Primary::decode(results.into_iter().next()?.ok()?).ok()?;
            let (start, end, is_verified, deleted) = (0, Point::default(), true, 0);
            Some(Visited {
                partitions,
                mark_key,
                primary,
                connection,
                start,
                end,
                is_verified,
                deleted,
            })
        });
        Ok(join_all(visited).await.into_iter().flatten().collect())
    }

    // Returns whether the feed has another row than it had where a mark was written, or the last round ended.
    async fn has_gone_back(
        &self,
        history: &History,
        visited: &[Visited],
    ) -> Result<bool, record::Error> {
        let of_mark = |one: &Visited| {
            let mark = one.primary.mark.as_ref().filter(|mark| mark.history == *history);
            mark.map(|mark| mark.point)
        };
        let last = self.verified.as_ref().filter(|last| last.history == *history);
        let mut points: Vec<Point> = visited.iter().filter_map(of_mark).collect();
        points.extend(last.map(|last| last.point));
        points.sort_unstable();
        points.dedup();
        let database = self.tables.database().await?;
        for point in points {
            if feed::rows_behind(database, point, 0).await?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // Returns the newest point that is old enough; `None` if there is none yet.
    fn end_of_round(&mut self, history: &History, newest: Point) -> Option<Point> {
        let (of, positions) = &mut self.newest;
        // Positions repeat in another history.
        if of.as_ref() != Some(history) {
            *of = Some(history.clone());
            positions.clear();
        }
        let now = Instant::now();
        positions.push((now, newest));
        let at = positions.iter().rposition(|(read, _)| now.duration_since(*read) >= BEHIND)?;
        positions.drain(..at);
        positions.first().map(|(_, point)| *point)
    }

    fn set_starts(&self, history: &History, visited: &mut [Visited], beginning: u64) {
        let last = self.verified.as_ref().filter(|last| last.history == *history);
        let last = |one: &Visited| {
            let last =
                last.filter(|last| last.replication_ids.contains(&one.primary.replication_id));
            last.map_or(beginning, |last| last.point.position)
        };
        let mark = |one: &Visited| one.primary.mark.clone().filter(|mark| mark.history == *history);
        let position =
            |one: &Visited| mark(one).map_or_else(|| last(one), |mark| mark.point.position);
        // Their former primary may not be among those that are visited.
        let last_round = self.verified.as_ref().filter(|last| last.history == *history);
        let last_round = last_round.map_or(beginning, |last| last.point.position);
        let oldest = visited.iter().map(position).min().unwrap_or(beginning).min(last_round);
        for one in visited {
            let has_all = mark(one)
                .is_none_or(|mark| one.partitions.iter().all(|at| mark.partitions.contains(*at)));
            one.start = if has_all { position(one) } else { oldest };
        }
    }

    // Ends all entries. Without the marks, which would be relied on until they are old.
    async fn renew(&self, visited: &mut [Visited]) -> Result<Round, VerifyError> {
        self.keeper.forget();
        for one in visited {
            let unlink = cmd("UNLINK").arg(&one.mark_key).take();
            let _: Result<u64, _> = one.connection.query(&unlink, UNLINK_TIMEOUT).await;
        }
        transaction::renew_history(self.tables.database().await?).await?;
        Ok(Round { renewed: true, ..Round::default() })
    }

    // Applies the feed, to each primary from its start to its end.
    async fn go_over(
        &self,
        history: &History,
        visited: &mut [Visited],
    ) -> Result<(), record::Error> {
        let of_partition = |(index, one): (usize, &Visited)| {
            one.partitions.iter().map(move |&at| (at, index)).collect::<Vec<_>>()
        };
        let index_of: HashMap<Partition, usize> =
            visited.iter().enumerate().flat_map(of_partition).collect();
        let end = visited.iter().map(|one| one.end.position).max().unwrap_or_default();
        let mut position = visited.iter().map(|one| one.start).min().unwrap_or(end);
        while position < end {
            let rows = feed::read_behind(self.tables.database().await?, position, ROWS).await?;
            let Some(last) = rows.last().map(|row| row.position) else { break };
            position = last;
            let calls = self.calls(history, rows, &index_of, visited);
            let applied = visited.iter_mut().enumerate().map(async |(index, one)| {
                let calls = calls.get(&index).map(Vec::as_slice).unwrap_or_default();
                self.apply(one, calls).await;
            });
            join_all(applied).await;
        }
        Ok(())
    }

    // Returns the calls that apply rows, by primary: of each item its last revision.
    fn calls(
        &self,
        history: &History,
        rows: Vec<Positioned>,
        index_of: &HashMap<Partition, usize>,
        visited: &[Visited],
    ) -> BTreeMap<usize, Vec<Call>> {
        let mut last = BTreeMap::<(usize, String, u64), u64>::new();
        for Positioned { position, row, .. } in rows {
            for item in row.items {
                let index = index_of.get(&Partition::of_id(item.id)).copied();
                let needs = |one: &Visited| one.start < position && position <= one.end.position;
                if let Some(index) = index.filter(|&index| needs(&visited[index])) {
                    let revision = last.entry((index, item.kind, item.id)).or_default();
                    *revision = item.revision.max(*revision);
                }
            }
        }
        let mut calls = BTreeMap::<usize, Vec<Call>>::new();
        for ((index, kind, id), revision) in last {
            let partition = Partition::of_id(id);
            let keys = EntryKeys::new(self.prefix, &kind, history, partition, id);
            calls.entry(index).or_default().push(apply(
                &keys,
                revision,
                revision,
                None,
                EntryLimits::without_sets(0),
            ));
        }
        calls
    }

    // Applies changes to a primary. One that is away holds the others up no longer than its timeout.
    async fn apply(&self, one: &mut Visited, calls: &[Call]) {
        if !one.is_verified || calls.is_empty() {
            return;
        }
        let results = self.keyspace.call_each_on(&mut one.connection, calls).await;
        let done = |result: Result<_, keyspace::Error>| applied(&decode::<String>(result?)?);
        let done: Result<Vec<Applied>, _> =
            results.and_then(|results| results.into_iter().map(done).collect());
        match done {
            Ok(done) => one.deleted += done.iter().filter(|&&one| one == Applied::Deleted).count(),
            // The next round goes over it again.
            Err(_) => one.is_verified = false,
        }
    }

    // Writes the marks. Returns how many were written. Only these may be kept: what was not applied to the
    // others must not be taken for verified.
    async fn mark(&self, history: &History, visited: &mut [Visited]) -> usize {
        let marked = visited.iter_mut().map(async |one| {
            let Primary { replication_id, time_s, .. } = &one.primary;
            if !one.is_verified || replication_id.is_empty() {
                return None;
            }
            let mark = Mark {
                replication_id: replication_id.clone(),
                history: history.clone(),
                point: one.end,
                partitions: PartitionSet::of(&one.partitions),
                time_s: *time_s,
            };
            let calls = [write_mark(&one.mark_key, &mark, one.primary.mark.as_ref())];
            let results = self.keyspace.call_each_on(&mut one.connection, &calls).await;
            let written: u8 = decode(results.ok()?.pop()?.ok()?).ok()?;
            (written == 1).then(|| (one.mark_key.clone(), mark))
        });
        let marks: Vec<_> = join_all(marked).await.into_iter().flatten().collect();
        let count = marks.len();
        self.keeper.note(marks);
        count
    }
}
