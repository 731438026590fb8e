//! The accounts in a view: their profiles, and how they stand to the viewer. Part of hydration.

use std::collections::HashMap;

use microblog_domain::UserId;
use microblog_proto::{
    relation::{self, Relation, RelationState},
    user::{self, User},
};
use tonic::Status;

use crate::{blocks, refusal, rpc::Gateway};

/// Who looks, and at what of whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// Who looks; nobody without a token.
    pub(crate) viewer: Option<UserId>,
    /// The author of the post that it is about, if it is about one.
    pub(crate) host: Option<u64>,
}

/// What is asked about how accounts stand to the viewer. What is not asked for costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// Who follows whom.
    Follows,
    /// That, and who blocks whom.
    Blocks,
    /// That, and whom the viewer mutes.
    BlocksAndMutes,
}

/// What is known of accounts.
#[derive(Debug, Default)]
pub(crate) struct People {
    users: HashMap<u64, User>,
    relations: HashMap<u64, Relation>,
}

impl People {
    /// Puts together what the services answered, in whatever order.
    pub(crate) fn new(users: Vec<User>, relations: Vec<Relation>) -> Self {
        Self {
            users: users.into_iter().map(|user| (user.id, user)).collect(),
            relations: relations.into_iter().map(|relation| (relation.user_id, relation)).collect(),
        }
    }

    /// Returns an account's profile; `None` if the account is gone.
    pub(crate) fn user(&self, id: u64) -> Option<&User> {
        self.users.get(&id)
    }

    /// Gives an account's profile away, where it is shown once only.
    pub(crate) fn take_user(&mut self, id: u64) -> Option<User> {
        self.users.remove(&id)
    }

    /// Returns how an account stands to the viewer, NONE where no relation is known.
    pub(crate) fn relation(&self, id: u64) -> RelationState {
        self.relations.get(&id).map_or(RelationState::None, Relation::state)
    }

    /// Returns nothing if the viewer may see the host's post and what belongs to it:
    /// POST_NOT_FOUND where the host's account is gone, and the post with it, and BLOCKED_BY_TARGET
    /// where the host blocks the viewer.
    fn admit(&self, host: u64) -> Result<(), Status> {
        if !self.users.contains_key(&host) {
            return Err(refusal::post_not_found());
        }
        self.relations.get(&host).map_or(Ok(()), blocks::refuse_blocked)
    }

    /// Returns whether what an account wrote is kept from the viewer, where the viewer did not ask
    /// for it: the account is muted or blocked by the viewer, or blocks the viewer.
    pub(crate) fn is_hidden(&self, id: u64) -> bool {
        let is_apart =
            |relation: &Relation| relation.muting || relation.blocking || relation.blocked_by;
        self.relations.get(&id).is_some_and(is_apart)
    }
}

impl Gateway {
    /// Returns what is known of accounts and of the host, or a refusal if the host keeps the viewer
    /// out. Two calls at once: user.BatchGetUsers, relation.BatchGetRelations (not for an anonymous
    /// viewer); none if there is nobody to ask about.
    pub(crate) async fn people(
        &self,
        visit: Visit,
        mut ids: Vec<u64>,
        detail: Detail,
    ) -> Result<People, Status> {
        ids.extend(visit.host);
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(People::default());
        }
        let detail = if visit.host.is_some() { detail.max(Detail::Blocks) } else { detail };
        let (users, relations) =
            tokio::join!(self.profiles(ids.clone()), self.relations(visit.viewer, ids, detail));
        let people = People::new(users?, relations?);
        visit.host.map_or(Ok(()), |host| people.admit(host))?;
        Ok(people)
    }

    /// Returns how accounts stand to the viewer. One call; none for an anonymous viewer.
    pub(crate) async fn relations(
        &self,
        viewer: Option<UserId>,
        target_ids: Vec<u64>,
        detail: Detail,
    ) -> Result<Vec<Relation>, Status> {
        let Some(viewer) = viewer else { return Ok(Vec::new()) };
        let request = relation::BatchGetRelationsRequest {
            viewer_id: viewer.get(),
            target_ids,
            include_blocks: detail != Detail::Follows,
            include_mutes: detail == Detail::BlocksAndMutes,
            include_newest_following_version: false,
        };
        let response = self.peers.relation().batch_get_relations(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().relations)
    }

    async fn profiles(&self, user_ids: Vec<u64>) -> Result<Vec<User>, Status> {
        let request = user::BatchGetUsersRequest { user_ids };
        let response = self.peers.user().batch_get_users(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().users)
    }
}

#[cfg(test)]
mod tests {
    use microblog_chassis::status::reason_of;
    use microblog_proto::common::ErrorReason;

    use super::*;

    fn relation(user_id: u64, [muting, blocking, blocked_by]: [bool; 3]) -> Relation {
        let state = RelationState::Mutual.into();
        Relation { user_id, state, muting, blocking, blocked_by }
    }

    fn people() -> People {
        let users = [1, 2, 3, 4, 5].map(|id| User { id, ..User::default() });
        let relations = vec![
            relation(1, [false; 3]),
            relation(2, [true, false, false]),
            relation(3, [false, true, false]),
            relation(4, [false, false, true]),
        ];
        People::new(users.into(), relations)
    }

    #[test]
    fn mutes_and_blocks_either_way_hide_an_account() {
        let hidden = [1, 2, 3, 4, 5, 6].map(|id| people().is_hidden(id));
        assert_eq!(hidden, [false, true, true, true, false, false]);
    }

    #[test]
    fn a_host_who_blocks_the_viewer_or_is_gone_lets_nobody_in() {
        let reasons = [1, 2, 3, 4, 5, 6]
            .map(|host| people().admit(host).err().and_then(|status| reason_of(&status)));
        let (blocked, gone) = (ErrorReason::BlockedByTarget, ErrorReason::PostNotFound);
        assert_eq!(reasons, [None, None, None, Some(blocked), None, Some(gone)]);
    }

    #[test]
    fn whoever_is_not_known_is_a_stranger() {
        assert_eq!(people().relation(1), RelationState::Mutual);
        assert_eq!(people().relation(5), RelationState::None);
    }
}
