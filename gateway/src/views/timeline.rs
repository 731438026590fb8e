//! ViewHome, ViewFriends, ViewUserTimeline, CountNew: timelines.
//!
//! A timeline has two parts, and paging is transparent across both. The timeline service holds
//! recent entries, which are post ids. Older posts come from the post service: all posts of the
//! same authors, back to the first one. The pages of older posts have page tokens of the gateway's
//! own.

use futures::future;
use microblog_domain::{BATCH_MAX, FieldErrors, PageSize, Scope, UserId};
use microblog_proto::{
    gateway::{self, ViewedPost},
    post::{self, Post},
    relation::{self, Edge},
    timeline::{self, Entry},
};
use tonic::{Code, Status};

use crate::{
    context::{
        AccountRef, Subject, Token, ViewContext, authenticate, authenticate_optional,
        viewer_account_and,
    },
    errors,
    hydration::{
        accounts::visible_accounts,
        entries::{ENTRY_BYTES_MAX, hydrate_entries, viewed_posts_in_place},
    },
    paging::{Budget, Cursor, Filling, Listing, PageRequest, RESPONSE_BYTES_MAX, Skeleton, fill},
    state::Gateway,
};

/// The limits of a page. Its posts leave 32 KiB of the response to its tokens.
const BUDGET: Budget = Budget {
    batch_max: 50,
    page_bytes_max: RESPONSE_BYTES_MAX - 32 * 1024,
    entry_bytes_max: ENTRY_BYTES_MAX,
    overfetches: true,
};

/// Shows the viewer's home timeline. Up to 7 calls for a page of up to 25 that one skeleton fills:
/// user.Authenticate, then timeline.GetHomeTimeline, then post.BatchGetPosts, then
/// user.BatchGetUsers ∥ relation.BatchGetRelations (only for authors of roots, since the timeline
/// service returns the relations of the other authors) ∥ post.BatchGetLiked (only for posts with
/// likes) ∥ user.BatchResolveNames (not without mentions).
///
/// A larger page takes skeletons of up to 50 entries, and a page with many hidden entries takes
/// more of them: up to 48, of up to 7 calls each (post.BatchGetPosts twice). If a post with
/// suppressed reposts is not shown, its skeleton costs up to 10 more: post.BatchGetPosts up to 6
/// times, then the last four once more; and that up to 9 times while none of the reposts is
/// visible.
///
/// Older posts than the newest 800 take the accounts that the viewer follows:
/// relation.ListFollowing once for every 200, one after the other, then relation.BatchGetRelations
/// once for every 500, all at once. Then post.ListAuthorsPosts once for every 500, all at once, and
/// the last four of above once for every 50 posts; with long texts or hidden posts, the same up to
/// 7 times more. The page at the end of the newest 800 costs both.
pub(crate) async fn view_home(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewHomeRequest,
) -> Result<gateway::ViewHomeResponse, Status> {
    let gateway::ViewHomeRequest { page_size, page_token, since_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    let page = view_own_timeline(gateway, TimelineKind::Home, token, since_token, page).await?;
    let TimelinePage { posts, next_page_token, since_token } = page;
    Ok(gateway::ViewHomeResponse { posts, next_page_token, since_token })
}

/// Shows the posts of the accounts that the viewer follows and is followed by. As [`view_home`],
/// with timeline.GetFriendsTimeline, and for older posts relation.ListMutuals in place of
/// relation.ListFollowing.
pub(crate) async fn view_friends(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewFriendsRequest,
) -> Result<gateway::ViewFriendsResponse, Status> {
    let gateway::ViewFriendsRequest { page_size, page_token, since_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    let page = view_own_timeline(gateway, TimelineKind::Friends, token, since_token, page).await?;
    let TimelinePage { posts, next_page_token, since_token } = page;
    Ok(gateway::ViewFriendsResponse { posts, next_page_token, since_token })
}

/// Shows the posts of an account to any viewer whom it does not block. Up to 8 calls, 5 without a
/// token, for a page of up to 25 that one skeleton fills: by id, user.Authenticate ∥ user.GetUser ∥
/// timeline.GetUserTimeline, then post.BatchGetPosts and the rest as [`view_home`]; by name,
/// user.Authenticate ∥ user.GetUserByName, then the timeline, then the same. The timeline service
/// returns no relations here: relation.BatchGetRelations is for all authors.
///
/// Older posts than the newest 1,000 take post.ListAuthorsPosts in place of the timeline and of
/// post.BatchGetPosts, up to 8 times as for [`view_home`].
pub(crate) async fn view_user_timeline(
    gateway: &Gateway,
    token: Option<Token>,
    request: gateway::ViewUserTimelineRequest,
) -> Result<gateway::ViewUserTimelineResponse, Status> {
    let gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token } = request;
    let mut fields = FieldErrors::default();
    let user = fields.read(AccountRef::parse(user));
    let (user, page) = PageRequest::parse(fields, user, page_size, page_token)?;
    let requested = &page;
    let first = |id| async move {
        let timeline = Timeline { kind: TimelineKind::User(id), since_token };
        let first = First::read(gateway, &timeline, requested).await?;
        Ok((timeline, first))
    };
    let viewer = authenticate_optional(gateway, token);
    let (viewer, id, (timeline, first)) = viewer_account_and(gateway, viewer, &user, first).await?;
    let context = ViewContext::new(viewer).with_subject(Subject::Account(id.get()));
    let page = fill_timeline(gateway, &timeline, context, page, first).await?;
    let TimelinePage { posts, next_page_token, since_token } = page;
    Ok(gateway::ViewUserTimelineResponse { posts, next_page_token, since_token })
}

/// Counts the new entries of the viewer's home timeline. 2 calls: user.Authenticate, then
/// timeline.CountNew.
pub(crate) async fn count_new(
    gateway: &Gateway,
    token: Token,
    request: gateway::CountNewRequest,
) -> Result<gateway::CountNewResponse, Status> {
    const FIELDS: errors::Fields = &[("since_token", "since_token")];
    let user_id = authenticate(gateway, token).await?.get();
    let request = timeline::CountNewRequest { user_id, since_token: request.since_token };
    let response = errors::reply(gateway.peers.timeline().count_new(request).await, FIELDS)?;
    Ok(gateway::CountNewResponse { count: response.count })
}

/// Shows a timeline that only its owner sees.
async fn view_own_timeline(
    gateway: &Gateway,
    kind: fn(UserId) -> TimelineKind,
    token: Token,
    since_token: String,
    page: PageRequest,
) -> Result<TimelinePage, Status> {
    let viewer = authenticate(gateway, token).await?;
    let timeline = Timeline { kind: kind(viewer), since_token };
    let first = First::read(gateway, &timeline, &page).await?;
    fill_timeline(gateway, &timeline, ViewContext::new(Some(viewer)), page, first).await
}

/// A page of a timeline as the viewer sees it.
struct TimelinePage {
    posts: Vec<ViewedPost>,
    /// Empty at the end of the timeline.
    next_page_token: String,
    /// For CountNew and for requests of what is new.
    since_token: String,
}

/// What a page begins with.
enum First {
    Recent(Skeleton<Entry, RecentCursor>),
    Older(OlderCursor),
}

impl First {
    /// Returns what a page begins with. One call, or none for older posts.
    async fn read(
        gateway: &Gateway,
        timeline: &Timeline,
        page: &PageRequest,
    ) -> Result<Self, Status> {
        if let Some(cursor) = OlderCursor::from_token(timeline.scope(), &page.token) {
            return Ok(Self::Older(cursor));
        }
        let cursor = RecentCursor::start(timeline, page.token.clone());
        let size = page.size.min(BUDGET.batch_max);
        timeline.skeleton(gateway, size, cursor).await.map(Self::Recent)
    }
}

/// Fills a page with recent entries, then with older posts, until it is full or the timeline ends.
async fn fill_timeline(
    gateway: &Gateway,
    timeline: &Timeline,
    context: ViewContext<'_>,
    page: PageRequest,
    first: First,
) -> Result<TimelinePage, Status> {
    let mut filling = Filling::new(page.size, BUDGET);
    let mut older = match first {
        First::Older(cursor) => cursor,
        First::Recent(first) => {
            let mut end = RecentCursor::start(timeline, page.token);
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
        match fill_older(gateway, timeline, context, end, &mut filling).await {
            // While older posts are unavailable, the page has the newer ones.
            Err(status) if status.code() == Code::Unavailable && !filling.shown.is_empty() => {}
            filled => filled?,
        }
    }
    let next = (!older.before_id.is_end()).then(|| older.token(timeline.scope()));
    let (posts, since_token) = (filling.shown, older.since_token);
    Ok(TimelinePage { posts, next_page_token: next.unwrap_or_default(), since_token })
}

/// Fills a page with older posts. The calls of [`authors`], then those of [`OlderPosts`].
async fn fill_older(
    gateway: &Gateway,
    timeline: &Timeline,
    context: ViewContext<'_>,
    end: &mut u64,
    filling: &mut Filling<ViewedPost>,
) -> Result<(), Status> {
    let list = OlderPosts { authors: authors(gateway, timeline.kind).await? };
    let first = list.skeleton(gateway, filling.missing(), *end).await?;
    fill(gateway, &list, context, first, end, filling).await
}

/// A timeline. As a list, it has its recent entries.
struct Timeline {
    kind: TimelineKind,
    /// Stands for the entries that the caller has seen and does not need again; empty for all
    /// entries. The same in each request for a page.
    since_token: String,
}

/// Whose posts a timeline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimelineKind {
    /// Those of the accounts that an account follows, and its own.
    Home(UserId),
    /// Those of the accounts that an account follows and is followed by.
    Friends(UserId),
    /// The account's own.
    User(UserId),
}

/// A position in the recent entries of a timeline.
#[derive(Clone)]
struct RecentCursor {
    /// Empty at the end of the recent entries.
    next_page_token: String,
    since_token: String,
    /// At the end of recent entries that were truncated: the timeline continues with posts older
    /// than this one. 0 elsewhere.
    older_than_id: u64,
}

impl RecentCursor {
    fn start(timeline: &Timeline, page_token: String) -> Self {
        let since_token = timeline.since_token.clone();
        Self { next_page_token: page_token, since_token, older_than_id: 0 }
    }
}

impl Cursor for RecentCursor {
    fn is_end(&self) -> bool {
        self.next_page_token.is_empty()
    }
}

impl Listing for Timeline {
    type Entry = Entry;
    type Shown = ViewedPost;
    type Cursor = RecentCursor;

    /// More than any page needs. 20 skeletons of the largest size hold 1,000 entries; a smaller one
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
        let client = gateway.peers.timeline();
        let (page_size, page_token) = (size as i32, cursor.next_page_token);
        let since_token = self.since_token.clone();
        // The messages of the timelines have the same fields, but different types.
        macro_rules! get {
            ($method:ident, $request:ident, $user:expr, $response:ident => $relations:expr) => {{
                let user_id = $user.get();
                let request = timeline::$request { user_id, page_size, page_token, since_token };
                let $response = errors::reply(client.$method(request).await, FIELDS)?;
                let next = RecentCursor {
                    next_page_token: $response.next_page_token,
                    since_token: $response.since_token,
                    older_than_id: $response.older_than_id,
                };
                Skeleton { entries: $response.entries, next, relations: $relations }
            }};
        }
        Ok(match self.kind {
            TimelineKind::Home(user) => {
                get!(get_home_timeline, GetHomeTimelineRequest, user, page => page.relations)
            }
            TimelineKind::Friends(user) => {
                get!(get_friends_timeline, GetFriendsTimelineRequest, user, page => page.relations)
            }
            TimelineKind::User(user) => {
                get!(get_user_timeline, GetUserTimelineRequest, user, page => Vec::new())
            }
        })
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
struct OlderPosts {
    authors: Vec<u64>,
}

/// Posts older than the one with this id follow; 0 at the end.
impl Cursor for u64 {
    fn is_end(&self) -> bool {
        *self == 0
    }
}

impl Listing for OlderPosts {
    type Entry = Post;
    type Shown = ViewedPost;
    type Cursor = u64;

    /// More than a page of long texts needs to reach the bytes of a response. Few older posts are
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
            let (author_ids, page_size) = (authors.to_vec(), size as i32);
            let request =
                post::ListAuthorsPostsRequest { author_ids, viewer_id: 0, page_size, before_id };
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

/// Returns the authors of a timeline. Of a home or friends timeline: relation.ListFollowing or
/// relation.ListMutuals once for every 200 accounts, one after the other, then the calls of
/// [`visible_accounts`]. No call for a user timeline.
async fn authors(gateway: &Gateway, kind: TimelineKind) -> Result<Vec<u64>, Status> {
    let client = &gateway.peers.relation();
    let page_size = PageSize::MAX as i32;
    match kind {
        TimelineKind::Home(viewer) => {
            let user_id = viewer.get();
            let following = all_accounts(|page_token| async move {
                let mut request = relation::ListFollowingRequest::default();
                (request.user_id, request.page_size) = (user_id, page_size);
                request.page_token = page_token;
                let response = client.list_following(request).await?.into_inner();
                Ok((response.edges, response.next_page_token))
            });
            let mut authors = visible_accounts(gateway, viewer, following.await?).await?;
            authors.push(user_id);
            Ok(authors)
        }
        TimelineKind::Friends(viewer) => {
            let user_id = viewer.get();
            let mutuals = all_accounts(|page_token| async move {
                let request = relation::ListMutualsRequest { user_id, page_size, page_token };
                let response = client.list_mutuals(request).await?.into_inner();
                Ok((response.edges, response.next_page_token))
            });
            visible_accounts(gateway, viewer, mutuals.await?).await
        }
        TimelineKind::User(author) => Ok(vec![author.get()]),
    }
}

/// Returns all accounts of a list, read page by page.
async fn all_accounts<F>(read: impl Fn(String) -> F) -> Result<Vec<u64>, Status>
where
    F: Future<Output = Result<(Vec<Edge>, String), Status>>,
{
    let (mut accounts, mut page_token) = (Vec::new(), String::new());
    loop {
        let page = read(page_token).await;
        let (edges, next_page_token) = page.map_err(|status| errors::map(status, &[]))?;
        accounts.extend(edges.iter().map(|edge| edge.user_id));
        if next_page_token.is_empty() {
            return Ok(accounts);
        }
        page_token = next_page_token;
    }
}

/// A position in the older posts of a timeline.
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
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Some(Self { before_id, since_token: String::from_utf8(bytes).ok()? })
    }
}

impl Timeline {
    /// Returns the scope of the page tokens of older posts. A request with a since token never
    /// reaches older posts, so with it no such token is valid.
    fn scope(&self) -> Scope {
        let (view, user) = match self.kind {
            TimelineKind::Home(user) => ("ViewHome", user),
            TimelineKind::Friends(user) => ("ViewFriends", user),
            TimelineKind::User(user) => ("ViewUserTimeline", user),
        };
        Scope::new(view).with(user.get()).with_text(&self.since_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_token_of_older_posts_is_valid_for_its_timeline_only() {
        let scope = |kind: fn(UserId) -> TimelineKind, user, since_token: &str| {
            let kind = kind(UserId::new(user).unwrap());
            Timeline { kind, since_token: since_token.to_owned() }.scope()
        };
        let home = scope(TimelineKind::Home, 1, "");
        for since in ["", "a", "abcdefgh", "abcdefghi-_"] {
            let cursor = OlderCursor { before_id: 7, since_token: since.to_owned() };
            let token = cursor.token(home);
            assert_eq!(OlderCursor::from_token(home, &token), Some(cursor));
            for other in [
                scope(TimelineKind::Home, 2, ""),
                scope(TimelineKind::User, 1, ""),
                scope(TimelineKind::Friends, 1, ""),
                scope(TimelineKind::Home, 1, "since"),
            ] {
                assert_eq!(OlderCursor::from_token(other, &token), None);
            }
        }
        assert_eq!(OlderCursor::from_token(home, ""), None);
        assert_eq!(OlderCursor::from_token(home, "?"), None);
    }
}
