//! The context of a call: the viewer from the session token, the account that the request names,
//! and whose content is viewed.

use microblog_chassis::{self as chassis, status};
use microblog_domain::{IdSet, Invalid, UserId};
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, user_ref::Ref},
    relation::Relation,
    user,
};
use tonic::{Status, metadata::MetadataMap};

use crate::{errors, limits::Limit, state::Gateway};

/// A session token from the metadata of a call, not verified. Has no `Debug`, so that it is never
/// logged.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Reads the token of a call that works without one, too.
    ///
    /// A header other than `Bearer <token>` is rejected, not ignored: its sender expects to be
    /// authenticated.
    pub(crate) fn optional(metadata: &MetadataMap) -> Result<Option<Self>, Status> {
        let invalid =
            || status::unauthenticated(ErrorReason::TokenInvalid, "the session token is not valid");
        let mut headers = metadata.get_all("authorization").iter();
        let Some(header) = headers.next() else { return Ok(None) };
        if headers.next().is_some() {
            return Err(invalid());
        }
        let (scheme, token) =
            header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(invalid)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Err(invalid());
        }
        Ok(Some(Self(token.to_owned())))
    }

    /// Reads the token of a call that requires one.
    pub(crate) fn required(metadata: &MetadataMap) -> Result<Self, Status> {
        let missing = || {
            let text = "needs a session token: send metadata `authorization: Bearer <token>`";
            status::unauthenticated(ErrorReason::TokenMissing, text)
        };
        Self::optional(metadata)?.ok_or_else(missing)
    }

    /// Returns the token itself, to send it to the user service.
    pub(crate) fn into_inner(self) -> String {
        self.0
    }
}

/// Returns the account that a token belongs to, or TOKEN_INVALID. The gateway's further calls for
/// the same request carry this identity. One call: user.Authenticate.
pub(crate) async fn authenticate(gateway: &Gateway, token: Token) -> Result<UserId, Status> {
    let request = user::AuthenticateRequest { token: token.0.clone() };
    let response = errors::reply(gateway.peers.user().authenticate(request).await, &[]);
    let response = response.inspect_err(|_| gateway.sessions.remove(&token.0))?;
    let viewer = errors::user_id(response.user_id)?;
    gateway.sessions.insert(&token.0, viewer);
    chassis::context::act_for(viewer);
    Ok(viewer)
}

/// Returns the viewer, and the result of the first reads of a call, which may take the viewer's
/// identity. One call beside those of `first`: user.Authenticate. `first` follows it, or runs at the
/// same time if the session was verified recently. The error of the session wins.
///
/// Only for reads: if the session has ended meanwhile, the result is discarded.
pub(crate) async fn authenticate_and<T, F>(
    gateway: &Gateway,
    token: Token,
    first: impl FnOnce(UserId) -> F,
) -> Result<(UserId, T), Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let Some(recent) = gateway.sessions.viewer(&token.0) else {
        let viewer = authenticate(gateway, token).await?;
        return Ok((viewer, first(viewer).await?));
    };
    chassis::context::act_for(recent);
    // An error of the session does not wait for the reads.
    let reads = async { Ok(first(recent).await) };
    let (viewer, result) = tokio::try_join!(authenticate(gateway, token), reads)?;
    let viewer = errors::required(Some(viewer).filter(|viewer| *viewer == recent))?;
    Ok((viewer, result?))
}

/// Returns the viewer, or `None` for an anonymous call, and the result of the first reads of the
/// call. The calls of [`authenticate_and`].
pub(crate) async fn authenticate_optional_and<T, F>(
    gateway: &Gateway,
    token: Option<Token>,
    first: impl FnOnce(Option<UserId>) -> F,
) -> Result<(Option<UserId>, T), Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let Some(token) = token else { return Ok((None, first(None).await?)) };
    let first = |viewer| first(Some(viewer));
    let (viewer, result) = authenticate_and(gateway, token, first).await?;
    Ok((Some(viewer), result))
}

/// Returns the viewer after checking a rate limit. One call: user.Authenticate.
pub(crate) async fn authenticate_limited(
    gateway: &Gateway,
    token: Token,
    limit: &Limit<UserId>,
) -> Result<UserId, Status> {
    let viewer = authenticate(gateway, token).await?;
    limit.check(&viewer)?;
    Ok(viewer)
}

/// Returns the viewer, or `None` for an anonymous call. One call at most: user.Authenticate.
pub(crate) async fn authenticate_optional(
    gateway: &Gateway,
    token: Option<Token>,
) -> Result<Option<UserId>, Status> {
    match token {
        Some(token) => authenticate(gateway, token).await.map(Some),
        None => Ok(None),
    }
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

/// Returns the viewer and an existing account. The calls of [`profile`] beside those of `viewer`.
pub(crate) async fn viewer_and_account<V>(
    gateway: &Gateway,
    viewer: impl Future<Output = Result<V, Status>>,
    user: &AccountRef,
) -> Result<(V, UserId), Status> {
    let (viewer, profile) = tokio::join!(viewer, profile(gateway, user));
    Ok((viewer?, errors::user_id(profile?.id)?))
}

/// Returns the viewer and an account. A name is looked up as in [`viewer_and_account`]; an id is
/// not, so its account may not exist.
pub(crate) async fn viewer_and_account_id<V>(
    gateway: &Gateway,
    viewer: impl Future<Output = Result<V, Status>>,
    user: &AccountRef,
) -> Result<(V, UserId), Status> {
    match user {
        AccountRef::Id(id) => Ok((viewer.await?, *id)),
        AccountRef::Name(_) => viewer_and_account(gateway, viewer, user).await,
    }
}

/// Returns the viewer, an account, and the result of reads that need both. By id, these are the first
/// reads of [`authenticate_optional_and`], and the account may not exist; by name, they follow
/// [`viewer_and_account`].
pub(crate) async fn viewer_account_and<T, F>(
    gateway: &Gateway,
    token: Option<Token>,
    user: &AccountRef,
    reads: impl FnOnce(Option<UserId>, UserId) -> F,
) -> Result<(Option<UserId>, UserId, T), Status>
where
    F: Future<Output = Result<T, Status>>,
{
    match user {
        AccountRef::Id(id) => {
            let reads = |viewer| reads(viewer, *id);
            let (viewer, result) = authenticate_optional_and(gateway, token, reads).await?;
            Ok((viewer, *id, result))
        }
        AccountRef::Name(_) => {
            let viewer = authenticate_optional(gateway, token);
            let (viewer, id) = viewer_and_account(gateway, viewer, user).await?;
            Ok((viewer, id, reads(viewer, id).await?))
        }
    }
}

/// Who views, and whose content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViewContext<'a> {
    /// `None` for an anonymous call.
    pub(crate) viewer: Option<UserId>,
    /// The account whose content is viewed, if it is one account's.
    pub(crate) subject: Option<Subject>,
    /// Viewer relations, with blocks and mutes, that another service returned during this call.
    /// They are valid for this call only.
    pub(crate) known: &'a [Relation],
}

impl ViewContext<'_> {
    /// Returns the context of a view without a subject.
    pub(crate) const fn new(viewer: Option<UserId>) -> Self {
        Self { viewer, subject: None, known: &[] }
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
    use tonic::Code;

    use super::*;

    fn read(headers: &[&'static str]) -> Result<Option<String>, ErrorReason> {
        let mut metadata = MetadataMap::new();
        for header in headers {
            metadata.append("authorization", header.parse().unwrap());
        }
        Token::optional(&metadata)
            .map(|token| token.map(Token::into_inner))
            .map_err(|status| status::reason_of(&status).unwrap())
    }

    #[test]
    fn the_scheme_is_case_insensitive() {
        for header in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(read(&[header]), Ok(Some("abc".to_owned())), "{header}");
        }
    }

    #[test]
    fn an_invalid_header_is_rejected_and_not_ignored() {
        for header in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(read(&[header]), Err(ErrorReason::TokenInvalid), "{header}");
        }
        assert_eq!(read(&["Bearer a", "Bearer b"]), Err(ErrorReason::TokenInvalid));
    }

    #[test]
    fn a_required_token_that_is_missing_is_reported() {
        assert_eq!(read(&[]), Ok(None));
        let status = Token::required(&MetadataMap::new()).err().unwrap();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenMissing));
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
