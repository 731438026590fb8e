//! The record of posts in SQL: all posts with their comments, likes and reposts, the requests of the
//! last day, and the deleted accounts. The [archive](crate::Archive) reads it.
//!
//! Entries of the journal have no texts: the recorder reads the posts and comments as they are. One
//! that is gone was deleted since: a post leaves Redis for the archive only once it is recorded.

mod missing;
mod restore;
mod rows;
mod tombstones;
mod unchanged;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    pin::pin,
};

use futures::{
    FutureExt as _, Stream, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream,
};
use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_keyspace::{self as keyspace, Entry, Order, Page, Recovery};
use microblog_proto::common::{self as pb, ChangeKind};
use microblog_record::{
    Damaged, Database, Error as DatabaseError, ExistingPage, Migration, POSITIONS, RecordError,
    Recorder, Replace, RowKey, Tables, Work, WriteTransaction, change_feed,
};

pub(crate) use tombstones::remove_tombstones;

use crate::{
    archive::{Archive, Config, RECORD},
    changes,
    journal::{JournalEntry, Reaction, ReactionList},
    keys,
    metrics::Metrics,
    post::{Counts, MadeByRequest},
    record::{restore::Restore, rows::CountChanges},
    store::{JOURNALS, List, PostSet, Store, post_ids},
};

/// The most entries of a list, and the most posts, that are read at once.
const PAGE: usize = 500;

/// The most posts whose lists are read at once.
const POSTS_AT_ONCE: usize = 100;

/// The lists that are read at once to fill a database.
const READ_TOGETHER: usize = 16;

/// The tables of the service.
pub struct PostTables {
    store: Store,
    hot: Config,
    metrics: Metrics,
}

/// Returns the recorder of the service. After a recovery, the posts of the hot window are in Redis.
pub fn recorder(store: &Store, archive: &Archive, hot: &Config) -> Recorder<PostTables> {
    let (keyspace, database) = (store.keyspace().clone(), archive.database().clone());
    let store = store.ignoring_closed();
    let tables = PostTables { store, hot: hot.clone(), metrics: Metrics::new() };
    Recorder::new(RECORD, database, keyspace, JOURNALS, tables)
}

impl Tables for PostTables {
    const MIGRATIONS: &[Migration] = &[
        POSITIONS,
        (2, "posts", include_str!("record/0002_posts.sql")),
        (3, "backups", include_str!("record/0003_backups.sql")),
        change_feed(4),
    ];

    fn accounts_key(partition: Partition) -> String {
        keys::authors(partition)
    }

    type Entry = JournalEntry;

    fn parse(entry: &str) -> Option<JournalEntry> {
        JournalEntry::parse(entry)
    }

    const CHANGE_KINDS: &[ChangeKind] = &changes::KINDS;

    fn change(entry: &JournalEntry) -> Option<pb::Change> {
        changes::change(entry)
    }

    fn existing<'a>(
        &'a self,
        database: &'a Database,
        kind: ChangeKind,
        after: RowKey,
    ) -> BoxFuture<'a, Result<ExistingPage, DatabaseError>> {
        changes::existing(database, kind, after).boxed()
    }

    fn unchanged<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [JournalEntry],
    ) -> BoxFuture<'a, Result<BTreeSet<usize>, RecordError>> {
        async move { Ok(unchanged::unchanged(transaction, changes).await?) }.boxed()
    }

    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [JournalEntry],
        replace: Replace,
    ) -> Work<'a> {
        Box::pin(self.write(transaction, changes, replace))
    }

    fn clear<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partition: Partition,
    ) -> Work<'a> {
        Box::pin(self.clear_partition(transaction, partition))
    }

    fn restore<'a>(
        &'a self,
        database: &'a Database,
        recovery: Recovery,
        damaged: &'a Damaged,
    ) -> Work<'a> {
        let (store, archive) = (&self.store, Archive::new(database.clone()));
        let (hot, partition) = (&self.hot, recovery.partition);
        Box::pin(Restore { store, archive, hot, recovery, partition, damaged }.run())
    }

    fn fill<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        partitions: &'a [Partition],
    ) -> Work<'a> {
        Box::pin(async move {
            for &partition in partitions {
                self.fill_partition(transaction, partition).await?;
            }
            Ok(())
        })
    }
}

/// What some changes lead to. The last change of a subject counts: a statement writes a row once.
#[derive(Default)]
struct Changes {
    posts: Vec<PostId>,
    deleted_posts: BTreeMap<PostId, u64>,
    comments: BTreeSet<(PostId, CommentId)>,
    deleted_comments: BTreeMap<(PostId, CommentId), u64>,
    reactions: BTreeMap<(ReactionList, PostId, u64), Reaction>,
    requests: Vec<MadeByRequest>,
    deletions: BTreeMap<UserId, (u64, bool)>,
}

impl Changes {
    fn of(changes: &[JournalEntry]) -> Self {
        let mut all = Self::default();
        changes.iter().for_each(|&change| all.add(change));
        all.discard_parts_of_deleted();
        all
    }

    fn add(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Post(id, made) => {
                self.posts.push(id);
                self.requests.push(made);
            }
            JournalEntry::Unpost(id, stamp) => {
                self.deleted_posts.insert(id, stamp);
            }
            JournalEntry::Comment(post, id, made) => {
                self.comments.insert((post, id));
                self.requests.push(made);
            }
            JournalEntry::Uncomment(post, id, stamp) => {
                self.deleted_comments.insert((post, id), stamp);
            }
            JournalEntry::Reaction(reaction) => {
                let key = (reaction.list, reaction.post, reaction.member);
                self.reactions.insert(key, reaction);
            }
            JournalEntry::Moved(_) => {}
            JournalEntry::Forget(user, stamp) => {
                self.deletions.entry(user).or_insert((stamp, false));
            }
            JournalEntry::Forgotten(user, stamp) => {
                self.deletions.entry(user).or_insert((stamp, true)).1 = true;
            }
        }
    }

    // What belongs to a deleted post is deleted with it.
    fn discard_parts_of_deleted(&mut self) {
        let deleted = &self.deleted_posts;
        self.posts.retain(|id| !deleted.contains_key(id));
        self.comments.retain(|(post, _)| !deleted.contains_key(post));
        self.deleted_comments.retain(|(post, _), _| !deleted.contains_key(post));
        self.reactions.retain(|(_, post, _), _| !deleted.contains_key(post));
    }

    // Keeps parts of some posts alone.
    fn retain_parts_of(&mut self, posts: &BTreeSet<PostId>) {
        self.comments.retain(|(post, _)| posts.contains(post));
        self.deleted_comments.retain(|(post, _), _| posts.contains(post));
        self.reactions.retain(|(_, post, _), _| posts.contains(post));
    }

    fn posts_with_parts(&self) -> Vec<PostId> {
        let comments = self.comments.iter().map(|(post, _)| *post);
        let deleted = self.deleted_comments.keys().map(|(post, _)| *post);
        let reactions = self.reactions.keys().map(|(_, post, _)| *post);
        let posts: BTreeSet<_> = comments.chain(deleted).chain(reactions).collect();
        posts.into_iter().collect()
    }
}

impl PostTables {
    async fn write(
        &self,
        transaction: &mut WriteTransaction,
        changes: &[JournalEntry],
        replace: Replace,
    ) -> Result<(), RecordError> {
        let mut changes = Changes::of(changes);
        for ids in changes.posts.chunks(PAGE) {
            let contents = self.store.contents(ids).await?;
            let posts = ids.iter().zip(contents);
            let posts: Vec<_> = posts.filter_map(|(&id, content)| Some((id, content?))).collect();
            rows::insert_posts(transaction, &posts).await?;
        }
        if replace == Replace::Older {
            // The deletion of a post may be recorded, and lost in Redis.
            let posts = changes.posts_with_parts();
            changes.retain_parts_of(&rows::existing(transaction, &posts).await?);
        }
        let mut counts = CountChanges::new();
        let comments: Vec<_> = changes.comments.into_iter().collect();
        for keys in comments.chunks(PAGE) {
            let comments = self.store.comments(keys).await?;
            rows::insert_comments(transaction, &comments, &mut counts).await?;
        }
        let ends = changes.deleted_comments.iter();
        let ends: Vec<_> = ends.map(|(&(post, id), &stamp)| (post, id, stamp)).collect();
        rows::delete_comments(transaction, &ends, &mut counts).await?;
        for list in [ReactionList::Likes, ReactionList::Reposts] {
            let of_list = changes.reactions.values().filter(|reaction| reaction.list == list);
            let of_list: Vec<_> = of_list.copied().collect();
            rows::write_reactions(transaction, list, &of_list, replace, &mut counts).await?;
        }
        rows::change_counts(transaction, &counts).await?;
        let ends: Vec<_> = changes.deleted_posts.into_iter().collect();
        rows::delete_posts(transaction, &ends).await?;
        rows::insert_requests(transaction, &changes.requests).await?;
        let deletions: Vec<_> = changes.deletions.into_iter().collect();
        Ok(rows::upsert_deletions(transaction, &deletions).await?)
    }

    // Deletes the rows of posts that are in Redis, and of those that were deleted there: newer than
    // all that were evicted, or with a tombstone. The others are in the archive alone.
    async fn clear_partition(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let watermark = self.store.watermark(partition).await?;
        let mut after = 0;
        loop {
            let ids = rows::page(transaction, partition, after, POSTS_AT_ONCE).await?;
            let Some(last) = ids.last() else { break };
            after = last.get();
            let exist = self.store.exist(&ids).await?;
            let deleted = self.store.have_tombstones(&ids).await?;
            let is_stale = |(&id, (in_redis, is_deleted)): (&PostId, (bool, bool))| {
                let is_newer = watermark.is_none_or(|watermark| id > watermark);
                (in_redis || is_deleted || is_newer).then_some(id)
            };
            let stale: Vec<_> =
                ids.iter().zip(exist.into_iter().zip(deleted)).filter_map(is_stale).collect();
            if !stale.is_empty() {
                rows::delete_rows(transaction, &["comments", "likes", "reposts"], "post", &stale)
                    .await?;
                rows::delete_rows(transaction, &["posts"], "id", &stale).await?;
            }
        }
        let missing = missing::find(&self.store, transaction, partition).await?;
        self.metrics.add_missing(missing);
        Ok(())
    }

    // Posts move from the lists of their authors to the set of evictable ones, so that comes last.
    async fn fill_partition(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let mut cursor = 0;
        loop {
            let (next, authors) = self.store.authors(partition, cursor).await?;
            let sets = authors.into_iter().map(PostSet::Of).collect();
            self.fill_sets(transaction, sets).await?;
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.fill_sets(transaction, vec![PostSet::Evictable(partition)]).await?;
        let read = |after| self.store.tombstones(partition, after, PAGE);
        let mut tombstones = pin!(pages(read));
        while let Some(page) = tombstones.try_next().await? {
            let ends = page.iter();
            let ends = ends.filter_map(|entry| Some((PostId::new(entry.member)?, entry.score)));
            rows::delete_posts(transaction, &ends.collect::<Vec<_>>()).await?;
        }
        let deletions = self.store.forgotten(partition).await?;
        let deletions: Vec<_> =
            deletions.into_iter().map(|(user, is_done)| (user, (0, is_done))).collect();
        Ok(rows::upsert_deletions(transaction, &deletions).await?)
    }

    async fn fill_sets(
        &self,
        transaction: &mut WriteTransaction,
        sets: Vec<PostSet>,
    ) -> Result<(), RecordError> {
        let read = |set| Box::pin(pages(move |after| self.store.post_set(set, after, PAGE)));
        let mut pages = stream::iter(sets).map(read).flatten_unordered(READ_TOGETHER);
        let mut ids = Vec::new();
        while let Some(page) = pages.try_next().await? {
            ids.extend(post_ids(&page));
            if ids.len() >= PAGE {
                self.fill_posts(transaction, mem::take(&mut ids)).await?;
            }
        }
        self.fill_posts(transaction, ids).await
    }

    async fn fill_posts(
        &self,
        transaction: &mut WriteTransaction,
        mut ids: Vec<PostId>,
    ) -> Result<(), RecordError> {
        // A scan may return an author twice.
        ids.sort_unstable();
        ids.dedup();
        let found: Vec<_> = self.store.posts(&ids, None).await?.into_iter().flatten().collect();
        let posts: Vec<_> = found.iter().map(|post| (post.id, post.content.clone())).collect();
        rows::insert_posts(transaction, &posts).await?;
        let ids: Vec<_> = posts.iter().map(|(id, _)| *id).collect();
        let existing = rows::existing(transaction, &ids).await?;
        let found: Vec<_> = found.into_iter().filter(|post| existing.contains(&post.id)).collect();
        let with = |count: fn(&Counts) -> u64| {
            let with = found.iter().filter(move |post| count(&post.counts) > 0);
            with.map(|post| post.id).collect::<Vec<_>>()
        };
        let mut counts = CountChanges::new();
        for (list, posts) in [
            (ReactionList::Likes, with(|counts| counts.likes)),
            (ReactionList::Reposts, with(|counts| counts.reposts)),
        ] {
            self.fill_reactions(transaction, list, posts, &mut counts).await?;
        }
        let commented = with(|counts| counts.comments);
        self.fill_comments(transaction, commented, &mut counts).await?;
        Ok(rows::change_counts(transaction, &counts).await?)
    }

    // Returns the pages of a list of posts, in any order.
    fn lists(
        &self,
        list: List,
        posts: Vec<PostId>,
    ) -> impl Stream<Item = Result<(PostId, Vec<Entry>), keyspace::Error>> {
        let read = move |post| {
            let pages = pages(move |after| self.store.list(list, post, after, PAGE));
            Box::pin(pages.map_ok(move |page| (post, page)))
        };
        stream::iter(posts).map(read).flatten_unordered(READ_TOGETHER)
    }

    async fn fill_reactions(
        &self,
        transaction: &mut WriteTransaction,
        list: ReactionList,
        posts: Vec<PostId>,
        counts: &mut CountChanges,
    ) -> Result<(), RecordError> {
        let of_store = match list {
            ReactionList::Likes => List::Likers,
            ReactionList::Reposts => List::Reposts,
        };
        let mut lists = self.lists(of_store, posts);
        let mut reactions = BTreeMap::new();
        loop {
            let page = lists.try_next().await?;
            let is_end = page.is_none();
            if let Some((post, page)) = page {
                for Entry { member, score: since } in page {
                    // A statement writes a row once. An entry may be on two pages, if it changes.
                    let reaction = Reaction { list, post, member, since, exists: true };
                    let known = reactions.entry((post, member)).or_insert(reaction);
                    known.since = known.since.max(since);
                }
            }
            if is_end || reactions.len() >= PAGE {
                let read: Vec<_> = mem::take(&mut reactions).into_values().collect();
                rows::write_reactions(transaction, list, &read, Replace::Older, counts).await?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    async fn fill_comments(
        &self,
        transaction: &mut WriteTransaction,
        posts: Vec<PostId>,
        counts: &mut CountChanges,
    ) -> Result<(), RecordError> {
        let read = async |(post, page): (PostId, Vec<Entry>)| {
            let keys = page.iter().filter_map(|entry| Some((post, CommentId::new(entry.member)?)));
            self.store.comments(&keys.collect::<Vec<_>>()).await
        };
        let lists = self.lists(List::Comments(Order::Oldest), posts);
        let mut lists = pin!(lists.map_ok(read).try_buffer_unordered(READ_TOGETHER));
        let mut comments = Vec::new();
        while let Some(page) = lists.try_next().await? {
            comments.extend(page);
            if comments.len() >= PAGE {
                rows::insert_comments(transaction, &mem::take(&mut comments), counts).await?;
            }
        }
        Ok(rows::insert_comments(transaction, &comments, counts).await?)
    }
}

/// Returns the pages of a sorted set.
fn pages<R: Future<Output = Result<Page, keyspace::Error>>>(
    read: impl Fn(Option<Entry>) -> R,
) -> impl Stream<Item = Result<Vec<Entry>, keyspace::Error>> {
    stream::try_unfold((read, Some(None)), async |(read, after)| {
        let Some(after) = after else { return Ok(None) };
        let page = read(after).await?;
        let next = page.entries.last().copied().filter(|_| page.more).map(Some);
        Ok(Some((page.entries, (read, next))))
    })
}
