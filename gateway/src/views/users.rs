//! ViewUsers: accounts that the caller names, as lists of accounts show them.

use microblog_chassis::status;
use microblog_domain::{IdSet, Invalid, PageSize};
use microblog_proto::{gateway, user::NamedUser};
use tonic::Status;

use crate::{
    context::{AccountRef, ViewContext, authenticate_optional_within},
    credentials::Credentials,
    errors,
    hydration::{
        accounts::{named_accounts, profiles},
        counts::hydrate_counts,
    },
    state::Gateway,
};

/// The most accounts of a request: as many as a page has.
const USERS_MAX: usize = PageSize::MAX;

/// No account has a longer name.
const NAME_BYTES_MAX: usize = 30;

/// Shows accounts. 2 calls at once, 1 without a token: user.BatchGetUsers ∥
/// relation.BatchGetRelations. By name, one more: user.BatchGetUsers before them. With counts, those of
/// [`hydrate_counts`] at the same time.
pub(crate) async fn view_users(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    request: gateway::ViewUsersRequest,
) -> Result<gateway::ViewUsersResponse, Status> {
    let gateway::ViewUsersRequest { users, include_counts } = request;
    let accounts = parse(users).map_err(|invalid| status::invalid([invalid]))?;
    authenticate_optional_within(gateway, credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let ids = account_ids(gateway, context, &accounts).await?;
        if !include_counts || ids.is_empty() {
            let users = named_accounts(gateway, context, ids).await?;
            return Ok(gateway::ViewUsersResponse { users });
        }
        let (users, counts) = tokio::join!(
            named_accounts(gateway, context, ids.clone()),
            hydrate_counts(gateway, ids)
        );
        let (mut users, counts) = (users?, counts?);
        for listed in &mut users {
            let id = listed.user.as_ref().map(|user| user.id);
            let (counts, posts) = counts.of(errors::required(id)?)?;
            (listed.counts, listed.posts) = (Some(counts), posts);
        }
        Ok(gateway::ViewUsersResponse { users })
    })
    .await
}

/// Parses the field `users`.
fn parse(users: Vec<gateway::UserRef>) -> Result<Vec<AccountRef>, Invalid> {
    if users.len() > USERS_MAX {
        let problem = format!("must have at most {USERS_MAX} items, has {}", users.len());
        return Err(Invalid::new("users", problem));
    }
    let parse = |(i, user)| AccountRef::parse_field(&format!("users[{i}]"), Some(user));
    users.into_iter().enumerate().map(parse).collect()
}

/// Returns the distinct ids of accounts, in the given order, without names that no account has. One
/// call, none if no account is referenced by name: user.BatchGetUsers, which also verifies the session.
async fn account_ids(
    gateway: &Gateway,
    context: ViewContext<'_>,
    accounts: &[AccountRef],
) -> Result<Vec<u64>, Status> {
    let name = |account: &AccountRef| match account {
        AccountRef::Name(name) if name.len() <= NAME_BYTES_MAX => Some(name.clone()),
        AccountRef::Name(_) | AccountRef::Id(_) => None,
    };
    let names = accounts.iter().filter_map(name).collect();
    let named = profiles(gateway, context, Vec::new(), names).await?.named;
    let of_name = |name: &str| {
        let named = named.iter().find(|named: &&NamedUser| named.name == name);
        named.map(|named| named.user_id)
    };
    let id = |account: &AccountRef| match account {
        AccountRef::Id(id) => Some(id.get()),
        AccountRef::Name(name) => of_name(name),
    };
    let mut seen = IdSet::default();
    Ok(accounts.iter().filter_map(id).filter(|id| seen.insert(*id)).collect())
}
