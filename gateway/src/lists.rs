//! The views of lists of accounts that belong to an account.

use microblog_chassis::status;
use microblog_domain::UserId;
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
    /// Shows a list of anybody's to anybody. Usually 5 calls, 4 without a token:
    /// by id, user.Authenticate ∥ user.GetUser ∥ relation's list, then user.BatchGetUsers ∥
    /// relation.BatchGetRelations; by name, user.Authenticate ∥ user.GetUserByName, then the list,
    /// then the same. Each further round of a page that is filled again costs 3 (2) more.
    pub(crate) async fn view_list(
        &self,
        list: fn(UserId) -> List,
        token: Option<Token>,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let (user, page) = parse(user, page_size, page_token)?;
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

    /// Shows a list that an account and the viewer make together. Usually 5 calls:
    /// user.Authenticate ∥ user.GetUser or user.GetUserByName, then relation's list, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations. Each further round costs up to 3 more.
    pub(crate) async fn view_shared_list(
        &self,
        list: fn(UserId, UserId) -> List,
        token: Token,
        user: Option<gateway::UserRef>,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let (user, page) = parse(user, page_size, page_token)?;
        let (viewer, profile) = tokio::join!(self.viewer(token), self.profile(&user));
        let viewer = viewer?;
        let list = list(viewer, refusal::sent_id(profile?.id)?);
        let first = list.slice(self, page.size, page.token).await?;
        let visit = Visit { viewer: Some(viewer), host: None };
        self.fill(&list, visit, page.size, first).await
    }

    /// Shows the viewer a list that is only theirs to see. Usually 4 calls: user.Authenticate,
    /// then relation's list, then user.BatchGetUsers ∥ relation.BatchGetRelations. Each further
    /// round costs 3 more.
    pub(crate) async fn view_own_list(
        &self,
        list: fn(UserId) -> List,
        token: Token,
        page_size: i32,
        page_token: String,
    ) -> Result<Page<ListedUser>, Status> {
        let page = PageRequest::parse(page_size, page_token);
        let page = page.map_err(|invalid| status::invalid([invalid]))?;
        let viewer = self.viewer(token).await?;
        let list = list(viewer);
        let first = list.slice(self, page.size, page.token).await?;
        let visit = Visit { viewer: Some(viewer), host: None };
        self.fill(&list, visit, page.size, first).await
    }
}

/// Reads what the requests of lists have in common, and names all that is wrong at once.
fn parse(
    user: Option<gateway::UserRef>,
    page_size: i32,
    page_token: String,
) -> Result<(Reference, PageRequest), Status> {
    match (Reference::parse(user), PageRequest::parse(page_size, page_token)) {
        (Ok(user), Ok(page)) => Ok((user, page)),
        (user, page) => Err(status::invalid([user.err(), page.err()].into_iter().flatten())),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let status = parse(None, -1, String::new()).err().unwrap();
        let fields = status.get_details_bad_request().unwrap().field_violations;
        let fields: Vec<_> = fields.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["user", "page_size"]);
    }
}
