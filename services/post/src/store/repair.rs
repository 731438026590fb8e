//! Changes that only a repair makes.

use microblog_domain::{CommentId, Partition, PostId};
use microblog_keyspace::{
    Batch, Call, Error, decode,
    redis::{Cmd, cmd},
};

use super::{body::CommentBody, client::Store, comments::comment_call, outcome::Outcome};
use crate::{backlink::Backlink, comment::CommentContent, keys};

const PAGE: usize = 500;

impl Store {
    /// Sets the counts of posts to the lengths of their lists; deletes the lists of missing posts.
    /// Returns for each post whether something was wrong.
    pub(crate) async fn recount(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            batch.call(id.partition(), Call::new("post_recount").keys(keys::of_post(id)));
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Restores the body of a comment, or deletes the comment if there is none; deletes a body
    /// without a comment. Returns whether something was wrong.
    pub(crate) async fn repair_comment(
        &self,
        post: PostId,
        id: CommentId,
        content: Option<&CommentContent>,
    ) -> Result<bool, Error> {
        let call = comment_call("post_mend_comment", post, id);
        let call = match content {
            Some(content) => call.arg(CommentBody::write(content)),
            None => call.arg(""),
        };
        self.keyspace.call(call).await
    }

    /// Adds an existing repost to the list of a post. Returns whether the post is in Redis.
    pub(crate) async fn relist(&self, backlink: Backlink) -> Result<bool, Error> {
        let Backlink { repost, target } = backlink;
        let call = Call::new("post_relist")
            .key(keys::post(target))
            .key(keys::reposts(target))
            .key(keys::unreposted(target))
            .arg(repost.get());
        Ok(Outcome::read(self.keyspace.call(call).await?)? != Outcome::NotFound)
    }

    /// Returns which of some comments have a body in Redis.
    pub(crate) async fn have_bodies(
        &self,
        post: PostId,
        ids: &[CommentId],
    ) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let key = keys::comment_bodies(post);
            batch.query(post.partition(), cmd("HEXISTS").arg(key).arg(id.get()).take());
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Returns some of the comments that have a body in Redis, and the next cursor; 0 is both the
    /// beginning and the end.
    pub(crate) async fn scan_comment_bodies(
        &self,
        post: PostId,
        cursor: u64,
    ) -> Result<(u64, Vec<CommentId>), Error> {
        let mut scan = cmd("HSCAN");
        scan.arg(keys::comment_bodies(post)).arg(cursor).arg("COUNT").arg(100);
        let (cursor, fields): (u64, Vec<(String, Vec<u8>)>) = self.keyspace.query(scan).await?;
        let id = |(field, _): (String, Vec<u8>)| field.parse().ok().and_then(CommentId::new);
        Ok((cursor, fields.into_iter().filter_map(id).collect()))
    }

    /// Removes unreadable entries from `pending` and `outbox`, and returns them.
    pub(crate) async fn discard_unreadable(
        &self,
        partition: Partition,
    ) -> Result<Vec<String>, Error> {
        let is_backlink = |member: &str| Backlink::parse(member).is_some();
        let is_post = |member: &str| member.parse().ok().and_then(PostId::new).is_some();
        let mut discarded = self.discard(partition, keys::pending(partition), is_backlink).await?;
        discarded.extend(self.discard(partition, keys::outbox(partition), is_post).await?);
        Ok(discarded)
    }

    async fn discard(
        &self,
        partition: Partition,
        key: String,
        is_readable: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Error> {
        let (mut discarded, mut from) = (Vec::new(), 0);
        loop {
            let read = cmd("ZRANGE").arg(&key).arg(from).arg(from + PAGE - 1).take();
            let members: Vec<String> = self.keyspace.query(read).await?;
            let is_last = members.len() < PAGE;
            let unreadable: Vec<String> =
                members.into_iter().filter(|member| !is_readable(member)).collect();
            let mut batch = Batch::with_capacity(unreadable.len());
            for member in &unreadable {
                batch.query(partition, remove(&key, member));
            }
            self.keyspace.send(batch).await?;
            from += PAGE - unreadable.len();
            discarded.extend(unreadable);
            if is_last {
                return Ok(discarded);
            }
        }
    }
}

fn remove(key: &str, member: &str) -> Cmd {
    cmd("ZREM").arg(key).arg(member).take()
}
