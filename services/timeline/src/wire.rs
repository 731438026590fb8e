//! Conversion between wire types and domain types, with validation of requests.

use microblog_domain::{
    BATCH_MAX, FieldErrors, Invalid, PageSize, PostId, Scope, TokenError, UserId,
};
use microblog_proto::{relation, timeline as pb};

use crate::{
    cursor::{PageCursor, SeenPosts},
    entry::Entry,
    error::Error,
    list::{Page, PageQuery, VisibleEntry},
};

/// A page request of any timeline.
pub(crate) struct PageRequest<'a> {
    /// The method name: the scope of tokens.
    pub(crate) timeline: &'static str,
    pub(crate) user_id: u64,
    pub(crate) page_size: i32,
    pub(crate) page_token: &'a str,
    pub(crate) since_token: &'a str,
}

/// A page response of any timeline.
pub(crate) struct PageResponse {
    pub(crate) entries: Vec<pb::Entry>,
    pub(crate) next_page_token: String,
    pub(crate) since_token: String,
    pub(crate) older_than_id: u64,
    pub(crate) relations: Vec<relation::Relation>,
}

impl PageRequest<'_> {
    /// Decodes the user and the page query.
    pub(crate) fn decode(&self) -> Result<(UserId, PageQuery), Error> {
        let mut fields = FieldErrors::default();
        let user = fields.read(UserId::parse("user_id", self.user_id));
        let size = fields.read(PageSize::parse(self.page_size));
        let (user, size) = fields.finish(user.zip(size)).map_err(Error::Invalid)?;
        let size = size.get();
        let since = since(self.timeline, user, self.since_token)?;
        let cursor = PageCursor::from_token(self.page_scope(user), self.page_token);
        let cursor = cursor.map_err(|error| Error::Token { field: "page_token", error })?;
        Ok((user, PageQuery { size, cursor, since }))
    }

    /// Encodes a page.
    pub(crate) fn encode(&self, user: UserId, page: Page) -> PageResponse {
        let next = page.next.as_ref().map(|cursor| cursor.token(self.page_scope(user)));
        PageResponse {
            next_page_token: next.unwrap_or_default(),
            since_token: page.seen.token(seen_scope(self.timeline, user)),
            older_than_id: page.older_than.map_or(0, PostId::get),
            entries: entries(page.entries),
            relations: page.relations,
        }
    }

    // A page token is valid for one timeline and `since_token`.
    fn page_scope(&self, user: UserId) -> Scope {
        Scope::new(self.timeline).with(user.get()).with_text(self.since_token)
    }
}

/// The token scope of the home timeline.
pub(crate) const HOME: &str = "GetHomeTimeline";

/// Decodes a `since_token`.
pub(crate) fn since(
    timeline: &'static str,
    user: UserId,
    since_token: &str,
) -> Result<Option<SeenPosts>, Error> {
    let seen = SeenPosts::from_token(seen_scope(timeline, user), since_token);
    seen.map_err(|error: TokenError| Error::Token { field: "since_token", error })
}

/// Encodes a message of `WatchHomeTimeline`.
pub(crate) fn updates(user: UserId, page: Page) -> pb::WatchHomeTimelineResponse {
    let since_token = page.seen.token(seen_scope(HOME, user));
    pb::WatchHomeTimelineResponse { entries: entries(page.entries), since_token }
}

/// The most field violations in an error.
const VIOLATIONS_MAX: usize = 20;

/// Decodes and validates deliveries.
pub(crate) fn posts(deliveries: &[pb::Delivery]) -> Result<Vec<Entry>, Error> {
    if deliveries.len() > BATCH_MAX {
        let problem = format!("must have at most {BATCH_MAX} items, has {}", deliveries.len());
        return Err(Invalid::new("deliveries", problem).into());
    }
    let mut posts = Vec::with_capacity(deliveries.len());
    let mut invalid = Vec::new();
    for (i, delivery) in deliveries.iter().enumerate() {
        match post(i, delivery) {
            Ok(post) => posts.push(post),
            // More would exceed the size limit of response headers.
            Err(error) if invalid.len() < VIOLATIONS_MAX => invalid.push(error),
            Err(_) => break,
        }
    }
    if invalid.is_empty() { Ok(posts) } else { Err(Error::Invalid(invalid)) }
}

fn post(i: usize, delivery: &pb::Delivery) -> Result<Entry, Invalid> {
    let field = |name: &str| format!("deliveries[{i}].{name}");
    let post = PostId::parse(&field("post_id"), delivery.post_id)?;
    let author = UserId::parse(&field("author_id"), delivery.author_id)?;
    let root = match delivery.root_id {
        0 => None,
        id => Some(PostId::parse(&field("root_id"), id)?),
    };
    if author.partition() != post.partition() {
        return Err(Invalid::new(field("author_id"), "must be in the partition of the post"));
    }
    Ok(Entry { post, author, root, has_text: delivery.has_text })
}

fn entries(shown: Vec<VisibleEntry>) -> Vec<pb::Entry> {
    let entry = |VisibleEntry { entry, suppressed }: VisibleEntry| pb::Entry {
        post_id: entry.post.get(),
        author_id: entry.author.get(),
        root_id: entry.root.map_or(0, PostId::get),
        stand_in_ids: suppressed.into_iter().map(|entry| entry.post.get()).collect(),
    };
    shown.into_iter().map(entry).collect()
}

fn seen_scope(timeline: &'static str, user: UserId) -> Scope {
    Scope::new(timeline).with(user.get()).with_text("since")
}
