//! Between the wire's types and the domain's, with the checks of what comes in.

use microblog_domain::{BATCH_MAX, Fields, Invalid, PageSize, PostId, Scope, TokenError, UserId};
use microblog_proto::{relation, timeline as pb};

use crate::{
    entry::Entry,
    error::Error,
    list::{Page, Shown, Wanted},
    seen::{Place, Seen},
};

/// A request for a page, whatever the timeline.
pub(crate) struct PageRequest<'a> {
    /// The timeline's name, to which tokens belong.
    pub(crate) timeline: &'static str,
    pub(crate) user_id: u64,
    pub(crate) page_size: i32,
    pub(crate) page_token: &'a str,
    pub(crate) since_token: &'a str,
}

/// An answer with a page, whatever the timeline.
pub(crate) struct PageAnswer {
    pub(crate) entries: Vec<pb::Entry>,
    pub(crate) next_page_token: String,
    pub(crate) since_token: String,
    pub(crate) older_than_id: u64,
    pub(crate) relations: Vec<relation::Relation>,
}

impl PageRequest<'_> {
    /// Reads whose timeline it is, and what is wanted of it.
    pub(crate) fn read(&self) -> Result<(UserId, Wanted), Error> {
        let mut fields = Fields::default();
        let user = fields.read(UserId::parse("user_id", self.user_id));
        let size = fields.read(PageSize::parse(self.page_size));
        let (user, size) = fields.finish(user.zip(size)).map_err(Error::Invalid)?;
        let size = size.get();
        let since = since(self.timeline, user, self.since_token)?;
        let place = Place::from_token(self.pages(user), self.page_token);
        let place = place.map_err(|error| Error::Token { field: "page_token", error })?;
        Ok((user, Wanted { size, place, since }))
    }

    /// Returns a page as it is answered.
    pub(crate) fn answer(&self, user: UserId, page: Page) -> PageAnswer {
        let next = page.next.as_ref().map(|place| place.token(self.pages(user)));
        PageAnswer {
            next_page_token: next.unwrap_or_default(),
            since_token: page.seen.token(seen_scope(self.timeline, user)),
            older_than_id: page.older_than.map_or(0, PostId::get),
            entries: entries(page.entries),
            relations: page.relations,
        }
    }

    // A page token belongs to what is wanted of the timeline.
    fn pages(&self, user: UserId) -> Scope {
        Scope::new(self.timeline).with(user.get()).with_text(self.since_token)
    }
}

/// The home timeline's name, to which tokens belong.
pub(crate) const HOME: &str = "GetHomeTimeline";

/// Reads what its reader has seen of a timeline.
pub(crate) fn since(
    timeline: &'static str,
    user: UserId,
    since_token: &str,
) -> Result<Option<Seen>, Error> {
    let seen = Seen::from_token(seen_scope(timeline, user), since_token);
    seen.map_err(|error: TokenError| Error::Token { field: "since_token", error })
}

/// Returns what a watcher is told.
pub(crate) fn news(user: UserId, page: Page) -> pb::WatchHomeTimelineResponse {
    let since_token = page.seen.token(seen_scope(HOME, user));
    pb::WatchHomeTimelineResponse { entries: entries(page.entries), since_token }
}

/// How many wrong fields of deliveries are named.
const VIOLATIONS_MAX: usize = 20;

/// Reads posts to take in.
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
            // All of them would not fit into an answer's headers.
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
        return Err(Invalid::new(field("author_id"), "must be of the partition of the post"));
    }
    Ok(Entry { post, author, root, has_text: delivery.has_text })
}

fn entries(shown: Vec<Shown>) -> Vec<pb::Entry> {
    let entry = |Shown { entry, stand_ins }: Shown| pb::Entry {
        post_id: entry.post.get(),
        author_id: entry.author.get(),
        root_id: entry.root.map_or(0, PostId::get),
        stand_in_ids: stand_ins.into_iter().map(|entry| entry.post.get()).collect(),
    };
    shown.into_iter().map(entry).collect()
}

fn seen_scope(timeline: &'static str, user: UserId) -> Scope {
    Scope::new(timeline).with(user.get()).with_text("since")
}
