//! One account in full, to its visitors, to its owner, and changed by its owner.

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_proto::{gateway, post, relation, user};
use tonic::Status;

use crate::{present, reference::Reference, refusal, rpc::Gateway, viewer::Token};

/// What the viewer has to do with an account.
struct Standing {
    relation: relation::Relation,
    common_following: u64,
}

impl Gateway {
    /// Shows an account. 6 calls, 3 without a token: by id, user.Authenticate ∥ user.GetUser ∥
    /// relation.BatchGetCounts ∥ post.BatchGetPostCounts, then relation.GetRelation ∥
    /// relation.CountCommonFollowing; by name, user.Authenticate ∥ user.GetUserByName, then the other
    /// four at once.
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
    /// viewer. Two calls at once, or none.
    async fn standing(&self, viewer: Option<UserId>, user: UserId) -> Result<Standing, Status> {
        let Some(viewer) = viewer else {
            return Ok(Standing { relation: present::stranger(user), common_following: 0 });
        };
        let client = self.peers.relation();
        let (viewer_id, other_id) = (viewer.get(), user.get());
        let (relation, common) = tokio::join!(
            client.get_relation(relation::GetRelationRequest { viewer_id, target_id: other_id }),
            client.count_common_following(relation::CountCommonFollowingRequest {
                user_id: viewer_id,
                other_id
            }),
        );
        let relation = relation.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        let common = common.map_err(|status| refusal::pass_on(status, &[]))?.into_inner();
        let relation = refusal::sent(relation.relation)?;
        Ok(Standing { relation, common_following: common.count })
    }
}
