//! The lists of accounts that the relation service keeps.

use microblog_domain::UserId;
use microblog_proto::{
    gateway::ListedUser,
    relation::{self, FollowOrder},
};
use tonic::Status;

use super::{Entry, Listing, Slice};
use crate::{
    people::{Blocked, Visit},
    refusal,
    rpc::Gateway,
};

/// A list of accounts that the relation service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Whom an account follows, in this order.
    Following(UserId, FollowOrder),
    /// Who follows an account.
    Followers(UserId),
    /// Those of them whom the account does not follow.
    NotFollowedBack(UserId),
    /// Both at once.
    Mutuals(UserId),
    /// Whom the viewer (first) and an account both follow, since when the viewer does.
    CommonFollowing(UserId, UserId),
    /// The followers of an account (second) whom the viewer (first) follows.
    FollowersIFollow(UserId, UserId),
    /// Whom the viewer blocks.
    Blocks(UserId),
    /// Whom the viewer mutes.
    Mutes(UserId),
}

impl Listing for List {
    type Entry = Entry;
    type Shown = ListedUser;

    async fn slice(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Slice<Entry>, Status> {
        // The relation service calls the accounts differently from list to list; to the caller of
        // the gateway there is only one.
        const FIELDS: refusal::Fields =
            &[("user_id", "user"), ("other_id", "user"), ("page_token", "page_token")];
        let slice = self.ask(gateway, size as i32, page_token).await;
        slice.map_err(|status| refusal::pass_on(status, FIELDS))
    }

    async fn hydrate(
        &self,
        gateway: &Gateway,
        visit: Visit<'_>,
        entries: Vec<Entry>,
    ) -> Result<Vec<ListedUser>, Status> {
        gateway.hydrate_accounts(visit, entries, self.blocked()).await
    }
}

impl List {
    /// Returns what becomes of entries that have a block with the viewer: one's own blocks and mutes
    /// are there to be taken back.
    fn blocked(self) -> Blocked {
        match self {
            Self::Blocks(_) | Self::Mutes(_) => Blocked::Shown,
            Self::Following(..)
            | Self::Followers(_)
            | Self::NotFollowedBack(_)
            | Self::Mutuals(_)
            | Self::CommonFollowing(..)
            | Self::FollowersIFollow(..) => Blocked::LeftOut,
        }
    }

    async fn ask(
        self,
        gateway: &Gateway,
        page_size: i32,
        page_token: String,
    ) -> Result<Slice<Entry>, Status> {
        let client = gateway.peers.relation();
        // The lists' messages have the same parts, but are types of their own.
        macro_rules! slice {
            ($method:ident, $request:ident { $($field:ident: $value:expr),* }) => {{
                let request = relation::$request { $($field: $value,)* page_size, page_token };
                let response = client.$method(request).await?.into_inner();
                let entries = response.edges.into_iter().map(Entry::from).collect();
                Slice { entries, next_page_token: response.next_page_token }
            }};
        }
        Ok(match self {
            List::Following(user, order) => slice!(
                list_following,
                ListFollowingRequest {
                    user_id: user.get(),
                    newer_than_version: 0,
                    order: order.into()
                }
            ),
            List::Followers(user) => slice!(
                list_followers,
                ListFollowersRequest { user_id: user.get(), not_followed_back: false }
            ),
            List::NotFollowedBack(user) => slice!(
                list_followers,
                ListFollowersRequest { user_id: user.get(), not_followed_back: true }
            ),
            List::Mutuals(user) => {
                slice!(list_mutuals, ListMutualsRequest { user_id: user.get() })
            }
            List::CommonFollowing(viewer, other) => slice!(
                list_common_following,
                ListCommonFollowingRequest { user_id: viewer.get(), other_id: other.get() }
            ),
            List::FollowersIFollow(viewer, user) => slice!(
                list_followers_i_follow,
                ListFollowersIFollowRequest { user_id: user.get(), viewer_id: viewer.get() }
            ),
            List::Blocks(viewer) => {
                slice!(list_blocks, ListBlocksRequest { user_id: viewer.get() })
            }
            List::Mutes(viewer) => slice!(list_mutes, ListMutesRequest { user_id: viewer.get() }),
        })
    }
}
