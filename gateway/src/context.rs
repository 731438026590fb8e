//! The context of a call: the viewer from the credentials, the account that the request names,
//! and whose content is viewed.

use std::sync::Arc;

use microblog_chassis::{self as chassis, status};
use microblog_domain::{IdSet, Invalid, UserId};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, user_ref::Ref},
    relation::Relation,
    user,
};
use tokio::sync::OnceCell;
use tonic::Status;

use crate::{
    callers::not_allowed,
    credentials::{ActingCaller, Credentials, Token},
    errors,
    limits::Limit,
    sessions::RecentSessions,
    state::Gateway,
};

/// Returns the viewer: the account of a session token, or TOKEN_INVALID; or the account that a service
/// caller acts for, or VIEWER_NOT_FOUND. The gateway's further calls for the same request carry this
/// identity. One call: user.Authenticate, or for a service caller
/// user.GetUser or user.GetAccount.
pub(crate) async fn authenticate(
    gateway: &Gateway,
    credentials: Credentials,
) -> Result<UserId, Status> {
    let viewer = match credentials {
        Credentials::Session(token) => session_user(gateway, &token).await?,
        Credentials::Caller(acting) => acted_for(gateway, &acting).await?,
    };
    chassis::context::act_for(viewer);
    Ok(viewer)
}

async fn session_user(gateway: &Gateway, token: &Token) -> Result<UserId, Status> {
    let request = user::AuthenticateRequest { token: token.as_str().to_owned() };
    let response = errors::reply(gateway.peers.user().authenticate(request).await, &[]);
    let response = response.inspect_err(|_| gateway.sessions.remove(token.as_str()))?;
    let viewer = errors::user_id(response.user_id)?;
    gateway.sessions.insert(token.as_str(), viewer);
    Ok(viewer)
}

async fn acted_for(gateway: &Gateway, acting: &ActingCaller) -> Result<UserId, Status> {
    let (client, user_id) = (gateway.peers.user(), acting.viewer.get());
    let not_found = |status: Status| match status::reason_of(&status) {
        Some(ErrorReason::UserNotFound) => {
            status::not_found(ErrorReason::ViewerNotFound, "the viewer does not exist")
        }
        _ => status,
    };
    if acting.caller.acts_for_own() {
        // The account does not view its private part: the system checks who identifies it.
        let account = chassis::context::as_system(async {
            client.get_account(user::GetAccountRequest { user_id }).await
        });
        let account = errors::reply(account.await, &[]).map_err(not_found)?.account;
        let external = errors::required(account)?.external;
        if !external.is_some_and(|external| acting.caller.has_issuer(&external.issuer)) {
            let text = format!("{} may not act for this account", acting.caller.name());
            return Err(not_allowed(text));
        }
    } else {
        let response = client.get_user(user::GetUserRequest { user_id }).await;
        errors::reply(response, &[]).map_err(not_found)?;
    }
    Ok(acting.viewer)
}

/// Returns the result of a read. If the session was verified recently, it is pending, and the read's
/// first user.BatchGetUsers verifies it; user.Authenticate follows only a read that did not verify it.
/// Otherwise user.Authenticate precedes the read. The error of the session wins. The account that a
/// service caller acts for is pending, and that call returns whether it exists; for a caller that may
/// act for its own accounts only, user.GetAccount precedes the read.
///
/// Only for reads: if the session has ended meanwhile, the result is discarded.
pub(crate) async fn authenticate_within<T, F>(
    gateway: &Gateway,
    credentials: Credentials,
    read: impl FnOnce(Arc<Session>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let pending = match &credentials {
        Credentials::Session(token) => gateway.sessions.viewer(token.as_str()),
        Credentials::Caller(acting) => (!acting.caller.acts_for_own()).then_some(acting.viewer),
    };
    let session = Arc::new(match pending {
        Some(viewer) => Session { credentials, viewer, outcome: OnceCell::new() },
        None => {
            let viewer = authenticate(gateway, credentials.clone()).await?;
            Session { credentials, viewer, outcome: OnceCell::new_with(Some(Ok(()))) }
        }
    });
    chassis::context::act_for(session.viewer);
    let result = read(session.clone()).await;
    session.verify(gateway).await?;
    result
}

/// Returns the result of a read that works without a session, too. The calls of
/// [`authenticate_within`].
pub(crate) async fn authenticate_optional_within<T, F>(
    gateway: &Gateway,
    credentials: Option<Credentials>,
    read: impl FnOnce(Option<Arc<Session>>) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    match credentials {
        Some(credentials) => {
            authenticate_within(gateway, credentials, |session| read(Some(session))).await
        }
        None => read(None).await,
    }
}

/// Returns the result of reads without user.BatchGetUsers, and verifies a pending session at the same
/// time. An error of the session does not wait for the reads. One call besides theirs at most:
/// user.Authenticate.
pub(crate) async fn verify_beside<T>(
    gateway: &Gateway,
    session: Option<&Session>,
    reads: impl Future<Output = T>,
) -> Result<T, Status> {
    let Some(session) = session else { return Ok(reads.await) };
    let reads = async { Ok(reads.await) };
    tokio::try_join!(session.verify(gateway), reads).map(|(_verified, result)| result)
}

/// The session of a read.
pub(crate) struct Session {
    credentials: Credentials,
    /// The viewer, as last verified, or as the service caller sent it.
    pub(crate) viewer: UserId,
    /// The outcome of the verification by this read; not set while the session is pending.
    outcome: OnceCell<Result<(), Status>>,
}

impl Session {
    /// Returns the token for user.BatchGetUsers to verify; `None` if none is pending.
    pub(crate) fn pending_token(&self) -> Option<String> {
        match &self.credentials {
            Credentials::Session(token) if self.is_pending() => Some(token.as_str().to_owned()),
            _ => None,
        }
    }

    /// Returns the viewer of a service caller, whose profile user.BatchGetUsers must have; `None` if
    /// none is pending.
    pub(crate) fn pending_viewer(&self) -> Option<UserId> {
        match &self.credentials {
            Credentials::Caller(acting) if self.is_pending() => Some(acting.viewer),
            _ => None,
        }
    }

    fn is_pending(&self) -> bool {
        self.outcome.get().is_none()
    }

    /// Ends the pending state if user.BatchGetUsers returned the viewer as the session's account, or
    /// the profile of the service caller's viewer. Another account, and 0 from a service that does not
    /// know the token's field, leave it pending.
    pub(crate) fn confirm(
        &self,
        sessions: &RecentSessions,
        response: &user::BatchGetUsersResponse,
    ) {
        let viewer = self.viewer.get();
        match &self.credentials {
            Credentials::Session(token) => {
                if response.session_user_id == viewer && self.outcome.set(Ok(())).is_ok() {
                    sessions.insert(token.as_str(), self.viewer);
                }
            }
            Credentials::Caller(_) => {
                if response.users.iter().any(|user| user.id == viewer) {
                    let _ = self.outcome.set(Ok(()));
                }
            }
        }
    }

    /// Verifies the session if it is pending. One call at most: that of [`authenticate`].
    async fn verify(&self, gateway: &Gateway) -> Result<(), Status> {
        let outcome = async {
            let viewer = authenticate(gateway, self.credentials.clone()).await?;
            errors::required((viewer == self.viewer).then_some(()))
        };
        self.outcome.get_or_init(|| outcome).await.clone()
    }
}

/// Returns the viewer after checking a rate limit. The call of [`authenticate`].
pub(crate) async fn authenticate_limited(
    gateway: &Gateway,
    credentials: Credentials,
    limit: &Limit<UserId>,
) -> Result<UserId, Status> {
    let viewer = authenticate(gateway, credentials).await?;
    limit.check(&viewer)?;
    Ok(viewer)
}

/// A reference to an account in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccountRef {
    /// A valid id; the account may not exist.
    Id(UserId),
    /// A name as the caller sent it. The user service validates names.
    Name(String),
}

impl AccountRef {
    /// Parses the field `user` of a request.
    pub(crate) fn parse(user: Option<gateway::UserRef>) -> Result<Self, Invalid> {
        match user.and_then(|user| user.r#ref) {
            Some(Ref::Id(id)) => UserId::parse("user.id", id).map(Self::Id),
            Some(Ref::Name(name)) => Ok(Self::Name(name)),
            None => Err(Invalid::new("user", "must have an id or a name")),
        }
    }

    /// Parses the field `user` of a request in which no other field can be invalid.
    pub(crate) fn parse_only(user: Option<gateway::UserRef>) -> Result<Self, Status> {
        Self::parse(user).map_err(|invalid| status::invalid([invalid]))
    }
}

/// Returns the profile of a referenced account, or USER_NOT_FOUND. One call: user.GetUser or
/// user.GetUserByName.
pub(crate) async fn profile(gateway: &Gateway, user: &AccountRef) -> Result<user::User, Status> {
    const FIELDS: errors::Fields = &[("name", "user.name")];
    let client = gateway.peers.user();
    let user = match user {
        AccountRef::Id(id) => {
            let request = user::GetUserRequest { user_id: id.get() };
            errors::reply(client.get_user(request).await, FIELDS)?.user
        }
        AccountRef::Name(name) => {
            let request = user::GetUserByNameRequest { name: name.clone() };
            errors::reply(client.get_user_by_name(request).await, FIELDS)?.user
        }
    };
    errors::required(user)
}

/// Returns the id of a referenced account. By id, it makes no call, and the account may not exist; by
/// name, it makes the call of [`profile`].
pub(crate) async fn account_id(gateway: &Gateway, user: &AccountRef) -> Result<UserId, Status> {
    match user {
        AccountRef::Id(id) => Ok(*id),
        AccountRef::Name(_) => errors::user_id(profile(gateway, user).await?.id),
    }
}

/// Who views, and whose content.
#[derive(Clone, Copy)]
pub(crate) struct ViewContext<'a> {
    /// `None` for an anonymous call.
    pub(crate) viewer: Option<UserId>,
    /// The session of a read; `None` if it is verified elsewhere, and for an anonymous call.
    pub(crate) session: Option<&'a Session>,
    /// The account whose content is viewed, if it is one account's.
    pub(crate) subject: Option<Subject>,
    /// Viewer relations, with blocks and mutes, that another service returned during this call.
    /// They are valid for this call only.
    pub(crate) known: &'a [Relation],
}

impl<'a> ViewContext<'a> {
    /// Returns the context of a viewer whose session is verified elsewhere.
    pub(crate) const fn new(viewer: Option<UserId>) -> Self {
        Self { viewer, session: None, subject: None, known: &[] }
    }

    /// Returns the context of a read, without a subject.
    pub(crate) fn of(session: Option<&'a Session>) -> Self {
        Self { session, ..Self::new(session.map(|session| session.viewer)) }
    }

    /// Returns the same context with a subject.
    pub(crate) const fn with_subject(self, subject: Subject) -> Self {
        Self { subject: Some(subject), ..self }
    }

    /// Returns whether the viewer requested the content of this account.
    pub(crate) fn requests(self, id: u64) -> bool {
        self.subject == Some(Subject::Account(id))
    }

    /// Returns the accounts whose viewer relations are not known yet.
    pub(crate) fn without_relations(self, ids: &[u64]) -> Vec<u64> {
        let known: IdSet<u64> = self.known.iter().map(|relation| relation.user_id).collect();
        ids.iter().copied().filter(|id| !known.contains(id)).collect()
    }
}

/// The account whose content is viewed. Viewers that it blocks are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The author of the post that the call is about.
    PostAuthor(u64),
    /// The author of the comment that the call answers.
    CommentAuthor(u64),
    /// The account that the viewer requested.
    Account(u64),
}

impl Subject {
    /// Returns the account's id.
    pub(crate) fn id(self) -> u64 {
        match self {
            Self::PostAuthor(id) | Self::CommentAuthor(id) | Self::Account(id) => id,
        }
    }

    /// Returns the error for an account that no longer exists.
    pub(crate) fn not_found(self) -> Status {
        match self {
            Self::PostAuthor(_) => errors::post_not_found(),
            Self::CommentAuthor(_) => errors::comment_not_found(),
            Self::Account(_) => errors::user_not_found(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_pending_until_its_account_is_confirmed() {
        let [ann, bob] = [7, 8].map(|id| UserId::new(id).unwrap());
        let credentials = Credentials::Session(Token::from("abc"));
        let session = Session { credentials, viewer: ann, outcome: OnceCell::new() };
        let sessions = RecentSessions::default();
        let confirm = |session_user_id| {
            let response = user::BatchGetUsersResponse { session_user_id, ..Default::default() };
            session.confirm(&sessions, &response);
        };
        for other in [0, bob.get()] {
            confirm(other);
            assert_eq!(session.pending_token().as_deref(), Some("abc"));
            assert_eq!(sessions.viewer("abc"), None);
        }
        confirm(ann.get());
        assert_eq!(session.pending_token(), None);
        assert_eq!(sessions.viewer("abc"), Some(ann));
    }

    fn parse(reference: Option<Ref>) -> Result<AccountRef, Invalid> {
        AccountRef::parse(Some(gateway::UserRef { r#ref: reference }))
    }

    #[test]
    fn an_invalid_reference_names_its_field() {
        assert_eq!(AccountRef::parse(None).unwrap_err().field, "user");
        assert_eq!(parse(None).unwrap_err().field, "user");
        for id in [0, 1 << 53, 1 << 63, u64::MAX] {
            assert_eq!(parse(Some(Ref::Id(id))).unwrap_err().field, "user.id", "{id}");
        }
    }

    #[test]
    fn ids_and_names_are_distinguished() {
        assert_eq!(parse(Some(Ref::Id(7))), Ok(AccountRef::Id(UserId::new(7).unwrap())));
        assert_eq!(parse(Some(Ref::Name("7".into()))), Ok(AccountRef::Name("7".into())));
    }
}
