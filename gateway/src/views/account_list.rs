//! ViewFollowing, ViewFollowers, ViewMutuals, ViewCommonFollowing, ViewFollowersIFollow,
//! ViewBlocks, ViewMutes: lists of accounts in the follow graph.

use microblog_chassis::status;
use microblog_domain::{FieldErrors, Invalid, UserId};
use microblog_proto::{
    gateway::{self, ListedUser},
    relation::{self, Edge, FollowOrder},
};
use tonic::Status;

use crate::{
    context::{
        AccountRef, Subject, Token, ViewContext, authenticate, authenticate_optional,
        viewer_account_and, viewer_and_account, viewer_and_account_id,
    },
    errors,
    hydration::accounts::{AccountEntry, BlockedAccounts, listed_accounts},
    paging::{Listing, Page, PageRequest, Skeleton, fill_page},
    state::Gateway,
};

/// Shows the accounts that an account follows. The calls of [`view_list`].
pub(crate) async fn view_following(
    gateway: &Gateway,
    token: Option<Token>,
    request: gateway::ViewFollowingRequest,
) -> Result<gateway::ViewFollowingResponse, Status> {
    let gateway::ViewFollowingRequest { user, page_size, page_token, order } = request;
    let order = FollowOrder::try_from(order);
    let order = order.map_err(|_| Invalid::new("order", "must be one of the orders"));
    let list = order.map(|order| move |user| AccountList::Following(user, order));
    let page = view_list(gateway, list, token, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowingResponse { users, next_page_token })
}

/// Shows the followers of an account. The calls of [`view_list`] or [`view_not_followed_back`].
pub(crate) async fn view_followers(
    gateway: &Gateway,
    token: Option<Token>,
    request: gateway::ViewFollowersRequest,
) -> Result<gateway::ViewFollowersResponse, Status> {
    let gateway::ViewFollowersRequest { user, page_size, page_token, not_followed_back } = request;
    let page = if not_followed_back {
        view_not_followed_back(gateway, token, user, page_size, page_token).await?
    } else {
        let list = Ok(AccountList::Followers);
        view_list(gateway, list, token, user, page_size, page_token).await?
    };
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowersResponse { users, next_page_token })
}

/// Shows the accounts that follow an account and are followed by it. The calls of [`view_list`].
pub(crate) async fn view_mutuals(
    gateway: &Gateway,
    token: Option<Token>,
    request: gateway::ViewMutualsRequest,
) -> Result<gateway::ViewMutualsResponse, Status> {
    let gateway::ViewMutualsRequest { user, page_size, page_token } = request;
    let list = Ok(AccountList::Mutuals);
    let page = view_list(gateway, list, token, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewMutualsResponse { users, next_page_token })
}

/// Shows the accounts that both the viewer and an account follow. The calls of
/// [`view_shared_list`].
pub(crate) async fn view_common_following(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewCommonFollowingRequest,
) -> Result<gateway::ViewCommonFollowingResponse, Status> {
    let gateway::ViewCommonFollowingRequest { user, page_size, page_token } = request;
    let list = AccountList::CommonFollowing;
    let page = view_shared_list(gateway, list, token, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewCommonFollowingResponse { users, next_page_token })
}

/// Shows the followers of an account that the viewer follows. The calls of [`view_shared_list`].
pub(crate) async fn view_followers_i_follow(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewFollowersIFollowRequest,
) -> Result<gateway::ViewFollowersIFollowResponse, Status> {
    let gateway::ViewFollowersIFollowRequest { user, page_size, page_token } = request;
    let list = AccountList::FollowersIFollow;
    let page = view_shared_list(gateway, list, token, user, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewFollowersIFollowResponse { users, next_page_token })
}

/// Shows the accounts that the viewer blocks. The calls of [`view_own_list`].
pub(crate) async fn view_blocks(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewBlocksRequest,
) -> Result<gateway::ViewBlocksResponse, Status> {
    let gateway::ViewBlocksRequest { page_size, page_token } = request;
    let list = AccountList::Blocks;
    let page = view_own_list(gateway, list, token, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewBlocksResponse { users, next_page_token })
}

/// Shows the accounts that the viewer mutes. The calls of [`view_own_list`].
pub(crate) async fn view_mutes(
    gateway: &Gateway,
    token: Token,
    request: gateway::ViewMutesRequest,
) -> Result<gateway::ViewMutesResponse, Status> {
    let gateway::ViewMutesRequest { page_size, page_token } = request;
    let page = view_own_list(gateway, AccountList::Mutes, token, page_size, page_token).await?;
    let Page { entries: users, next_page_token } = page;
    Ok(gateway::ViewMutesResponse { users, next_page_token })
}

/// Shows a public list. 5 calls, 3 without a token, for a page that one skeleton fills: by id,
/// user.Authenticate ∥ user.GetUser ∥ the list, then user.BatchGetUsers ∥
/// relation.BatchGetRelations; by name, user.Authenticate ∥ user.GetUserByName, then the list, then
/// the same. Each of up to 4 further skeletons costs 3 (2) more: up to 17 (11).
async fn view_list(
    gateway: &Gateway,
    list: Result<impl FnOnce(UserId) -> AccountList, Invalid>,
    token: Option<Token>,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let mut fields = FieldErrors::default();
    let user = fields.read(AccountRef::parse(user));
    let other = user.zip(fields.read(list));
    let ((user, list), page) = PageRequest::parse(fields, other, page_size, page_token)?;
    let first = |owner| async move {
        let list = list(owner);
        Ok((list, list.skeleton(gateway, page.size, page.token).await?))
    };
    let viewer = authenticate_optional(gateway, token);
    let (viewer, owner, (list, first)) = viewer_account_and(gateway, viewer, &user, first).await?;
    let context = ViewContext::new(viewer).with_subject(Subject::ListOwner(owner.get()));
    fill_page(gateway, &list, context, page.size, first).await
}

/// Shows the followers of the viewer that the viewer does not follow. 4 calls for a page that one
/// skeleton fills: user.Authenticate (∥ user.GetUserByName, by name), then relation.ListFollowers,
/// then user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up to 4 further skeletons costs up
/// to 3 more: up to 17.
async fn view_not_followed_back(
    gateway: &Gateway,
    token: Option<Token>,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let (user, page) = parse(user, page_size, page_token)?;
    let viewer = authenticate_optional(gateway, token);
    let (viewer, owner) = viewer_and_account_id(gateway, viewer, &user).await?;
    if viewer != Some(owner) {
        let problem = "is only for the viewer's own followers";
        return Err(status::invalid([Invalid::new("not_followed_back", problem)]));
    }
    view_page(gateway, AccountList::NotFollowedBack(owner), ViewContext::new(viewer), page).await
}

/// Shows a list that depends on an account and the viewer. 5 calls for a page that one skeleton
/// fills: user.Authenticate ∥ user.GetUser or user.GetUserByName, then the list, then
/// user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up to 4 further skeletons costs up to 3
/// more: up to 17.
async fn view_shared_list(
    gateway: &Gateway,
    list: fn(UserId, UserId) -> AccountList,
    token: Token,
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let (user, page) = parse(user, page_size, page_token)?;
    let (viewer, owner) = viewer_and_account(gateway, authenticate(gateway, token), &user).await?;
    let context = ViewContext::new(Some(viewer)).with_subject(Subject::ListOwner(owner.get()));
    view_page(gateway, list(viewer, owner), context, page).await
}

/// Shows a list that only its owner sees. 4 calls for a page that one skeleton fills:
/// user.Authenticate, then the list, then user.BatchGetUsers ∥ relation.BatchGetRelations. Each of
/// up to 4 further skeletons costs up to 3 more: up to 16.
async fn view_own_list(
    gateway: &Gateway,
    list: fn(UserId) -> AccountList,
    token: Token,
    page_size: i32,
    page_token: String,
) -> Result<Page<ListedUser>, Status> {
    let page = PageRequest::parse_only(page_size, page_token)?;
    let viewer = authenticate(gateway, token).await?;
    view_page(gateway, list(viewer), ViewContext::new(Some(viewer)), page).await
}

fn parse(
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<(AccountRef, PageRequest), Status> {
    let mut fields = FieldErrors::default();
    let user = fields.read(AccountRef::parse(user));
    PageRequest::parse(fields, user, page_size, page_token)
}

async fn view_page(
    gateway: &Gateway,
    list: AccountList,
    context: ViewContext<'_>,
    page: PageRequest,
) -> Result<Page<ListedUser>, Status> {
    let first = list.skeleton(gateway, page.size, page.token).await?;
    fill_page(gateway, &list, context, page.size, first).await
}

/// A list of accounts in the relation service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountList {
    /// The accounts that an account follows, in this order.
    Following(UserId, FollowOrder),
    /// The followers of an account.
    Followers(UserId),
    /// The followers that the account does not follow.
    NotFollowedBack(UserId),
    /// The accounts that follow an account and are followed by it.
    Mutuals(UserId),
    /// The accounts that both the viewer (first) and an account follow, by the viewer's follows.
    CommonFollowing(UserId, UserId),
    /// The followers of an account (second) that the viewer (first) follows.
    FollowersIFollow(UserId, UserId),
    /// The accounts that the viewer blocks.
    Blocks(UserId),
    /// The accounts that the viewer mutes.
    Mutes(UserId),
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
        // The name of the account's field differs between the relation service's requests.
        const FIELDS: errors::Fields =
            &[("user_id", "user"), ("other_id", "user"), ("page_token", "page_token")];
        let page = self.edges(gateway, size as i32, page_token).await;
        let (edges, next) = page.map_err(|status| errors::map(status, FIELDS))?;
        let entry = |edge: Edge| AccountEntry { user_id: edge.user_id, since: edge.since };
        Ok(Skeleton::new(edges.into_iter().map(entry).collect(), next))
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
    /// Returns what happens to blocked accounts: viewers need their own blocks and mutes to undo
    /// them.
    fn blocked_accounts(self) -> BlockedAccounts {
        match self {
            Self::Blocks(_) | Self::Mutes(_) => BlockedAccounts::Shown,
            Self::Following(..)
            | Self::Followers(_)
            | Self::NotFollowedBack(_)
            | Self::Mutuals(_)
            | Self::CommonFollowing(..)
            | Self::FollowersIFollow(..) => BlockedAccounts::Omitted,
        }
    }

    /// Returns a page of the list, and the token of the next page.
    async fn edges(
        self,
        gateway: &Gateway,
        page_size: i32,
        page_token: String,
    ) -> Result<(Vec<Edge>, String), Status> {
        let client = gateway.peers.relation();
        // The messages of the lists have the same fields, but different types.
        macro_rules! list {
            ($method:ident, $request:ident { $($field:ident: $value:expr),* }) => {{
                let request = relation::$request { $($field: $value,)* page_size, page_token };
                let response = client.$method(request).await?.into_inner();
                (response.edges, response.next_page_token)
            }};
        }
        Ok(match self {
            Self::Following(user, order) => list!(
                list_following,
                ListFollowingRequest {
                    user_id: user.get(),
                    newer_than_version: 0,
                    order: order.into()
                }
            ),
            Self::Followers(user) => list!(
                list_followers,
                ListFollowersRequest { user_id: user.get(), not_followed_back: false }
            ),
            Self::NotFollowedBack(user) => list!(
                list_followers,
                ListFollowersRequest { user_id: user.get(), not_followed_back: true }
            ),
            Self::Mutuals(user) => list!(list_mutuals, ListMutualsRequest { user_id: user.get() }),
            Self::CommonFollowing(viewer, other) => list!(
                list_common_following,
                ListCommonFollowingRequest { user_id: viewer.get(), other_id: other.get() }
            ),
            Self::FollowersIFollow(viewer, user) => list!(
                list_followers_i_follow,
                ListFollowersIFollowRequest { user_id: user.get(), viewer_id: viewer.get() }
            ),
            Self::Blocks(viewer) => list!(list_blocks, ListBlocksRequest { user_id: viewer.get() }),
            Self::Mutes(viewer) => list!(list_mutes, ListMutesRequest { user_id: viewer.get() }),
        })
    }
}
