//! Checks the invariants of posts, read-only; on request, [repairs](crate::repair) violations.
//! During writes, a violation may be an intermediate state; otherwise it is a fault.
//!
//! * Each entry of an author's list is an existing post of that author.
//! * An author's post count is the number of its posts.
//! * Each count of a post is the length of its list, and each comment has a body.
//! * A post's reposts exist and repost it; a repost is on the list of each post that counts it.
//! * The clock that issues ids is not ahead of the time.
//!
//! The same holds for archived posts. Work under way is reported apart from violations: backlink updates
//! and deliveries that are pending, changes that are not recorded yet, since Redis is authoritative for
//! what it has, and accounts that are being erased, which takes minutes.

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_domain::{Partition, PostId, Repairs, UserId, Violations};

use crate::{
    error::Error,
    post::{ListLengths, Post},
    repair::Repair,
    store::{List, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 500;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of checked posts.
    pub posts: u64,
    /// The number of counted list entries.
    pub entries: u64,
    /// The violations; after a repair, those that remain.
    pub violations: Violations,
    /// What is under way.
    pub pending: Violations,
    /// The repairs.
    pub repairs: Repairs,
    /// The number of changes that are not recorded yet.
    pub unarchived: u64,
    /// The number of accounts that are being erased.
    pub erasing: u64,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.posts += other.posts;
        self.entries += other.entries;
        self.violations.add(other.violations);
        self.pending.add(other.pending);
        self.repairs.extend(other.repairs);
        self.unarchived += other.unarchived;
        self.erasing += other.erasing;
    }
}

/// Checks one author's posts, or all posts of one partition after another; repairs violations on
/// request.
pub(crate) async fn reports(
    tiered: TieredStore,
    repair: Option<Repair>,
    user: Option<UserId>,
) -> Result<BoxStream<'static, Result<Report, Error>>, Error> {
    // The clocks come first, since repairs issue stamps.
    let clocks = match repair {
        Some(_) => Some(tiered.store().repair_clocks().await?),
        None => None,
    };
    let clocks = clocks.map(|repairs| Ok(Report { repairs, ..Report::default() }));
    let parts: Vec<_> = match user {
        Some(user) => vec![Part::Author(user)],
        None => Partition::all().map(Part::Partition).collect(),
    };
    let reports = stream::iter(parts).then(move |part| {
        let (tiered, repair) = (tiered.clone(), repair.clone());
        async move {
            match (part, &repair) {
                (Part::Partition(at), Some(repair)) => {
                    repaired_partition(&tiered, repair, at).await
                }
                (Part::Partition(at), None) => partition(&tiered, at).await,
                (Part::Author(user), Some(repair)) => repaired_author(&tiered, repair, user).await,
                (Part::Author(user), None) => author(&tiered, user).await,
            }
        }
    });
    Ok(stream::iter(clocks).chain(reports).boxed())
}

enum Part {
    Partition(Partition),
    Author(UserId),
}

// Checks all posts of a partition, and repairs violations.
async fn repaired_partition(
    tiered: &TieredStore,
    repair: &Repair,
    partition: Partition,
) -> Result<Report, Error> {
    let found = self::partition(tiered, partition).await?;
    if found.violations.is_empty() && found.pending.is_empty() {
        return Ok(found);
    }
    let mut repairs = repair.repair_backlogs(partition).await?;
    let mut cursor = 0;
    loop {
        let (next, authors) = tiered.store().authors(partition, cursor).await?;
        for author in authors {
            repairs.extend(repaired_author(tiered, repair, author).await?.repairs);
        }
        if next == 0 {
            return Ok(Report { repairs, ..self::partition(tiered, partition).await? });
        }
        cursor = next;
    }
}

// Checks one author's posts, and repairs violations.
async fn repaired_author(
    tiered: &TieredStore,
    repair: &Repair,
    author: UserId,
) -> Result<Report, Error> {
    let found = self::author(tiered, author).await?;
    if found.violations.is_empty() {
        return Ok(found);
    }
    let repairs = repair.repair_author(author).await?;
    Ok(Report { repairs, ..self::author(tiered, author).await? })
}

/// Checks all posts of a partition.
pub async fn partition(tiered: &TieredStore, partition: Partition) -> Result<Report, Error> {
    let store = tiered.store();
    let [pending, undelivered, erasing] = store.backlogs(partition).await?;
    let unarchived = tiered.unrecorded(partition).await?;
    let mut report = Report { unarchived, erasing, ..Report::default() };
    for (count, kind) in [(pending, "pending reposts"), (undelivered, "undelivered posts")] {
        report.pending.check(count == 0, || format!("partition {partition}: {count} {kind}"));
    }
    if let Some(violation) = store.clock_violation(partition).await? {
        report.violations.check(false, || violation);
    }
    let mut cursor = 0;
    loop {
        let (next, authors) = store.authors(partition, cursor).await?;
        for author in authors {
            report.add(self::author(tiered, author).await?);
        }
        if next == 0 {
            return Ok(report);
        }
        cursor = next;
    }
}

// Checks one author's posts.
async fn author(tiered: &TieredStore, author: UserId) -> Result<Report, Error> {
    let mut report = Report::default();
    let (mut after, mut listed) = (None, 0);
    loop {
        let page = tiered.posts_of(author, after, PAGE).await?;
        let ids = post_ids(&page.entries);
        listed += ids.len() as u64;
        let (posts, list_lengths) =
            futures::try_join!(tiered.posts(&ids, None), tiered.list_lengths(&ids))?;
        for (&id, (post, list_lengths)) in ids.iter().zip(posts.iter().zip(list_lengths)) {
            let is_authors = post.as_ref().is_some_and(|post| post.content.author == author);
            report.violations.check(is_authors, || {
                format!("{author} lists {id}, which is not one of its posts")
            });
            if let Some(post) = post {
                check_counts(post, list_lengths, &mut report);
            }
        }
        let posts: Vec<Post> = posts.into_iter().flatten().collect();
        for post in posts.iter().filter(|post| post.counts.reposts > 0) {
            check_reposts(tiered, post.id, &mut report).await?;
        }
        check_is_listed(tiered, &posts, &mut report).await?;
        after = page.entries.last().copied();
        if !page.more {
            break;
        }
    }
    for count in tiered.store().post_counts(&[author]).await? {
        // The evictor counts what is not counted yet.
        let is_right = count.unlisted.is_none() || count.total() == listed;
        let counted = count.total();
        report
            .violations
            .check(is_right, || format!("{author} counts {counted} posts, and has {listed}"));
    }
    Ok(report)
}

fn check_counts(post: &Post, list_lengths: ListLengths, report: &mut Report) {
    let ListLengths { counts, comment_bodies } = list_lengths;
    report.posts += 1;
    report.entries += counts.likes + counts.comments + counts.reposts;
    report.violations.check(post.counts == counts, || {
        format!("{} counts {:?}, its lists have {counts:?}", post.id, post.counts)
    });
    report.violations.check(comment_bodies == counts.comments, || {
        format!("{} has {comment_bodies} bodies of {} comments", post.id, counts.comments)
    });
}

// Each entry of a post's list of reposts must repost it.
async fn check_reposts(tiered: &TieredStore, id: PostId, report: &mut Report) -> Result<(), Error> {
    let mut after = None;
    loop {
        let page = tiered.list(List::Reposts, id, after, PAGE).await?;
        let ids = post_ids(&page.entries);
        for (repost, found) in ids.iter().zip(tiered.posts(&ids, None).await?) {
            let repeats =
                found.is_some_and(|found| found.content.counted_by().any(|target| target == id));
            report
                .violations
                .check(repeats, || format!("{id} lists {repost}, which is not its repost"));
        }
        after = page.entries.last().copied();
        if !page.more {
            return Ok(());
        }
    }
}

// A repost must be on the lists of those posts that count it and exist.
async fn check_is_listed(
    tiered: &TieredStore,
    posts: &[Post],
    report: &mut Report,
) -> Result<(), Error> {
    let counted =
        |post: &Post| post.content.counted_by().map(|target| (post.id, target)).collect::<Vec<_>>();
    let pairs: Vec<(PostId, PostId)> = posts.iter().flat_map(counted).collect();
    let targets: Vec<PostId> = pairs.iter().map(|&(_, target)| target).collect();
    let (listed, exist) = futures::try_join!(tiered.are_listed(&pairs), tiered.exist(&targets))?;
    for ((repost, target), (is_listed, exists)) in
        pairs.into_iter().zip(listed.into_iter().zip(exist))
    {
        report.violations.check(is_listed == exists, || {
            format!("{repost} reposts {target}: is listed {is_listed}, target exists {exists}")
        });
    }
    Ok(())
}
