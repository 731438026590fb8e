//! ViewUsers: accounts that the caller names, as lists of accounts show them.

use microblog_chassis::status;
use microblog_domain::{IdMap, Invalid, PageSize, UserId};
use microblog_proto::{
    gateway::{self, UserRef, WithheldReason, WithheldUser, user_ref::Ref},
    user::NamedUser,
};
use tonic::Status;

use crate::{
    context::{ViewContext, authenticate_optional_within},
    credentials::Principal,
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

/// Shows accounts, and to service callers why others are not shown. 2 calls at once, 1 without a token:
/// user.BatchGetUsers ∥ relation.BatchGetRelations. By name, one more: user.BatchGetUsers before them.
/// With counts, those of [`hydrate_counts`] at the same time.
pub(crate) async fn view_users(
    gateway: &Gateway,
    principal: Principal,
    request: gateway::ViewUsersRequest,
) -> Result<gateway::ViewUsersResponse, Status> {
    let gateway::ViewUsersRequest { users, include_counts } = request;
    if users.len() > USERS_MAX {
        let problem = format!("must have at most {USERS_MAX} items, has {}", users.len());
        return Err(status::invalid([Invalid::new("users", problem)]));
    }
    let explains = principal.caller.is_some();
    authenticate_optional_within(gateway, principal.credentials, |session| async move {
        let context = ViewContext::of(session.as_deref());
        let (accounts, mut withheld) = accounts(gateway, context, &users).await?;
        let ids: Vec<u64> = accounts.iter().map(|account| account.id).collect();
        let counts = async {
            if !include_counts || ids.is_empty() {
                return Ok(None);
            }
            hydrate_counts(gateway, ids.clone()).await.map(Some)
        };
        let (shown, counts) = tokio::join!(named_accounts(gateway, context, ids.clone()), counts);
        let (shown, counts) = (shown?, counts?);
        let mut users = Vec::with_capacity(shown.len());
        for (Account { id, indexes }, shown) in accounts.into_iter().zip(shown) {
            match shown {
                Ok(mut listed) => {
                    if let Some(counts) = &counts {
                        let (counts, posts) = counts.of(id)?;
                        (listed.counts, listed.posts) = (Some(counts), posts);
                    }
                    listed.indexes = indexes;
                    users.push(listed);
                }
                Err(reason) => withheld.push(WithheldUser { indexes, reason: reason.into() }),
            }
        }
        if !explains {
            withheld.clear();
        }
        withheld.sort_unstable_by(|one, other| one.indexes.cmp(&other.indexes));
        Ok(gateway::ViewUsersResponse { users, withheld })
    })
    .await
}

/// An account that may exist.
struct Account {
    id: u64,
    /// The places of its references, from 0.
    indexes: Vec<u32>,
}

/// Returns the distinct accounts of references, in order, and the references that have none. One call,
/// none if no account is referenced by name: user.BatchGetUsers, which also verifies the session.
async fn accounts(
    gateway: &Gateway,
    context: ViewContext<'_>,
    users: &[UserRef],
) -> Result<(Vec<Account>, Vec<WithheldUser>), Status> {
    let name = |user: &UserRef| match &user.r#ref {
        Some(Ref::Name(name)) if name.len() <= NAME_BYTES_MAX => Some(name.clone()),
        _ => None,
    };
    let names = users.iter().filter_map(name).collect();
    let named = profiles(gateway, context, Vec::new(), names).await?.named;
    let of_name = |name: &str| {
        let named = named.iter().find(|named: &&NamedUser| named.name == name);
        named.map(|named| named.user_id)
    };
    let (mut accounts, mut none) = (Vec::<Account>::new(), Vec::new());
    let mut places = IdMap::<u64, usize>::default();
    for (index, user) in (0..).zip(users) {
        let id = match &user.r#ref {
            Some(Ref::Id(id)) => UserId::new(*id).map(UserId::get),
            Some(Ref::Name(name)) => of_name(name),
            None => None,
        };
        let Some(id) = id else {
            let reason = WithheldReason::Gone.into();
            none.push(WithheldUser { indexes: vec![index], reason });
            continue;
        };
        let place = *places.entry(id).or_insert(accounts.len());
        match accounts.get_mut(place) {
            Some(account) => account.indexes.push(index),
            None => accounts.push(Account { id, indexes: vec![index] }),
        }
    }
    Ok((accounts, none))
}
