//! The views of lists of accounts that belong to an account.

use microblog_chassis::status;
use microblog_domain::{Fields, Invalid, UserId};
use microblog_proto::{
    gateway::{self, ListedUser},
    relation::FollowOrder,
};
use tonic::Status;

use crate::{
    pages::{Page, PageRequest},
    people::{Host, Visit},
    reference::Reference,
    refusal,
    rpc::Gateway,
    skeleton::{List, Listing as _},
    viewer::Token,
};

impl Gateway {
    /// Shows whom an account follows. The calls of [`Gateway::view_list`].
    pub(crate) async fn view_following(
        &self,
        token: Option<Token>,
        request: gateway::ViewFollowingRequest,
    ) -> Result<gateway::ViewFollowingResponse, Status> {
        let gateway::ViewFollowingRequest { user, page_size, page_token, order } = request;
        let list = self::order(order).map(|order| move |user| List::Following(user, order));
        let page = self.view_list(list, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewFollowingResponse { users, next_page_token })
    }

    /// Shows who follows an account. The calls of [`Gateway::view_list`], or of
    /// [`Gateway::view_not_followed_back`].
    pub(crate) async fn view_followers(
        &self,
        token: Option<Token>,
        request: gateway::ViewFollowersRequest,
    ) -> Result<gateway::ViewFollowersResponse, Status> {
        let gateway::ViewFollowersRequest { user, page_size, page_token, not_followed_back } =
            request;
        let page = if not_followed_back {
            self.view_not_followed_back(token, user, page_size, page_token).await?
        } else {
            self.view_list(Ok(List::Followers), token, user, page_size, page_token).await?
        };
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewFollowersResponse { users, next_page_token })
    }

    /// Shows whom an account follows and is followed by. The calls of [`Gateway::view_list`].
    pub(crate) async fn view_mutuals(
        &self,
        token: Option<Token>,
        request: gateway::ViewMutualsRequest,
    ) -> Result<gateway::ViewMutualsResponse, Status> {
        let gateway::ViewMutualsRequest { user, page_size, page_token } = request;
        let page = self.view_list(Ok(List::Mutuals), token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewMutualsResponse { users, next_page_token })
    }

    /// Shows whom both the viewer and an account follow. The calls of
    /// [`Gateway::view_shared_list`].
    pub(crate) async fn view_common_following(
        &self,
        token: Token,
        request: gateway::ViewCommonFollowingRequest,
    ) -> Result<gateway::ViewCommonFollowingResponse, Status> {
        let gateway::ViewCommonFollowingRequest { user, page_size, page_token } = request;
        let list = List::CommonFollowing;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewCommonFollowingResponse { users, next_page_token })
    }

    /// Shows the followers of an account whom the viewer follows. The calls of
    /// [`Gateway::view_shared_list`].
    pub(crate) async fn view_followers_i_follow(
        &self,
        token: Token,
        request: gateway::ViewFollowersIFollowRequest,
    ) -> Result<gateway::ViewFollowersIFollowResponse, Status> {
        let gateway::ViewFollowersIFollowRequest { user, page_size, page_token } = request;
        let list = List::FollowersIFollow;
        let page = self.view_shared_list(list, token, user, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewFollowersIFollowResponse { users, next_page_token })
    }

    /// Shows whom the viewer blocks. The calls of [`Gateway::view_own_list`].
    pub(crate) async fn view_blocks(
        &self,
        token: Token,
        request: gateway::ViewBlocksRequest,
    ) -> Result<gateway::ViewBlocksResponse, Status> {
        let gateway::ViewBlocksRequest { page_size, page_token } = request;
        let page = self.view_own_list(List::Blocks, token, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewBlocksResponse { users, next_page_token })
    }

    /// Shows whom the viewer mutes. The calls of [`Gateway::view_own_list`].
    pub(crate) async fn view_mutes(
        &self,
        token: Token,
        request: gateway::ViewMutesRequest,
    ) -> Result<gateway::ViewMutesResponse, Status> {
        let gateway::ViewMutesRequest { page_size, page_token } = request;
        let page = self.view_own_list(List::Mutes, token, page_size, page_token).await?;
        let Page { entries: users, next_page_token } = page;
        Ok(gateway::ViewMutesResponse { users, next_page_token })
    }

    /// Shows a list of anybody's to anybody. 5 calls, 3 without a token, for a page that is full at
    /// once: by id, user.Authenticate ∥ user.GetUser ∥ relation's list, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations; by name, user.Authenticate ∥ user.GetUserByName, then the list,
    /// then the same. Each of up to 4 further rounds costs 3 (2) more: up to 17 (11).
    async fn view_list(
        &self,
        list: Result<impl FnOnce(UserId) -> List, Invalid>,
        token: Option<Token>,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let mut fields = Fields::default();
        let user = fields.read(Reference::parse(user));
        let others = user.zip(fields.read(list));
        let ((user, list), page) = PageRequest::parse(fields, others, page_size, page_token)?;
        let viewer = self.viewer_if_any(token);
        let (viewer, owner, list, first) = match user {
            Reference::Id(id) => {
                let list = list(id);
                let first = list.slice(self, page.size, page.token);
                let (viewer, profile, first) = tokio::join!(viewer, self.profile(&user), first);
                let viewer = viewer?;
                profile?;
                (viewer, id, list, first?)
            }
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                let viewer = viewer?;
                let id = refusal::sent_id(profile?.id)?;
                let list = list(id);
                (viewer, id, list, list.slice(self, page.size, page.token).await?)
            }
        };
        let visit = Visit::of(viewer).at(Host::Owner(owner.get()));
        self.fill(&list, visit, page.size, first).await
    }

    /// Shows the viewer which of their followers they do not follow. 4 calls for a page that is full
    /// at once: user.Authenticate (∥ user.GetUserByName, by name), then relation.ListFollowers, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up to 4 further rounds costs up to 3
    /// more: up to 17.
    async fn view_not_followed_back(
        &self,
        token: Option<Token>,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let mut fields = Fields::default();
        let user = fields.read(Reference::parse(user));
        let (user, page) = PageRequest::parse(fields, user, page_size, page_token)?;
        let viewer = self.viewer_if_any(token);
        let (viewer, owner) = match user {
            Reference::Id(id) => (viewer.await?, id),
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                (viewer?, refusal::sent_id(profile?.id)?)
            }
        };
        if viewer != Some(owner) {
            let problem = "is only for the viewer's own followers";
            return Err(status::invalid([Invalid::new("not_followed_back", problem)]));
        }
        let list = List::NotFollowedBack(owner);
        let first = list.slice(self, page.size, page.token).await?;
        self.fill(&list, Visit::of(viewer), page.size, first).await
    }

    /// Shows a list that an account and the viewer make together. 5 calls for a page that is full at
    /// once: user.Authenticate ∥ user.GetUser or user.GetUserByName, then relation's list, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up to 4 further rounds costs up to 3
    /// more: up to 17.
    async fn view_shared_list(
        &self,
        list: fn(UserId, UserId) -> List,
        token: Token,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let mut fields = Fields::default();
        let user = fields.read(Reference::parse(user));
        let (user, page) = PageRequest::parse(fields, user, page_size, page_token)?;
        let (viewer, profile) = tokio::join!(self.viewer(token), self.profile(&user));
        let viewer = viewer?;
        let owner = refusal::sent_id(profile?.id)?;
        let list = list(viewer, owner);
        let first = list.slice(self, page.size, page.token).await?;
        let visit = Visit::of(Some(viewer)).at(Host::Owner(owner.get()));
        self.fill(&list, visit, page.size, first).await
    }

    /// Shows the viewer a list that is only theirs to see. 4 calls for a page that is full at once:
    /// user.Authenticate, then relation's list, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations. Each of up to 4 further rounds costs up to 3 more: up to 16.
    async fn view_own_list(
        &self,
        list: fn(UserId) -> List,
        token: Token,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let ((), page) = PageRequest::parse(Fields::default(), Some(()), page_size, page_token)?;
        let viewer = self.viewer(token).await?;
        let list = list(viewer);
        let first = list.slice(self, page.size, page.token).await?;
        let visit = Visit::of(Some(viewer));
        self.fill(&list, visit, page.size, first).await
    }
}

/// Reads in which order follows are asked for.
fn order(order: i32) -> Result<FollowOrder, Invalid> {
    let unknown = |_| Invalid::new("order", "must be one of the orders");
    FollowOrder::try_from(order).map_err(unknown)
}
