//! The calls: posts, reposts, likes and comments.

use std::collections::HashMap;

use microblog_domain::{CommentId, IdMap, IdSet, PostId, RequestId, UserId, deduplicated};
use microblog_record::{Database, number_rows, sql::statement};
use microblog_storage::{Contents, Part, ReadError, Reader, Tables, Whole, Writer};
use sha2::{Digest as _, Sha256};

use crate::{
    delivery::Delivery,
    error::Error,
    group::Calls,
    items::{LikedEntry, PostItem, read_post},
    post::{Comment, Content, Counts, Origin, Post, Root, WithRoot},
    steps::{CANDIDATES, Call, Made, Outcome, Rejection},
    tables::{packed, post, read_packed, user},
};

/// The most imported posts of one author and time: their ids are of the next 128 milliseconds.
const SAME_TIME_MAX: usize = 512;

/// Publishes, reads and deletes posts and what belongs to them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Posts {
    pub(crate) reader: Reader<PostItem>,
    pub(crate) tables: Tables,
    pub(crate) writer: Writer<Calls>,
    pub(crate) delivery: Delivery,
}

impl Posts {
    /// Publishes a post, or returns the one that the same request made.
    pub(crate) async fn create(
        &self,
        author: UserId,
        request: RequestId,
        text: String,
    ) -> Result<Post, Error> {
        self.publish(author, request, text, None).await
    }

    /// Publishes a repost, or returns the one that the same request made.
    pub(crate) async fn repost(
        &self,
        author: UserId,
        request: RequestId,
        reposted: PostId,
        text: String,
    ) -> Result<WithRoot, Error> {
        let post = self.publish(author, request, text, Some(reposted)).await?;
        let mut posts = self.with_roots(vec![post], Some(author)).await?;
        posts.pop().ok_or(Error::PostNotFound)
    }

    async fn publish(
        &self,
        author: UserId,
        request: RequestId,
        text: String,
        reposted: Option<PostId>,
    ) -> Result<Post, Error> {
        let number = digest(request, "post");
        let call = Call::Publish { author, request: number, text: text.clone(), reposted };
        match self.write(call).await? {
            Outcome::Published(id, content) => {
                self.delivery.attempt(id, &content).await;
                Ok(Post { id, content, counts: Counts::default(), liked: false })
            }
            Outcome::Made(Made { post: id, comment: None, .. }) => {
                let known = self.posts(&[id], Some(author)).await?.pop().flatten();
                let known = known.ok_or(Error::PostNotFound)?;
                let of = known.content.origin.map(|origin| origin.reposted);
                if known.content.text != text || of != reposted {
                    return Err(Error::RequestReused);
                }
                // The first call may have ended before.
                self.delivery.attempt(id, &known.content).await;
                Ok(known)
            }
            _ => Err(Error::RequestReused),
        }
    }

    /// Deletes a post on behalf of its author. Does nothing if there is none.
    pub(crate) async fn delete(&self, author: UserId, id: PostId) -> Result<(), Error> {
        self.write(Call::Delete(author, id)).await.map(drop)
    }

    /// Likes a post. Returns since when the account likes it, in Unix ms, and the number of likes.
    pub(crate) async fn like(&self, user: UserId, id: PostId) -> Result<(u64, u64), Error> {
        match self.write(Call::Like(user, id)).await? {
            Outcome::Liked { since_ms, likes } => Ok((since_ms, likes)),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends a like. Returns the number of likes; 0 if there is no such post.
    pub(crate) async fn unlike(&self, user: UserId, id: PostId) -> Result<u64, Error> {
        match self.write(Call::Unlike(user, id)).await? {
            Outcome::Unliked { likes } => Ok(likes),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds a comment, or returns the one that the same request added.
    pub(crate) async fn comment(
        &self,
        author: UserId,
        request: RequestId,
        post: PostId,
        text: String,
        in_reply_to: Option<CommentId>,
    ) -> Result<Comment, Error> {
        let number = digest(request, "comment");
        let call = Call::Comment { author, request: number, post, text: text.clone(), in_reply_to };
        match self.write(call).await? {
            Outcome::Commented(id, content) => Ok(Comment { id, post, content }),
            Outcome::Made(Made { post: of, comment: Some(id), .. }) if of == post => {
                let Some(known) = self.comments(&[(post, id)]).await?.pop() else {
                    let is_there = self.exists(post).await?;
                    return Err(if is_there {
                        Error::CommentNotFound
                    } else {
                        Error::PostNotFound
                    });
                };
                let answered = known.content.in_reply_to.map(|reply| reply.to);
                match (known.content.text == text, answered == in_reply_to) {
                    (true, true) => Ok(known),
                    _ => Err(Error::RequestReused),
                }
            }
            _ => Err(Error::RequestReused),
        }
    }

    /// Deletes a comment on behalf of its author or the post's author. Does nothing if there is none.
    pub(crate) async fn delete_comment(
        &self,
        user: UserId,
        post: PostId,
        id: CommentId,
    ) -> Result<(), Error> {
        self.write(Call::DeleteComment(user, post, id)).await.map(drop)
    }

    /// Imports posts: author, time in Unix ms, and text. Returns how many were made, how many existed, and how
    /// many were of deleted accounts.
    pub(crate) async fn import(
        &self,
        posts: Vec<(UserId, u64, String)>,
    ) -> Result<[u64; 3], Error> {
        let calls =
            posts.into_iter().enumerate().map(|(index, (author, made_ms, text))| async move {
                for behind in (0..SAME_TIME_MAX).step_by(CANDIDATES) {
                    let text = text.clone();
                    match self.writer.write(Call::Import { author, made_ms, text, behind }).await? {
                        Outcome::Imported { is_new: true } => return Ok(0),
                        Outcome::Imported { is_new: false } => return Ok(1),
                        Outcome::Rejected(Rejection::AccountDeleted) => return Ok(2),
                        Outcome::Rejected(Rejection::TimeTaken) => {}
                        Outcome::Rejected(rejection) => return Err(rejection.into()),
                        other => return Err(unexpected(&other)),
                    }
                }
                Err(Error::TimeTaken(index))
            });
        let mut counts = [0; 3];
        for kind in futures::future::join_all(calls).await {
            counts[kind?] += 1;
        }
        Ok(counts)
    }

    /// Deletes an account: it cannot write any more. Jobs delete what it has.
    pub(crate) async fn forget(&self, user: UserId) -> Result<(), Error> {
        self.write(Call::DeleteAccount(user)).await.map(drop)
    }

    async fn write(&self, call: Call) -> Result<Outcome, Error> {
        match self.writer.write(call).await? {
            Outcome::Rejected(rejection) => Err(rejection.into()),
            outcome => Ok(outcome),
        }
    }

    /// Returns a post with its root.
    pub(crate) async fn get(&self, id: PostId, viewer: Option<UserId>) -> Result<WithRoot, Error> {
        self.batch(&[id], viewer).await?.pop().ok_or(Error::PostNotFound)
    }

    /// Returns the existing posts among some, deduplicated, in the given order, with their roots.
    /// Roots that are not among them cost a second round trip.
    pub(crate) async fn batch(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<WithRoot>, Error> {
        let posts = self.posts(&deduplicated(ids), viewer).await?;
        self.with_roots(posts.into_iter().flatten().collect(), viewer).await
    }

    /// Returns posts as a viewer sees them, in the given order; `None` if missing. One round trip if the cache
    /// has them.
    pub(crate) async fn posts(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let Some(first) = ids.first() else { return Ok(Vec::new()) };
        if !self.reader.is_trusted(first.get()) {
            return self.posts_of_database(ids, viewer).await;
        }
        let parts = ids.iter().map(|id| part(PostItem::Post, id.get()));
        let parts: Vec<_> =
            parts.chain(viewer.map(|viewer| part(PostItem::Liked, viewer.get()))).collect();
        let mut found = self.reader.read_all(&parts).await?;
        let liked = viewer.and_then(|_| found.pop());
        let found = ids.iter().zip(found).map(|(&id, Contents { front, .. })| {
            let (content, counts) = read_post(&front)?;
            Some(Post { id, content, counts, liked: false })
        });
        let mut posts: Vec<_> = found.collect();
        if let Some((viewer, liked)) = viewer.zip(liked) {
            self.note_liked(&mut posts, viewer, &LikedEntry::read(&liked)).await?;
        }
        Ok(posts)
    }

    // Notes which posts the viewer likes. The database knows those that the entry does not tell.
    async fn note_liked(
        &self,
        posts: &mut [Option<Post>],
        viewer: UserId,
        liked: &LikedEntry,
    ) -> Result<(), Error> {
        let mut unknown = Vec::new();
        for post in posts.iter_mut().flatten().filter(|post| post.counts.likes > 0) {
            match liked.has(post.id) {
                Some(has) => post.liked = has,
                None => unknown.push(post.id),
            }
        }
        if !unknown.is_empty() {
            let read = async |database: &Database| liked_of(database, viewer, &unknown).await;
            let liked = self.reader.bypass(read).await?;
            for post in posts.iter_mut().flatten() {
                post.liked |= liked.contains(&post.id);
            }
        }
        Ok(())
    }

    async fn posts_of_database(
        &self,
        ids: &[PostId],
        viewer: Option<UserId>,
    ) -> Result<Vec<Option<Post>>, Error> {
        let read = async |database: &Database| {
            let mut posts = posts_of(database, ids).await?;
            if let Some(viewer) = viewer {
                for id in liked_of(database, viewer, ids).await? {
                    posts.entry(id).and_modify(|post| post.liked = true);
                }
            }
            Ok(posts)
        };
        let mut posts = self.reader.bypass(read).await?;
        Ok(ids.iter().map(|id| posts.remove(id)).collect())
    }

    /// Returns the posts that an account likes among some, deduplicated, in the given order.
    pub(crate) async fn liked(&self, user: UserId, ids: &[PostId]) -> Result<Vec<PostId>, Error> {
        let posts = self.posts(&deduplicated(ids), Some(user)).await?;
        Ok(posts.into_iter().flatten().filter(|post| post.liked).map(|post| post.id).collect())
    }

    /// Returns posts with their roots, and reads the roots that are not among them.
    pub(crate) async fn with_roots(
        &self,
        posts: Vec<Post>,
        viewer: Option<UserId>,
    ) -> Result<Vec<WithRoot>, Error> {
        let root_of = |post: &Post| post.content.origin.map(|origin| origin.root);
        let wanted: IdSet<_> = posts.iter().filter_map(root_of).collect();
        let mut roots: IdMap<PostId, Post> = IdMap::default();
        if !wanted.is_empty() {
            let among = posts.iter().filter(|post| wanted.contains(&post.id));
            roots.extend(among.map(|post| (post.id, post.clone())));
            let missing: Vec<_> =
                wanted.into_iter().filter(|root| !roots.contains_key(root)).collect();
            let read = self.posts(&missing, viewer).await?;
            roots.extend(read.into_iter().flatten().map(|root| (root.id, root)));
        }
        let with_root = |post: Post| {
            let root = root_of(&post).map(|root| roots.get(&root).cloned());
            let root = root.map_or(Root::None, |root| root.map_or(Root::Deleted, Root::Post));
            WithRoot { post, root }
        };
        Ok(posts.into_iter().map(with_root).collect())
    }

    /// Returns whether a post exists.
    pub(crate) async fn exists(&self, id: PostId) -> Result<bool, ReadError> {
        let found = self.reader.read(&part(PostItem::Post, id.get())).await?;
        Ok(read_post(&found.front).is_some())
    }
}

/// Returns a whole item to be read.
pub(crate) const fn part(item: PostItem, id: u64) -> Part<PostItem, Whole> {
    Part { item, id, view: Whole }
}

/// Returns the key of a request for a post or a comment among those of its author: 63 bits of a hash.
fn digest(request: RequestId, made: &str) -> u64 {
    let hash = Sha256::digest(format!("{made} {request}"));
    let start = hash.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(start) >> 1
}

/// Returns the error of a call that has an outcome of another one.
fn unexpected(outcome: &Outcome) -> Error {
    unreachable!("{outcome:?}")
}

/// Returns the statement that reads posts by their ids, the parameter.
pub(crate) fn posts_text(is_embedded: bool) -> String {
    let columns = ["id", "likes", "comments", "reposts", "author", "root", "reposted"];
    let (row, is_one) = (packed(&columns), number_rows::contains(is_embedded, "id", 1));
    // Not a join: it might read all texts, where there are few, and keep that plan.
    let text = "(SELECT text FROM texts WHERE texts.id = posts.id)";
    let text = if is_embedded { format!("CAST({text} AS BLOB)") } else { text.to_owned() };
    format!("SELECT {row}, {text} FROM posts WHERE {is_one}")
}

async fn posts_of(
    database: &Database,
    ids: &[PostId],
) -> Result<HashMap<PostId, Post>, microblog_record::Error> {
    let is_embedded = database.is_embedded();
    let query = statement(posts_text(is_embedded));
    let query = number_rows::bind_column(query, is_embedded, ids.iter().map(|id| id.get()));
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        let post = |row| {
            let [id, likes, comments, reposts, author, root, reposted] = read_packed(row, 0)?;
            let (id, origin) = (post(id)?, Origin::read(root, reposted));
            let text = microblog_record::sql::read_text(row, 1)?;
            let content = Content { author: user(author)?, text, origin };
            let counts = Counts { likes, comments, reposts };
            Ok((id, Post { id, content, counts, liked: false }))
        };
        rows.iter().map(post).collect()
    };
    database.read("SELECT posts", read).await
}

/// Returns the statement that reads which of some posts an account likes. Its parameters are the account and
/// the posts, each of which is looked up by its key.
pub(crate) fn liked_text(is_embedded: bool) -> String {
    let posts = number_rows::table(is_embedded, 2, 1);
    format!(
        "SELECT CAST(column1 AS VARCHAR(20)) FROM {posts} \
         WHERE (SELECT since FROM likes WHERE account = $1 AND post = column1) IS NOT NULL"
    )
}

async fn liked_of(
    database: &Database,
    user: UserId,
    ids: &[PostId],
) -> Result<IdSet<PostId>, microblog_record::Error> {
    let is_embedded = database.is_embedded();
    let query = statement(liked_text(is_embedded)).bind(microblog_record::sql::number(user.get()));
    let query = number_rows::bind_column(query, is_embedded, ids.iter().map(|id| id.get()));
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        let liked = |row| {
            let [id] = read_packed(row, 0)?;
            post(id)
        };
        rows.iter().map(liked).collect()
    };
    database.read("SELECT likes", read).await
}
