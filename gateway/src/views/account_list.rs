//! ViewFollowing, ViewFollowers, ViewMutuals, ViewCommonFollowing, ViewFollowersIFollow,
//! ViewBlocks, ViewMutes: lists of accounts in the follow graph.

use microblog_chassis::status;
use microblog_domain::{Fields as _, Invalid, UserId};
use microblog_proto::{
    gateway::{self, ListedUser},
    relation::{self, Edge, EdgeList, FollowOrder},
};
use tonic::Status;

use crate::{
    context::{
        AccountRef, Subject, ViewContext, account_id, authenticate_optional_within,
        authenticate_within,
    },
    credentials::Credentials,
    errors,
    hydration::accounts::{AccountEntry, BlockedAccounts, listed_accounts},
    paging::{Listing, Page, PageRequest, Skeleton, fill_page},
    state::Gateway,
};

/// Shows the accounts that an account follows. The calls of [`view_list`].
pub(crate) async fn view_following(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewFollowingRequest,
) -> Result<gateway::ViewFollowingResponse, Status> {
    let gateway::ViewFollowingRequest { user, page_size, page_token, order } = request;
    let order = FollowOrder::try_from(order);
    let order = order.map_err(|_| Invalid::new("order", "must be one of the orders"));
    let list = order.map(|order| move |user| AccountList::following(user, order));
    let page = view_list(gateway, list, credentials, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowingResponse { users, next_page_token })
}

/// Shows the followers of an account. The calls of [`view_list`] or [`view_not_followed_back`].
pub(crate) async fn view_followers(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewFollowersRequest,
) -> Result<gateway::ViewFollowersResponse, Status> {
    let gateway::ViewFollowersRequest { user, page_size, page_token, not_followed_back } = request;
    let page = if not_followed_back {
        view_not_followed_back(gateway, credentials, user, page_size, page_token).await?
    } else {
        let list = Ok(|user| AccountList::of(EdgeList::Followers, user));
        view_list(gateway, list, credentials, user, page_size, page_token).await?
    };
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowersResponse { users, next_page_token })
}

/// Shows the accounts that follow an account and are followed by it. The calls of [`view_list`].
pub(crate) async fn view_mutuals(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewMutualsRequest,
) -> Result<gateway::ViewMutualsResponse, Status> {
    let gateway::ViewMutualsRequest { user, page_size, page_token } = request;
    let list = Ok(|user| AccountList::of(EdgeList::Mutuals, user));
    let page = view_list(gateway, list, credentials, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewMutualsResponse { users, next_page_token })
}

/// Shows the accounts that both the viewer and an account follow. The calls of
/// [`view_shared_list`].
pub(crate) async fn view_common_following(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewCommonFollowingRequest,
) -> Result<gateway::ViewCommonFollowingResponse, Status> {
    let gateway::ViewCommonFollowingRequest { user, page_size, page_token } = request;
    let list = EdgeList::CommonFollowing;
    let page = view_shared_list(gateway, list, credentials, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewCommonFollowingResponse { users, next_page_token })
}

/// Shows the followers of an account that the viewer follows. The calls of [`view_shared_list`].
pub(crate) async fn view_followers_i_follow(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewFollowersIFollowRequest,
) -> Result<gateway::ViewFollowersIFollowResponse, Status> {
    let gateway::ViewFollowersIFollowRequest { user, page_size, page_token } = request;
    let list = EdgeList::FollowersIFollow;
    let page = view_shared_list(gateway, list, credentials, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowersIFollowResponse { users, next_page_token })
}

/// Shows the accounts that the viewer blocks. The calls of [`view_own_list`].
pub(crate) async fn view_blocks(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewBlocksRequest,
) -> Result<gateway::ViewBlocksResponse, Status> {
    let gateway::ViewBlocksRequest { page_size, page_token } = request;
    let list = EdgeList::Blocks;
    let page = view_own_list(gateway, list, credentials, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewBlocksResponse { users, next_page_token })
}

/// Shows the accounts that the viewer mutes. The calls of [`view_own_list`].
pub(crate) async fn view_mutes(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::ViewMutesRequest,
) -> Result<gateway::ViewMutesResponse, Status> {
    let gateway::ViewMutesRequest { page_size, page_token } = request;
    let page = view_own_list(gateway, EdgeList::Mutes, credentials, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewMutesResponse { users, next_page_token })
}

/// Shows a list that does not depend on the viewer. 2 calls for a page that one skeleton fills:
/// relation.ListEdges (with the viewer's relations), then user.BatchGetUsers; 3 by name, with
/// user.GetUserByName before them. Each of up to 4 further skeletons costs 2 more: up to 11.
async fn view_list(
    gateway: &Gateway,
    list: Result<impl FnOnce(UserId) -> AccountList, Invalid>,
    credentials: Option<Credentials>,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let fields = (AccountRef::parse(user), list, PageRequest::parse(page_size, page_token));
    let (user, list, page) = fields.all().map_err(status::invalid)?;
    view_page(gateway, list, credentials, &user, page).await
}

/// Shows the followers of the viewer that the viewer does not follow. The calls of [`view_list`].
async fn view_not_followed_back(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let fields = (AccountRef::parse(user), PageRequest::parse(page_size, page_token));
    let (user, page) = fields.all().map_err(status::invalid)?;
    authenticate_optional_within(gateway, credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let owner = account_id(gateway, &user).await?;
        if context.viewer != Some(owner) {
            let problem = "is only for the viewer's own followers";
            return Err(status::invalid([Invalid::new("not_followed_back", problem)]));
        }
        let list = AccountList::of(EdgeList::FollowersNotFollowedBack, owner);
        show(gateway, list, context, page).await
    })
    .await
}

/// Shows a list that depends on an account and the viewer. The calls of [`view_list`].
async fn view_shared_list(
    gateway: &Gateway,
    list: EdgeList,
    credentials: Credentials,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let fields = (AccountRef::parse(user), PageRequest::parse(page_size, page_token));
    let (user, page) = fields.all().map_err(status::invalid)?;
    view_page(gateway, |owner| AccountList::of(list, owner), Some(credentials), &user, page).await
}

/// Shows a list that only its owner sees. 2 calls for a page that one skeleton fills:
/// relation.ListEdges, then user.BatchGetUsers. Each of up to 4 further skeletons costs 2 more: up to
/// 10.
async fn view_own_list(
    gateway: &Gateway,
    list: EdgeList,
    credentials: Credentials,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let page = PageRequest::parse_only(page_size, page_token)?;
    authenticate_within(gateway, credentials, |session| async move {
        let list = AccountList::of(list, session.viewer);
        show(gateway, list, ViewContext::of(Some(&session)), page).await
    })
    .await
}

/// Shows a list of an account, unless the account does not exist or blocks the viewer.
async fn view_page(
    gateway: &Gateway,
    list: impl FnOnce(UserId) -> AccountList,
    credentials: Option<Credentials>,
    user: &AccountRef,
    page: PageRequest,
) -> Result<Page<ListedUser>, Status> {
    authenticate_optional_within(gateway, credentials, |session| async move {
        let owner = account_id(gateway, user).await?;
        let context = ViewContext::of(session.as_deref());
        let context = context.with_subject(Subject::Account(owner.get()));
        show(gateway, list(owner), context, page).await
    })
    .await
}

/// Shows a list in a context.
async fn show(
    gateway: &Gateway,
    list: AccountList,
    context: ViewContext<'_>,
    page: PageRequest,
) -> Result<Page<ListedUser>, Status> {
    let list = AccountList { viewer: context.viewer, ..list };
    let first = list.skeleton(gateway, page.size, page.token.clone()).await?;
    fill_page(gateway, &list, context, page.size, first, page.token).await
}

/// A list of accounts in the relation service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AccountList {
    list: EdgeList,
    /// The account with the list.
    owner: UserId,
    /// The viewer, whose relations a page has, and on whom the list may depend.
    viewer: Option<UserId>,
    order: FollowOrder,
}

impl Listing for AccountList {
    type Entry = AccountEntry;
    type Shown = ListedUser;
    type Cursor = String;

    async fn skeleton(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Skeleton<AccountEntry>, Status> {
        const FIELDS: errors::Fields = &[("user_id", "user"), ("page_token", "page_token")];
        let request = relation::ListEdgesRequest {
            user_id: self.owner.get(),
            list: self.list.into(),
            viewer_id: self.viewer.map_or(0, UserId::get),
            page_size: size as i32,
            page_token,
            order: self.order.into(),
        };
        let page = errors::reply(gateway.peers.relation().list_edges(request).await, FIELDS)?;
        let entry = |edge: Edge| AccountEntry { user_id: edge.user_id, since: edge.since };
        let entries = page.edges.into_iter().map(entry).collect();
        Ok(Skeleton { entries, next: page.next_page_token, relations: page.relations })
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        context: ViewContext<'_>,
        entries: Vec<AccountEntry>,
    ) -> Result<Vec<Option<ListedUser>>, Status> {
        listed_accounts(gateway, context, entries, self.blocked_accounts()).await
    }
}

impl AccountList {
    /// Returns a list of an account, newest first.
    fn of(list: EdgeList, owner: UserId) -> Self {
        Self { list, owner, viewer: None, order: FollowOrder::Unspecified }
    }

    /// Returns the accounts that an account follows, in this order.
    fn following(owner: UserId, order: FollowOrder) -> Self {
        Self { order, ..Self::of(EdgeList::Following, owner) }
    }

    /// Returns what happens to blocked accounts: viewers need their own blocks and mutes to undo
    /// them.
    fn blocked_accounts(self) -> BlockedAccounts {
        match self.list {
            EdgeList::Blocks | EdgeList::Mutes => BlockedAccounts::Shown,
            EdgeList::Unspecified
            | EdgeList::Following
            | EdgeList::Followers
            | EdgeList::FollowersNotFollowedBack
            | EdgeList::Mutuals
            | EdgeList::CommonFollowing
            | EdgeList::FollowersIFollow => BlockedAccounts::Omitted,
        }
    }
}
