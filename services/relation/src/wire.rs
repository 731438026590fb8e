//! Conversion between wire types and domain types, with validation of requests.

use std::time::{Duration, SystemTime};

use microblog_domain::{BATCH_MAX, Fields as _, Invalid, Order, PageSize, Scope, Stamp, UserId};
use microblog_proto::relation::{self as pb, EdgeList};
use microblog_storage::Record;

use crate::{
    error::Error,
    graph::{Counts, Edge, Include, List, ListSet, Relation, State},
    import::ImportResult,
    intersection::Intersection,
    listing::{IdList, Listing, ListingPage},
    lists::{Page, from_token, ids},
    verify::Report,
};

/// The most follows per import.
const IMPORT_MAX: usize = 10_000;

/// Followers per message of a stream.
const STREAM_BATCH_DEFAULT: usize = 1_000;
const STREAM_BATCH_MAX: usize = 2_000;

/// Decodes an account.
pub(crate) fn user(field: &str, id: u64) -> Result<UserId, Error> {
    Ok(UserId::parse(field, id)?)
}

/// Decodes the two accounts of an edge.
pub(crate) fn edge(from: (&str, u64), to: (&str, u64)) -> Result<Edge, Error> {
    let ids = (UserId::parse(from.0, from.1), UserId::parse(to.0, to.1));
    let (from, to) = ids.all().map_err(Error::Invalid)?;
    Ok(Edge { from, to })
}

/// Decodes the two accounts of an edge, which must differ.
pub(crate) fn proper_edge(
    from: (&'static str, u64),
    to: (&'static str, u64),
) -> Result<Edge, Error> {
    let edge = edge(from, to)?;
    if edge.from == edge.to { Err(Error::SelfRelation(to.0)) } else { Ok(edge) }
}

/// Decodes a list with the scope of its page tokens, and the size of a page.
pub(crate) fn listing(request: &pb::ListEdgesRequest) -> Result<(Listing, Scope, usize), Error> {
    let list = EdgeList::try_from(request.list).unwrap_or_default();
    let is_known = match list {
        EdgeList::Unspecified => Err(Invalid::new("list", "must be one of the lists")),
        _ => Ok(()),
    };
    let fields = (
        UserId::parse("user_id", request.user_id),
        viewer(list, request.viewer_id),
        order(list, request.order),
        PageSize::parse(request.page_size),
        is_known,
    );
    let (user, viewer, order, count, ()) = fields.all().map_err(Error::Invalid)?;

    let stored = |list| Listing::Stored { list, user, order };
    let listing = match list {
        EdgeList::Following | EdgeList::Unspecified => stored(List::Following),
        EdgeList::Followers => stored(List::Followers),
        EdgeList::FollowersNotFollowedBack => Listing::NotFollowedBack(user),
        EdgeList::Mutuals => stored(List::Mutuals),
        EdgeList::CommonFollowing => {
            Listing::Intersection(Intersection::following(viewer.unwrap_or(user), user))
        }
        EdgeList::FollowersIFollow => {
            Listing::Intersection(Intersection::followers_followed(user, viewer.unwrap_or(user)))
        }
        EdgeList::Blocks => stored(List::Blocks),
        EdgeList::Mutes => stored(List::Mutes),
    };
    // The authorizer has checked that the caller acts for the viewer.
    let is_private = matches!(listing, Listing::Stored { list, .. } if list.is_private());
    if is_private && viewer != Some(user) {
        return Err(Error::PrivateList);
    }
    let scope = Scope::new("ListEdges")
        .with(list as u64)
        .with(request.user_id)
        .with(viewer.map_or(0, UserId::get))
        .with(u64::from(order == Order::Oldest));
    Ok((listing, scope, count.get()))
}

/// Decodes the viewer of a list, and returns those whose relations a page of it has: the list's user
/// and the accounts of the page. `None` without a viewer.
pub(crate) fn listing_viewer(
    request: &pb::ListEdgesRequest,
    page: &ListingPage,
) -> Result<Option<(UserId, Vec<UserId>)>, Error> {
    if request.viewer_id == 0 {
        return Ok(None);
    }
    let viewer = user("viewer_id", request.viewer_id)?;
    let of_page = ids(&page.entries).into_iter();
    let mut targets: Vec<_> = UserId::new(request.user_id).into_iter().chain(of_page).collect();
    targets.sort_unstable();
    targets.dedup();
    Ok(Some((viewer, targets)))
}

// Decodes the viewer that a list depends on; `None` for other lists.
fn viewer(list: EdgeList, id: u64) -> Result<Option<UserId>, Invalid> {
    match list {
        EdgeList::Following
        | EdgeList::Followers
        | EdgeList::FollowersNotFollowedBack
        | EdgeList::Mutuals
            if id != 0 =>
        {
            UserId::parse("viewer_id", id).map(|_| None)
        }
        EdgeList::Unspecified
        | EdgeList::Following
        | EdgeList::Followers
        | EdgeList::FollowersNotFollowedBack
        | EdgeList::Mutuals => Ok(None),
        EdgeList::CommonFollowing
        | EdgeList::FollowersIFollow
        | EdgeList::Blocks
        | EdgeList::Mutes => UserId::parse("viewer_id", id).map(Some),
    }
}

// Decodes the order of a list.
fn order(list: EdgeList, order: i32) -> Result<Order, Invalid> {
    if !matches!(list, EdgeList::Following | EdgeList::Unspecified) {
        reject_if(order != 0, "order")?;
    }
    match pb::FollowOrder::try_from(order) {
        Ok(pb::FollowOrder::Unspecified | pb::FollowOrder::NewestFirst) => Ok(Order::Newest),
        Ok(pb::FollowOrder::OldestFirst) => Ok(Order::Oldest),
        Err(_) => Err(Invalid::new("order", "must be one of the orders")),
    }
}

fn reject_if(is_set: bool, field: &str) -> Result<(), Invalid> {
    if is_set { Err(Invalid::new(field, "does not apply to this list")) } else { Ok(()) }
}

/// Decodes a list whose ids are returned, with the scope of its page tokens.
pub(crate) fn id_list(request: &pb::ListEdgeIdsRequest) -> Result<(IdList, Scope), Error> {
    let list = EdgeList::try_from(request.list).unwrap_or_default();
    let stored = match list {
        EdgeList::Following => Ok(List::Following),
        EdgeList::Mutuals => Ok(List::Mutuals),
        _ => Err(Invalid::new("list", "must be FOLLOWING or MUTUALS")),
    };
    let user = UserId::parse("user_id", request.user_id);
    let fields = (user, newer_than(list, request.newer_than_version), stored);
    let (user, newer_than, list) = fields.all().map_err(Error::Invalid)?;
    let scope = Scope::new("ListEdgeIds")
        .with(request.list as u64)
        .with(request.user_id)
        .with(request.newer_than_version);
    Ok((IdList { list, user, newer_than_ms: newer_than.map(unix_ms) }, scope))
}

// Decodes the version after which a list starts; 0 means all of it.
fn newer_than(list: EdgeList, version: u64) -> Result<Option<Stamp>, Invalid> {
    if list != EdgeList::Following {
        reject_if(version != 0, "newer_than_version")?;
    }
    let stamp = Stamp::new(version);
    let stamp =
        stamp.ok_or_else(|| Invalid::new("newer_than_version", "must be a version: below 2^53"))?;
    Ok((version > 0).then_some(stamp))
}

fn unix_ms(stamp: Stamp) -> u64 {
    stamp.time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Decodes an intersection to count, and the number of newest entries to return.
pub(crate) fn intersection(
    request: &pb::CountEdgesRequest,
) -> Result<(Intersection, usize), Error> {
    let newest = usize::try_from(request.newest).ok().filter(|&count| count <= PageSize::MAX);
    let newest =
        newest.ok_or_else(|| Invalid::new("newest", format!("must be 0 to {}", PageSize::MAX)));
    let of: Result<fn(UserId, UserId) -> Intersection, _> = match EdgeList::try_from(request.list) {
        Ok(EdgeList::CommonFollowing) => Ok(|user, viewer| Intersection::following(viewer, user)),
        Ok(EdgeList::FollowersIFollow) => Ok(Intersection::followers_followed),
        _ => Err(Invalid::new("list", "must be COMMON_FOLLOWING or FOLLOWERS_I_FOLLOW")),
    };
    let user = UserId::parse("user_id", request.user_id);
    let viewer = UserId::parse("viewer_id", request.viewer_id);
    let (user, viewer, newest, of) = (user, viewer, newest, of).all().map_err(Error::Invalid)?;
    Ok((of(user, viewer), newest))
}

/// Decodes a batch of accounts. Leaves out numbers that are no ids.
pub(crate) fn batch(field: &str, ids: &[u64]) -> Result<Vec<UserId>, Error> {
    Ok(UserId::parse_list(field, ids, BATCH_MAX)?)
}

/// Decodes the parts of relations to return.
pub(crate) fn include(request: &pb::BatchGetRelationsRequest) -> Result<Include, Error> {
    let mut lists = ListSet::default();
    for &list in &request.include {
        lists = match EdgeList::try_from(list) {
            Ok(EdgeList::Blocks) => lists.with(List::Blocks).with(List::BlockedBy),
            Ok(EdgeList::Mutes) => lists.with(List::Mutes),
            _ => return Err(Invalid::new("include", "must be BLOCKS or MUTES").into()),
        };
    }
    Ok(Include {
        lists,
        newest_following: request.include_newest_following_version,
        following_since: request.include_following_since,
    })
}

/// Decodes the follows of an import.
pub(crate) fn follows(follows: &[pb::Follow]) -> Result<Vec<Edge>, Error> {
    if follows.len() > IMPORT_MAX {
        let problem = format!("must have at most {IMPORT_MAX} items, has {}", follows.len());
        return Err(Invalid::new("follows", problem).into());
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
    let edges: Result<_, Invalid> = follows.iter().enumerate().map(edge).collect();
    Ok(edges?)
}

/// Decodes the position and the size of the batches of a followers stream, and the scope of its
/// tokens.
pub(crate) fn stream(
    request: &pb::StreamFollowersRequest,
) -> Result<(UserId, Option<Record>, usize, Scope), Error> {
    let user = user("user_id", request.user_id)?;
    let size = request.batch_size;
    let size = PageSize::parse_field("batch_size", size, STREAM_BATCH_DEFAULT, STREAM_BATCH_MAX)?;
    let scope = Scope::new("StreamFollowers").with(request.user_id);
    let after = from_token(scope, &request.page_token)?;
    Ok((user, after, size.get(), scope))
}

/// Encodes an edge, as an entry of a list of the account at its other end.
pub(crate) fn entry(user_id: u64, edge: Edge, since_ms: u64) -> pb::Edge {
    pb::Edge { user_id, since: since(since_ms), version: edge.version(since_ms) }
}

fn since<T: From<SystemTime>>(unix_ms: u64) -> Option<T> {
    Some((SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms)).into())
}

/// Encodes since when the viewer follows a target; `None` if that is not known.
pub(crate) fn following_since(relation: &Relation) -> Option<pb::FollowingSince> {
    let since_ms = Some(relation.following_since_ms).filter(|&time| time > 0)?;
    Some(pb::FollowingSince { user_id: relation.target.get(), since: since(since_ms) })
}

/// Encodes the entries of a page of a user's list.
pub(crate) fn entries((list, user): (List, UserId), entries: &[Record]) -> Vec<pb::Edge> {
    let entry = |Record { id, time_ms }: &Record| {
        Some(entry(*id, list.edge(user, UserId::new(*id)?), *time_ms))
    };
    entries.iter().filter_map(entry).collect()
}

/// Encodes a page of a list.
pub(crate) fn listing_page(page: ListingPage, relations: Vec<Relation>) -> pb::ListEdgesResponse {
    let ListingPage { of, entries, next_page_token } = page;
    let relations = relations.into_iter().map(relation).collect();
    pb::ListEdgesResponse { edges: self::entries(of, &entries), next_page_token, relations }
}

/// Encodes the ids of a page of a list, which is the first one if `request` has no token.
pub(crate) fn id_page(
    request: &pb::ListEdgeIdsRequest,
    list: IdList,
    page: &Page,
    scope: Scope,
) -> pb::ListEdgeIdsResponse {
    let is_first = request.page_token.is_empty();
    let newest = page.entries.first().filter(|_| is_first && list.list == List::Following);
    pb::ListEdgeIdsResponse {
        user_ids: page.entries.iter().map(|entry| entry.id).collect(),
        next_page_token: page.next_token(scope),
        newest_version: newest.map_or(0, |newest| following_version(list.user, newest.time_ms)),
    }
}

/// Returns the version of a follow of a user; 0 for the time 0, which is none.
pub(crate) fn following_version(user: UserId, time_ms: u64) -> u64 {
    if time_ms == 0 { 0 } else { Edge { from: user, to: user }.version(time_ms) }
}

/// Encodes a batch of a followers stream.
pub(crate) fn followers(page: &Page, scope: Scope) -> pb::StreamFollowersResponse {
    let user_ids = page.entries.iter().map(|entry| entry.id).collect();
    pb::StreamFollowersResponse { user_ids, next_page_token: page.next_token(scope) }
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
        blocking: relation.lists.contains(List::Blocks),
        blocked_by: relation.lists.contains(List::BlockedBy),
        muting: relation.lists.contains(List::Mutes),
    }
}

/// Encodes the relation to a target that cannot exist.
pub(crate) fn no_relation(user_id: u64) -> pb::Relation {
    pb::Relation { user_id, state: pb::RelationState::None.into(), ..Default::default() }
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
        rejected_self: imported.rejected_self,
        rejected_blocked: imported.rejected_blocked,
        rejected_limit: imported.rejected_limit,
        rejected_deleted: imported.rejected_deleted,
    }
}

/// Encodes the result of a check.
pub(crate) fn report(report: Report) -> pb::VerifyResponse {
    pb::VerifyResponse {
        users_checked: report.users,
        follows_checked: report.follows,
        violations: report.violations.into_vec(),
        pending: report.pending.into_vec(),
    }
}
