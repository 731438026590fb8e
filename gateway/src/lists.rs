//! The views of lists of accounts that belong to an account.

use microblog_domain::{Fields, UserId};
use microblog_proto::gateway::{self, ListedUser};
use tonic::Status;

use crate::{
    pages::{Page, PageRequest},
    people::Visit,
    reference::Reference,
    refusal,
    rpc::Gateway,
    skeleton::{List, Listing as _},
    viewer::Token,
};

impl Gateway {
    /// Shows a list of anybody's to anybody. 5 calls, 3 without a token, for a page that is full at
    /// once: by id, user.Authenticate ∥ user.GetUser ∥ relation's list, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations; by name, user.Authenticate ∥ user.GetUserByName, then the list,
    /// then the same. Each of up to 4 further rounds costs 3 (2) more: up to 17 (11).
    pub(crate) async fn view_list(
        &self,
        list: fn(UserId) -> List,
        token: Option<Token>,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let mut fields = Fields::default();
        let user = fields.read(Reference::parse(user));
        let (user, page) = PageRequest::parse(fields, user, page_size, page_token)?;
        let viewer = self.viewer_if_any(token);
        let (viewer, list, first) = match user {
            Reference::Id(id) => {
                let list = list(id);
                let first = list.slice(self, page.size, page.token);
                let (viewer, profile, first) = tokio::join!(viewer, self.profile(&user), first);
                let viewer = viewer?;
                profile?;
                (viewer, list, first?)
            }
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                let viewer = viewer?;
                let list = list(refusal::sent_id(profile?.id)?);
                (viewer, list, list.slice(self, page.size, page.token).await?)
            }
        };
        self.fill(&list, Visit { viewer, host: None }, page.size, first).await
    }

    /// Shows a list that an account and the viewer make together. 5 calls for a page that is full at
    /// once: user.Authenticate ∥ user.GetUser or user.GetUserByName, then relation's list, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations. Each of up to 4 further rounds costs up to 3
    /// more: up to 17.
    pub(crate) async fn view_shared_list(
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
        let list = list(viewer, refusal::sent_id(profile?.id)?);
        let first = list.slice(self, page.size, page.token).await?;
        let visit = Visit { viewer: Some(viewer), host: None };
        self.fill(&list, visit, page.size, first).await
    }

    /// Shows the viewer a list that is only theirs to see. 4 calls for a page that is full at once:
    /// user.Authenticate, then relation's list, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations. Each of up to 4 further rounds costs up to 3 more: up to 16.
    pub(crate) async fn view_own_list(
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
        let visit = Visit { viewer: Some(viewer), host: None };
        self.fill(&list, visit, page.size, first).await
    }
}
