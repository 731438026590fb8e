//! The rules of posts: what each call of a group changes. Does no I/O.
//!
//! The rows that the calls need are locked: the rules see all that was committed before.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use microblog_domain::{CommentId, Partition, PostId, Stamp, UserId};
use microblog_storage::{Record, Rows};

use crate::{
    items::PostItem,
    post::{CommentContent, Content, Origin, Reply},
    rate::Rate,
};

/// A call that writes.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Publishes a post, or a repost.
    Publish { author: UserId, request: u64, text: String, reposted: Option<PostId> },
    /// Deletes a post of its author.
    Delete(UserId, PostId),
    /// Likes a post.
    Like(UserId, PostId),
    /// Ends a like.
    Unlike(UserId, PostId),
    /// Comments on a post.
    Comment {
        author: UserId,
        request: u64,
        post: PostId,
        text: String,
        in_reply_to: Option<CommentId>,
    },
    /// Deletes a comment of its author, or on a post of its author.
    DeleteComment(UserId, PostId, CommentId),
    /// Makes a post that was made elsewhere, with its time, in Unix ms. Its id is one of [`CANDIDATES`] of this
    /// time, behind some that others have.
    Import { author: UserId, made_ms: u64, text: String, behind: usize },
    /// Deletes an account: it cannot write any more. What it has is deleted later.
    DeleteAccount(UserId),
    /// The deleted account has nothing any more.
    Deleted(UserId),
}

impl Call {
    /// Returns the account that calls.
    pub(crate) const fn account(&self) -> UserId {
        match self {
            Self::Publish { author: user, .. }
            | Self::Comment { author: user, .. }
            | Self::Import { author: user, .. }
            | Self::Delete(user, _)
            | Self::Like(user, _)
            | Self::Unlike(user, _)
            | Self::DeleteComment(user, ..)
            | Self::DeleteAccount(user)
            | Self::Deleted(user) => *user,
        }
    }

    /// Returns whether the call needs the row of its account, which is made if it is not there.
    pub(crate) const fn makes_account(&self) -> bool {
        matches!(
            self,
            Self::Publish { .. }
                | Self::Comment { .. }
                | Self::Import { .. }
                | Self::Like(..)
                | Self::DeleteAccount(_)
        )
    }

    /// Returns whether the call also concerns the posts that count the one that it names, if that is a repost.
    pub(crate) const fn is_of_origin(&self) -> bool {
        matches!(self, Self::Publish { .. } | Self::Delete(..))
    }

    /// Returns the key of the request: its author, and 63 bits of a hash of its id.
    pub(crate) const fn request(&self) -> Option<(UserId, u64)> {
        match self {
            Self::Publish { author, request, .. } | Self::Comment { author, request, .. } => {
                Some((*author, *request))
            }
            _ => None,
        }
    }

    /// Returns the post that the call names.
    pub(crate) const fn post(&self) -> Option<PostId> {
        match self {
            Self::Publish { reposted, .. } => *reposted,
            Self::Comment { post, .. }
            | Self::Delete(_, post)
            | Self::Like(_, post)
            | Self::Unlike(_, post)
            | Self::DeleteComment(_, post, _) => Some(*post),
            Self::Import { .. } | Self::DeleteAccount(_) | Self::Deleted(_) => None,
        }
    }

    /// Returns the ids that an imported post may have: those of its time.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = PostId> + use<> {
        let first = match self {
            Self::Import { author, made_ms, behind, .. } => {
                Some((next_stamp(*made_ms, author.partition(), 0), *behind))
            }
            _ => None,
        };
        let ids = first.into_iter().flat_map(|(first, behind)| {
            let stamps = std::iter::successors(Some(first), |stamp| Some(next_tick(*stamp)));
            stamps.skip(behind).take(CANDIDATES)
        });
        ids.filter_map(PostId::new)
    }

    /// Returns the like that the call needs.
    pub(crate) const fn like(&self) -> Option<(UserId, PostId)> {
        match self {
            Self::Like(user, post) | Self::Unlike(user, post) => Some((*user, *post)),
            _ => None,
        }
    }

    /// Returns the comment that the call needs.
    pub(crate) const fn comment(&self) -> Option<(PostId, CommentId)> {
        match self {
            Self::Comment { post, in_reply_to: Some(comment), .. }
            | Self::DeleteComment(_, post, comment) => Some((*post, *comment)),
            _ => None,
        }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The change was made, or there was nothing to change.
    Done,
    /// The post was published.
    Published(PostId, Content),
    /// The comment was made.
    Commented(CommentId, CommentContent),
    /// The imported post was made, or is there.
    Imported { is_new: bool },
    /// The same request made this before. It may differ from what is asked for now.
    Made(Made),
    /// The account likes the post since this time (Unix ms). So many accounts do.
    Liked { since_ms: u64, likes: u64 },
    /// The account does not like the post. So many accounts do; 0 if there is no such post.
    Unliked { likes: u64 },
    /// Rejected.
    Rejected(Rejection),
}

/// Why a call is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    PostNotFound,
    CommentNotFound,
    NotTheAuthor,
    AccountDeleted,
    /// The id of the newest post of the account, or of the newest comment on the post, is too far ahead of
    /// the time: a clock was wrong.
    ClockAhead,
    /// These ids of the time of an imported post are those of other posts.
    TimeTaken,
    /// The limit of posts admits the next one after this time.
    PostsThrottled(Duration),
    /// The limit of comments admits the next one after this time.
    CommentsThrottled(Duration),
}

/// What a request made: a post, or a comment on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) post: PostId,
    pub(crate) comment: Option<CommentId>,
    pub(crate) made_ms: u64,
}

/// The row of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountRow {
    pub(crate) posts: u64,
    pub(crate) posts_revision: u64,
    pub(crate) liked_revision: u64,
    /// The newest post's id, also of one that was deleted.
    pub(crate) newest: u64,
    pub(crate) post_rate: Rate,
    pub(crate) comment_rate: Rate,
    /// When it was deleted, in Unix ms; 0 if it was not.
    pub(crate) deleted_ms: u64,
}

/// The row of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostRow {
    pub(crate) author: UserId,
    pub(crate) origin: Option<Origin>,
    pub(crate) revision: u64,
    /// No like begins earlier, in Unix ms.
    pub(crate) newest_ms: u64,
    /// The newest comment's id, also of one that was deleted.
    pub(crate) last_comment: u64,
    pub(crate) likes: u64,
    pub(crate) comments: u64,
    pub(crate) reposts: u64,
}

/// The row of a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommentRow {
    pub(crate) author: UserId,
    pub(crate) in_reply_to: Option<Reply>,
    /// The text of a new one; empty for one that was read, of which no rule needs it.
    pub(crate) text: String,
}

/// Limits per minute of an account; 0 for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) posts: u32,
    pub(crate) comments: u32,
}

/// How long a request is known.
pub(crate) const REQUEST_KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// After so many changes of what an account likes, its entry is loaded again: so it does not grow for ever.
pub(crate) const LIKED_RELOADED: u64 = 50;

/// The ids that a call may give an imported post: of two milliseconds.
pub(crate) const CANDIDATES: usize = 8;

/// How far ids may be ahead of the time.
pub(crate) const AHEAD_MAX: Duration = Duration::from_secs(300);

/// A revision behind those of all posts.
const GONE: u64 = (1 << 53) - 1;

/// How an entry changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemChange {
    pub(crate) added: Vec<Record>,
    pub(crate) removed: Vec<u64>,
    /// Whether the entry must be loaded again.
    pub(crate) is_reloaded: bool,
}

/// A change for the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// What happened: a verb, ids, and a version.
    pub(crate) text: String,
    /// The items that changed.
    pub(crate) items: Vec<Item>,
}

/// The rows that a group reads and changes.
#[derive(Debug)]
pub(crate) struct State {
    now_ms: u64,
    limits: Limits,
    /// Ids that no new post may have: calls name them, or something is left of the posts that had them.
    taken: BTreeSet<PostId>,
    /// All that the calls need.
    pub(crate) accounts: Rows<UserId, AccountRow>,
    /// Those that the calls name, and those that count them, if they exist.
    pub(crate) posts: Rows<PostId, PostRow>,
    /// The texts of posts that an import may find.
    known_texts: BTreeMap<PostId, String>,
    /// Of new posts.
    pub(crate) texts: BTreeMap<PostId, String>,
    /// New posts that are to be delivered.
    pub(crate) undelivered: Vec<PostId>,
    /// Since when an account likes a post, in Unix ms.
    pub(crate) likes: Rows<(UserId, PostId), u64>,
    pub(crate) comments: Rows<(PostId, CommentId), CommentRow>,
    pub(crate) requests: Rows<(UserId, u64), Made>,
    /// New and deleted reposts, by the posts that count them.
    pub(crate) new_reposts: Vec<(PostId, PostId)>,
    pub(crate) old_reposts: Vec<(PostId, PostId)>,
    /// Accounts whose deletion began, and those that have nothing any more.
    pub(crate) deleted: Vec<UserId>,
    pub(crate) cleared: Vec<UserId>,
    /// What changed, in order.
    pub(crate) events: Vec<Event>,
    /// The items that changed, or were found as they are.
    pub(crate) items: BTreeMap<Item, ItemChange>,
}

/// A kind of item, and the id of one.
pub(crate) type Item = (PostItem, u64);

/// The rows that a group needs, as they were read.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    pub(crate) accounts: BTreeMap<UserId, AccountRow>,
    pub(crate) posts: BTreeMap<PostId, PostRow>,
    pub(crate) likes: BTreeMap<(UserId, PostId), u64>,
    pub(crate) comments: BTreeMap<(PostId, CommentId), CommentRow>,
    pub(crate) requests: BTreeMap<(UserId, u64), Made>,
    /// The posts that calls name, also those that do not exist.
    pub(crate) named: BTreeSet<PostId>,
    /// Deleted posts of which something is left.
    pub(crate) leftovers: BTreeSet<PostId>,
    /// The texts of the posts that an import may find.
    pub(crate) known_texts: BTreeMap<PostId, String>,
}

impl State {
    /// Returns the rows at a time, in Unix ms.
    pub(crate) fn new(now_ms: u64, limits: Limits, locked: Locked) -> Self {
        let Locked { accounts, posts, likes, comments, requests, named, leftovers, known_texts } =
            locked;
        Self {
            now_ms,
            limits,
            taken: named.union(&leftovers).copied().collect(),
            accounts: Rows::new(accounts),
            posts: Rows::new(posts),
            known_texts,
            texts: BTreeMap::new(),
            undelivered: Vec::new(),
            likes: Rows::new(likes),
            comments: Rows::new(comments),
            requests: Rows::new(requests),
            new_reposts: Vec::new(),
            old_reposts: Vec::new(),
            deleted: Vec::new(),
            cleared: Vec::new(),
            events: Vec::new(),
            items: BTreeMap::new(),
        }
    }

    /// Decides a call. `random` is for the id of a new post.
    pub(crate) fn take(&mut self, call: &Call, random: impl FnMut() -> u8) -> Outcome {
        let decided = match call {
            Call::Publish { author, request, text, reposted } => {
                self.publish(*author, *request, text, *reposted, random)
            }
            Call::Delete(author, post) => self.delete(*author, *post),
            Call::Like(user, post) => self.like(*user, *post),
            Call::Unlike(user, post) => Ok(self.unlike(*user, *post)),
            Call::Comment { author, request, post, text, in_reply_to } => {
                self.comment(*author, *request, *post, text, *in_reply_to)
            }
            Call::DeleteComment(user, post, comment) => self.delete_comment(*user, *post, *comment),
            Call::Import { author, made_ms, text, .. } => {
                self.import(call, *author, *made_ms, text)
            }
            Call::DeleteAccount(user) => Ok(self.delete_account(*user)),
            Call::Deleted(user) => {
                self.cleared.push(*user);
                Ok(Outcome::Done)
            }
        };
        decided.unwrap_or_else(Outcome::Rejected)
    }

    fn publish(
        &mut self,
        author: UserId,
        request: u64,
        text: &str,
        reposted: Option<PostId>,
        random: impl FnMut() -> u8,
    ) -> Result<Outcome, Rejection> {
        if let Some(made) = self.made(author, request) {
            self.note(PostItem::Author, author.get());
            self.note(PostItem::Post, made.post.get());
            let root = reposted.and_then(|reposted| self.posts.now.get(&reposted)?.origin);
            for target in reposted.into_iter().chain(root.map(|origin| origin.root)) {
                self.note(PostItem::Post, target.get());
                self.note(PostItem::Reposts, target.get());
            }
            return Ok(Outcome::Made(made));
        }
        self.check_account(author)?;
        let origin = reposted.map(|reposted| self.origin(reposted)).transpose()?;
        let (now_ms, limit) = (self.now_ms, self.limits.posts);
        let mut account = self.account(author);
        account.post_rate.take(now_ms, limit).map_err(Rejection::PostsThrottled)?;
        let id = self.new_post_id(author, account.newest, random);
        check_clock(now_ms, id.get())?;
        account.newest = id.get();
        account.posts += 1;
        account.posts_revision += 1;
        self.accounts.now.insert(author, account);
        let row = PostRow {
            author,
            origin,
            revision: 1,
            newest_ms: now_ms,
            last_comment: 0,
            likes: 0,
            comments: 0,
            reposts: 0,
        };
        self.posts.now.insert(id, row);
        self.texts.insert(id, text.to_owned());
        self.undelivered.push(id);
        let made = Made { post: id, comment: None, made_ms: now_ms };
        self.requests.now.insert((author, request), made);
        let items = vec![
            self.reload(PostItem::Post, id.get()),
            self.add(PostItem::Author, author.get(), Record { time_ms: 0, id: id.get() }),
        ];
        self.events.push(Event { text: format!("post {id} {author}"), items });
        for target in origin.into_iter().flat_map(Origin::counted_by) {
            self.new_reposts.push((target, id));
            self.change_post(target, |row| row.reposts += 1);
            let reposts = self.reload(PostItem::Reposts, target.get());
            let items = vec![(PostItem::Post, target.get()), reposts];
            self.events.push(Event { text: format!("repost {target} {id}"), items });
        }
        let content = Content { author, text: text.to_owned(), origin };
        Ok(Outcome::Published(id, content))
    }

    // Returns what a repost of a post refers to.
    fn origin(&self, reposted: PostId) -> Result<Origin, Rejection> {
        let row = self.posts.now.get(&reposted).ok_or(Rejection::PostNotFound)?;
        let root = row.origin.map_or(reposted, |origin| origin.root);
        match self.posts.now.get(&root) {
            Some(_) => Ok(Origin { root, reposted }),
            None => Err(Rejection::PostNotFound),
        }
    }
}

impl State {
    fn delete(&mut self, author: UserId, post: PostId) -> Result<Outcome, Rejection> {
        // Of an author without a row, it was made after that was looked for.
        let is_made =
            |row: &PostRow| row.author != author || self.accounts.now.contains_key(&author);
        let Some(row) = self.posts.now.get(&post).copied().filter(is_made) else {
            // Another call may have deleted it: this answer holds for readers, too.
            self.note(PostItem::Post, post.get());
            self.note(PostItem::Author, author.get());
            return Ok(Outcome::Done);
        };
        if row.author != author {
            return Err(Rejection::NotTheAuthor);
        }
        self.posts.now.remove(&post);
        if let Some(account) = self.accounts.now.get_mut(&author) {
            account.posts = account.posts.saturating_sub(1);
            account.posts_revision += 1;
        }
        let version = next_stamp(self.now_ms, post.partition(), row.last_comment.max(post.get()));
        let mut items = vec![self.remove(PostItem::Author, author.get(), post.get())];
        for list in [PostItem::Post, PostItem::Comments, PostItem::Reposts] {
            items.push(self.reload(list, post.get()));
        }
        self.events.push(Event { text: format!("unpost {post} {version}"), items });
        for target in row.origin.into_iter().flat_map(Origin::counted_by) {
            self.old_reposts.push((target, post));
            // One that was deleted counts nothing any more.
            if self.posts.now.contains_key(&target) {
                self.change_post(target, |row| row.reposts = row.reposts.saturating_sub(1));
                let reposts = self.reload(PostItem::Reposts, target.get());
                let items = vec![(PostItem::Post, target.get()), reposts];
                let text = format!("unrepost {target} {post} {version}");
                self.events.push(Event { text, items });
            }
        }
        Ok(Outcome::Done)
    }

    fn like(&mut self, user: UserId, post: PostId) -> Result<Outcome, Rejection> {
        self.check_account(user)?;
        let row = *self.posts.now.get(&post).ok_or(Rejection::PostNotFound)?;
        if let Some(&since_ms) = self.likes.now.get(&(user, post)) {
            self.note_like(user, post);
            return Ok(Outcome::Liked { since_ms, likes: row.likes });
        }
        let since_ms = self.now_ms.max(row.newest_ms);
        self.likes.now.insert((user, post), since_ms);
        self.change_post(post, |row| {
            row.likes += 1;
            row.newest_ms = since_ms;
        });
        let mut account = self.account(user);
        account.liked_revision += 1;
        let is_reloaded = account.liked_revision.is_multiple_of(LIKED_RELOADED);
        self.accounts.now.insert(user, account);
        let liked = match is_reloaded {
            true => self.reload(PostItem::Liked, user.get()),
            false => self.add(PostItem::Liked, user.get(), Record { time_ms: 0, id: post.get() }),
        };
        let liker = Record { time_ms: since_ms, id: user.get() };
        let items = vec![self.add(PostItem::Post, post.get(), liker), liked];
        let version = like_version(post, since_ms);
        self.events.push(Event { text: format!("like {post} {user} {version}"), items });
        Ok(Outcome::Liked { since_ms, likes: row.likes + 1 })
    }

    fn unlike(&mut self, user: UserId, post: PostId) -> Outcome {
        let row = self.posts.now.get(&post).copied();
        let Some(since_ms) = self.likes.now.remove(&(user, post)) else {
            self.note_like(user, post);
            return Outcome::Unliked { likes: row.map_or(0, |row| row.likes) };
        };
        let mut is_reloaded = false;
        if let Some(account) = self.accounts.now.get_mut(&user) {
            account.liked_revision += 1;
            is_reloaded = account.liked_revision.is_multiple_of(LIKED_RELOADED);
        }
        let liked = match is_reloaded {
            true => self.reload(PostItem::Liked, user.get()),
            false => self.remove(PostItem::Liked, user.get(), post.get()),
        };
        // Of a deleted post, the likes are there until a job removes them.
        let Some(row) = row else {
            self.events.push(Event { text: format!("forget_like {user}"), items: vec![liked] });
            return Outcome::Unliked { likes: 0 };
        };
        // Later than the like, and earlier than the next one of the account.
        let end_ms = self.now_ms.max(since_ms + 1);
        self.change_post(post, |row| {
            row.likes = row.likes.saturating_sub(1);
            row.newest_ms = row.newest_ms.max(end_ms + 1);
        });
        let items = vec![self.remove(PostItem::Post, post.get(), user.get()), liked];
        let version = like_version(post, end_ms);
        self.events.push(Event { text: format!("unlike {post} {user} {version}"), items });
        Outcome::Unliked { likes: row.likes.saturating_sub(1) }
    }

    fn comment(
        &mut self,
        author: UserId,
        request: u64,
        post: PostId,
        text: &str,
        in_reply_to: Option<CommentId>,
    ) -> Result<Outcome, Rejection> {
        if let Some(made) = self.made(author, request) {
            self.note(PostItem::Post, post.get());
            self.note(PostItem::Comments, post.get());
            return Ok(Outcome::Made(made));
        }
        self.check_account(author)?;
        let row = *self.posts.now.get(&post).ok_or(Rejection::PostNotFound)?;
        let reply = |to| match self.comments.now.get(&(post, to)) {
            Some(row) => Ok(Reply { to, author: row.author }),
            None => Err(Rejection::CommentNotFound),
        };
        let in_reply_to = in_reply_to.map(reply).transpose()?;
        let (now_ms, limit) = (self.now_ms, self.limits.comments);
        let mut account = self.account(author);
        account.comment_rate.take(now_ms, limit).map_err(Rejection::CommentsThrottled)?;
        let id = next_stamp(now_ms, post.partition(), row.last_comment.max(post.get()));
        check_clock(now_ms, id)?;
        self.accounts.now.insert(author, account);
        let id = CommentId::new(id).ok_or(Rejection::PostNotFound)?;
        self.change_post(post, |row| {
            row.comments += 1;
            row.last_comment = id.get();
        });
        let text = text.to_owned();
        let content = CommentContent { author, text: text.clone(), in_reply_to };
        self.comments.now.insert((post, id), CommentRow { author, in_reply_to, text });
        let made = Made { post, comment: Some(id), made_ms: now_ms };
        self.requests.now.insert((author, request), made);
        let items = vec![(PostItem::Post, post.get()), self.reload(PostItem::Comments, post.get())];
        self.events.push(Event { text: format!("comment {post} {id} {author}"), items });
        Ok(Outcome::Commented(id, content))
    }

    fn delete_comment(
        &mut self,
        user: UserId,
        post: PostId,
        comment: CommentId,
    ) -> Result<Outcome, Rejection> {
        let row = self.posts.now.get(&post).copied();
        let Some(author) = self.comments.now.get(&(post, comment)).map(|row| row.author) else {
            self.note(PostItem::Post, post.get());
            self.note(PostItem::Comments, post.get());
            return Ok(Outcome::Done);
        };
        if author != user && row.is_none_or(|row| row.author != user) {
            // If the post is deleted, so are its comments.
            return if row.is_none() { Ok(Outcome::Done) } else { Err(Rejection::NotTheAuthor) };
        }
        self.comments.now.remove(&(post, comment));
        if let Some(row) = row {
            let version = next_stamp(self.now_ms, post.partition(), row.last_comment);
            self.change_post(post, |row| row.comments = row.comments.saturating_sub(1));
            let items =
                vec![(PostItem::Post, post.get()), self.reload(PostItem::Comments, post.get())];
            let text = format!("uncomment {post} {comment} {version}");
            self.events.push(Event { text, items });
        }
        Ok(Outcome::Done)
    }

    fn import(
        &mut self,
        call: &Call,
        author: UserId,
        made_ms: u64,
        text: &str,
    ) -> Result<Outcome, Rejection> {
        self.check_account(author)?;
        let mut free = None;
        for id in call.candidates() {
            match self.posts.now.get(&id) {
                Some(row) => {
                    let known = self.known_texts.get(&id).or_else(|| self.texts.get(&id));
                    if row.author == author && known.is_some_and(|known| known == text) {
                        return Ok(Outcome::Imported { is_new: false });
                    }
                }
                None if self.taken.contains(&id) => {}
                None => free = free.or(Some(id)),
            }
        }
        let id = free.ok_or(Rejection::TimeTaken)?;
        check_clock(self.now_ms, id.get())?;
        let mut account = self.account(author);
        account.newest = account.newest.max(id.get());
        account.posts += 1;
        account.posts_revision += 1;
        self.accounts.now.insert(author, account);
        let row = PostRow {
            author,
            origin: None,
            revision: 1,
            newest_ms: made_ms,
            last_comment: 0,
            likes: 0,
            comments: 0,
            reposts: 0,
        };
        self.posts.now.insert(id, row);
        self.texts.insert(id, text.to_owned());
        let items = vec![
            self.reload(PostItem::Post, id.get()),
            self.reload(PostItem::Author, author.get()),
        ];
        self.events.push(Event { text: format!("import {id} {author}"), items });
        Ok(Outcome::Imported { is_new: true })
    }

    fn delete_account(&mut self, user: UserId) -> Outcome {
        let mut account = self.account(user);
        if account.deleted_ms == 0 {
            account.deleted_ms = self.now_ms;
            self.accounts.now.insert(user, account);
            self.deleted.push(user);
        }
        Outcome::Done
    }

    // Returns what a request has made within the time for which it is known.
    fn made(&self, author: UserId, request: u64) -> Option<Made> {
        let made = self.requests.now.get(&(author, request)).copied();
        made.filter(|made| made.made_ms + REQUEST_KEPT_MS > self.now_ms)
    }

    fn check_account(&self, user: UserId) -> Result<(), Rejection> {
        match self.account(user).deleted_ms {
            0 => Ok(()),
            _ => Err(Rejection::AccountDeleted),
        }
    }

    fn account(&self, user: UserId) -> AccountRow {
        self.accounts.now.get(&user).copied().unwrap_or_default()
    }

    // Returns an id behind the newest one of the author, which no post of the group has, and which no call of
    // it names. If a post of another author has it, the database rejects it, and the group is repeated. That is
    // rare: it is one of the next four.
    fn new_post_id(&self, author: UserId, newest: u64, mut random: impl FnMut() -> u8) -> PostId {
        let mut stamp = next_stamp(self.now_ms, author.partition(), newest);
        for _ in 0..random() & 3 {
            stamp = next_tick(stamp);
        }
        loop {
            let is_free =
                |id: &PostId| !self.posts.now.contains_key(id) && !self.taken.contains(id);
            match PostId::new(stamp).filter(is_free) {
                Some(id) => return id,
                None => stamp = next_tick(stamp),
            }
        }
    }

    fn change_post(&mut self, post: PostId, change: impl FnOnce(&mut PostRow)) {
        if let Some(row) = self.posts.now.get_mut(&post) {
            change(row);
            row.revision += 1;
            self.items.entry((PostItem::Post, post.get())).or_default();
        }
    }

    // Notes an item that the outcome of a call relies on, and which it found as it is.
    fn note(&mut self, item: PostItem, id: u64) {
        self.items.entry((item, id)).or_default();
    }

    fn note_like(&mut self, user: UserId, post: PostId) {
        self.note(PostItem::Post, post.get());
        self.note(PostItem::Liked, user.get());
    }

    fn add(&mut self, item: PostItem, id: u64, record: Record) -> Item {
        self.items.entry((item, id)).or_default().added.push(record);
        (item, id)
    }

    // What the group has added itself cannot be removed in place.
    fn remove(&mut self, item: PostItem, id: u64, record: u64) -> Item {
        let change = self.items.entry((item, id)).or_default();
        change.is_reloaded |= change.added.iter().any(|added| added.id == record);
        change.removed.push(record);
        (item, id)
    }

    fn reload(&mut self, item: PostItem, id: u64) -> Item {
        self.items.entry((item, id)).or_default().is_reloaded = true;
        (item, id)
    }

    /// Returns the revisions of an item before and after the group.
    pub(crate) fn revisions(&self, (item, id): Item) -> (u64, u64) {
        match item {
            PostItem::Author | PostItem::Liked => {
                let revision = |row: Option<&AccountRow>| match (item, row) {
                    (_, None) => 0,
                    (PostItem::Author, Some(row)) => row.posts_revision,
                    (_, Some(row)) => row.liked_revision,
                };
                let of = |rows: &BTreeMap<UserId, AccountRow>| {
                    revision(UserId::new(id).and_then(|id| rows.get(&id)))
                };
                (of(self.accounts.as_read()), of(&self.accounts.now))
            }
            PostItem::Post | PostItem::Comments | PostItem::Reposts => {
                let Some(id) = PostId::new(id) else { return (0, 0) };
                let before = self.posts.as_read().get(&id).map_or(0, |row| row.revision);
                let after = self.posts.now.get(&id).map(|row| row.revision);
                match (before, after) {
                    (before, Some(after)) => (before, after),
                    // Whatever an entry has of it, it was deleted later.
                    (0, None) => (GONE, GONE),
                    (before, None) => (before, before + 1),
                }
            }
        }
    }
}

/// Rejects an id that is too far ahead of the time.
fn check_clock(now_ms: u64, id: u64) -> Result<(), Rejection> {
    let last = SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms) + AHEAD_MAX;
    match id <= Stamp::first_at(last, Partition::new(0)).get() {
        true => Ok(()),
        false => Err(Rejection::ClockAhead),
    }
}

/// Returns the first stamp of a partition that is not before a time, and behind another stamp.
fn next_stamp(now_ms: u64, partition: Partition, last: u64) -> u64 {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms);
    let first = Stamp::first_at(time, partition).get();
    if first > last { first } else { next_tick(last) }
}

/// Returns the next stamp of the same partition.
const fn next_tick(stamp: u64) -> u64 {
    // Two bits of sequence; above them the partition, which stays, and the time.
    if stamp & 3 < 3 { stamp + 1 } else { (stamp & !3) + (1 << 12) }
}

/// Returns the version of a like that begins or ends at a time.
pub(crate) fn like_version(post: PostId, time_ms: u64) -> u64 {
    next_stamp(time_ms, post.partition(), 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const NOW_MS: u64 = Stamp::EPOCH_MS + 1_000_000_000;
    const LIMITS: Limits = Limits { posts: 6, comments: 6 };

    /// The tables.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Stored {
        accounts: BTreeMap<UserId, AccountRow>,
        posts: BTreeMap<PostId, PostRow>,
        texts: BTreeMap<PostId, String>,
        likes: BTreeMap<(UserId, PostId), u64>,
        comments: BTreeMap<(PostId, CommentId), CommentRow>,
        reposts: BTreeSet<(PostId, PostId)>,
        requests: BTreeMap<(UserId, u64), Made>,
        deletions: BTreeSet<UserId>,
        /// The feed.
        events: Vec<String>,
    }

    /// A change of an item: the revisions before and after, and how an entry changes.
    type Changed = BTreeMap<Item, ((u64, u64), ItemChange)>;

    fn write<K: Ord + Copy, R: Clone + PartialEq>(rows: &Rows<K, R>, stored: &mut BTreeMap<K, R>) {
        rows.removed().for_each(|key| _ = stored.remove(key));
        let now = rows.added().chain(rows.changed());
        stored.extend(now.map(|(key, row)| (*key, row.clone())));
    }

    impl Stored {
        /// Decides a group of calls, with the rows that they need, and writes what has changed, as `group` does.
        fn run(&mut self, now_ms: u64, calls: &[Call]) -> (Vec<Outcome>, Changed) {
            let mut locked = Locked::default();
            for call in calls {
                let account = call.account();
                if call.makes_account() {
                    self.accounts.entry(account).or_default();
                }
                let row = self.accounts.get(&account);
                locked.accounts.extend(row.map(|row| (account, *row)));
                let origin = call.post().filter(|_| call.is_of_origin());
                let origin = origin.and_then(|post| self.posts.get(&post)?.origin);
                let origin = origin.map(|origin| [origin.root, origin.reposted]);
                for post in call.post().into_iter().chain(origin.into_iter().flatten()) {
                    locked.posts.extend(self.posts.get(&post).map(|row| (post, *row)));
                }
                locked.named.extend(call.post());
                if let Some(key) = call.like() {
                    locked.likes.extend(self.likes.get(&key).map(|since| (key, *since)));
                }
                if let Some(key) = call.comment() {
                    // The text is not read.
                    let row = self.comments.get(&key);
                    let row = row.map(|row| CommentRow { text: String::new(), ..row.clone() });
                    locked.comments.extend(row.map(|row| (key, row)));
                }
                if let Some(key) = call.request() {
                    locked.requests.extend(self.requests.get(&key).map(|made| (key, *made)));
                }
            }
            let mut state = State::new(now_ms, LIMITS, locked);
            let outcomes = calls.iter().map(|call| state.take(call, || 0)).collect();
            write(&state.accounts, &mut self.accounts);
            write(&state.posts, &mut self.posts);
            write(&state.likes, &mut self.likes);
            assert_eq!(state.comments.changed().count(), 0, "comments do not change");
            write(&state.comments, &mut self.comments);
            write(&state.requests, &mut self.requests);
            state.posts.removed().for_each(|id| _ = self.texts.remove(id));
            self.texts.append(&mut state.texts);
            for pair in &state.old_reposts {
                self.reposts.remove(pair);
            }
            self.reposts.extend(&state.new_reposts);
            self.deletions.extend(&state.deleted);
            self.deletions.retain(|user| !state.cleared.contains(user));
            self.events.extend(state.events.iter().map(|event| event.text.clone()));
            let in_feed = state.events.iter().flat_map(|event| event.items.iter().copied());
            let in_feed: BTreeSet<Item> = in_feed.collect();
            let changed: Changed = state
                .items
                .iter()
                .map(|(&item, change)| (item, (state.revisions(item), change.clone())))
                .collect();
            for (item, ((before, after), change)) in &changed {
                // The lists of a post have one revision: one may be as it was while another one changes.
                match in_feed.contains(item) {
                    true => assert!(before < after, "{item:?}"),
                    false => assert!(
                        change.added.is_empty() && change.removed.is_empty() && !change.is_reloaded,
                        "{item:?}"
                    ),
                }
            }
            (outcomes, changed)
        }

        /// The records of an item as it is loaded, oldest first.
        fn records(&self, (item, id): Item) -> Vec<Record> {
            let mut records: Vec<Record> = match item {
                PostItem::Post => {
                    let likes = self.likes.iter().filter(|((_, post), _)| post.get() == id);
                    let record = |(&(user, _), &time_ms): (&(UserId, PostId), &u64)| Record {
                        time_ms,
                        id: user.get(),
                    };
                    likes.map(record).collect()
                }
                PostItem::Reposts => {
                    let reposts = self.reposts.iter().filter(|(target, _)| target.get() == id);
                    reposts.map(|(_, repost)| Record { time_ms: 0, id: repost.get() }).collect()
                }
                PostItem::Author => {
                    let posts = self.posts.iter().filter(|(_, row)| row.author.get() == id);
                    posts.map(|(post, _)| Record { time_ms: 0, id: post.get() }).collect()
                }
                PostItem::Liked => {
                    let likes = self.likes.keys().filter(|(user, _)| user.get() == id);
                    likes.map(|(_, post)| Record { time_ms: 0, id: post.get() }).collect()
                }
                PostItem::Comments => Vec::new(),
            };
            records.sort_unstable();
            records
        }

        fn check(&self) {
            for (id, row) in &self.posts {
                let likes = self.likes.keys().filter(|(_, post)| post == id).count();
                let comments = self.comments.keys().filter(|(post, _)| post == id).count();
                let reposts = self.reposts.iter().filter(|(target, _)| target == id).count();
                let counts = [row.likes, row.comments, row.reposts];
                assert_eq!(counts, [likes, comments, reposts].map(|count| count as u64), "{id}");
                for target in row.origin.into_iter().flat_map(Origin::counted_by) {
                    let is_gone = !self.posts.contains_key(&target);
                    assert!(is_gone || self.reposts.contains(&(target, *id)), "{id}");
                }
                assert!(self.texts.contains_key(id), "{id}");
            }
            assert_eq!(self.posts.len(), self.texts.len());
            for (id, row) in &self.accounts {
                let posts = self.posts.values().filter(|post| post.author == *id).count();
                assert_eq!(row.posts, posts as u64, "{id}");
            }
        }
    }

    fn user(number: u64) -> UserId {
        // Each in a partition of its own, so that no ids of posts are the same.
        UserId::new((number << 12) + number * 4).unwrap()
    }

    /// A call that names posts and comments by the order in which they were made.
    #[derive(Clone, Debug)]
    enum Step {
        Publish(u64, u64, Option<usize>),
        Delete(u64, usize),
        Like(u64, usize),
        Unlike(u64, usize),
        Comment(u64, u64, usize, Option<usize>),
        DeleteComment(u64, usize),
        DeleteAccount(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let account = || 1..5_u64;
        let (post, comment, request) = (0..8_usize, 0..8_usize, 0..30_u64);
        let maybe = |of: std::ops::Range<usize>| proptest::option::of(of);
        prop_oneof![
            4 => (account(), request.clone(), maybe(post.clone()))
                .prop_map(|(user, request, post)| Step::Publish(user, request, post)),
            1 => (account(), post.clone()).prop_map(|(user, post)| Step::Delete(user, post)),
            4 => (account(), post.clone()).prop_map(|(user, post)| Step::Like(user, post)),
            3 => (account(), post.clone()).prop_map(|(user, post)| Step::Unlike(user, post)),
            3 => (account(), request, post, maybe(comment.clone()))
                .prop_map(|(user, request, post, to)| Step::Comment(user, request, post, to)),
            2 => (account(), comment).prop_map(|(user, at)| Step::DeleteComment(user, at)),
            1 => select(vec![4_u64]).prop_map(Step::DeleteAccount),
        ]
    }

    /// What was made, in order.
    #[derive(Default)]
    struct Known {
        posts: Vec<PostId>,
        comments: Vec<(PostId, CommentId)>,
    }

    impl Known {
        fn call(&self, step: &Step) -> Option<Call> {
            let post = |at: usize| self.posts.get(at).copied();
            let text = String::from("text");
            Some(match *step {
                Step::Publish(author, request, reposted) => {
                    let reposted = reposted.and_then(post);
                    Call::Publish { author: user(author), request, text, reposted }
                }
                Step::Delete(author, at) => Call::Delete(user(author), post(at)?),
                Step::Like(account, at) => Call::Like(user(account), post(at)?),
                Step::Unlike(account, at) => Call::Unlike(user(account), post(at)?),
                Step::Comment(author, request, at, to) => {
                    let post = post(at)?;
                    let to = to.and_then(|to| self.comments.get(to));
                    let in_reply_to = to.filter(|(of, _)| *of == post).map(|(_, id)| *id);
                    Call::Comment { author: user(author), request, post, text, in_reply_to }
                }
                Step::DeleteComment(account, at) => {
                    let (post, comment) = *self.comments.get(at)?;
                    Call::DeleteComment(user(account), post, comment)
                }
                Step::DeleteAccount(account) => Call::DeleteAccount(user(account)),
            })
        }

        fn note(&mut self, calls: &[Call], outcomes: &[Outcome]) {
            for (call, outcome) in calls.iter().zip(outcomes) {
                match (call, outcome) {
                    (_, Outcome::Published(id, _)) => self.posts.push(*id),
                    (Call::Comment { post, .. }, Outcome::Commented(id, _)) => {
                        self.comments.push((*post, *id));
                    }
                    _ => {}
                }
            }
        }
    }

    proptest! {
        #[test]
        fn counts_are_the_lengths_of_lists_and_a_group_is_its_calls_in_order(
            groups in vec(vec(step(), 1..8), 1..12)
        ) {
            let (mut together, mut known) = (Stored::default(), Known::default());
            for (at, steps) in groups.iter().enumerate() {
                let now_ms = NOW_MS + 7 * at as u64;
                let calls: Vec<Call> = steps.iter().filter_map(|step| known.call(step)).collect();
                let mut one_by_one = together.clone();
                let before = together.clone();
                let (outcomes, changed) = together.run(now_ms, &calls);
                together.check();
                let each = calls.iter().flat_map(|call| {
                    one_by_one.run(now_ms, std::slice::from_ref(call)).0
                });
                prop_assert_eq!(&each.collect::<Vec<_>>(), &outcomes);
                prop_assert_eq!(&one_by_one, &together);
                check_items(&before, &together, &changed);
                known.note(&calls, &outcomes);
            }
        }
    }

    // A change that is put in place gives the records that are loaded.
    fn check_items(before: &Stored, after: &Stored, changed: &Changed) {
        for (&item, ((from, to), change)) in changed {
            assert!(from <= to, "{item:?}");
            let exists = match item {
                (PostItem::Author | PostItem::Liked, _) => true,
                (_, id) => after.posts.contains_key(&PostId::new(id).unwrap()),
            };
            if change.is_reloaded || !exists {
                continue;
            }
            let mut records = before.records(item);
            records.retain(|record| !change.removed.contains(&record.id));
            records.extend(&change.added);
            records.sort_unstable();
            assert_eq!(records, after.records(item), "{item:?}: {change:?}");
            if from == to {
                assert!(change.added.is_empty() && change.removed.is_empty(), "{item:?}");
            }
        }
    }

    fn publish(author: u64, request: u64) -> Call {
        let text = String::from("text");
        Call::Publish { author: user(author), request, text, reposted: None }
    }

    #[test]
    fn ids_of_an_author_grow_and_a_request_makes_one_post() {
        let mut stored = Stored::default();
        let calls = [publish(1, 1), publish(2, 1), publish(1, 2), publish(1, 1)];
        let (outcomes, _) = stored.run(NOW_MS, &calls);
        let made = |at: usize| match &outcomes[at] {
            Outcome::Published(id, _) => *id,
            other => panic!("{other:?}"),
        };
        let [first, second, of_another] = [made(0), made(2), made(1)];
        assert!(first < second, "{first} {second}");
        assert!(stored.posts.keys().eq(&BTreeSet::from([first, second, of_another])));
        let again = Made { post: first, comment: None, made_ms: NOW_MS };
        assert_eq!(outcomes[3], Outcome::Made(again));
        // The clock was set back.
        let (outcomes, _) = stored.run(NOW_MS - 5_000, &[publish(1, 3)]);
        assert!(matches!(outcomes[0], Outcome::Published(id, _) if id > second));
        // A day later, the request is a new one.
        let (outcomes, _) = stored.run(NOW_MS + REQUEST_KEPT_MS, &[publish(1, 1)]);
        assert!(matches!(outcomes[0], Outcome::Published(..)));
    }

    #[test]
    fn a_deleted_account_writes_no_more_and_its_rows_can_be_removed() {
        let mut stored = Stored::default();
        stored.run(NOW_MS, &[publish(1, 1), publish(2, 1)]);
        let ids: Vec<PostId> = stored.posts.keys().copied().collect();
        let (first, second) = (user(1), user(2));
        stored.run(NOW_MS, &[Call::Like(first, ids[1]), Call::DeleteAccount(first)]);
        let comment = Call::Comment {
            author: first,
            request: 9,
            post: ids[1],
            text: String::from("text"),
            in_reply_to: None,
        };
        let calls = [publish(1, 2), Call::Like(first, ids[0]), comment];
        let (outcomes, _) = stored.run(NOW_MS, &calls);
        let rejected = Outcome::Rejected(Rejection::AccountDeleted);
        assert_eq!(outcomes, vec![rejected; 3]);
        let rest = [
            Call::Unlike(first, ids[1]),
            Call::Delete(first, ids[0]),
            Call::Deleted(first),
            Call::Like(second, ids[1]),
        ];
        stored.run(NOW_MS, &rest);
        stored.check();
        assert!(stored.deletions.is_empty());
        assert_eq!(stored.posts.len(), 1);
    }

    #[test]
    fn a_like_of_a_deleted_post_is_removed_from_what_the_account_likes() {
        let mut stored = Stored::default();
        stored.run(NOW_MS, &[publish(1, 1)]);
        let post = *stored.posts.keys().next().unwrap();
        stored.run(NOW_MS, &[Call::Like(user(2), post)]);
        stored.run(NOW_MS, &[Call::Delete(user(1), post)]);
        let (outcomes, changed) = stored.run(NOW_MS, &[Call::Unlike(user(2), post)]);
        assert_eq!(outcomes, [Outcome::Unliked { likes: 0 }]);
        assert!(changed.contains_key(&(PostItem::Liked, user(2).get())));
        assert!(stored.likes.is_empty());
        assert_eq!(stored.events.last().unwrap(), &format!("forget_like {}", user(2)));
    }
}
