//! ViewUser and Me: an account as other viewers see it, and the viewer's own account.

use microblog_domain::UserId;
use microblog_proto::{
    gateway,
    relation::{self, EdgeList, Relation, RelationState},
    user,
};
use tonic::Status;

use crate::{
    context::{
        AccountRef, ViewContext, authenticate_optional_within, authenticate_within, profile,
        verify_beside,
    },
    credentials::Credentials,
    errors,
    hydration::{
        accounts::{RelationDetail, hydrate_accounts, profiles},
        counts::hydrate_counts,
    },
    state::Gateway,
};

/// How many followers that the viewer follows are shown with an account.
const FOLLOWED_BY: usize = 3;

/// How many of these followers are read, since some may be deleted or hidden from the viewer.
const FOLLOWED_BY_READ: i32 = 6;

/// Shows an account. By id, up to 8 calls, 3 without a token: user.BatchGetUsers ∥
/// relation.BatchGetCounts ∥ post.BatchGetPostCounts and those of [`viewer_relations`]. By name, up to
/// 9, 3 without a token: user.Authenticate ∥ user.GetUserByName, then those after the first at once.
pub(crate) async fn view_user(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewUserRequest,
) -> Result<gateway::ViewUserResponse, Status> {
    let user = AccountRef::parse_only(request.user)?;
    authenticate_optional_within(gateway, credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let (profile, counts, relations) = match user {
            AccountRef::Id(id) => tokio::join!(
                profile_by_id(gateway, context, id),
                counts(gateway, id),
                viewer_relations(gateway, context, id)
            ),
            AccountRef::Name(_) => {
                let profile = profile(gateway, &user);
                let profile = verify_beside(gateway, context.session, profile).await??;
                let id = errors::user_id(profile.id)?;
                let (counts, relations) =
                    tokio::join!(counts(gateway, id), viewer_relations(gateway, context, id));
                (Ok(profile), counts, relations)
            }
        };
        let (profile, (counts, posts), relations) = (profile?, counts?, relations?);
        Ok(gateway::ViewUserResponse {
            user: Some(profile),
            counts: Some(counts),
            relation: Some(relations.relation),
            common_following: relations.common_following,
            posts,
            followed_by: relations.followed_by,
            followed_by_count: relations.followed_by_count,
        })
    })
    .await
}

/// Returns the profile of an account, or USER_NOT_FOUND. One call, which also verifies the session:
/// user.BatchGetUsers.
async fn profile_by_id(
    gateway: &Gateway,
    context: ViewContext<'_>,
    id: UserId,
) -> Result<user::User, Status> {
    let response = profiles(gateway, context, vec![id.get()], Vec::new()).await?;
    // The viewer's profile may be among them.
    let user = response.users.into_iter().find(|user| user.id == id.get());
    user.ok_or_else(errors::user_not_found)
}

/// Shows the viewer's own account. 4 calls at once: user.Authenticate ∥ user.GetAccount ∥
/// relation.BatchGetCounts ∥ post.BatchGetPostCounts.
pub(crate) async fn me(
    gateway: &Gateway,
    credentials: Credentials,
    _request: gateway::MeRequest,
) -> Result<gateway::MeResponse, Status> {
    authenticate_within(gateway, credentials, |session| async move {
        let (client, user_id) = (gateway.peers.user(), session.viewer.get());
        let account = client.get_account(user::GetAccountRequest { user_id });
        let own = async { tokio::join!(account, counts(gateway, session.viewer)) };
        let (account, counts) = verify_beside(gateway, Some(&session), own).await?;
        let account = errors::required(errors::reply(account, &[])?.account)?;
        let (counts, posts) = counts?;
        Ok(gateway::MeResponse { account: Some(account), counts: Some(counts), posts })
    })
    .await
}

/// Returns the lengths of an account's lists, and the number of its posts if it is known. The calls of
/// [`hydrate_counts`].
async fn counts(
    gateway: &Gateway,
    user: UserId,
) -> Result<(relation::Counts, Option<u64>), Status> {
    hydrate_counts(gateway, vec![user.get()]).await?.of(user.get())
}

/// The viewer's relations to an account, and the accounts between them.
#[derive(Default)]
struct ViewerRelations {
    relation: Relation,
    common_following: u64,
    followed_by: Vec<user::User>,
    followed_by_count: u64,
}

/// Returns the viewer's relations to an account. No call for an anonymous viewer; otherwise
/// relation.GetRelation ∥ relation.CountEdges ∥ relation.CountEdges (only one for the viewer's own
/// account), then user.BatchGetUsers ∥ relation.BatchGetRelations (not if the viewer follows none of
/// the account's followers).
async fn viewer_relations(
    gateway: &Gateway,
    context: ViewContext<'_>,
    user: UserId,
) -> Result<ViewerRelations, Status> {
    let Some(viewer) = context.viewer else {
        let state = RelationState::None.into();
        let relation = Relation { user_id: user.get(), state, ..Relation::default() };
        return Ok(ViewerRelations { relation, ..ViewerRelations::default() });
    };
    let request = relation::GetRelationRequest { viewer_id: viewer.get(), target_id: user.get() };
    let followers = async {
        if viewer == user {
            return Ok(relation::CountEdgesResponse::default());
        }
        count_edges(gateway, EdgeList::FollowersIFollow, viewer, user, FOLLOWED_BY_READ).await
    };
    let (relation, common, followers) = tokio::join!(
        gateway.peers.relation().get_relation(request),
        count_edges(gateway, EdgeList::CommonFollowing, viewer, user, 0),
        followers,
    );
    let relation = errors::reply(relation, &[])?;
    let mut common_following = common?.count;
    let relation = errors::required(relation.relation)?;
    let mut followers = followers?;
    // The account's lists are hidden from a viewer whom it blocks.
    if relation.blocked_by {
        common_following = 0;
        followers = relation::CountEdgesResponse::default();
    }
    Ok(ViewerRelations {
        relation,
        common_following,
        followed_by: visible_followers(gateway, context, followers.newest).await?,
        followed_by_count: followers.count,
    })
}

/// Returns how many accounts a list of the viewer and an account has, and the newest of them. One
/// call.
async fn count_edges(
    gateway: &Gateway,
    list: EdgeList,
    viewer: UserId,
    user: UserId,
    newest: i32,
) -> Result<relation::CountEdgesResponse, Status> {
    let request = relation::CountEdgesRequest {
        user_id: user.get(),
        list: list.into(),
        viewer_id: viewer.get(),
        newest,
    };
    errors::reply(gateway.peers.relation().count_edges(request).await, &[])
}

/// Returns the first followers that exist and are not hidden from the viewer. Two calls at once;
/// none without followers.
async fn visible_followers(
    gateway: &Gateway,
    context: ViewContext<'_>,
    newest: Vec<relation::Edge>,
) -> Result<Vec<user::User>, Status> {
    let ids: Vec<u64> = newest.iter().map(|edge| edge.user_id).collect();
    let detail = RelationDetail::BlocksAndMutes;
    let mut accounts = hydrate_accounts(gateway, context, ids.clone(), detail).await?;
    let visible = ids
        .into_iter()
        .filter_map(|id| if accounts.is_hidden(id) { None } else { accounts.take_user(id) });
    Ok(visible.take(FOLLOWED_BY).collect())
}
