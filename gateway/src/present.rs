//! The last step of a view: its parts put together. Pure.

use std::collections::HashMap;

use microblog_domain::UserId;
use microblog_proto::{
    gateway::ListedUser,
    relation::{Edge, Relation, RelationState},
    user::User,
};

/// Returns the entries of a list in their order, each with its profile and its relation to the
/// viewer, NONE where no relation is known. Entries without a profile are left out: those accounts
/// are gone.
pub(crate) fn listed(
    edges: Vec<Edge>,
    users: Vec<User>,
    relations: &[Relation],
) -> Vec<ListedUser> {
    let mut users: HashMap<u64, User> = users.into_iter().map(|user| (user.id, user)).collect();
    let states: HashMap<u64, i32> =
        relations.iter().map(|relation| (relation.user_id, relation.state)).collect();
    let listed = edges.into_iter().filter_map(|edge| {
        let user = users.remove(&edge.user_id)?;
        let state = states.get(&edge.user_id).copied();
        let relation = state.unwrap_or(RelationState::None.into());
        Some(ListedUser { user: Some(user), relation, since: edge.since })
    });
    listed.collect()
}

/// Returns how an account stands to somebody who has nothing to do with it.
pub(crate) fn stranger(user: UserId) -> Relation {
    Relation {
        user_id: user.get(),
        state: RelationState::None.into(),
        blocking: false,
        blocked_by: false,
        muting: false,
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn edge(user_id: u64) -> Edge {
        let since = Timestamp { seconds: user_id as i64, nanos: 0 };
        Edge { user_id, since: Some(since), version: user_id }
    }

    fn user(id: u64) -> User {
        User { id, name: format!("n{id}"), ..User::default() }
    }

    fn relation(user_id: u64, state: RelationState) -> Relation {
        Relation { user_id, state: state.into(), ..Relation::default() }
    }

    #[test]
    fn the_order_is_the_lists_whatever_order_the_parts_came_in() {
        let relations = [relation(1, RelationState::Mutual), relation(2, RelationState::Follower)];
        let listed = listed(vec![edge(2), edge(1)], vec![user(1), user(2)], &relations);
        let names: Vec<_> = listed.iter().map(|l| l.user.clone().unwrap().name).collect();
        assert_eq!(names, ["n2", "n1"]);
        assert_eq!(listed[0].relation(), RelationState::Follower);
        assert_eq!(listed[1].relation(), RelationState::Mutual);
        assert_eq!(listed[1].since.unwrap().seconds, 1);
    }

    #[test]
    fn an_account_that_is_gone_is_left_out() {
        let listed = listed(vec![edge(3), edge(2), edge(1)], vec![user(1), user(3)], &[]);
        let ids: Vec<_> = listed.iter().map(|l| l.user.clone().unwrap().id).collect();
        assert_eq!(ids, [3, 1]);
    }

    #[test]
    fn without_a_viewer_nobody_is_related() {
        let listed = listed(vec![edge(1)], vec![user(1)], &[]);
        assert_eq!(listed[0].relation(), RelationState::None);
        assert_eq!(stranger(UserId::new(1).unwrap()).state(), RelationState::None);
    }
}
