//! One account in full, to its visitors, to its owner, and changed by its owner.

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_proto::{gateway, post, relation, user};
use tonic::Status;

use crate::{
    people::{Detail, Visit},
    present,
    reference::Reference,
    refusal,
    rpc::Gateway,
    viewer::Token,
};

/// What the viewer has to do with an account.
struct Standing {
    relation: relation::Relation,
    common_following: u64,
    followed_by: Vec<user::User>,
    followed_by_count: u64,
}

/// How many of an account's followers whom the viewer follows are shown with it.
const FOLLOWED_BY: usize = 3;

/// Of how many they are picked, since some may be gone or hidden from the viewer.
const FOLLOWED_BY_PICKED: i32 = 6;

impl Gateway {
    /// Shows an account. Up to 9 calls, 3 without a token: by id, user.Authenticate ∥ user.GetUser ∥
    /// relation.BatchGetCounts ∥ post.BatchGetPostCounts, then those of [`Gateway::standing`]; by
    /// name, user.Authenticate ∥ user.GetUserByName, then the others at once.
    pub(crate) async fn view_user(
        &self,
        token: Option<Token>,
        request: gateway::ViewUserRequest,
    ) -> Result<gateway::ViewUserResponse, Status> {
        let user = Reference::parse(request.user).map_err(|invalid| status::invalid([invalid]))?;
        let viewer = self.viewer_if_any(token);
        let (profile, (counts, posts), standing) = match user {
            Reference::Id(id) => {
                let (viewer, profile, counts) =
                    tokio::join!(viewer, self.profile(&user), self.counts(id));
                let viewer = viewer?;
                (profile?, counts?, self.standing(viewer, id).await?)
            }
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                let (viewer, profile) = (viewer?, profile?);
                let id = refusal::sent_id(profile.id)?;
                let (counts, standing) = tokio::join!(self.counts(id), self.standing(viewer, id));
                (profile, counts?, standing?)
            }
        };
        Ok(gateway::ViewUserResponse {
            user: Some(profile),
            counts: Some(counts),
            relation: Some(standing.relation),
            common_following: standing.common_following,
            posts,
            followed_by: standing.followed_by,
            followed_by_count: standing.followed_by_count,
        })
    }

    /// Returns the viewer's own account. 4 calls: user.Authenticate, then user.GetAccount ∥
    /// relation.BatchGetCounts ∥ post.BatchGetPostCounts.
    pub(crate) async fn me(&self, token: Token) -> Result<gateway::MeResponse, Status> {
        let viewer = self.viewer(token).await?;
        let (account, counts) = tokio::join!(self.account(viewer), self.counts(viewer));
        let (counts, posts) = counts?;
        Ok(gateway::MeResponse { account: Some(account?), counts: Some(counts), posts })
    }

    /// Changes the viewer's profile. 2 calls: user.Authenticate, then user.UpdateProfile.
    pub(crate) async fn update_profile(
        &self,
        token: Token,
        request: gateway::UpdateProfileRequest,
    ) -> Result<gateway::UpdateProfileResponse, Status> {
        const FIELDS: refusal::Fields = &[
            ("display_name", "display_name"),
            ("bio", "bio"),
            ("avatar_url", "avatar_url"),
            ("location", "location"),
        ];
        let viewer = self.viewer(token).await?;
        let gateway::UpdateProfileRequest { display_name, bio, avatar_url, location } = request;
        let user_id = viewer.get();
        let request =
            user::UpdateProfileRequest { user_id, display_name, bio, avatar_url, location };
        let response = self.peers.user().update_profile(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::UpdateProfileResponse { user: response.into_inner().user })
    }

    async fn account(&self, user: UserId) -> Result<user::Account, Status> {
        let request = user::GetAccountRequest { user_id: user.get() };
        let response = self.peers.user().get_account(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, &[]))?;
        refusal::sent(response.into_inner().account)
    }

    /// Returns the lengths of an account's lists, and how many posts it has, if the post service
    /// answers: a profile is shown without it. Two calls at once.
    async fn counts(&self, user: UserId) -> Result<(relation::Counts, Option<u64>), Status> {
        let user_ids = vec![user.get()];
        let (relation, post) = (self.peers.relation(), self.peers.post());
        let (counts, posts) = tokio::join!(
            relation
                .batch_get_counts(relation::BatchGetCountsRequest { user_ids: user_ids.clone() }),
            post.batch_get_post_counts(post::BatchGetPostCountsRequest { user_ids }),
        );
        let counts = counts.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        let posts = match posts {
            Ok(posts) => Some(refusal::sent(posts.get_ref().counts.first().copied())?.posts),
            Err(status) if status::is_outage(&status) => None,
            Err(status) => return Err(refusal::pass_on(status, &[])),
        };
        Ok((refusal::sent(counts.counts.first().copied())?, posts))
    }

    /// Returns what the viewer and an account have to do with each other: nothing if there is no
    /// viewer. No call then; otherwise relation.GetRelation ∥ relation.CountCommonFollowing
    /// ∥ relation.CountFollowersIFollow (not about the viewer's own account), then user.BatchGetUsers
    /// ∥ relation.BatchGetRelations (not where the viewer follows none of its followers).
    async fn standing(&self, viewer: Option<UserId>, user: UserId) -> Result<Standing, Status> {
        let Some(viewer) = viewer else {
            return Ok(Standing {
                relation: present::stranger(user),
                common_following: 0,
                followed_by: Vec::new(),
                followed_by_count: 0,
            });
        };
        let client = self.peers.relation();
        let (viewer_id, other_id) = (viewer.get(), user.get());
        let (relation, common, followers) = tokio::join!(
            client.get_relation(relation::GetRelationRequest { viewer_id, target_id: other_id }),
            client.count_common_following(relation::CountCommonFollowingRequest {
                user_id: viewer_id,
                other_id
            }),
            self.followers_followed(viewer, user),
        );
        let relation = relation.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        let common = common.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        let relation = refusal::sent(relation.relation)?;
        let followers = followers?;
        // As the list of them, which is refused then.
        let followers = if relation.blocked_by {
            relation::CountFollowersIFollowResponse::default()
        } else {
            followers
        };
        Ok(Standing {
            relation,
            common_following: common.count,
            followed_by: self.shown_followers(viewer, followers.newest).await?,
            followed_by_count: followers.count,
        })
    }

    /// Returns how many followers of an account the viewer follows, and the newest of them; nobody
    /// for the viewer's own account. One call, or none.
    async fn followers_followed(
        &self,
        viewer: UserId,
        user: UserId,
    ) -> Result<relation::CountFollowersIFollowResponse, Status> {
        if viewer == user {
            return Ok(relation::CountFollowersIFollowResponse::default());
        }
        let request = relation::CountFollowersIFollowRequest {
            user_id: user.get(),
            viewer_id: viewer.get(),
            newest: FOLLOWED_BY_PICKED,
        };
        let response = self.peers.relation().count_followers_i_follow(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner())
    }

    /// Returns the first of some followers who are there and not hidden from the viewer. Two calls at
    /// once; none where there is nobody.
    async fn shown_followers(
        &self,
        viewer: UserId,
        newest: Vec<relation::Edge>,
    ) -> Result<Vec<user::User>, Status> {
        let ids: Vec<u64> = newest.iter().map(|edge| edge.user_id).collect();
        let visit = Visit::of(Some(viewer));
        let mut people = self.people(visit, ids.clone(), Detail::BlocksAndMutes).await?;
        let shown = ids
            .into_iter()
            .filter_map(|id| if people.is_hidden(id) { None } else { people.take_user(id) });
        Ok(shown.take(FOLLOWED_BY).collect())
    }
}
