//! Hydration of accounts: profiles and viewer relations, and who is hidden from the viewer.

use microblog_chassis::status;
use microblog_domain::{IdMap, UserId};
use microblog_proto::{
    common::ErrorReason,
    gateway::{Author, ListedUser, ViewedComment, WithheldReason},
    post::{Comment, Entity},
    relation::{self, BatchGetRelationsResponse, EdgeList, Relation, RelationState},
    user::{self, User},
};
use prost_types::Timestamp;
use tonic::{Code, Status};

use super::mentions::Mentioned;
use crate::{
    context::{Session, Subject, ViewContext},
    errors,
    state::Gateway,
};

/// Which viewer relations are read. Relations that are not requested cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelationDetail {
    /// Follows and blocks.
    Blocks,
    /// Follows, blocks and mutes.
    BlocksAndMutes,
    /// Follows, since when the viewer follows, blocks and mutes.
    BlocksMutesAndTimes,
}

impl RelationDetail {
    fn lists(self) -> &'static [EdgeList] {
        match self {
            Self::Blocks => &[EdgeList::Blocks],
            Self::BlocksAndMutes | Self::BlocksMutesAndTimes => {
                &[EdgeList::Blocks, EdgeList::Mutes]
            }
        }
    }
}

/// Hydration state of accounts: their profiles and viewer relations, and the accounts that texts
/// mention.
#[derive(Debug, Default)]
pub(crate) struct HydratedAccounts {
    users: IdMap<u64, User>,
    relations: IdMap<u64, Relation>,
    /// Since when the viewer follows accounts, if requested.
    following_since: IdMap<u64, Timestamp>,
    mentioned: Mentioned,
}

/// Returns the hydration state of accounts and of the subject, or an error if the subject is
/// deleted or blocks the viewer. Up to two calls at once: user.BatchGetUsers,
/// relation.BatchGetRelations (not for an anonymous viewer, and only for accounts whose relations
/// the context lacks); no call without accounts.
pub(crate) async fn hydrate_accounts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    ids: Vec<u64>,
    detail: RelationDetail,
) -> Result<HydratedAccounts, Status> {
    hydrate(gateway, context, ids, Vec::new(), detail).await
}

/// Returns the hydration state of the authors of texts, and the accounts of the names that the texts
/// mention. The calls of [`hydrate_accounts`].
pub(crate) async fn hydrate_authors(
    gateway: &Gateway,
    context: ViewContext<'_>,
    ids: Vec<u64>,
    names: Vec<String>,
) -> Result<HydratedAccounts, Status> {
    hydrate(gateway, context, ids, names, RelationDetail::BlocksAndMutes).await
}

async fn hydrate(
    gateway: &Gateway,
    context: ViewContext<'_>,
    mut ids: Vec<u64>,
    names: Vec<String>,
    detail: RelationDetail,
) -> Result<HydratedAccounts, Status> {
    ids.extend(context.subject.map(Subject::id));
    ids.sort_unstable();
    ids.dedup();
    let (users, relations) = tokio::join!(
        profiles(gateway, context, ids.clone(), names),
        relations(gateway, context.viewer, context.without_relations(&ids), detail)
    );
    let user::BatchGetUsersResponse { users, named, .. } = users?;
    let BatchGetRelationsResponse { mut relations, following_since, .. } = relations?;
    relations.extend_from_slice(context.known);
    let accounts = HydratedAccounts {
        mentioned: Mentioned::new(named),
        following_since: following_since
            .into_iter()
            .filter_map(|one| Some((one.user_id, one.since?)))
            .collect(),
        ..HydratedAccounts::new(users, relations)
    };
    context.viewer.map_or(Ok(()), |_| accounts.require_relations(&ids))?;
    context.subject.map_or(Ok(()), |subject| accounts.check(subject, reject_blocked))?;
    Ok(accounts)
}

/// Returns the viewer relations of accounts. One call; none for an anonymous viewer or without
/// accounts.
async fn relations(
    gateway: &Gateway,
    viewer: Option<UserId>,
    target_ids: Vec<u64>,
    detail: RelationDetail,
) -> Result<BatchGetRelationsResponse, Status> {
    let Some(viewer) = viewer.filter(|_| !target_ids.is_empty()) else {
        return Ok(BatchGetRelationsResponse::default());
    };
    let request = relation::BatchGetRelationsRequest {
        viewer_id: viewer.get(),
        target_ids,
        include: detail.lists().iter().map(|&list| list.into()).collect(),
        include_newest_following_version: false,
        include_following_since: detail == RelationDetail::BlocksMutesAndTimes,
    };
    errors::reply(gateway.peers.relation().batch_get_relations(request).await, &[])
}

/// Returns the profiles of the accounts that exist, and the accounts of names, and verifies the
/// viewer's session if it is pending. Of a service caller's viewer, the profile may be among them. One
/// call; none without accounts and names.
pub(crate) async fn profiles(
    gateway: &Gateway,
    context: ViewContext<'_>,
    mut user_ids: Vec<u64>,
    names: Vec<String>,
) -> Result<user::BatchGetUsersResponse, Status> {
    if user_ids.is_empty() && names.is_empty() {
        return Ok(user::BatchGetUsersResponse::default());
    }
    let session_token = context.session.and_then(Session::pending_token).unwrap_or_default();
    // The profile of a service caller's viewer shows that the account exists.
    let viewer = context.session.and_then(Session::pending_viewer).map(UserId::get);
    user_ids.extend(viewer.filter(|viewer| !user_ids.contains(viewer)));
    let request = user::BatchGetUsersRequest { user_ids, names, session_token };
    let response = errors::reply(gateway.peers.user().batch_get_users(request).await, &[])?;
    if let Some(session) = context.session {
        session.confirm(&gateway.sessions, &response);
    }
    Ok(response)
}

impl HydratedAccounts {
    /// Returns the hydration state from the services' responses, in any order.
    pub(crate) fn new(users: Vec<User>, relations: Vec<Relation>) -> Self {
        Self {
            users: users.into_iter().map(|user| (user.id, user)).collect(),
            relations: relations.into_iter().map(|relation| (relation.user_id, relation)).collect(),
            ..Self::default()
        }
    }

    /// Returns whether an account exists.
    pub(crate) fn exists(&self, id: u64) -> bool {
        self.users.contains_key(&id)
    }

    /// Removes and returns the profile of an account that is shown once only; `None` if the account
    /// is deleted.
    pub(crate) fn take_user(&mut self, id: u64) -> Option<User> {
        self.users.remove(&id)
    }

    /// Removes an account that is shown once only, and returns it as lists show it; `None` if it is
    /// deleted.
    fn take_listed(&mut self, id: u64, since: Option<Timestamp>) -> Option<ListedUser> {
        let user = self.take_user(id)?;
        Some(self.as_listed(user, since))
    }

    /// Returns an account as lists show it, without a time; `None` if it is deleted.
    pub(crate) fn listed(&self, id: u64) -> Option<ListedUser> {
        let user = self.users.get(&id)?.clone();
        Some(self.as_listed(user, None))
    }

    fn as_listed(&self, user: User, since: Option<Timestamp>) -> ListedUser {
        let relation = self.relations.get(&user.id).copied().unwrap_or_default();
        ListedUser {
            relation: self.relation(user.id).into(),
            user: Some(user),
            since,
            blocking: relation.blocking,
            blocked_by: relation.blocked_by,
            muting: relation.muting,
            ..ListedUser::default()
        }
    }

    /// Returns the author of a text as it is shown; `None` if the account is deleted.
    pub(crate) fn author(&self, id: u64) -> Option<Author> {
        let user = self.users.get(&id)?.clone();
        Some(Author { user: Some(user), relation: self.relation(id).into() })
    }

    /// Returns a comment with its author; `None` if the author is deleted.
    pub(crate) fn view_comment(&self, mut comment: Comment) -> Option<ViewedComment> {
        let author = Some(self.author(comment.author_id)?);
        self.fill_mentions(comment.id, &mut comment.entities);
        Some(ViewedComment { comment: Some(comment), author })
    }

    /// Sets the account ids in the mentions of the text with this id.
    pub(crate) fn fill_mentions(&self, text_id: u64, entities: &mut [Entity]) {
        self.mentioned.fill(text_id, entities);
    }

    /// Returns the viewer's follow relation to an account, NONE if no relation is known.
    fn relation(&self, id: u64) -> RelationState {
        self.relations.get(&id).map_or(RelationState::None, Relation::state)
    }

    /// Checks that the subject exists, and its relation to the viewer, unless the viewer is
    /// anonymous.
    pub(crate) fn check(
        &self,
        subject: Subject,
        rule: fn(&Relation) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if !self.exists(subject.id()) {
            return Err(subject.not_found());
        }
        self.relations.get(&subject.id()).map_or(Ok(()), rule)
    }

    /// Checks that the response has the relations of all accounts: an account without one must not
    /// count as not blocked.
    fn require_relations(&self, ids: &[u64]) -> Result<(), Status> {
        errors::required(ids.iter().all(|id| self.relations.contains_key(id)).then_some(()))
    }

    /// Returns whether an account follows the viewer.
    pub(crate) fn follows_viewer(&self, id: u64) -> bool {
        matches!(self.relation(id), RelationState::Follower | RelationState::Mutual)
    }

    /// Returns whether there is a block between the viewer and an account, in either direction.
    fn is_blocked(&self, id: u64) -> bool {
        self.any_block_reason(id).is_some()
    }

    /// Returns a reason if there is a block between the viewer and an account, in either direction.
    fn any_block_reason(&self, id: u64) -> Option<WithheldReason> {
        let is_blocking = self.relations.get(&id)?.blocking;
        self.blocked_reason(id).or(is_blocking.then_some(WithheldReason::Blocking))
    }

    /// Returns a reason if an account blocks the viewer.
    pub(crate) fn blocked_reason(&self, id: u64) -> Option<WithheldReason> {
        let is_blocked = self.relations.get(&id).is_some_and(|relation| relation.blocked_by);
        is_blocked.then_some(WithheldReason::BlockedBy)
    }

    /// Returns why an account's texts are hidden from the viewer: the account blocks the viewer, or
    /// the viewer blocks or mutes the account; `None` if they are not.
    pub(crate) fn hidden_reason(&self, id: u64) -> Option<WithheldReason> {
        let is_muting = self.relations.get(&id)?.muting;
        self.any_block_reason(id).or(is_muting.then_some(WithheldReason::Muting))
    }

    /// Returns whether an account's texts are hidden from the viewer.
    pub(crate) fn is_hidden(&self, id: u64) -> bool {
        self.hidden_reason(id).is_some()
    }

    /// Returns whether an account exists and its texts are not hidden from the viewer.
    pub(crate) fn is_visible(&self, id: u64) -> bool {
        self.exists(id) && !self.is_hidden(id)
    }
}

/// Rejects a viewer whom the account blocks.
pub(crate) fn reject_blocked(relation: &Relation) -> Result<(), Status> {
    if relation.blocked_by {
        let text = "the account has blocked you";
        return Err(status::with_reason(
            Code::PermissionDenied,
            ErrorReason::BlockedByTarget,
            text,
        ));
    }
    Ok(())
}

/// Rejects a viewer if there is a block between the viewer and the account, in either direction.
pub(crate) fn reject_any_block(relation: &Relation) -> Result<(), Status> {
    reject_blocked(relation)?;
    if relation.blocking {
        let text = "you have blocked the account";
        return Err(status::with_reason(
            Code::FailedPrecondition,
            ErrorReason::TargetBlocked,
            text,
        ));
    }
    Ok(())
}

/// An entry of a list of accounts.
pub(crate) struct AccountEntry {
    /// The account, which may be deleted.
    pub(crate) user_id: u64,
    /// When it came to the list.
    pub(crate) since: Option<Timestamp>,
}

/// What a list of accounts does with those that have a block with the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockedAccounts {
    Omitted,
    Shown,
}

/// Returns the entries of a list of accounts as they are shown, without accounts that are deleted
/// or blocked. The calls of [`hydrate_accounts`].
pub(crate) async fn listed_accounts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    mut entries: Vec<AccountEntry>,
    blocked: BlockedAccounts,
) -> Result<Vec<Option<ListedUser>>, Status> {
    let ids = entries.iter().map(|entry| entry.user_id).collect();
    let mut accounts =
        hydrate_accounts(gateway, context, ids, RelationDetail::BlocksAndMutes).await?;
    if blocked == BlockedAccounts::Omitted {
        entries.retain(|entry| !accounts.is_blocked(entry.user_id));
    }
    let listed = |AccountEntry { user_id, since }| accounts.take_listed(user_id, since);
    Ok(entries.into_iter().map(listed).collect())
}

/// Returns distinct accounts that the caller names as they are shown, in the given order, with since
/// when the viewer follows them; or why not. The context must have no known relations, which lack these
/// times. The calls of [`hydrate_accounts`].
pub(crate) async fn named_accounts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    ids: Vec<u64>,
) -> Result<Vec<Result<ListedUser, WithheldReason>>, Status> {
    debug_assert!(context.known.is_empty());
    let detail = RelationDetail::BlocksMutesAndTimes;
    let mut accounts = hydrate_accounts(gateway, context, ids.clone(), detail).await?;
    let listed = |id| {
        let (since, block) =
            (accounts.following_since.get(&id).copied(), accounts.any_block_reason(id));
        // Without a profile, it is gone.
        let listed = accounts.take_listed(id, since).ok_or(WithheldReason::Gone)?;
        block.map_or(Ok(listed), Err)
    };
    Ok(ids.into_iter().map(listed).collect())
}

#[cfg(test)]
mod tests {
    use microblog_chassis::status::reason_of;

    use super::*;

    fn relation(user_id: u64, [muting, blocking, blocked_by]: [bool; 3]) -> Relation {
        let state = RelationState::Mutual.into();
        Relation { user_id, state, muting, blocking, blocked_by }
    }

    fn accounts() -> HydratedAccounts {
        let users =
            [1, 2, 3, 4, 5].map(|id| User { id, name: format!("n{id}"), ..User::default() });
        let relations = vec![
            relation(1, [false; 3]),
            relation(2, [true, false, false]),
            relation(3, [false, true, false]),
            relation(4, [false, false, true]),
        ];
        HydratedAccounts::new(users.into(), relations)
    }

    #[test]
    fn mutes_and_blocks_either_way_hide_an_account() {
        let hidden = [1, 2, 3, 4, 5, 6].map(|id| accounts().is_hidden(id));
        assert_eq!(hidden, [false, true, true, true, false, false]);
        let blocked = [1, 2, 3, 4, 5, 6].map(|id| accounts().is_blocked(id));
        assert_eq!(blocked, [false, false, true, true, false, false]);
        let visible = [1, 2, 3, 4, 5, 6].map(|id| accounts().is_visible(id));
        assert_eq!(visible, [true, false, false, false, true, false], "the last one is deleted");
    }

    #[test]
    fn a_subject_that_blocks_the_viewer_or_is_gone_is_an_error() {
        let reasons = |rule: fn(&Relation) -> Result<(), Status>| {
            let reason = |id| {
                let checked = accounts().check(Subject::PostAuthor(id), rule);
                checked.err().and_then(|status| reason_of(&status))
            };
            [1, 2, 3, 4, 5, 6].map(reason)
        };
        for (subject, reason) in [
            (Subject::Account(6), ErrorReason::UserNotFound),
            (Subject::CommentAuthor(6), ErrorReason::CommentNotFound),
        ] {
            let error = accounts().check(subject, reject_blocked).unwrap_err();
            assert_eq!(reason_of(&error), Some(reason));
        }
        let (blocked, gone) = (Some(ErrorReason::BlockedByTarget), Some(ErrorReason::PostNotFound));
        assert_eq!(reasons(reject_blocked), [None, None, None, blocked, None, gone]);
        let blocking = Some(ErrorReason::TargetBlocked);
        assert_eq!(reasons(reject_any_block), [None, None, blocking, blocked, None, gone]);
    }

    #[test]
    fn an_account_missing_in_a_response_does_not_count_as_not_blocked() {
        accounts().require_relations(&[1, 4]).unwrap();
        assert_eq!(accounts().require_relations(&[1, 5]).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn an_account_without_a_known_relation_has_none() {
        assert_eq!(accounts().relation(1), RelationState::Mutual);
        assert_eq!(accounts().relation(5), RelationState::None);
    }

    #[test]
    fn a_listed_account_has_its_own_profile_and_relation() {
        let mut accounts = accounts();
        let since = Some(Timestamp { seconds: 7, nanos: 0 });
        let first = accounts.take_listed(1, since).unwrap();
        assert_eq!(first.user.as_ref().unwrap().name, "n1");
        assert_eq!((first.relation(), first.since), (RelationState::Mutual, since));
        assert_eq!(accounts.take_listed(5, None).unwrap().relation(), RelationState::None);
        assert!(accounts.take_listed(6, None).is_none(), "the account is deleted");
        let second = accounts.listed(2).unwrap();
        assert!(second.muting && second.since.is_none());
        assert_eq!(accounts.listed(2), Some(second), "it is still there");
        assert!(accounts.listed(1).is_none());
    }
}
