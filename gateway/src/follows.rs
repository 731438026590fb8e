//! What a viewer does to other accounts: follow, block, mute, and take it back.
//!
//! Each is one call that writes, after calls that only read, so a caller who hangs up leaves it
//! done or not done, never half done. What the gateway adds to the relation service is that
//! accounts to follow, block or mute exist. What ends something works by id for accounts that are
//! gone, too.

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_proto::{gateway, relation};
use tonic::Status;

use crate::{reference::Reference, refusal, rpc::Gateway, viewer::Token};

/// The fields in which relation's requests name the account that the caller named.
const FIELDS: refusal::Fields = &[("target_id", "user"), ("follower_id", "user")];

/// Who does it, and to whom.
struct Parties {
    viewer: UserId,
    target: UserId,
}

impl Gateway {
    /// Makes the viewer follow an account. 3 calls: user.Authenticate, then user.GetUser or
    /// user.GetUserByName, then relation.Follow. Who follows too fast costs the first one alone.
    ///
    /// An account that is deleted in between is either refused by the relation service, or the
    /// follow ended by the deletion.
    pub(crate) async fn follow(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::FollowResponse, Status> {
        let target = parse(user)?;
        let viewer = self.limited_viewer(token, &self.limits.viewers().follows).await?;
        let target_id = self.profile(&target).await?.id;
        let request = relation::FollowRequest { follower_id: viewer.get(), target_id };
        let response = self.peers.relation().follow(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        let since = refusal::sent(response.edge)?.since;
        Ok(gateway::FollowResponse { relation: response.state, since })
    }

    /// Ends that. 2 calls by id: user.Authenticate, then relation.Unfollow; 3 by name, with
    /// user.GetUserByName beside the first.
    pub(crate) async fn unfollow(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::UnfollowResponse, Status> {
        let Parties { viewer, target } = self.with_any(token, user).await?;
        let request =
            relation::UnfollowRequest { follower_id: viewer.get(), target_id: target.get() };
        let response = self.peers.relation().unfollow(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        Ok(gateway::UnfollowResponse { relation: response.state })
    }

    /// Blocks an account. 3 calls: user.Authenticate ∥ user.GetUser or user.GetUserByName, then
    /// relation.Block.
    pub(crate) async fn block(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::BlockResponse, Status> {
        let Parties { viewer, target } = self.with_existing(token, user).await?;
        let request = relation::BlockRequest { user_id: viewer.get(), target_id: target.get() };
        let response = self.peers.relation().block(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::BlockResponse {})
    }

    /// Takes a block back. 2 calls by id: user.Authenticate, then relation.Unblock; 3 by name,
    /// with user.GetUserByName beside the first.
    pub(crate) async fn unblock(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::UnblockResponse, Status> {
        let Parties { viewer, target } = self.with_any(token, user).await?;
        let request = relation::UnblockRequest { user_id: viewer.get(), target_id: target.get() };
        let response = self.peers.relation().unblock(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::UnblockResponse {})
    }

    /// Mutes an account. 3 calls: user.Authenticate ∥ user.GetUser or user.GetUserByName, then
    /// relation.Mute.
    pub(crate) async fn mute(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::MuteResponse, Status> {
        let Parties { viewer, target } = self.with_existing(token, user).await?;
        let request = relation::MuteRequest { user_id: viewer.get(), target_id: target.get() };
        let response = self.peers.relation().mute(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::MuteResponse {})
    }

    /// Takes a mute back. 2 calls by id: user.Authenticate, then relation.Unmute; 3 by name, with
    /// user.GetUserByName beside the first.
    pub(crate) async fn unmute(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::UnmuteResponse, Status> {
        let Parties { viewer, target } = self.with_any(token, user).await?;
        let request = relation::UnmuteRequest { user_id: viewer.get(), target_id: target.get() };
        let response = self.peers.relation().unmute(request).await;
        response.map_err(|status| refusal::pass_on(status, FIELDS))?;
        Ok(gateway::UnmuteResponse {})
    }

    /// Makes a follower follow the viewer no more. 2 calls by id: user.Authenticate, then
    /// relation.RemoveFollower; 3 by name, with user.GetUserByName beside the first.
    pub(crate) async fn remove_follower(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<gateway::RemoveFollowerResponse, Status> {
        let Parties { viewer, target } = self.with_any(token, user).await?;
        let request =
            relation::RemoveFollowerRequest { user_id: viewer.get(), follower_id: target.get() };
        let response = self.peers.relation().remove_follower(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, FIELDS))?.into_inner();
        Ok(gateway::RemoveFollowerResponse { relation: response.state })
    }

    /// Returns the viewer and an account that exists.
    async fn with_existing(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<Parties, Status> {
        self.resolve(token, parse(user)?).await
    }

    /// Returns the viewer and an account that, named by its id, need not exist (any more).
    async fn with_any(
        &self,
        token: Token,
        user: Option<gateway::UserRef>,
    ) -> Result<Parties, Status> {
        match parse(user)? {
            Reference::Id(target) => Ok(Parties { viewer: self.viewer(token).await?, target }),
            name @ Reference::Name(_) => self.resolve(token, name).await,
        }
    }

    async fn resolve(&self, token: Token, user: Reference) -> Result<Parties, Status> {
        let (viewer, profile) = tokio::join!(self.viewer(token), self.profile(&user));
        Ok(Parties { viewer: viewer?, target: refusal::sent_id(profile?.id)? })
    }
}

fn parse(user: Option<gateway::UserRef>) -> Result<Reference, Status> {
    Reference::parse(user).map_err(|invalid| status::invalid([invalid]))
}
