//! The first step of a list view: which accounts, in which order, since when. Asks the relation
//! service only.

use microblog_domain::UserId;
use microblog_proto::relation::{self, Edge};
use tonic::Status;

use crate::{refusal, rpc::Gateway};

/// A list of accounts that the relation service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Whom an account follows.
    Following(UserId),
    /// Who follows an account.
    Followers(UserId),
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

/// A part of a list.
pub(crate) struct Slice {
    /// Its entries.
    pub(crate) edges: Vec<Edge>,
    /// From where to go on; empty at the end of the list.
    pub(crate) next_page_token: String,
}

impl Gateway {
    /// Returns up to `size` entries of a list from a token on; fewer do not mean that the list
    /// ends, an empty token does. One call.
    pub(crate) async fn slice(
        &self,
        list: List,
        size: usize,
        page_token: String,
    ) -> Result<Slice, Status> {
        // The relation service calls the accounts differently from list to list; to the caller of
        // the gateway there is only one.
        const FIELDS: refusal::Fields =
            &[("user_id", "user"), ("other_id", "user"), ("page_token", "page_token")];
        self.ask(list, size as i32, page_token)
            .await
            .map_err(|status| refusal::pass_on(status, FIELDS))
    }

    async fn ask(&self, list: List, page_size: i32, page_token: String) -> Result<Slice, Status> {
        let mut client = self.peers.relation();
        // The lists' messages have the same parts, but are types of their own.
        macro_rules! slice {
            ($method:ident, $request:ident { $($field:ident: $value:expr),* }) => {{
                let request = relation::$request { $($field: $value,)* page_size, page_token };
                let response = client.$method(request).await?.into_inner();
                Slice { edges: response.edges, next_page_token: response.next_page_token }
            }};
        }
        Ok(match list {
            List::Following(user) => slice!(
                list_following,
                ListFollowingRequest { user_id: user.get(), newer_than_version: 0 }
            ),
            List::Followers(user) => {
                slice!(list_followers, ListFollowersRequest { user_id: user.get() })
            }
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
