//! ViewNotices, CountUnread, ViewMentions: what others did that concerns the viewer.

use std::collections::BTreeMap;

use microblog_domain::{PageSize, UserId};
use microblog_proto::{
    gateway::{self, UnreadCount, ViewedNotice, ViewedPost},
    notice::{self, ListNoticesResponse, Notice},
};
use tonic::Status;

use crate::{
    context::{ViewContext, authenticate_within},
    credentials::Credentials,
    errors,
    hydration::{
        notices::{
            NOTICE_BYTES_MAX, NOTICES_PER_BATCH, NOTICES_PER_COUNT, are_unread, viewed_notices,
        },
        posts::{POSTS_BUDGET, get_all_posts, viewed_posts_of},
    },
    paging::{Budget, Listing, PAGE_BYTES_MAX, Page, PageRequest, Skeleton, fill_page},
    state::Gateway,
};

/// The most notices, and the most mentions, that the notice service has of an account.
const NOTICES_MAX: usize = 800;

/// Shows the viewer's notices. Up to 6 calls for a page of up to 20 that one skeleton fills:
/// user.Authenticate, then notice.ListNotices, then post.BatchGetPosts ∥ post.BatchGetComments, then
/// user.BatchGetUsers ∥ relation.BatchGetRelations.
///
/// A larger page takes skeletons of up to 20 notices, and a page with many hidden ones takes more of
/// them: up to 64. If not all that a skeleton shows fits on the page, it is read again.
pub(crate) async fn view_notices(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewNoticesRequest,
) -> Result<gateway::ViewNoticesResponse, Status> {
    let gateway::ViewNoticesRequest { kinds, page_size, page_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    authenticate_within(gateway, credentials, |session| async move {
        let list = Notices { viewer: session.viewer, kinds, unseen: false };
        let is_first = page.token.is_empty();
        let size = page.size.min(NOTICES_PER_BATCH);
        let first = list.read(gateway, size, page.token.clone()).await?;
        // Of a first page only: the token of a later page would cover notices that it does not show.
        let seen_token = if is_first { first.seen_token } else { String::new() };
        let first = Skeleton::new(first.notices, first.next_page_token);
        let context = ViewContext::of(Some(&session));
        let page = fill_page(gateway, &list, context, page.size, first, page.token).await?;
        let Page { entries: notices, next_page_token } = page;
        Ok(gateway::ViewNoticesResponse { notices, next_page_token, seen_token })
    })
    .await
}

/// Counts the viewer's unread notices, which are those that [`view_notices`] shows as unread. Up to 7
/// calls for up to 50 unread notices: user.Authenticate, then notice.ListNotices, then those of
/// [`are_unread`]. For up to 800, those of [`are_unread`] for every 50 notices, one after the other, and
/// notice.ListNotices for every 200.
pub(crate) async fn count_unread(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::CountUnreadRequest,
) -> Result<gateway::CountUnreadResponse, Status> {
    let kinds = request.kinds;
    authenticate_within(gateway, credentials, |session| async move {
        let list = Notices { viewer: session.viewer, kinds, unseen: true };
        let context = ViewContext::of(Some(&session));
        let (mut counts, mut read, mut page_token) = (BTreeMap::new(), 0, String::new());
        loop {
            let page = list.read(gateway, PageSize::MAX, page_token).await?;
            for batch in page.notices.chunks(NOTICES_PER_COUNT) {
                let unread = are_unread(gateway, context, batch).await?;
                for (notice, _) in batch.iter().zip(unread).filter(|(_, is_unread)| *is_unread) {
                    *counts.entry(notice.kind).or_default() += 1;
                }
            }
            (read, page_token) = (read + page.notices.len(), page.next_page_token);
            if page_token.is_empty() || read >= NOTICES_MAX {
                break;
            }
        }
        let counts = counts.into_iter().map(|(kind, count)| UnreadCount { kind, count }).collect();
        Ok(gateway::CountUnreadResponse { counts })
    })
    .await
}

/// Shows the posts that mention the viewer. 5 calls for a page of up to 25 that one skeleton fills:
/// user.Authenticate, then notice.ListMentions, then post.BatchGetPosts, then user.BatchGetUsers ∥
/// relation.BatchGetRelations. A larger page takes skeletons of up to 50 posts, and a page with many
/// hidden posts takes more of them: up to 48.
pub(crate) async fn view_mentions(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewMentionsRequest,
) -> Result<gateway::ViewMentionsResponse, Status> {
    let gateway::ViewMentionsRequest { page_size, page_token } = request;
    let page = PageRequest::parse_only(page_size, page_token)?;
    authenticate_within(gateway, credentials, |session| async move {
        let list = Mentions { viewer: session.viewer };
        let size = page.size.min(POSTS_BUDGET.batch_max);
        let first = list.skeleton(gateway, size, page.token.clone()).await?;
        let context = ViewContext::of(Some(&session));
        let page = fill_page(gateway, &list, context, page.size, first, page.token).await?;
        let Page { entries: posts, next_page_token } = page;
        Ok(gateway::ViewMentionsResponse { posts, next_page_token })
    })
    .await
}

/// The notices of the viewer.
struct Notices {
    viewer: UserId,
    /// As the caller sent them: the notice service validates them.
    kinds: Vec<i32>,
    /// Whether only those that are not marked as seen.
    unseen: bool,
}

impl Notices {
    /// Returns up to `size` notices. One call.
    async fn read(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<ListNoticesResponse, Status> {
        const FIELDS: errors::Fields = &[("kinds", "kinds"), ("page_token", "page_token")];
        let request = notice::ListNoticesRequest {
            user_id: self.viewer.get(),
            kinds: self.kinds.clone(),
            page_size: size as i32,
            page_token,
            unseen: self.unseen,
        };
        errors::reply(gateway.peers.notice().list_notices(request).await, FIELDS)
    }
}

impl Listing for Notices {
    type Entry = Notice;
    type Shown = ViewedNotice;
    type Cursor = String;

    /// More than any page needs. 40 skeletons of the largest size hold 800 notices; a smaller one comes
    /// only after one of which at least half was shown.
    const SKELETONS_MAX: usize = 64;
    const BUDGET: Budget = Budget {
        batch_max: NOTICES_PER_BATCH,
        page_bytes_max: PAGE_BYTES_MAX,
        entry_bytes_max: NOTICE_BYTES_MAX,
        overfetches: true,
    };

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<Notice>, Status> {
        let response = self.read(gateway, size, page_token).await?;
        Ok(Skeleton::new(response.notices, response.next_page_token))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        notices: Vec<Notice>,
    ) -> Result<Vec<Option<ViewedNotice>>, Status> {
        viewed_notices(gateway, context, &notices).await
    }
}

/// The posts that mention the viewer.
struct Mentions {
    viewer: UserId,
}

impl Listing for Mentions {
    type Entry = u64;
    type Shown = ViewedPost;
    type Cursor = String;

    /// More than any page needs, as in a home timeline, which has as many posts.
    const SKELETONS_MAX: usize = 48;
    const BUDGET: Budget = POSTS_BUDGET;

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<u64>, Status> {
        const FIELDS: errors::Fields = &[("page_token", "page_token")];
        let (user_id, page_size) = (self.viewer.get(), size as i32);
        let request = notice::ListMentionsRequest { user_id, page_size, page_token };
        let response = gateway.peers.notice().list_mentions(request).await;
        let response = errors::reply(response, FIELDS)?;
        Ok(Skeleton::new(response.post_ids, response.next_page_token))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        ids: Vec<u64>,
    ) -> Result<Vec<Option<ViewedPost>>, Status> {
        let posts = get_all_posts(gateway, context.viewer, &ids).await?;
        viewed_posts_of(gateway, context, &ids, posts).await
    }
}
