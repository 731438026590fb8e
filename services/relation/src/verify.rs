//! Checks the invariants of the follow graph; read-only unless a [`repair`] is requested. With
//! concurrent writes, a violation may be transient; without, it is a fault.
//!
//! * B ∈ following(A) ⇔ A ∈ followers(B), with the same version;
//! * B ∈ mutual(A) ⇔ both follow each other, with the later of the two versions;
//! * each id set has the members of its list;
//! * B ∈ blocks(A) ⇔ A ∈ blocked_by(B), with the same version, and then neither follows the other;
//! * the partition's clock is not ahead of the time.
//!
//! Reported apart from violations, since they are under way: pending outbox entries, and account
//! deletions in progress.

use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use microblog_domain::{Partition, Repairs, UserId, Violations};
use microblog_keyspace::Entry;

use crate::{
    error::Error,
    graph::List,
    repair,
    store::{Store, ids},
};

const PAGE: usize = 500;
// Concurrent checks of users.
const CONCURRENCY: usize = 32;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of users checked.
    pub users: u64,
    /// The number of source edges of follows checked.
    pub follows: u64,
    /// The violations; after a repair, those that remain.
    pub violations: Violations,
    /// What is under way.
    pub pending: Violations,
    /// The repairs made.
    pub repairs: Repairs,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.users += other.users;
        self.follows += other.follows;
        self.violations.add(other.violations);
        self.pending.add(other.pending);
        self.repairs.extend(other.repairs);
    }
}

/// Checks one user, or all partitions, one after the other; with `repairs`, repairs violations, and
/// those of the clocks first, since repairs issue versions in any partition.
pub(crate) async fn reports(
    store: Store,
    user: Option<UserId>,
    repairs: bool,
) -> Result<BoxStream<'static, Result<Report, Error>>, Error> {
    let mut clocks = None;
    if repairs {
        clocks = Some(Ok(Report { repairs: store.repair_clocks().await?, ..Report::default() }));
    }
    let reports = match user {
        None => stream::iter(Partition::all())
            .then(move |at| {
                let store = store.clone();
                async move { partition(&store, at, repairs).await }
            })
            .boxed(),
        Some(user) => stream::once(async move { self::user(&store, user, repairs).await }).boxed(),
    };
    Ok(stream::iter(clocks).chain(reports).boxed())
}

/// Checks all users of a partition that have lists; with `repairs`, repairs violations.
pub async fn partition(
    store: &Store,
    partition: Partition,
    repairs: bool,
) -> Result<Report, Error> {
    let mut report = Report::default();
    if repairs {
        report.repairs = repair::unfinished(store, partition).await?;
    }
    let (pending, forgetting) = store.unfinished(partition).await?;
    report.pending.check(pending == 0, || {
        format!("partition {partition}: {pending} outbox entries are pending")
    });
    report.pending.check(forgetting == 0, || {
        format!("partition {partition}: {forgetting} account deletions are in progress")
    });
    if let Some(violation) = store.clock_violation(partition).await? {
        report.violations.check(false, || violation);
    }
    let mut cursor = 0;
    loop {
        let (next, users) = store.users(partition, cursor).await?;
        let mut checks = stream::iter(users).map(|user| self::user(store, user, repairs));
        let mut checks = checks.by_ref().buffer_unordered(CONCURRENCY);
        while let Some(checked) = checks.try_next().await? {
            report.add(checked);
        }
        if next == 0 {
            return Ok(report);
        }
        cursor = next;
    }
}

/// Checks one user's lists against the other sides; with `repairs`, repairs violations.
pub async fn user(store: &Store, user: UserId, repairs: bool) -> Result<Report, Error> {
    let found = check(store, user).await?;
    if !repairs || found.violations.is_empty() {
        return Ok(found);
    }
    let repairs = repair::user(store, user).await?;
    Ok(Report { repairs, ..check(store, user).await? })
}

async fn check(store: &Store, user: UserId) -> Result<Report, Error> {
    let mut report = Report { users: 1, ..Report::default() };
    let mut mutuals = 0;
    for &list in List::ALL {
        let Some(inverse) = list.inverse() else { continue };
        let mut after = None;
        loop {
            let page = store.page(list, user, after, None, PAGE).await?;
            let entries = &page.entries;
            check_inverse(store, (list, inverse), user, entries, &mut report).await?;
            if matches!(list, List::Following | List::Followers) {
                check_id_set(store, list, user, entries, &mut report).await?;
            }
            if list == List::Following {
                report.follows += entries.len() as u64;
                mutuals += check_mutuals(store, user, entries, &mut report).await?;
            }
            if list == List::Blocks {
                check_blocked(store, user, entries, &mut report).await?;
            }
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
    }
    let sizes = store.sizes(user).await?;
    report.violations.check(
        sizes.following == sizes.following_ids
            && sizes.followers == sizes.follower_ids
            && sizes.mutuals == mutuals,
        || format!("{user}: lengths differ: {sizes:?}, {mutuals} mutual follows"),
    );
    Ok(report)
}

// Each entry has an inverse edge with the same version.
async fn check_inverse(
    store: &Store,
    (list, inverse): (List, List),
    user: UserId,
    entries: &[Entry],
    report: &mut Report,
) -> Result<(), Error> {
    let peers = ids(entries);
    let places: Vec<_> = peers.iter().map(|&peer| (inverse, peer, user)).collect();
    for (entry, version) in entries.iter().zip(store.entries(&places).await?) {
        report.violations.check(version == entry.score, || {
            let (peer, expected) = (entry.member, entry.score);
            format!("{list:?} of {user} has {peer} at {expected}, the other side at {version}")
        });
    }
    Ok(())
}

async fn check_mutuals(
    store: &Store,
    user: UserId,
    following: &[Entry],
    report: &mut Report,
) -> Result<u64, Error> {
    let peers = ids(following);
    let back = store.versions(List::Followers, user, &peers).await?;
    let mutual = store.versions(List::Mutuals, user, &peers).await?;
    let mut count = 0;
    for ((entry, back), mutual) in following.iter().zip(back).zip(mutual) {
        let expected = if back > 0 { back.max(entry.score) } else { 0 };
        count += u64::from(expected > 0);
        report.violations.check(mutual == expected, || {
            format!("mutual of {user} has {} at {mutual}, not {expected}", entry.member)
        });
    }
    Ok(count)
}

async fn check_id_set(
    store: &Store,
    list: List,
    user: UserId,
    entries: &[Entry],
    report: &mut Report,
) -> Result<(), Error> {
    let is_member = store.in_id_set(list, user, &ids(entries)).await?;
    for (entry, is_member) in entries.iter().zip(is_member) {
        report.violations.check(is_member, || {
            format!("{list:?} of {user} has {}, its id set does not", entry.member)
        });
    }
    Ok(())
}

async fn check_blocked(
    store: &Store,
    user: UserId,
    blocks: &[Entry],
    report: &mut Report,
) -> Result<(), Error> {
    let peers = ids(blocks);
    for list in [List::Following, List::Followers] {
        for (peer, version) in peers.iter().zip(store.versions(list, user, &peers).await?) {
            report.violations.check(version == 0, || {
                format!("{user} blocks {peer}, which is still on its list {list:?}")
            });
        }
    }
    Ok(())
}
