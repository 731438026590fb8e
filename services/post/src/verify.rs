//! Checks the invariants of posts, read-only, or has what is wrong mended (see [`repair`](crate::repair)).
//! What it finds while writes are under way may be a moment in between; at a quiet time it is a fault.
//!
//! * what an author's list names exists, and is the author's;
//! * an author has as many posts as are counted;
//! * each count of a post is the length of its list, and each comment has a content;
//! * a post's reposts exist and repeat it, and a repost is on the list of each post that counts it;
//! * the clock that issues ids is not ahead of the time;
//! * nothing waits to be told or delivered.
//!
//! Of a post that left Redis likewise, in the archive. What the archive does not know yet is counted,
//! and no fault: Redis has it, and until the archive is told, Redis is right. So are accounts that are
//! being erased, which takes minutes.

use microblog_domain::{Partition, PostId, Repairs, UserId, Violations};

use crate::{
    error::Error,
    post::{ListLengths, Post},
    repair::Repair,
    store::{List, post_ids},
    tiered_store::TieredStore,
};

const PAGE: usize = 500;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many posts were checked.
    pub posts: u64,
    /// How many entries of their lists were counted.
    pub entries: u64,
    /// What is wrong; after a repair, what still is.
    pub violations: Violations,
    /// What was mended.
    pub repairs: Repairs,
    /// How much the archive may not know yet.
    pub unarchived: u64,
    /// How many accounts are being erased.
    pub erasing: u64,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.posts += other.posts;
        self.entries += other.entries;
        self.violations.add(other.violations);
        self.repairs.extend(other.repairs);
        self.unarchived += other.unarchived;
        self.erasing += other.erasing;
    }
}

/// Checks all posts of a partition, and mends what is wrong.
pub(crate) async fn repaired_partition(
    tiered: &TieredStore,
    repair: &Repair,
    partition: Partition,
) -> Result<Report, Error> {
    let found = self::partition(tiered, partition).await?;
    if found.violations.is_empty() {
        return Ok(found);
    }
    let mut repairs = repair.backlogs(partition).await?;
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

/// Checks one author's posts, and mends what is wrong.
pub(crate) async fn repaired_author(
    tiered: &TieredStore,
    repair: &Repair,
    author: UserId,
) -> Result<Report, Error> {
    let found = self::author(tiered, author).await?;
    if found.violations.is_empty() {
        return Ok(found);
    }
    let repairs = repair.author(author).await?;
    Ok(Report { repairs, ..self::author(tiered, author).await? })
}

/// Checks all posts of a partition.
pub async fn partition(tiered: &TieredStore, partition: Partition) -> Result<Report, Error> {
    let store = tiered.store();
    let [pending, undelivered, erasing, unarchived] = store.backlogs(partition).await?;
    let mut report = Report { unarchived, erasing, ..Report::default() };
    for (count, kind) in
        [(pending, "reposts wait to be told"), (undelivered, "posts wait to be delivered")]
    {
        report.violations.check(count == 0, || format!("partition {partition}: {count} {kind}"));
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

/// Checks one author's posts.
pub(crate) async fn author(tiered: &TieredStore, author: UserId) -> Result<Report, Error> {
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
                format!("{author} has {id} listed, which is none of its posts")
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
        // What is not counted yet, the mover counts.
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
        format!("{} has {comment_bodies} contents of {} comments", post.id, counts.comments)
    });
}

// What is on the list of a post's reposts repeats it.
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
                .check(repeats, || format!("{id} lists {repost}, which does not repeat it"));
        }
        after = page.entries.last().copied();
        if !page.more {
            return Ok(());
        }
    }
}

// A repost is on the lists of those posts that count it and exist.
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
            format!("{repost} repeats {target}: listed there {is_listed}, which exists {exists}")
        });
    }
    Ok(())
}
