//! The record of posts in SQL: all posts with their comments, likes and reposts, the requests of the
//! last day, and the deleted accounts. The [archive](crate::Archive) reads it.
//!
//! Entries of the journal have no texts: the recorder reads the posts and comments as they are. One
//! that is gone was deleted since: a post leaves Redis for the archive only once it is recorded.

mod restore;
mod rows;
mod tombstones;

use std::collections::{BTreeMap, BTreeSet};

use futures::future;
use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_keyspace::{Change, Entry, Order, Recovery};
use microblog_record::{
    Damaged, Database, Migration, POSITIONS, RecordError, Recorder, Replace, Tables, Work,
    WriteTransaction,
};

pub(crate) use tombstones::remove_tombstones;

use crate::{
    archive::{Archive, Config},
    journal::{JournalEntry, Reaction, ReactionList},
    keys,
    post::MadeByRequest,
    record::restore::Restore,
    store::{JOURNALS, List, PostSet, Store, post_ids},
};

/// The most entries of a list, and the most posts, that are read at once.
const PAGE: usize = 500;

/// The most posts whose lists are read at once.
const POSTS_AT_ONCE: usize = 100;

/// The tables of the service.
pub struct PostTables {
    store: Store,
    hot: Config,
}

/// Returns the recorder of the service. After a recovery, the posts of the hot window are in Redis.
pub fn recorder(store: &Store, archive: &Archive, hot: &Config) -> Recorder<PostTables> {
    let (keyspace, database) = (store.keyspace().clone(), archive.database().clone());
    let store = store.ignoring_closed();
    let tables = PostTables { store, hot: hot.clone() };
    Recorder::new("post record", database, keyspace, JOURNALS, tables)
}

impl Tables for PostTables {
    const MIGRATIONS: &[Migration] =
        &[POSITIONS, (2, "posts", include_str!("record/0002_posts.sql"))];

    const READS_SUBJECTS: bool = true;

    fn accounts_key(partition: Partition) -> String {
        keys::authors(partition)
    }

    fn apply<'a>(
        &'a self,
        transaction: &'a mut WriteTransaction,
        changes: &'a [Change],
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
    comments: BTreeMap<PostId, Vec<CommentId>>,
    deleted_comments: BTreeMap<(PostId, CommentId), u64>,
    reactions: BTreeMap<(ReactionList, PostId, u64), Reaction>,
    requests: Vec<MadeByRequest>,
    deletions: BTreeMap<UserId, (u64, bool)>,
}

impl Changes {
    fn of(changes: &[Change]) -> Result<Self, sqlx::Error> {
        let mut all = Self::default();
        for change in changes {
            match JournalEntry::parse(&change.text) {
                Some(entry) => all.add(entry),
                None if is_about_the_journal(&change.text) => {}
                None => return Err(sqlx::Error::Decode("kind of a change".into())),
            }
        }
        all.discard_parts_of_deleted();
        Ok(all)
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
                self.comments.entry(post).or_default().push(id);
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
        self.comments.retain(|post, _| !deleted.contains_key(post));
        self.deleted_comments.retain(|(post, _), _| !deleted.contains_key(post));
        self.reactions.retain(|(_, post, _), _| !deleted.contains_key(post));
    }

    // Keeps parts of some posts alone.
    fn retain_parts_of(&mut self, posts: &BTreeSet<PostId>) {
        self.comments.retain(|post, _| posts.contains(post));
        self.deleted_comments.retain(|(post, _), _| posts.contains(post));
        self.reactions.retain(|(_, post, _), _| posts.contains(post));
    }

    fn posts_with_parts(&self) -> Vec<PostId> {
        let comments = self.comments.keys().copied();
        let deleted = self.deleted_comments.keys().map(|(post, _)| *post);
        let reactions = self.reactions.keys().map(|(_, post, _)| *post);
        let posts: BTreeSet<_> = comments.chain(deleted).chain(reactions).collect();
        posts.into_iter().collect()
    }
}

/// Returns whether an entry begins the journal, or an epoch of it.
fn is_about_the_journal(entry: &str) -> bool {
    ["opened", "recovering", "recovered"].iter().any(|kind| entry.starts_with(kind))
}

impl PostTables {
    async fn write(
        &self,
        transaction: &mut WriteTransaction,
        changes: &[Change],
        replace: Replace,
    ) -> Result<(), RecordError> {
        let mut changes = Changes::of(changes)?;
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
        let comments: Vec<_> = changes.comments.iter().collect();
        for comments in comments.chunks(POSTS_AT_ONCE) {
            let read = comments.iter().map(|(post, ids)| self.store.comments(**post, ids));
            let read = future::try_join_all(read).await?;
            rows::insert_comments(transaction, &read.concat()).await?;
        }
        let ends = changes.deleted_comments.iter();
        let ends: Vec<_> = ends.map(|(&(post, id), &stamp)| (post, id, stamp)).collect();
        rows::delete_comments(transaction, &ends).await?;
        for list in [ReactionList::Likes, ReactionList::Reposts] {
            let of_list = changes.reactions.values().filter(|reaction| reaction.list == list);
            let of_list: Vec<_> = of_list.copied().collect();
            rows::write_reactions(transaction, list, &of_list, replace).await?;
        }
        let ends: Vec<_> = changes.deleted_posts.into_iter().collect();
        rows::delete_posts(transaction, &ends).await?;
        rows::insert_requests(transaction, &changes.requests).await?;
        let deletions: Vec<_> = changes.deletions.into_iter().collect();
        Ok(rows::upsert_deletions(transaction, &deletions).await?)
    }

    // Deletes the rows of posts that are in Redis, and of those that were deleted there: newer than
    // all that were evicted. The others are in the archive alone.
    async fn clear_partition(
        &self,
        transaction: &mut WriteTransaction,
        partition: Partition,
    ) -> Result<(), RecordError> {
        let watermark = self.store.watermark(partition).await?;
        let mut after = 0;
        loop {
            let ids = rows::page(transaction, partition, after, POSTS_AT_ONCE).await?;
            let Some(last) = ids.last() else { return Ok(()) };
            after = last.get();
            let exist = self.store.exist(&ids).await?;
            let is_stale = |(&id, in_redis): (&PostId, bool)| {
                (in_redis || watermark.is_none_or(|watermark| id > watermark)).then_some(id)
            };
            let stale: Vec<_> = ids.iter().zip(exist).filter_map(is_stale).collect();
            if !stale.is_empty() {
                rows::delete_rows(transaction, &["comments", "likes", "reposts"], "post", &stale)
                    .await?;
                rows::delete_rows(transaction, &["posts"], "id", &stale).await?;
            }
        }
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
            for author in authors {
                self.fill_set(transaction, PostSet::Of(author)).await?;
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.fill_set(transaction, PostSet::Evictable(partition)).await?;
        let mut after = None;
        loop {
            let page = self.store.tombstones(partition, after, PAGE).await?;
            let ends = page.entries.iter();
            let ends = ends.filter_map(|entry| Some((PostId::new(entry.member)?, entry.score)));
            rows::delete_posts(transaction, &ends.collect::<Vec<_>>()).await?;
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        let deletions = self.store.forgotten(partition).await?;
        let deletions: Vec<_> =
            deletions.into_iter().map(|(user, is_done)| (user, (0, is_done))).collect();
        Ok(rows::upsert_deletions(transaction, &deletions).await?)
    }

    async fn fill_set(
        &self,
        transaction: &mut WriteTransaction,
        set: PostSet,
    ) -> Result<(), RecordError> {
        let mut after = None;
        loop {
            let page = self.store.post_set(set, after, POSTS_AT_ONCE).await?;
            self.fill_posts(transaction, &post_ids(&page.entries)).await?;
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn fill_posts(
        &self,
        transaction: &mut WriteTransaction,
        ids: &[PostId],
    ) -> Result<(), RecordError> {
        let found: Vec<_> = self.store.posts(ids, None).await?.into_iter().flatten().collect();
        let posts: Vec<_> = found.iter().map(|post| (post.id, post.content.clone())).collect();
        rows::insert_posts(transaction, &posts).await?;
        let ids: Vec<_> = posts.iter().map(|(id, _)| *id).collect();
        let existing = rows::existing(transaction, &ids).await?;
        let found: Vec<_> = found.into_iter().filter(|post| existing.contains(&post.id)).collect();
        let with = |count: fn(&crate::Counts) -> u64| {
            found.iter().filter(move |post| count(&post.counts) > 0).map(|post| post.id)
        };
        for id in with(|counts| counts.likes) {
            self.fill_reactions(transaction, ReactionList::Likes, id).await?;
        }
        for id in with(|counts| counts.reposts) {
            self.fill_reactions(transaction, ReactionList::Reposts, id).await?;
        }
        for id in with(|counts| counts.comments) {
            self.fill_comments(transaction, id).await?;
        }
        Ok(())
    }

    async fn fill_reactions(
        &self,
        transaction: &mut WriteTransaction,
        list: ReactionList,
        post: PostId,
    ) -> Result<(), RecordError> {
        let of_store = match list {
            ReactionList::Likes => List::Likers,
            ReactionList::Reposts => List::Reposts,
        };
        let mut after = None;
        loop {
            let page = self.store.list(of_store, post, after, PAGE).await?;
            let reaction = |&Entry { member, score: since }: &Entry| Reaction {
                list,
                post,
                member,
                since,
                exists: true,
            };
            let reactions: Vec<_> = page.entries.iter().map(reaction).collect();
            rows::write_reactions(transaction, list, &reactions, Replace::Older).await?;
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn fill_comments(
        &self,
        transaction: &mut WriteTransaction,
        post: PostId,
    ) -> Result<(), RecordError> {
        let mut after = None;
        loop {
            let page = self.store.list(List::Comments(Order::Oldest), post, after, PAGE).await?;
            let ids = page.entries.iter().filter_map(|entry| CommentId::new(entry.member));
            let comments = self.store.comments(post, &ids.collect::<Vec<_>>()).await?;
            rows::insert_comments(transaction, &comments).await?;
            after = page.entries.last().copied();
            if !page.more {
                return Ok(());
            }
        }
    }
}
