//! ViewHome, ViewFriends, ViewUserTimeline, CountNew: timelines.
//!
//! A home or friends timeline has two parts, and paging is transparent across both. The timeline
//! service holds recent entries, which are post ids. Older posts come from the post service: all
//! posts of the same authors, back to the first one. A user timeline comes from the post service
//! alone. Positions in lists of the post service have page tokens of the gateway's own.

use futures::future;
use microblog_chassis::status;
use microblog_domain::{BATCH_MAX, Fields as _, PostId, Scope, TokenError, UserId};
use microblog_proto::{
    gateway::{self, ViewedPost},
    post::{self, Post},
    timeline::{self, Entry, TimelineKind},
};
use tonic::{Code, Status};

use crate::{
    context::{
        AccountRef, Subject, ViewContext, account_id, authenticate_optional_within,
        authenticate_within, verify_beside,
    },
    credentials::Credentials,
    errors,
    hydration::posts::{POSTS_BUDGET, hydrate_entries, viewed_posts_in_place, viewer_id},
    paging::{Cursor, Filling, Listing, PageRequest, Skeleton, fill},
    state::Gateway,
};

/// Shows the viewer's home timeline. Up to 4 calls for a page of up to 25 that one skeleton fills:
/// timeline.GetTimeline, then post.BatchGetPosts, then user.BatchGetUsers ∥ relation.BatchGetRelations
/// (only for authors of roots, since the timeline service returns the relations of the other authors).
///
/// A larger page takes skeletons of up to 50 entries, and a page with many hidden entries takes
/// more of them: up to 48, of up to 5 calls each (post.BatchGetPosts twice). If a post with
/// suppressed reposts is not shown, its skeleton costs up to 8 more: post.BatchGetPosts up to 6
/// times, then the last two once more; and that up to 9 times while none of the reposts is
/// visible.
///
/// A page of older posts than the newest 800 costs timeline.ListAuthors, then post.ListAuthorsPosts
/// once for every 500 authors, all at once, and the last two of above once for every 50 posts; with
/// long texts or hidden posts, the calls after timeline.ListAuthors up to 7 times more. The page at
/// the end of the newest 800 costs both.
pub(crate) async fn view_home(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewHomeRequest,
) -> Result<gateway::ViewHomeResponse, Status> {
    let gateway::ViewHomeRequest { page_size, page_token, since_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    let page = view_own(gateway, TimelineKind::Home, credentials, since_token, page).await?;
    let TimelinePage { posts, next_page_token, since_token } = page;
    Ok(gateway::ViewHomeResponse { posts, next_page_token, since_token })
}

/// Shows the posts of the accounts that the viewer follows and is followed by. The calls of
/// [`view_home`].
pub(crate) async fn view_friends(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewFriendsRequest,
) -> Result<gateway::ViewFriendsResponse, Status> {
    let gateway::ViewFriendsRequest { page_size, page_token, since_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    let page = view_own(gateway, TimelineKind::Friends, credentials, since_token, page).await?;
    let TimelinePage { posts, next_page_token, since_token } = page;
    Ok(gateway::ViewFriendsResponse { posts, next_page_token, since_token })
}

/// Shows the posts of an account to any viewer whom it does not block. 3 calls, 2 without a token,
/// for a page of up to 50: post.ListAuthorsPosts, then user.BatchGetUsers ∥
/// relation.BatchGetRelations. By name, one more: user.GetUserByName before them.
///
/// A larger page costs the last two once for every 50 posts; with long texts, post.ListAuthorsPosts
/// and the last two up to 7 times more.
pub(crate) async fn view_user_timeline(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewUserTimelineRequest,
) -> Result<gateway::ViewUserTimelineResponse, Status> {
    let gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token } = request;
    let fields = (AccountRef::parse(user), PageRequest::parse(page_size, page_token));
    let (user, page) = fields.all().map_err(status::invalid)?;
    authenticate_optional_within(gateway, credentials, |session| async move {
        let author = account_id(gateway, &user).await?;
        let context = ViewContext::of(session.as_deref());
        let context = context.with_subject(Subject::Account(author.get()));
        let mut cursor = UserCursor::parse(author, &since_token, &page.token)?;
        let (authors, after_id) = (vec![author.get()], cursor.seen_id);
        let posts = AuthorsPosts { authors, viewer: context.viewer, after_id };
        let end = &mut cursor.before_id;
        let first = posts.skeleton(gateway, page.size, *end).await?;
        let mut filling = Filling::new(page.size, POSTS_BUDGET);
        let filled = fill(gateway, &posts, context, first, end, &mut filling).await;
        unless_shown(filled, &filling)?;
        let newest = filling.shown.first().and_then(|viewed| viewed.post.as_ref());
        cursor.newest_id = cursor.newest_id.max(newest.map_or(0, |post| post.id));
        let (next_page_token, since_token) = cursor.tokens(author, since_token);
        let posts = filling.shown;
        Ok(gateway::ViewUserTimelineResponse { posts, next_page_token, since_token })
    })
    .await
}

/// Counts the new entries of the viewer's home timeline. 2 calls at once: user.Authenticate ∥
/// timeline.CountNew.
pub(crate) async fn count_new(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::CountNewRequest,
) -> Result<gateway::CountNewResponse, Status> {
    const FIELDS: errors::Fields = &[("since_token", "since_token")];
    authenticate_within(gateway, credentials, |session| async move {
        let (user_id, since_token) = (session.viewer.get(), request.since_token);
        let client = gateway.peers.timeline();
        let count = client.count_new(timeline::CountNewRequest { user_id, since_token });
        let response = verify_beside(gateway, Some(&session), count).await?;
        let count = errors::reply(response, FIELDS)?.count;
        Ok(gateway::CountNewResponse { count })
    })
    .await
}

/// A page of a timeline as the viewer sees it.
struct TimelinePage {
    posts: Vec<ViewedPost>,
    /// Empty at the end of the timeline.
    next_page_token: String,
    /// For CountNew and for requests of what is new.
    since_token: String,
}

/// Shows the viewer's home or friends timeline: recent entries, then older posts, until the page is
/// full or the timeline ends.
async fn view_own(
    gateway: &Gateway,
    kind: TimelineKind,
    credentials: Credentials,
    since_token: String,
    page: PageRequest,
) -> Result<TimelinePage, Status> {
    authenticate_within(gateway, credentials, |session| async move {
        let timeline = OwnTimeline { viewer: session.viewer, kind, since_token };
        fill_own(gateway, &timeline, ViewContext::of(Some(&session)), page).await
    })
    .await
}

/// Fills a page of a home or friends timeline.
async fn fill_own(
    gateway: &Gateway,
    timeline: &OwnTimeline,
    context: ViewContext<'_>,
    page: PageRequest,
) -> Result<TimelinePage, Status> {
    let PageRequest { size, token: page_token } = page;
    let start = timeline.start(gateway, size, page_token).await?;
    let mut filling = Filling::new(size, POSTS_BUDGET);
    let mut older = match start {
        Start::Older(cursor) => cursor,
        Start::Recent(mut end, first) => {
            fill(gateway, timeline, context, first, &mut end, &mut filling).await?;
            let RecentCursor { next_page_token, since_token, older_than_id } = end;
            if older_than_id == 0 {
                return Ok(TimelinePage { posts: filling.shown, next_page_token, since_token });
            }
            OlderCursor { before_id: older_than_id, since_token }
        }
    };
    if !filling.is_full() {
        let end = &mut older.before_id;
        let filled = fill_older(gateway, timeline, context, end, &mut filling).await;
        unless_shown(filled, &filling)?;
    }
    let next = (!older.before_id.is_end()).then(|| older.token(timeline.scope()));
    let (posts, since_token) = (filling.shown, older.since_token);
    Ok(TimelinePage { posts, next_page_token: next.unwrap_or_default(), since_token })
}

/// Fills a page with older posts.
async fn fill_older(
    gateway: &Gateway,
    timeline: &OwnTimeline,
    context: ViewContext<'_>,
    end: &mut u64,
    filling: &mut Filling<ViewedPost>,
) -> Result<(), Status> {
    let (user_id, kind) = (timeline.viewer.get(), timeline.kind.into());
    let request = timeline::ListAuthorsRequest { user_id, kind };
    let response = gateway.peers.timeline().list_authors(request).await;
    let authors = errors::reply(response, &[])?.author_ids;
    let posts = AuthorsPosts { authors, viewer: context.viewer, after_id: 0 };
    let first = posts.skeleton(gateway, filling.missing(), *end).await?;
    fill(gateway, &posts, context, first, end, filling).await
}

/// Ends a page early if what follows is unavailable; an error only if the page is empty.
fn unless_shown(filled: Result<(), Status>, filling: &Filling<ViewedPost>) -> Result<(), Status> {
    match filled {
        Err(status) if status.code() == Code::Unavailable && !filling.shown.is_empty() => Ok(()),
        filled => filled,
    }
}

/// Where a page of the viewer's home or friends timeline starts.
enum Start {
    /// In the recent entries, with those that follow.
    Recent(RecentCursor, Skeleton<Entry, RecentCursor>),
    /// In the older posts.
    Older(OlderCursor),
}

/// The recent entries of the viewer's home or friends timeline.
struct OwnTimeline {
    viewer: UserId,
    kind: TimelineKind,
    /// Stands for the entries that the caller has seen and does not need again; empty for all
    /// entries. The same in each request for a page.
    since_token: String,
}

/// A position in the recent entries of a timeline.
#[derive(Clone, Default)]
struct RecentCursor {
    /// Empty at the end of the recent entries.
    next_page_token: String,
    since_token: String,
    /// At the end of recent entries that were truncated: the timeline continues with posts older
    /// than this one. 0 elsewhere.
    older_than_id: u64,
}

impl Cursor for RecentCursor {
    fn is_end(&self) -> bool {
        self.next_page_token.is_empty()
    }
}

impl OwnTimeline {
    /// Returns where a page starts. One call, none in the older posts: timeline.GetTimeline.
    async fn start(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Start, Status> {
        if let Some(cursor) = OlderCursor::from_token(self.scope(), &page_token) {
            return Ok(Start::Older(cursor));
        }
        let start = RecentCursor { next_page_token: page_token, ..RecentCursor::default() };
        let first = self.skeleton(gateway, size.min(POSTS_BUDGET.batch_max), start.clone()).await?;
        Ok(Start::Recent(start, first))
    }

    /// Returns the scope of the page tokens of older posts. A request with a since token never
    /// reaches older posts, so with it no such token is valid.
    fn scope(&self) -> Scope {
        Scope::new(self.kind.as_str_name()).with(self.viewer.get()).with_text(&self.since_token)
    }
}

impl Listing for OwnTimeline {
    type Entry = Entry;
    type Shown = ViewedPost;
    type Cursor = RecentCursor;

    /// More than any page needs. 16 skeletons of the largest size hold 800 entries; a smaller one
    /// comes only after one of which at least half was shown.
    const SKELETONS_MAX: usize = 48;

    /// Returns up to `size` entries; fewer only at the end. One call.
    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        cursor: RecentCursor,
    ) -> Result<Skeleton<Entry, RecentCursor>, Status> {
        const FIELDS: errors::Fields =
            &[("page_token", "page_token"), ("since_token", "since_token")];
        let request = timeline::GetTimelineRequest {
            user_id: self.viewer.get(),
            kind: self.kind.into(),
            page_size: size as i32,
            page_token: cursor.next_page_token,
            since_token: self.since_token.clone(),
        };
        let response = gateway.peers.timeline().get_timeline(request).await;
        let timeline::GetTimelineResponse {
            entries,
            next_page_token,
            since_token,
            older_than_id,
            relations,
        } = errors::reply(response, FIELDS)?;
        let next = RecentCursor { next_page_token, since_token, older_than_id };
        Ok(Skeleton { entries, next, relations })
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        entries: Vec<Entry>,
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        hydrate_entries(gateway, context, &entries).await
    }
}

/// The posts of authors, newest first, from the post service.
struct AuthorsPosts {
    authors: Vec<u64>,
    viewer: Option<UserId>,
    /// Only posts newer than this one; 0 for all.
    after_id: u64,
}

/// Posts older than the one with this id follow; 0 at the end, and before the newest post.
impl Cursor for u64 {
    fn is_end(&self) -> bool {
        *self == 0
    }
}

impl Listing for AuthorsPosts {
    type Entry = Post;
    type Shown = ViewedPost;
    type Cursor = u64;

    /// More than a page of long texts needs to reach the bytes of a response. Few of the posts are
    /// hidden.
    const SKELETONS_MAX: usize = 8;

    /// Returns up to `size` posts; fewer do not mean the end. post.ListAuthorsPosts once for every
    /// 500 authors, all at once.
    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        before_id: u64,
    ) -> Result<Skeleton<Post, u64>, Status> {
        let batch = |authors: &[u64]| {
            let request = post::ListAuthorsPostsRequest {
                author_ids: authors.to_vec(),
                viewer_id: viewer_id(self.viewer),
                page_size: size as i32,
                before_id,
                after_id: self.after_id,
            };
            gateway.peers.post().list_authors_posts(request)
        };
        let batches: Vec<_> = self.authors.chunks(BATCH_MAX).map(batch).collect();
        let mut parts = Vec::with_capacity(batches.len());
        for response in future::join_all(batches).await {
            let part = errors::reply(response, &[])?;
            parts.push((part.posts, part.next_before_id));
        }
        let (posts, before_id) = merge(parts, size);
        Ok(Skeleton::new(posts, before_id))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        posts: Vec<Post>,
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        viewed_posts_in_place(gateway, context, posts).await
    }

    fn cursor_after(post: &Post) -> Option<u64> {
        Some(post.id)
    }
}

/// Merges the posts of different authors, each part with its cursor: back to where all parts are
/// known, and at most `size` posts.
fn merge(parts: Vec<(Vec<Post>, u64)>, size: usize) -> (Vec<Post>, u64) {
    let known_to = parts.iter().map(|(_, before_id)| *before_id).max().unwrap_or(0);
    let mut posts: Vec<_> = parts.into_iter().flat_map(|(posts, _)| posts).collect();
    posts.retain(|post| post.id >= known_to);
    posts.sort_unstable_by_key(|post| std::cmp::Reverse(post.id));
    let has_more = posts.len() > size;
    posts.truncate(size);
    let last = posts.last().filter(|_| has_more).map(|post| post.id);
    (posts, last.unwrap_or(known_to))
}

/// A position in the older posts of a home or friends timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OlderCursor {
    /// Older posts than this one follow; 0 at the end.
    before_id: u64,
    /// The since token of the recent entries, for CountNew.
    since_token: String,
}

impl OlderCursor {
    /// Returns the page token of this position.
    fn token(&self, scope: Scope) -> String {
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte));
        let words = self.since_token.as_bytes().chunks(8).map(word);
        scope.token_of(&std::iter::once(self.before_id).chain(words).collect::<Vec<_>>())
    }

    /// Parses a page token; `None` for any other token. That may be a token of the timeline
    /// service, which validates its own.
    fn from_token(scope: Scope, token: &str) -> Option<Self> {
        let numbers = scope.read_all(token).ok().flatten()?;
        let (&before_id, words) = numbers.split_first()?;
        PostId::new(before_id)?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Some(Self { before_id, since_token: String::from_utf8(bytes).ok()? })
    }
}

/// A position in a user timeline, and what the caller has seen of it.
///
/// An author's posts appear in the order of their ids, unlike in a home timeline. So the newest id
/// represents all posts that the caller has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UserCursor {
    /// Older posts than this one follow; 0 at both ends.
    before_id: u64,
    /// The newest post that any page has shown; 0 if none.
    newest_id: u64,
    /// The newest post that the caller had seen before; 0 for the whole timeline.
    seen_id: u64,
}

impl UserCursor {
    /// Parses the tokens of a request.
    fn parse(author: UserId, since_token: &str, page_token: &str) -> Result<Self, Status> {
        let since = Self::since_scope(author).read(since_token).and_then(ids);
        let [seen_id] =
            since.map_err(|error| status::token("since_token", error))?.unwrap_or_default();
        let page = Self::page_scope(author, since_token).read(page_token).and_then(ids);
        let [before_id, newest_id] = page.map_err(status::page_token)?.unwrap_or([0, seen_id]);
        Ok(Self { before_id, newest_id, seen_id })
    }

    /// Returns the page token and the since token of a response. Of several pages of new posts, only
    /// the last one returns a new since token: a caller that stops before gets them again.
    fn tokens(self, author: UserId, since_token: String) -> (String, String) {
        let seen = || Self::since_scope(author).token([self.newest_id]);
        if self.before_id.is_end() {
            return (String::new(), seen());
        }
        let page_scope = Self::page_scope(author, &since_token);
        let page_token = page_scope.token([self.before_id, self.newest_id]);
        (page_token, if since_token.is_empty() { seen() } else { since_token })
    }

    /// A page token is valid for one author and since token.
    fn page_scope(author: UserId, since_token: &str) -> Scope {
        Scope::new("ViewUserTimeline").with(author.get()).with_text(since_token)
    }

    fn since_scope(author: UserId) -> Scope {
        Scope::new("ViewUserTimeline").with(author.get()).with_text("since")
    }
}

// Returns the numbers of a token if each is a post id or 0: anybody can make a token of any numbers.
fn ids<const N: usize>(numbers: Option<[u64; N]>) -> Result<Option<[u64; N]>, TokenError> {
    let is_id = |&number: &u64| number == 0 || PostId::new(number).is_some();
    if numbers.iter().flatten().all(is_id) { Ok(numbers) } else { Err(TokenError::Invalid) }
}

#[cfg(test)]
mod tests {
    use microblog_proto::common::ErrorReason;

    use super::*;

    #[test]
    fn a_token_with_a_number_that_is_no_id_is_invalid() {
        let author = UserId::new(1).unwrap();
        let since = |id| UserCursor::since_scope(author).token([id]);
        let page = |ids| UserCursor::page_scope(author, "").token(ids);
        let reason = |result: Result<UserCursor, Status>| status::reason_of(&result.unwrap_err());
        for id in [1 << 53, u64::MAX] {
            for error in [
                UserCursor::parse(author, &since(id), ""),
                UserCursor::parse(author, "", &page([id, 4])),
                UserCursor::parse(author, "", &page([4, id])),
            ] {
                assert_eq!(reason(error), Some(ErrorReason::PageTokenInvalid));
            }
            let scope = Scope::new("ViewHome");
            let cursor = OlderCursor { before_id: id, since_token: String::new() };
            assert_eq!(OlderCursor::from_token(scope, &cursor.token(scope)), None);
        }
        let ids = UserCursor::parse(author, "", &page([4, 5])).unwrap();
        assert_eq!((ids.before_id, ids.newest_id, ids.seen_id), (4, 5, 0));
    }

    fn part(posts: &[u64], before_id: u64) -> (Vec<Post>, u64) {
        let post = |&id: &u64| Post { id, ..Post::default() };
        (posts.iter().map(post).collect(), before_id)
    }

    #[track_caller]
    fn assert_merged(parts: Vec<(Vec<Post>, u64)>, size: usize, expected: &[u64], before_id: u64) {
        let (posts, end) = merge(parts, size);
        let ids: Vec<_> = posts.iter().map(|post| post.id).collect();
        assert_eq!((&ids[..], end), (expected, before_id));
    }

    #[test]
    fn parts_are_merged_as_far_back_as_all_of_them_are_known() {
        assert_merged(vec![], 3, &[], 0);
        assert_merged(vec![part(&[9, 5], 0)], 3, &[9, 5], 0);
        assert_merged(vec![part(&[9, 5], 0), part(&[7], 0)], 3, &[9, 7, 5], 0);
        assert_merged(vec![part(&[9, 5, 1], 0), part(&[7], 0)], 3, &[9, 7, 5], 5);
        assert_merged(vec![part(&[9, 5, 1], 1), part(&[8, 7, 6], 6)], 3, &[9, 8, 7], 7);
        // One part has fewer posts, since they are long; another one has deleted posts.
        assert_merged(vec![part(&[9, 5, 1], 0), part(&[8], 8)], 3, &[9, 8], 8);
        assert_merged(vec![part(&[5, 1], 0), part(&[], 6)], 3, &[], 6);
    }

    fn user(id: u64) -> UserId {
        UserId::new(id).unwrap()
    }

    #[test]
    fn a_token_of_older_posts_is_valid_for_its_timeline_only() {
        let scope = |kind, viewer, since_token: &str| {
            let since_token = since_token.to_owned();
            OwnTimeline { kind, viewer: user(viewer), since_token }.scope()
        };
        let home = scope(TimelineKind::Home, 1, "");
        for since in ["", "a", "abcdefgh", "abcdefghi-_"] {
            let cursor = OlderCursor { before_id: 7, since_token: since.to_owned() };
            let token = cursor.token(home);
            assert_eq!(OlderCursor::from_token(home, &token), Some(cursor));
            for other in [
                scope(TimelineKind::Home, 2, ""),
                scope(TimelineKind::Friends, 1, ""),
                scope(TimelineKind::Home, 1, "since"),
                UserCursor::page_scope(user(1), ""),
            ] {
                assert_eq!(OlderCursor::from_token(other, &token), None);
            }
        }
        assert_eq!(OlderCursor::from_token(home, ""), None);
        assert_eq!(OlderCursor::from_token(home, "?"), None);
    }

    #[test]
    fn the_tokens_of_a_user_timeline_hold_its_newest_post() {
        let parse = |since: &str, page: &str| UserCursor::parse(user(1), since, page).unwrap();
        let end = |before_id, cursor| UserCursor { before_id, ..cursor };
        let first = UserCursor { newest_id: 9, ..parse("", "") };
        let (page, since) = end(5, first).tokens(user(1), String::new());
        let second = parse("", &page);
        assert_eq!(second, UserCursor { before_id: 5, newest_id: 9, seen_id: 0 });
        assert_eq!(end(0, second).tokens(user(1), String::new()), (String::new(), since.clone()));
        // Several pages of new posts: the since token stays until the last one.
        let new = parse(&since, "");
        assert_eq!(new, UserCursor { before_id: 0, newest_id: 9, seen_id: 9 });
        let new = UserCursor { newest_id: 14, ..new };
        let (page, same) = end(12, new).tokens(user(1), since.clone());
        assert_eq!(same, since);
        let last = parse(&since, &page);
        assert_eq!(last, UserCursor { before_id: 12, newest_id: 14, seen_id: 9 });
        let (none, since_last) = end(0, last).tokens(user(1), since.clone());
        assert_eq!((none.as_str(), parse(&since_last, "").seen_id), ("", 14));
        // Of another since token, or another author.
        for (author, since, page) in [(1, "", &page), (2, "", &page), (2, &since[..], &none)] {
            UserCursor::parse(user(author), since, page).unwrap_err();
        }
    }
}
