//! The accounts in a view: their profiles, and how they stand to the viewer. Part of hydration.

use futures::future;
use microblog_domain::{BATCH_MAX, IdMap, IdSet, UserId};
use microblog_proto::{
    relation::{self, Relation, RelationState},
    user::{self, User},
};
use tonic::Status;

use crate::{blocks, refusal, rpc::Gateway};

/// Who looks, and at what of whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit<'a> {
    /// Who looks; nobody without a token.
    pub(crate) viewer: Option<UserId>,
    /// Whose it is, if it is anybody's in particular.
    pub(crate) host: Option<Host>,
    /// How accounts stand to the viewer, blocks and mutes included, as far as that was told with
    /// what is looked at. Asked since the visit began, and good for nothing but this.
    pub(crate) known: &'a [Relation],
}

impl Visit<'_> {
    /// Returns a visit of what is nobody's in particular, of which nothing is known.
    pub(crate) const fn of(viewer: Option<UserId>) -> Self {
        Self { viewer, host: None, known: &[] }
    }

    /// Returns the same of what is somebody's.
    pub(crate) const fn at(self, host: Host) -> Self {
        Self { host: Some(host), ..self }
    }
}

/// Whose it is that a viewer looks at. Whom they block is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// The author of the post that it is about.
    Author(u64),
    /// The author of the comment that it answers.
    Commenter(u64),
    /// An account that the viewer asked for.
    Account(u64),
    /// The owner of a list, whose profile was asked for already.
    Owner(u64),
}

impl Visit<'_> {
    /// Returns whether the viewer asked for what this account wrote.
    pub(crate) fn asks_for(self, id: u64) -> bool {
        self.host == Some(Host::Account(id))
    }

    /// Returns those of some accounts of which it is not known how they stand to the viewer.
    fn unknown(self, ids: &[u64]) -> Vec<u64> {
        let known: IdSet<u64> = self.known.iter().map(|relation| relation.user_id).collect();
        ids.iter().copied().filter(|id| !known.contains(id)).collect()
    }
}

impl Host {
    /// Returns the host's account.
    pub(crate) fn id(self) -> u64 {
        match self {
            Self::Author(id) | Self::Commenter(id) | Self::Account(id) | Self::Owner(id) => id,
        }
    }

    /// Returns whether it is known that the host's account is there.
    fn is_known(self) -> bool {
        matches!(self, Self::Owner(_))
    }

    /// Returns what is said where the host's account is gone.
    fn gone(self) -> Status {
        match self {
            Self::Author(_) => refusal::post_not_found(),
            Self::Commenter(_) => refusal::comment_not_found(),
            Self::Account(_) | Self::Owner(_) => refusal::user_not_found(),
        }
    }
}

/// What becomes of the entries of a list of accounts that have a block with the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// They are left out.
    LeftOut,
    /// They are shown: the list is what the viewer decided on.
    Shown,
}

/// What is asked about how accounts stand to the viewer. What is not asked for costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Who follows and who blocks whom.
    Blocks,
    /// That, and whom the viewer mutes.
    BlocksAndMutes,
}

/// What is known of accounts.
#[derive(Debug, Default)]
pub(crate) struct People {
    users: IdMap<u64, User>,
    relations: IdMap<u64, Relation>,
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

    /// Returns an account with how it stands to the viewer, if that is known.
    pub(crate) fn standing(&self, id: u64) -> Option<&Relation> {
        self.relations.get(&id)
    }

    /// Returns nothing if the viewer may come to what is the host's: POST_NOT_FOUND and the like
    /// where the host's account is gone, or what `refuse` makes of how the host stands to the
    /// viewer, which is not asked for an anonymous one.
    pub(crate) fn admit(
        &self,
        host: Host,
        refuse: fn(&Relation) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if !host.is_known() && !self.users.contains_key(&host.id()) {
            return Err(host.gone());
        }
        self.relations.get(&host.id()).map_or(Ok(()), refuse)
    }

    /// Returns nothing if it is known of all of these how they stand to the viewer: who is left out
    /// must not be taken for somebody without a block.
    fn check_relations(&self, ids: &[u64]) -> Result<(), Status> {
        refusal::sent(ids.iter().all(|id| self.relations.contains_key(id)).then_some(()))
    }

    /// Returns whether one of the viewer and an account blocks the other, so that lists of accounts
    /// leave it out.
    pub(crate) fn is_blocked(&self, id: u64) -> bool {
        self.relations.get(&id).is_some_and(|relation| relation.blocking || relation.blocked_by)
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
    /// out. Up to two calls at once: user.BatchGetUsers (not about the owner of a list),
    /// relation.BatchGetRelations (not for an anonymous viewer, and only about those of whom the
    /// visit does not know); none if there is nobody to ask about.
    pub(crate) async fn people(
        &self,
        visit: Visit<'_>,
        mut ids: Vec<u64>,
        detail: Detail,
    ) -> Result<People, Status> {
        ids.extend(visit.host.filter(|host| !host.is_known()).map(Host::id));
        ids.sort_unstable();
        ids.dedup();
        let mut targets = ids.clone();
        targets.extend(visit.host.map(Host::id).filter(|host| !ids.contains(host)));
        let (users, relations) = tokio::join!(
            self.profiles(ids),
            self.relations(visit.viewer, visit.unknown(&targets), detail)
        );
        let (users, mut relations) = (users?, relations?);
        relations.extend_from_slice(visit.known);
        let people = People::new(users, relations);
        visit.viewer.map_or(Ok(()), |_| people.check_relations(&targets))?;
        visit.host.map_or(Ok(()), |host| people.admit(host, blocks::refuse_blocked))?;
        Ok(people)
    }

    /// Returns those of any number of accounts whose posts are not kept from the viewer.
    /// relation.BatchGetRelations once for every 500, all at once.
    pub(crate) async fn unhidden(&self, viewer: UserId, ids: Vec<u64>) -> Result<Vec<u64>, Status> {
        let part = |ids: &[u64]| self.relations(Some(viewer), ids.to_vec(), Detail::BlocksAndMutes);
        let parts: Vec<_> = ids.chunks(BATCH_MAX).map(part).collect();
        let mut relations = Vec::with_capacity(ids.len());
        for part in future::join_all(parts).await {
            relations.extend(part?);
        }
        let people = People::new(Vec::new(), relations);
        people.check_relations(&ids)?;
        Ok(ids.into_iter().filter(|&id| !people.is_hidden(id)).collect())
    }

    /// Returns how accounts stand to the viewer. One call; none for an anonymous viewer or where
    /// there are no accounts.
    async fn relations(
        &self,
        viewer: Option<UserId>,
        target_ids: Vec<u64>,
        detail: Detail,
    ) -> Result<Vec<Relation>, Status> {
        let Some(viewer) = viewer.filter(|_| !target_ids.is_empty()) else {
            return Ok(Vec::new());
        };
        let request = relation::BatchGetRelationsRequest {
            viewer_id: viewer.get(),
            target_ids,
            include_blocks: true,
            include_mutes: detail == Detail::BlocksAndMutes,
            include_newest_following_version: false,
        };
        let response = self.peers.relation().batch_get_relations(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().relations)
    }

    /// Returns the profiles of accounts that are there. One call; none where there are no accounts.
    async fn profiles(&self, user_ids: Vec<u64>) -> Result<Vec<User>, Status> {
        if user_ids.is_empty() {
            return Ok(Vec::new());
        }
        let request = user::BatchGetUsersRequest { user_ids };
        let response = self.peers.user().batch_get_users(request).await;
        Ok(response.map_err(|status| refusal::pass_on(status, &[]))?.into_inner().users)
    }
}

#[cfg(test)]
mod tests {
    use microblog_chassis::status::reason_of;
    use microblog_proto::common::ErrorReason;
    use tonic::Code;

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
        let blocked = [1, 2, 3, 4, 5, 6].map(|id| people().is_blocked(id));
        assert_eq!(blocked, [false, false, true, true, false, false]);
    }

    #[test]
    fn a_host_who_blocks_the_viewer_or_is_gone_lets_nobody_in() {
        let reasons = |refuse: fn(&Relation) -> Result<(), Status>| {
            let reason = |id| {
                let admitted = people().admit(Host::Author(id), refuse);
                admitted.err().and_then(|status| reason_of(&status))
            };
            [1, 2, 3, 4, 5, 6].map(reason)
        };
        for (host, reason) in [
            (Host::Account(6), ErrorReason::UserNotFound),
            (Host::Commenter(6), ErrorReason::CommentNotFound),
        ] {
            let lost = people().admit(host, blocks::refuse_blocked).unwrap_err();
            assert_eq!(reason_of(&lost), Some(reason));
        }
        people().admit(Host::Owner(6), blocks::refuse_blocked).unwrap();
        let (blocked, gone) = (Some(ErrorReason::BlockedByTarget), Some(ErrorReason::PostNotFound));
        assert_eq!(reasons(blocks::refuse_blocked), [None, None, None, blocked, None, gone]);
        let blocking = Some(ErrorReason::TargetBlocked);
        assert_eq!(reasons(blocks::refuse_any), [None, None, blocking, blocked, None, gone]);
    }

    #[test]
    fn who_is_left_out_of_an_answer_is_not_taken_for_somebody_without_a_block() {
        people().check_relations(&[1, 4]).unwrap();
        assert_eq!(people().check_relations(&[1, 5]).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn whoever_is_not_known_is_a_stranger() {
        assert_eq!(people().relation(1), RelationState::Mutual);
        assert_eq!(people().relation(5), RelationState::None);
    }
}
