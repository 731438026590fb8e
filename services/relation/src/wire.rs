//! Conversion between wire types and domain types, with validation of requests.

use microblog_domain::{BATCH_MAX, Invalid, PageSize, Scope, Stamp, TokenError, UserId};
use microblog_keyspace::{Entry, Order};
use microblog_proto::relation as pb;

use crate::{
    edge_saga::ImportResult,
    error::Error,
    graph::{Counts, Edge, Relation, State},
    intersection::{IntersectionCursor, IntersectionPage},
    verify::Report,
};

/// The most follows per import.
const IMPORT_MAX: usize = 100_000;

/// Decodes the two accounts of an edge.
pub(crate) fn edge(from: (&str, u64), to: (&str, u64)) -> Result<Edge, Error> {
    match (UserId::parse(from.0, from.1), UserId::parse(to.0, to.1)) {
        (Ok(from), Ok(to)) => Ok(Edge { from, to }),
        (from, to) => Err(Error::Invalid([from.err(), to.err()].into_iter().flatten().collect())),
    }
}

/// Decodes the two accounts of an edge, which must differ.
pub(crate) fn proper_edge(
    from: (&'static str, u64),
    to: (&'static str, u64),
) -> Result<Edge, Error> {
    let edge = edge(from, to)?;
    if edge.from == edge.to { Err(Error::SelfRelation(to.0)) } else { Ok(edge) }
}

/// Decodes the version after which a list starts; 0 means all of it.
pub(crate) fn newer_than(version: u64) -> Result<Option<u64>, Invalid> {
    if Stamp::new(version).is_none() {
        return Err(Invalid::new("newer_than_version", "must be a version: below 2^53"));
    }
    Ok((version > 0).then_some(version))
}

/// Decodes the order of a list.
pub(crate) fn order(order: i32) -> Result<Order, Invalid> {
    match pb::FollowOrder::try_from(order) {
        Ok(pb::FollowOrder::Unspecified | pb::FollowOrder::NewestFirst) => Ok(Order::Newest),
        Ok(pb::FollowOrder::OldestFirst) => Ok(Order::Oldest),
        Err(_) => Err(Invalid::new("order", "must be one of the orders")),
    }
}

/// Decodes the number of newest entries to return.
pub(crate) fn newest(newest: i32) -> Result<usize, Invalid> {
    let count = usize::try_from(newest).ok().filter(|&count| count <= PageSize::MAX);
    count.ok_or_else(|| Invalid::new("newest", format!("must be 0 to {}", PageSize::MAX)))
}

/// Decodes a batch of accounts.
pub(crate) fn batch(field: &str, ids: &[u64]) -> Result<Vec<UserId>, Invalid> {
    UserId::parse_list(field, ids, BATCH_MAX)
}

/// Decodes the follows of an import.
pub(crate) fn follows(follows: &[pb::Follow]) -> Result<Vec<Edge>, Invalid> {
    if follows.len() > IMPORT_MAX {
        let problem = format!("must have at most {IMPORT_MAX} items, has {}", follows.len());
        return Err(Invalid::new("follows", problem));
    }
    let id = |i: usize, name: &str, id| {
        UserId::new(id).map_or_else(|| UserId::parse(&format!("follows[{i}].{name}"), id), Ok)
    };
    let edge = |(i, follow): (usize, &pb::Follow)| {
        Ok(Edge {
            from: id(i, "follower_id", follow.follower_id)?,
            to: id(i, "target_id", follow.target_id)?,
        })
    };
    follows.iter().enumerate().map(edge).collect()
}

/// Decodes the page token of an intersection.
pub(crate) fn cursor(scope: Scope, token: &str) -> Result<Option<IntersectionCursor>, TokenError> {
    let Some([shorter, score, member]) = scope.read(token)? else { return Ok(None) };
    let shorter = usize::try_from(shorter).ok().filter(|&side| side < 2);
    let after = Some(Entry { score, member });
    shorter.map(|shorter| Some(IntersectionCursor { shorter, after })).ok_or(TokenError::Invalid)
}

/// Encodes the token of the next page of an intersection.
pub(crate) fn next_cursor_token(scope: Scope, found: &IntersectionPage) -> String {
    let position = found.next.and_then(|cursor| Some((cursor.shorter, cursor.after?)));
    position.map_or_else(String::new, |(shorter, Entry { score, member })| {
        scope.token([shorter as u64, score, member])
    })
}

/// Encodes a list entry.
pub(crate) fn entry(user_id: u64, version: u64) -> pb::Edge {
    let since = Stamp::new(version).map(|stamp| stamp.time().into());
    pb::Edge { user_id, since, version }
}

/// Encodes the entries of a page.
pub(crate) fn entries(entries: &[Entry]) -> Vec<pb::Edge> {
    entries.iter().map(|e| entry(e.member, e.score)).collect()
}

/// Encodes a state.
pub(crate) fn state(state: State) -> pb::RelationState {
    match state {
        State::None => pb::RelationState::None,
        State::Following => pb::RelationState::Following,
        State::Follower => pb::RelationState::Follower,
        State::Mutual => pb::RelationState::Mutual,
        State::Own => pb::RelationState::Self_,
    }
}

/// Encodes a relation.
pub(crate) fn relation(relation: Relation) -> pb::Relation {
    pb::Relation {
        user_id: relation.target.get(),
        state: state(relation.state).into(),
        blocking: relation.blocking,
        blocked_by: relation.blocked_by,
        muting: relation.muting,
    }
}

/// Encodes the lengths of a user's lists.
pub(crate) fn counts(user: UserId, counts: Counts) -> pb::Counts {
    pb::Counts {
        user_id: user.get(),
        following: counts.following,
        followers: counts.followers,
        mutuals: counts.mutuals,
    }
}

/// Encodes the result of an import.
pub(crate) fn imported(imported: ImportResult) -> pb::ImportFollowsResponse {
    pb::ImportFollowsResponse {
        created: imported.created,
        unchanged: imported.unchanged,
        refused_self: imported.rejected_self,
        refused_blocked: imported.rejected_blocked,
        refused_limit: imported.rejected_limit,
        refused_forgotten: imported.rejected_forgotten,
    }
}

/// Encodes the result of a check.
pub(crate) fn report(report: Report) -> pb::VerifyResponse {
    pb::VerifyResponse {
        users_checked: report.users,
        follows_checked: report.follows,
        violations: report.violations.into_vec(),
        repaired: report.repairs.into_vec(),
    }
}
