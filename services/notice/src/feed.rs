//! Follows the change feeds of services, and applies what their changes mean.
//!
//! What must hold:
//!   * each change is applied once: the position in the feed is written in the transaction that applies the changes
//!     before it;
//!   * changes of a service are applied in their order: one process follows its feed, under a lease. One that has
//!     lost the lease, and does not know it yet, finds another position than the one from which it has read, and
//!     ends.
//!
//! A feed that does not continue the position, as after a restore of its database, is followed from its start, without
//! what was applied before: the versions of changes tell their times. So is a feed without a position. Notices of
//! what the feed does not have are missing.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use microblog_chassis::status;
use microblog_proto::common::{ErrorReason, FeedPage, FeedQuery};
use microblog_storage::{Lease, Tables, Writer};
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::{
    acts::{AccountChange, effects},
    error::Error,
    group::Calls,
    metrics::Metrics,
    peers::Peers,
    source::{Progress, Source},
    steps::{Call, Outcome},
    tables::read_progress,
};

/// How often the lease is renewed.
const RENEWAL: Duration = Duration::from_secs(2);
const _: () = assert!(RENEWAL.as_secs() < Lease::DURATION.as_secs());

/// How many changes are in memory with what they are about.
const PART: usize = 500;

/// The work of a transaction, by the weights of its changes. The last one may exceed it.
const WORK_MAX: usize = 250;

/// How much earlier than its commit a change may have got its version.
const COMMIT: Duration = Duration::from_secs(60);

/// How often a feed that another process follows is tried.
const RETRY: Duration = Duration::from_secs(1);

/// The wait after an error: another process, which may be able to follow the feed, is first.
const FAILED_RETRY: Duration = Duration::from_secs(2);

/// How long a feed may be unreadable before that is a fault: the service starts, fills a new database,
/// or is replaced.
const STARTING: Duration = Duration::from_secs(30);

/// Follows the change feed of a service, in turn with other processes.
pub(crate) struct Follower {
    source: Source,
    tables: Tables,
    writer: Writer<Calls>,
    peers: Peers,
    metrics: Metrics,
    lease: Lease,
}

impl Follower {
    /// Returns the follower of a feed.
    pub(crate) fn new(source: Source, tables: Tables, writer: Writer<Calls>, peers: Peers) -> Self {
        let lease = Lease::new(match source {
            Source::User => "feed of user",
            Source::Relation => "feed of relation",
            Source::Post => "feed of post",
        });
        Self { source, tables, writer, peers, metrics: Metrics::new(), lease }
    }

    /// Follows the feed. Never returns.
    pub(crate) async fn run(self) {
        let mut outage = Outage::default();
        loop {
            let Err(error) = self.follow(&mut outage).await else {
                // Another process follows the feed, or tries to.
                outage.forget();
                sleep(RETRY).await;
                continue;
            };
            // If this fails, the lease ends by itself.
            let _ = self.give_back().await;
            outage.log(self.source, &error);
            self.metrics.cannot_read(self.source);
            sleep(FAILED_RETRY).await;
        }
    }

    /// Follows the feed until an error, or until another process does.
    async fn follow(&self, outage: &mut Outage) -> Result<(), Error> {
        if !self.take().await? {
            return Ok(());
        }
        let progress = read_progress(self.tables.database().await?, self.source).await?;
        self.metrics.taken_over(self.source, progress.read_until_ms);
        // The lease is renewed beside the work.
        tokio::select! {
            ended = self.read(progress, outage) => ended,
            lost = self.renew() => lost,
        }
    }

    async fn take(&self) -> Result<bool, Error> {
        Ok(self.lease.take(self.tables.database().await?).await?)
    }

    async fn give_back(&self) -> Result<(), Error> {
        Ok(self.lease.give_back(self.tables.database().await?).await?)
    }

    /// Renews the lease, until another process has it.
    async fn renew(&self) -> Result<(), Error> {
        loop {
            sleep(RENEWAL).await;
            if !self.take().await? {
                return Ok(());
            }
        }
    }

    async fn read(&self, mut progress: Progress, outage: &mut Outage) -> Result<(), Error> {
        let after = progress.position();
        // From the start of a feed that was followed: until when its changes were applied.
        let known_ms = if after.is_none() { progress.read_until_ms } else { 0 };
        let query = FeedQuery {
            kinds: self.source.kinds().iter().map(|&kind| kind.into()).collect(),
            from_start: after.is_none(),
            after,
            snapshot: false,
        };
        let mut pages = self.peers.feed(self.source, query).await.map_err(Error::Peer)?;
        loop {
            let page = match pages.try_next().await {
                Err(status) if is_expired(&status) => {
                    self.metrics.gap(self.source);
                    let start =
                        Progress { read_until_ms: progress.read_until_ms, ..Progress::default() };
                    self.write(progress, start, Vec::new()).await?;
                    return Err(Error::Peer(status));
                }
                page => page.map_err(Error::Peer)?,
            };
            let page = page.ok_or_else(|| Error::Peer(Status::unavailable("no page")))?;
            let Some(next) = self.apply(progress, &page, known_ms).await? else { return Ok(()) };
            progress = next;
            self.metrics.read(self.source, progress.read_until_ms);
            outage.end(self.source);
        }
    }

    /// Applies what the changes of a page mean, some of them at once, but for those that are known: they were made
    /// before a time, in Unix ms. Returns how far the feed is applied then; `None` if another process follows it.
    async fn apply(
        &self,
        mut progress: Progress,
        page: &FeedPage,
        known_ms: u64,
    ) -> Result<Option<Progress>, Error> {
        let end = end_of(page, progress)?;
        // Some may have been applied before another process took over.
        let is_applied = |number: &&u64| **number <= progress.applied;
        let first = page.numbers.iter().take_while(is_applied).count().min(page.changes.len());
        let (changes, numbers) = (&page.changes[first..], &page.numbers[first..]);
        let mut rest: Vec<AccountChange> = Vec::new();
        for (changes, numbers) in changes.chunks(PART).zip(numbers.chunks(PART)) {
            let effects = effects(&self.peers, changes, numbers).await.map_err(Error::Peer)?;
            let known = SystemTime::UNIX_EPOCH + Duration::from_millis(known_ms);
            let is_new = |(_, change): &AccountChange| change.version.time() + COMMIT >= known;
            rest.extend(effects.into_iter().filter(is_new));
            while let Some((applied, part)) = cut(&mut rest) {
                let next = Progress { applied, ..progress };
                if !self.write(progress, next, part).await? {
                    return Ok(None);
                }
                progress = next;
            }
        }
        let end = Progress { applied: progress.applied.max(end.applied), ..end };
        Ok(self.write(progress, end, rest).await?.then_some(end))
    }

    /// Writes changes, and how far the feed is applied. Returns whether this process still follows it.
    async fn write(
        &self,
        from: Progress,
        to: Progress,
        changes: Vec<AccountChange>,
    ) -> Result<bool, Error> {
        let applied = changes.clone();
        let call = Call::Apply { source: self.source, from, to, changes };
        let is_ours = self.writer.write(call).await? == Outcome::Done;
        if is_ours {
            self.metrics.applied(&applied);
        }
        Ok(is_ours)
    }
}

/// Returns how far a feed is applied once a page is.
fn end_of(page: &FeedPage, progress: Progress) -> Result<Progress, Error> {
    let position = page.position.ok_or_else(|| Error::Peer(no_position()))?;
    let until = page.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
    let until = until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok());
    Ok(Progress {
        sequence: position.sequence,
        token: position.token,
        applied: page.numbers.last().copied().unwrap_or_default(),
        read_until_ms: until.map_or(progress.read_until_ms, |until| until.as_millis() as u64),
    })
}

/// Takes the first changes of more than a transaction has, none of a number without the others of it. Returns
/// the last number, too.
fn cut(changes: &mut Vec<AccountChange>) -> Option<(u64, Vec<AccountChange>)> {
    let mut work = 0;
    let is_enough = |(_, change): &AccountChange| {
        work += change.weight();
        work >= WORK_MAX
    };
    let last = changes.iter().position(is_enough).filter(|last| last + 1 < changes.len())?;
    let (_, last) = changes[last];
    let count = changes.partition_point(|(_, change)| change.number <= last.number);
    let rest = changes.split_off(count);
    Some((last.number, std::mem::replace(changes, rest)))
}

/// The time in which a feed is not followed.
#[derive(Default)]
struct Outage {
    /// The times of its first and its last error.
    since: Option<Instant>,
    last: Option<Instant>,
    /// The last error that was logged as a fault.
    logged: Option<String>,
}

impl Outage {
    /// Logs each error once, as a fault if the outage lasts.
    fn log(&mut self, source: Source, error: &Error) {
        let service = source.name();
        let text = error.to_string();
        let error = error as &dyn std::error::Error;
        let is_first = self.since.is_none();
        self.last = Some(Instant::now());
        let lasts = self.since.get_or_insert_with(Instant::now).elapsed() >= STARTING;
        if lasts && self.logged.as_ref() != Some(&text) {
            tracing::warn!(service, error, "cannot follow a change feed");
            self.logged = Some(text);
        } else if is_first {
            tracing::info!(service, error, "change feed not readable yet");
        }
    }

    /// Ends an outage whose last error was long ago. Processes that fail in turn have one outage.
    fn forget(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() >= STARTING) {
            *self = Self::default();
        }
    }

    /// Logs the end of an outage that was logged as a fault.
    fn end(&mut self, source: Source) {
        if std::mem::take(self).logged.is_some() {
            tracing::info!(service = source.name(), "change feed followed again");
        }
    }
}

fn is_expired(status: &Status) -> bool {
    status::reason_of(status) == Some(ErrorReason::CursorExpired)
}

fn no_position() -> Status {
    Status::internal("a page of a change feed has no position")
}

#[cfg(test)]
mod tests {
    use microblog_domain::{PostId, Stamp, UserId};

    use super::*;
    use crate::{
        acts::{Change, What},
        notice::Subject,
    };

    #[test]
    fn an_outage_is_a_fault_when_it_lasts() {
        let error = |text: &str| Error::Peer(Status::unavailable(text));
        let mut outage = Outage::default();
        outage.log(Source::Post, &error("it starts"));
        assert_eq!(outage.logged, None);
        // Another process had the lease meanwhile.
        outage.forget();
        outage.since = outage.since.and_then(|since| since.checked_sub(STARTING));
        for text in ["it is down", "and refuses"] {
            outage.log(Source::Post, &error(text));
            assert_eq!(outage.logged, Some(error(text).to_string()));
        }
        outage.last = outage.last.and_then(|last| last.checked_sub(STARTING));
        outage.forget();
        assert_eq!(outage.logged, None, "it has ended");
        outage.log(Source::Post, &error("and refuses"));
        assert_eq!(outage.logged, None, "it is another outage");
    }

    fn change(number: u64, what: What) -> AccountChange {
        let version = Stamp::new(number).unwrap();
        let change = Change { number, what, id: 4, actor: 4, version };
        (UserId::new(4).unwrap(), change)
    }

    fn numbers(changes: &[AccountChange]) -> Vec<u64> {
        changes.iter().map(|(_, change)| change.number).collect()
    }

    #[test]
    fn a_transaction_has_all_changes_of_a_number() {
        let likes = What::Begin(Subject::Likes(PostId::new(4).unwrap()));
        let change = |number| change(number, likes);
        let max = WORK_MAX as u64;
        let mut changes: Vec<_> = (1..=max).map(change).collect();
        assert_eq!(cut(&mut changes), None);
        // The number at the end has three changes.
        changes.extend([max, max, max + 1].map(change));
        let (last, part) = cut(&mut changes).unwrap();
        assert_eq!((last, part.len()), (max, WORK_MAX + 2));
        assert!(numbers(&part).is_sorted());
        assert_eq!(numbers(&changes), [max + 1]);
    }

    /// Each removes up to 1,600 rows.
    #[test]
    fn a_transaction_has_few_deletions() {
        let mut changes: Vec<_> = (1..=9).map(|number| change(number, What::Delete)).collect();
        for (last, rest) in [(4, 5), (8, 1)] {
            let (number, part) = cut(&mut changes).unwrap();
            assert_eq!((number, part.len(), changes.len()), (last, 4, rest));
        }
        assert_eq!(cut(&mut changes), None);
    }
}
