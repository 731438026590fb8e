//! Timelines: which posts are in them. Asks the timeline service only, which knows who follows whom
//! but no texts, not what is deleted, and not what is older than the newest posts.

use microblog_domain::UserId;
use microblog_proto::{
    relation::Relation,
    timeline::{self, Entry},
};
use tonic::Status;

use crate::{refusal, rpc::Gateway};

/// The fields of requests that come from the caller where they have no pages.
pub(crate) const SINCE: refusal::Fields = &[("since_token", "since_token")];

/// The fields of requests for pages that come from the caller.
const FIELDS: refusal::Fields = &[("page_token", "page_token"), ("since_token", "since_token")];

/// A timeline that is shown in pages.
pub(crate) struct Timeline {
    /// Which one.
    pub(crate) whose: Whose,
    /// What the caller has seen of it; empty to show all. The same in each request for a page.
    pub(crate) since_token: String,
}

/// Whose posts a timeline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Of those whom an account follows, and its own.
    Home(UserId),
    /// Of those whom an account follows and is followed by.
    Friends(UserId),
    /// The account's own.
    User(UserId),
}

/// A part of a timeline.
#[derive(Default)]
pub(crate) struct Stretch {
    /// Its entries.
    pub(crate) entries: Vec<Entry>,
    /// From where to go on; empty at the end of the timeline.
    pub(crate) next_page_token: String,
    /// For what will be new.
    pub(crate) since_token: String,
    /// At the end of a timeline that had no room for more: older posts than this one are not in it;
    /// 0 elsewhere.
    pub(crate) older_than_id: u64,
    /// How those who wrote its entries stand to the viewer, blocks and mutes included, where the
    /// timeline service has asked.
    pub(crate) relations: Vec<Relation>,
}

impl Timeline {
    /// Returns up to `size` entries of the timeline from a token on, fewer only at its end, where
    /// there is no token to go on from. One call.
    pub(crate) async fn stretch(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> Result<Stretch, Status> {
        let stretch = self.ask(gateway, size as i32, page_token).await;
        stretch.map_err(|status| refusal::pass_on(status, FIELDS))
    }

    async fn ask(
        &self,
        gateway: &Gateway,
        page_size: i32,
        page_token: String,
    ) -> Result<Stretch, Status> {
        let client = gateway.peers.timeline();
        let since_token = self.since_token.clone();
        // The timelines' messages have the same parts, but are types of their own.
        macro_rules! stretch {
            ($method:ident, $request:ident, $user:expr,
                $response:ident => $older:expr, $relations:expr) => {{
                let user_id = $user.get();
                let request = timeline::$request { user_id, page_size, page_token, since_token };
                let $response = client.$method(request).await?.into_inner();
                Stretch {
                    older_than_id: $older,
                    relations: $relations,
                    entries: $response.entries,
                    next_page_token: $response.next_page_token,
                    since_token: $response.since_token,
                }
            }};
        }
        Ok(match self.whose {
            Whose::Home(user) => {
                stretch!(get_home_timeline, GetHomeTimelineRequest, user,
                    response => response.older_than_id, response.relations)
            }
            Whose::Friends(user) => {
                stretch!(get_friends_timeline, GetFriendsTimelineRequest, user,
                    response => response.older_than_id, response.relations)
            }
            Whose::User(user) => {
                stretch!(get_user_timeline, GetUserTimelineRequest, user,
                    response => response.older_than_id, Vec::new())
            }
        })
    }
}
