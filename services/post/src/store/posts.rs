//! Publishing, reading and deleting posts, and notifying posts of their reposts, which lie in other
//! partitions.

use std::time::Duration;

use microblog_domain::{Partition, PostId, RequestId, UserId};
use microblog_keyspace::{
    Batch, Call, Entry, Error, Order, Page, decode,
    redis::{Cmd, Value, cmd},
};

use super::{
    REQUEST_TTL, Store,
    body::{PostBody, fields, read, readable},
    decode::{Outcome, post, stamp, wait},
};
use crate::{
    keys,
    post::{Backlink, BacklinkUpdate, Content, Post},
};

/// The archive marker: the last member of an author's list that continues in the archive.
pub(crate) const ARCHIVE_MARKER: u64 = 0;

/// The result of publishing a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was published.
    New(PostId),
    /// The same request published one before.
    Existing {
        /// That post.
        id: PostId,
        /// Whether later steps of the saga may be incomplete.
        is_incomplete: bool,
    },
    /// The rate limit is exceeded; retry after this time.
    Throttled(Duration),
    /// The account is deleted.
    AccountDeleted,
}

/// A post to delete.
#[derive(Clone, Copy, Debug)]
pub struct PostDeletion<'a> {
    /// The post.
    pub id: PostId,
    /// Its content.
    pub content: &'a Content,
    /// Whether it was read from the archive.
    pub in_archive: bool,
}

impl Backlink {
    /// Encodes the member of `pending`, in the functions' format.
    pub(super) fn member(self) -> String {
        format!("repost:{}>{}", self.repost, self.target)
    }

    /// Decodes a member of `pending`.
    pub(super) fn parse(member: &str) -> Option<Self> {
        let (repost, target) = member.strip_prefix("repost:")?.split_once('>')?;
        let id = |text: &str| PostId::new(text.parse().ok()?);
        Some(Self { repost: id(repost)?, target: id(target)? })
    }
}

impl Store {
    /// Publishes a post: writes it, with its entries in the outbox and in `pending`.
    pub async fn publish(&self, content: &Content, request: RequestId) -> Result<Published, Error> {
        let (author, partition) = (content.author, content.author.partition());
        let call = Call::new("post_publish")
            .key(keys::clock(partition))
            .key(keys::request(author, request))
            .key(keys::post_rate(author))
            .key(keys::forgotten(partition))
            .key(keys::authors(partition))
            .key(keys::outbox(partition))
            .key(keys::pending(partition))
            .key(keys::posts(author))
            .key(keys::post_prefix(partition))
            .journal(partition, keys::journal(partition))
            .issuing(partition)
            .arg(author.get())
            .arg(PostBody::write(content))
            .arg(self.posts_per_minute)
            .arg(REQUEST_TTL.as_secs())
            .arg(request.to_string());
        let call = content.counted_by().fold(call, |call, target| call.arg(target.get()));
        let (done, number): (i64, i64) = self.keyspace.call(call).await?;
        Ok(match Outcome::read(done)? {
            Outcome::Done => Published::New(post(number)?),
            Outcome::Unchanged => Published::Existing { id: post(number)?, is_incomplete: false },
            Outcome::Incomplete => Published::Existing { id: post(number)?, is_incomplete: true },
            Outcome::Throttled => Published::Throttled(wait(number)),
            Outcome::AccountDeleted => Published::AccountDeleted,
            other @ Outcome::NotFound => return Err(other.unexpected()),
        })
    }

    /// Returns the post that a request made.
    pub async fn post_by_request(
        &self,
        author: UserId,
        request: RequestId,
    ) -> Result<Option<PostId>, Error> {
        let get = cmd("GET").arg(keys::request(author, request)).take();
        let made: Option<i64> = self.keyspace.query(get).await?;
        made.map(post).transpose()
    }

    /// Returns posts as a viewer sees them, in the given order; `None` if missing or unreadable.
    ///
    /// One round trip to each partition, sent together: a command for each post, and another one if
    /// there is a viewer.
    pub async fn posts(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let Some(viewer) = viewer else { return self.posts.read(ids).await };
        let mut batch = Batch::with_capacity(2 * ids.len());
        for &id in ids {
            batch.query(id.partition(), fields(id));
            batch.query(id.partition(), liked(id, viewer));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut answer = || answers.next().unwrap_or(Value::Nil);
        let post = |&id| {
            let (post, liked) = (read(id, answer())?, is_liked(answer())?);
            Ok(post.map(|post| Post { liked, ..post }))
        };
        ids.iter().map(post).collect()
    }

    /// Returns the contents of posts, in the given order; `None` if missing or unreadable. One
    /// round trip to each partition, sent together.
    pub async fn contents(&self, ids: &[PostId]) -> Result<Vec<Option<Content>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            batch.query(id.partition(), cmd("HGET").arg(keys::post(id)).arg("b").take());
        }
        let mut contents = Vec::with_capacity(ids.len());
        for (&id, answer) in ids.iter().zip(self.keyspace.send(batch).await?) {
            let body: Option<Vec<u8>> = decode(answer)?;
            contents.push(body.and_then(|body| readable(id, &body)));
        }
        Ok(contents)
    }

    /// Returns one post as a viewer sees it.
    pub async fn post(&self, id: PostId, viewer: Option<UserId>) -> Result<Option<Post>, Error> {
        Ok(self.posts(&[id], viewer).await?.pop().flatten())
    }

    /// Returns which posts exist, in the given order.
    pub async fn exist(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            batch.query(id.partition(), cmd("EXISTS").arg(keys::post(id)).take());
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Returns a page of an author's posts, newest first.
    pub async fn posts_of(
        &self,
        author: UserId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        self.page(keys::posts(author), Order::Newest, after, count).await
    }

    /// Returns the newest posts of each of some authors, newest first, below a cursor. The archive
    /// marker follows, if the list has it and there is room. One round trip to each partition, sent
    /// together.
    pub async fn newest_of_each(
        &self,
        authors: &[UserId],
        before: Option<PostId>,
        count: usize,
    ) -> Result<Vec<Vec<u64>>, Error> {
        let max = before.map_or("+inf".to_owned(), |id| format!("({id}"));
        let mut batch = Batch::with_capacity(authors.len());
        for &author in authors {
            let mut read = cmd("ZRANGE");
            read.arg(keys::posts(author)).arg(&max).arg("-inf").arg("BYSCORE").arg("REV");
            batch.query(author.partition(), read.arg("LIMIT").arg(0).arg(count).take());
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Deletes a post and all that belongs to it, and adds entries to `pending` for the posts that
    /// count it. Returns the version of the deletion; `None` if nothing is left to do.
    pub async fn delete(&self, deletion: &PostDeletion<'_>) -> Result<Option<u64>, Error> {
        Ok(self.delete_all(&[*deletion]).await?.pop().flatten())
    }

    /// Deletes posts likewise. All calls go out together.
    pub async fn delete_all(
        &self,
        deletions: &[PostDeletion<'_>],
    ) -> Result<Vec<Option<u64>>, Error> {
        let mut batch = Batch::with_capacity(deletions.len());
        for deletion in deletions {
            batch.call(deletion.id.partition(), delete(deletion));
        }
        let version = |answer| {
            let (done, version): (i64, i64) = decode(answer)?;
            match Outcome::read(done)? {
                Outcome::Done | Outcome::Incomplete => Ok(Some(stamp(version)?)),
                Outcome::NotFound => Ok(None),
                other => Err(other.unexpected()),
            }
        };
        self.keyspace.send(batch).await?.into_iter().map(version).collect()
    }

    /// Removes the archive marker of an author without archived posts.
    pub async fn remove_archive_marker(&self, author: UserId) -> Result<(), Error> {
        self.keyspace.query(cmd("ZREM").arg(keys::posts(author)).arg(ARCHIVE_MARKER).take()).await
    }

    /// Removes posts that do not exist from their author's list.
    pub async fn unlist(&self, author: UserId, ids: &[PostId]) -> Result<(), Error> {
        let mut remove = cmd("ZREM");
        remove.arg(keys::posts(author));
        for id in ids {
            remove.arg(id.get());
        }
        self.keyspace.query(remove).await
    }

    /// Waits until all changes of a partition are durable, if calls wait for that: a read found
    /// nothing to change, because of a change that may not be durable yet.
    pub(crate) async fn await_changes(&self, partition: Partition) -> Result<(), Error> {
        if !self.keyspace.waits() {
            return Ok(());
        }
        let call = Call::new("post_await_changes")
            .key(keys::clock(partition))
            .journal(partition, keys::journal(partition));
        self.keyspace.call::<i64>(call).await.map(|_| ())
    }

    /// Applies backlink updates in the targets' partitions. All calls go out together. Returns
    /// whether each target is in Redis.
    pub async fn notify(&self, updates: &[BacklinkUpdate]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(updates.len());
        for BacklinkUpdate { backlink: Backlink { repost, target }, exists, .. } in updates {
            let partition = target.partition();
            let call = Call::new("post_notify")
                .key(keys::post(*target))
                .key(keys::reposts(*target))
                .key(keys::repost_tombstones(*target))
                .journal(partition, keys::journal(partition))
                .arg(target.get())
                .arg(repost.get())
                .arg(u8::from(*exists));
            batch.call(partition, call);
        }
        let is_notified = |answer| Ok(Outcome::read(decode(answer)?)? != Outcome::NotFound);
        self.keyspace.send(batch).await?.into_iter().map(is_notified).collect()
    }

    /// Removes updates from `pending`, unless a newer one of the same repost replaced them. All
    /// calls go out together.
    pub async fn confirm(&self, updates: &[BacklinkUpdate]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(updates.len());
        for BacklinkUpdate { backlink, version, .. } in updates {
            let partition = backlink.repost.partition();
            let call = Call::new("post_confirm")
                .key(keys::pending(partition))
                .arg(backlink.member())
                .arg(*version);
            batch.call(partition, call);
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<i64>(answer)?;
        }
        Ok(())
    }
}

fn delete(&PostDeletion { id, content, in_archive }: &PostDeletion<'_>) -> Call {
    let partition = id.partition();
    let call = Call::new("post_delete")
        .key(keys::clock(partition))
        .key(keys::outbox(partition))
        .key(keys::pending(partition))
        .key(keys::evictable(partition))
        .key(keys::post_tombstones(partition))
        .key(keys::posts(content.author))
        .keys(keys::of_post(id))
        .key(keys::repost_tombstones(id))
        .key(keys::restoring(id))
        .journal(partition, keys::journal(partition))
        .issuing(partition)
        .arg(id.get())
        .arg(u8::from(in_archive));
    content.counted_by().fold(call, |call, target| call.arg(target.get()))
}

pub(super) fn liked(id: PostId, user: UserId) -> Cmd {
    cmd("ZSCORE").arg(keys::likes(id)).arg(user.get()).take()
}

pub(super) fn is_liked(answer: Value) -> Result<bool, Error> {
    // The score is not needed, so it is not parsed.
    Ok(!matches!(decode::<Value>(answer)?, Value::Nil))
}
