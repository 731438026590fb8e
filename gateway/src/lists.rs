//! The views of lists: skeleton, hydration, and the page filled again where accounts are gone.

use microblog_chassis::status;
use microblog_domain::{Invalid, PageSize, UserId};
use microblog_proto::gateway::{self, ListedUser};
use tonic::Status;

use crate::{
    reference::Reference,
    refusal,
    rpc::Gateway,
    skeleton::{List, Slice},
    viewer::Token,
};

/// How often a page is asked for at most, so that a list with long stretches of accounts that are
/// gone, or with few entries in common, cannot make a call endless. After that the page stays
/// short; its token goes on behind what was looked at.
const ROUNDS_MAX: usize = 5;

/// A page as it was asked for, checked as far as the gateway knows the rules.
pub(crate) struct PageRequest {
    size: PageSize,
    token: String,
}

impl PageRequest {
    fn parse(page_size: i32, page_token: String) -> Result<Self, Invalid> {
        Ok(Self { size: PageSize::parse(page_size)?, token: page_token })
    }
}

/// A page to show.
pub(crate) struct Page {
    /// Its entries.
    pub(crate) users: Vec<ListedUser>,
    /// For the next page; empty at the end of the list.
    pub(crate) next_page_token: String,
}

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
    ) -> Result<Page, Status> {
        let (user, page) = parse(user, page_size, page_token)?;
        let size = page.size.get();
        let viewer = self.viewer_if_any(token);
        let (viewer, list, first) = match user {
            Reference::Id(id) => {
                let list = list(id);
                let first = self.slice(list, size, page.token);
                let (viewer, profile, first) = tokio::join!(viewer, self.profile(&user), first);
                let viewer = viewer?;
                profile?;
                (viewer, list, first?)
            }
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                let viewer = viewer?;
                let list = list(refusal::sent_id(profile?.id)?);
                (viewer, list, self.slice(list, size, page.token).await?)
            }
        };
        self.fill(list, viewer, size, first).await
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
    ) -> Result<Page, Status> {
        let (user, page) = parse(user, page_size, page_token)?;
        let (viewer, profile) = tokio::join!(self.viewer(token), self.profile(&user));
        let viewer = viewer?;
        let list = list(viewer, refusal::sent_id(profile?.id)?);
        let first = self.slice(list, page.size.get(), page.token).await?;
        self.fill(list, Some(viewer), page.size.get(), first).await
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
    ) -> Result<Page, Status> {
        let page = PageRequest::parse(page_size, page_token);
        let page = page.map_err(|invalid| status::invalid([invalid]))?;
        let viewer = self.viewer(token).await?;
        let first = self.slice(list(viewer), page.size.get(), page.token).await?;
        self.fill(list(viewer), Some(viewer), page.size.get(), first).await
    }

    /// Hydrates a page, and fills it up with what follows in the list as long as it is short.
    /// Each further slice is no longer than what is missing, so that the list's own token is the
    /// page's.
    async fn fill(
        &self,
        list: List,
        viewer: Option<UserId>,
        size: usize,
        first: Slice,
    ) -> Result<Page, Status> {
        let mut users = Vec::with_capacity(size);
        let mut slice = first;
        for _ in 1..ROUNDS_MAX {
            users.extend(self.hydrate(viewer, slice.edges).await?);
            let missing = size.saturating_sub(users.len());
            if missing == 0 || slice.next_page_token.is_empty() {
                return Ok(Page { users, next_page_token: slice.next_page_token });
            }
            slice = self.slice(list, missing, slice.next_page_token).await?;
        }
        users.extend(self.hydrate(viewer, slice.edges).await?);
        Ok(Page { users, next_page_token: slice.next_page_token })
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
