//! Conversion between wire types and domain types, with validation of requests.

use microblog_domain::{BATCH_MAX, Fields as _, Invalid, PageSize, PostId, Scope, UserId};
use microblog_proto::timeline as pb;

use crate::{
    cursor::{PageCursor, SeenPosts},
    entry::Entry,
    error::Error,
    list::{Page, PageQuery, VisibleEntry},
    viewer_relations::TimelineKind,
};

/// The timeline of a request: its reader and kind. Also the scope of tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    pub(crate) reader: UserId,
    pub(crate) kind: TimelineKind,
}

impl Timeline {
    /// Decodes the home timeline of a reader.
    pub(crate) fn home(user_id: u64) -> Result<Self, Error> {
        Ok(Self { reader: UserId::parse("user_id", user_id)?, kind: TimelineKind::Home })
    }

    /// Decodes a request for the authors of a timeline.
    pub(crate) fn of_authors(request: &pb::ListAuthorsRequest) -> Result<Self, Error> {
        let reader = UserId::parse("user_id", request.user_id);
        let (reader, kind) = (reader, kind(request.kind)).all().map_err(Error::Invalid)?;
        Ok(Self { reader, kind })
    }

    /// Decodes a request for a page.
    pub(crate) fn with_query(request: &pb::GetTimelineRequest) -> Result<(Self, PageQuery), Error> {
        let reader = UserId::parse("user_id", request.user_id);
        let fields = (reader, kind(request.kind), PageSize::parse(request.page_size));
        let (reader, kind, size) = fields.all().map_err(Error::Invalid)?;
        let timeline = Self { reader, kind };
        let since = timeline.since(&request.since_token)?;
        let scope = timeline.page_scope(&request.since_token);
        let cursor = PageCursor::from_token(scope, &request.page_token);
        let cursor = cursor.map_err(|error| Error::Token { field: "page_token", error })?;
        Ok((timeline, PageQuery { size: size.get(), cursor, since }))
    }

    /// Decodes a `since_token`.
    pub(crate) fn since(self, since_token: &str) -> Result<Option<SeenPosts>, Error> {
        let seen = SeenPosts::from_token(self.since_scope(), since_token);
        seen.map_err(|error| Error::Token { field: "since_token", error })
    }

    /// Encodes a page. `since_token` is that of the request.
    pub(crate) fn response(self, since_token: &str, page: Page) -> pb::GetTimelineResponse {
        let next = page.next.as_ref().map(|cursor| cursor.token(self.page_scope(since_token)));
        pb::GetTimelineResponse {
            next_page_token: next.unwrap_or_default(),
            since_token: page.seen.token(self.since_scope()),
            older_than_id: page.older_than.map_or(0, PostId::get),
            entries: entries(page.entries),
            relations: page.relations,
        }
    }

    /// Encodes a message of `WatchHomeTimeline`.
    pub(crate) fn updates(self, page: Page) -> pb::WatchHomeTimelineResponse {
        let since_token = page.seen.token(self.since_scope());
        pb::WatchHomeTimelineResponse { entries: entries(page.entries), since_token }
    }

    // A page token is valid for one timeline and `since_token`.
    fn page_scope(self, since_token: &str) -> Scope {
        self.scope().with_text(since_token)
    }

    fn since_scope(self) -> Scope {
        self.scope().with_text("since")
    }

    fn scope(self) -> Scope {
        let kind = match self.kind {
            TimelineKind::Home => pb::TimelineKind::Home,
            TimelineKind::Friends => pb::TimelineKind::Friends,
        };
        Scope::new("GetTimeline").with(kind as u64).with(self.reader.get())
    }
}

fn kind(kind: i32) -> Result<TimelineKind, Invalid> {
    match pb::TimelineKind::try_from(kind) {
        Ok(pb::TimelineKind::Home) => Ok(TimelineKind::Home),
        Ok(pb::TimelineKind::Friends) => Ok(TimelineKind::Friends),
        Ok(pb::TimelineKind::Unspecified) | Err(_) => {
            Err(Invalid::new("kind", "must be HOME or FRIENDS"))
        }
    }
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
