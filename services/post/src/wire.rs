//! Conversion between wire types and domain types, with validation of requests.

use std::time::{Duration, SystemTime};

use microblog_domain::{
    BATCH_MAX, CommentId, Fields, Invalid, Order, PostId, RequestId, Stamp, UserId,
    text::{self, Lines},
};
use microblog_proto::post as pb;
use microblog_storage::Record;
use prost::Message;

use crate::{
    entities::{self, Entity, Target},
    error::Error,
    lists::Page,
    post::{Comment, Post, Root, WithRoot},
    steps::AHEAD_MAX,
    verify::Report,
};

/// The longest text of a post or comment, in grapheme clusters.
const TEXT_MAX: usize = 2_000;

/// The most posts of an import.
const IMPORTED_MAX: usize = 200;

/// A validated CreatePost request.
pub(crate) struct NewPost {
    pub(crate) author: UserId,
    pub(crate) request: RequestId,
    pub(crate) text: String,
}

/// A validated Repost request.
pub(crate) struct NewRepost {
    pub(crate) author: UserId,
    pub(crate) request: RequestId,
    pub(crate) reposted: PostId,
    pub(crate) text: String,
}

/// A validated AddComment request.
pub(crate) struct NewComment {
    pub(crate) author: UserId,
    pub(crate) request: RequestId,
    pub(crate) post: PostId,
    pub(crate) text: String,
    pub(crate) in_reply_to: Option<CommentId>,
}

/// Decodes a new post.
pub(crate) fn new_post(request: &pb::CreatePostRequest) -> Result<NewPost, Error> {
    let author = UserId::parse("author_id", request.author_id);
    let id = RequestId::parse("request_id", &request.request_id);
    let (author, request, text) = all((author, id, non_empty_text(&request.text)))?;
    Ok(NewPost { author, request, text })
}

/// Decodes a new repost, which may have no text.
pub(crate) fn new_repost(request: &pb::RepostRequest) -> Result<NewRepost, Error> {
    let author = UserId::parse("author_id", request.author_id);
    let id = RequestId::parse("request_id", &request.request_id);
    let reposted = PostId::parse("post_id", request.post_id);
    let (author, request, reposted, text) = all((author, id, reposted, valid_text(&request.text)))?;
    Ok(NewRepost { author, request, reposted, text })
}

/// Decodes a new comment.
pub(crate) fn new_comment(request: &pb::AddCommentRequest) -> Result<NewComment, Error> {
    let (author, request, post, text, in_reply_to) = all((
        UserId::parse("author_id", request.author_id),
        RequestId::parse("request_id", &request.request_id),
        PostId::parse("post_id", request.post_id),
        non_empty_text(&request.text),
        match request.in_reply_to_id {
            0 => Ok(None),
            id => CommentId::parse("in_reply_to_id", id).map(Some),
        },
    ))?;
    Ok(NewComment { author, request, post, text, in_reply_to })
}

/// Decodes a RedeliverPosts request: the time, or the beginning of all.
pub(crate) fn redelivered_since(request: pb::RedeliverPostsRequest) -> Result<SystemTime, Error> {
    let Some(since) = request.since else { return Ok(SystemTime::UNIX_EPOCH) };
    let invalid = |_| Invalid::new("since", "must be a valid time");
    Ok(since.try_into().map_err(invalid)?)
}

/// Returns the values of fields; on failure, names every invalid one.
pub(crate) fn all<F: Fields>(fields: F) -> Result<F::Values, Error> {
    fields.all().map_err(Error::Invalid)
}

/// Decodes the viewer; 0 means none.
pub(crate) fn viewer(id: u64) -> Result<Option<UserId>, Invalid> {
    if id == 0 { Ok(None) } else { UserId::parse("viewer_id", id).map(Some) }
}

/// Decodes a batch of posts. Leaves out numbers that are no ids.
pub(crate) fn batch(ids: &[u64]) -> Result<Vec<PostId>, Invalid> {
    PostId::parse_list("post_ids", ids, BATCH_MAX)
}

/// Decodes a batch of comments: their posts and ids. Leaves out keys of numbers that are no ids.
pub(crate) fn comment_keys(keys: &[pb::CommentKey]) -> Result<Vec<(PostId, CommentId)>, Error> {
    if keys.len() > BATCH_MAX {
        let problem = format!("must have at most {BATCH_MAX} items, has {}", keys.len());
        return Err(Invalid::new("comments", problem).into());
    }
    let key = |key: &pb::CommentKey| PostId::new(key.post_id).zip(CommentId::new(key.comment_id));
    Ok(keys.iter().filter_map(key).collect())
}

/// Decodes a batch of accounts. Leaves out numbers that are no ids.
pub(crate) fn accounts(ids: &[u64]) -> Result<Vec<UserId>, Invalid> {
    UserId::parse_list("user_ids", ids, BATCH_MAX)
}

/// Decodes the cursor below which a page begins; 0 means none.
pub(crate) fn before(id: u64) -> Result<Option<PostId>, Invalid> {
    cursor("before_id", id)
}

/// Decodes the cursor above which a list ends; 0 means none.
pub(crate) fn after(id: u64) -> Result<Option<PostId>, Invalid> {
    cursor("after_id", id)
}

fn cursor(field: &str, id: u64) -> Result<Option<PostId>, Invalid> {
    match id {
        0 => Ok(None),
        id => PostId::parse(field, id).map(Some),
    }
}

/// Decodes the order of comments.
pub(crate) fn order(order: i32) -> Result<Order, Invalid> {
    match pb::CommentOrder::try_from(order) {
        Ok(pb::CommentOrder::Unspecified | pb::CommentOrder::OldestFirst) => Ok(Order::Oldest),
        Ok(pb::CommentOrder::NewestFirst) => Ok(Order::Newest),
        Err(_) => Err(Invalid::new("order", "must be one of the orders")),
    }
}

fn valid_text(text: &str) -> Result<String, Invalid> {
    text::clean("text", text, TEXT_MAX, Lines::Many)
}

fn non_empty_text(text: &str) -> Result<String, Invalid> {
    let text = valid_text(text)?;
    if text.is_empty() {
        return Err(Invalid::new("text", "must not be empty"));
    }
    Ok(text)
}

/// Encodes a post with its root.
pub(crate) fn with_root(found: WithRoot) -> pb::Post {
    let WithRoot { post, root } = found;
    let root_deleted = root == Root::Deleted;
    let root = match root {
        Root::Post(root) => Some(Box::new(self::post(root))),
        Root::None | Root::Deleted => None,
    };
    pb::Post { root, root_deleted, ..self::post(post) }
}

/// Encodes a post without its root.
pub(crate) fn post(post: Post) -> pb::Post {
    let Post { id, content, counts, liked } = post;
    let (root_id, reposted_id) =
        content.origin.map_or((0, 0), |origin| (origin.root.get(), origin.reposted.get()));
    pb::Post {
        id: id.get(),
        author_id: content.author.get(),
        entities: entities(&content.text),
        text: content.text,
        created_at: Some(id.created_at().into()),
        likes: counts.likes,
        comments: counts.comments,
        reposts: counts.reposts,
        liked,
        root_id,
        reposted_id,
        root: None,
        root_deleted: false,
    }
}

/// Encodes a comment.
pub(crate) fn comment(comment: Comment) -> pb::Comment {
    let Comment { id, post, content } = comment;
    let (in_reply_to_id, in_reply_to_author_id) =
        content.in_reply_to.map_or((0, 0), |reply| (reply.to.get(), reply.author.get()));
    pb::Comment {
        id: id.get(),
        post_id: post.get(),
        author_id: content.author.get(),
        entities: entities(&content.text),
        text: content.text,
        created_at: Some(id.created_at().into()),
        in_reply_to_id,
        in_reply_to_author_id,
    }
}

fn entities(text: &str) -> Vec<pb::Entity> {
    let entity = |Entity { range, target }| {
        let target = match target {
            Target::Mention(name) => pb::entity::Target::Mention(pb::Mention { name, user_id: 0 }),
            Target::Hashtag(tag) => pb::entity::Target::Hashtag(pb::Hashtag { tag }),
        };
        pb::Entity { start: range.start, end: range.end, target: Some(target) }
    };
    entities::find(text).into_iter().map(entity).collect()
}

/// Encodes a like since a time, in Unix ms.
pub(crate) fn like(user_id: u64, since_ms: u64) -> pb::Like {
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms);
    pb::Like { user_id, liked_at: Some(since.into()) }
}

/// Decodes posts to be imported: the author, the time in Unix ms, and the text.
pub(crate) fn imported(posts: &[pb::ImportedPost]) -> Result<Vec<(UserId, u64, String)>, Error> {
    if posts.len() > IMPORTED_MAX {
        let problem = format!("must have at most {IMPORTED_MAX} items, has {}", posts.len());
        return Err(Invalid::new("posts", problem).into());
    }
    let post = |(index, post): (usize, &pb::ImportedPost)| {
        let author = UserId::parse("author_id", post.author_id);
        let fields = (author, made_ms(post), non_empty_text(&post.text)).all();
        let of_post = |invalid: Invalid| Invalid {
            field: format!("posts[{index}].{}", invalid.field),
            ..invalid
        };
        let invalid = |invalid: Vec<_>| Error::Invalid(invalid.into_iter().map(of_post).collect());
        fields.map_err(invalid)
    };
    posts.iter().enumerate().map(post).collect()
}

fn made_ms(post: &pb::ImportedPost) -> Result<u64, Invalid> {
    let made = post.created_at.and_then(|made| SystemTime::try_from(made).ok());
    let made = made.and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok());
    let made_ms = made.map(|made| made.as_millis() as u64).filter(|ms| *ms >= Stamp::EPOCH_MS);
    let last = SystemTime::now() + AHEAD_MAX;
    let made_ms = made_ms.filter(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(*ms) <= last);
    made_ms.ok_or_else(|| Invalid::new("created_at", "must be a time from 2006-01-01 until now"))
}

/// Encodes a post that an account likes.
pub(crate) fn liked_post(&Record { time_ms, id: post_id }: &Record) -> pb::LikedPost {
    pb::LikedPost { post_id, liked_at: like(0, time_ms).liked_at }
}

/// Encodes a page of likes.
pub(crate) fn likes(entries: &[Record]) -> Vec<pb::Like> {
    entries.iter().map(|entry| like(entry.id, entry.time_ms)).collect()
}

/// Encodes the report of a check.
pub(crate) fn report(report: Report) -> pb::VerifyResponse {
    pb::VerifyResponse {
        posts_checked: report.posts,
        entries_checked: report.entries,
        violations: report.violations.into_vec(),
        pending: report.pending.into_vec(),
    }
}

/// The most bytes of a page's entries. The gateway resolves their mentions and adds up to 200
/// profiles, and its page stays below gRPC's default limit of a received message (4 MiB). Pages
/// rarely reach it, since texts are rarely as long as allowed.
pub(crate) const PAGE_BYTES_MAX: usize = 1280 * 1024;

/// The most bytes of a partial batch: half of gRPC's default limit.
pub(crate) const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Truncates a page of posts that is too large for one message; the next page begins there.
pub(crate) fn fit(page: &mut Page<Record>, posts: &mut Vec<pb::Post>) {
    let kept = fitting(posts, PAGE_BYTES_MAX);
    if let Some(cut) = posts.get(kept).map(|post| post.id) {
        let place = page.entries.iter().position(|entry| entry.id == cut);
        page.entries.truncate(place.unwrap_or_default());
        page.more = true;
        posts.truncate(kept);
    }
}

/// Encodes a page of comments, and truncates one that is too large for one message.
pub(crate) fn comments(page: &mut Page<Comment>) -> Vec<pb::Comment> {
    let mut comments: Vec<_> = page.entries.iter().cloned().map(comment).collect();
    let kept = fitting(&comments, PAGE_BYTES_MAX);
    page.more |= kept < comments.len();
    page.entries.truncate(kept);
    comments.truncate(kept);
    comments
}

/// Returns how many entries take up to `bytes_max`. A single one always does.
pub(crate) fn fitting<T: Message>(entries: &[T], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |entry: &&T| {
        bytes += entry.encoded_len();
        bytes <= bytes_max
    };
    entries.iter().take_while(fits).count()
}
