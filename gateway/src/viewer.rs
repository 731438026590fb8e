//! Who is looking: the session token of a call, and whose it is. A token is never logged.

use microblog_chassis::{context, status};
use microblog_domain::UserId;
use microblog_proto::{common::ErrorReason, user};
use tonic::{Status, metadata::MetadataMap};

use crate::{limits::Limit, refusal, rpc::Gateway};

/// A session token as the caller gave it, not checked. Has no `Debug`, so that it is not printed
/// by mistake.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Reads the token of a call that works without one, too.
    ///
    /// A header that is there but is not `Bearer <token>` is refused, not ignored: its sender
    /// believes to be somebody.
    pub(crate) fn optional(metadata: &MetadataMap) -> Result<Option<Self>, Status> {
        let mut headers = metadata.get_all("authorization").iter();
        let Some(header) = headers.next() else { return Ok(None) };
        if headers.next().is_some() {
            return Err(refused());
        }
        let (scheme, token) =
            header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(refused)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Err(refused());
        }
        Ok(Some(Self(token.to_owned())))
    }

    /// Reads the token of a call that needs one.
    pub(crate) fn required(metadata: &MetadataMap) -> Result<Self, Status> {
        let missing = || {
            let text = "needs a session token: send metadata `authorization: Bearer <token>`";
            status::unauthenticated(ErrorReason::TokenMissing, text)
        };
        Self::optional(metadata)?.ok_or_else(missing)
    }

    /// Gives the token away, to be sent to the service that knows it.
    pub(crate) fn into_inner(self) -> String {
        self.0
    }
}

impl Gateway {
    /// Returns whose token it is, or TOKEN_INVALID; what the gateway calls from then on for the same
    /// call is called by them. One call: user.Authenticate.
    pub(crate) async fn viewer(&self, token: Token) -> Result<UserId, Status> {
        let request = user::AuthenticateRequest { token: token.into_inner() };
        let response = self.peers.user().authenticate(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, &[]))?;
        let viewer = refusal::sent_id(response.into_inner().user_id)?;
        context::act_for(viewer);
        Ok(viewer)
    }

    /// Returns whose token it is, and counts what they are about to do, or refuses it. One call:
    /// user.Authenticate.
    pub(crate) async fn limited_viewer(
        &self,
        token: Token,
        limit: &Limit<UserId>,
    ) -> Result<UserId, Status> {
        let viewer = self.viewer(token).await?;
        limit.check(&viewer)?;
        Ok(viewer)
    }

    /// Returns whose token it is, if there is one. One call at most.
    pub(crate) async fn viewer_if_any(
        &self,
        token: Option<Token>,
    ) -> Result<Option<UserId>, Status> {
        match token {
            Some(token) => self.viewer(token).await.map(Some),
            None => Ok(None),
        }
    }
}

fn refused() -> Status {
    status::unauthenticated(ErrorReason::TokenInvalid, "the session token is not valid")
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
    fn the_scheme_is_read_in_any_case() {
        for header in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(read(&[header]), Ok(Some("abc".to_owned())), "{header}");
        }
    }

    #[test]
    fn a_header_that_is_no_token_is_refused_and_not_taken_for_none() {
        for header in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(read(&[header]), Err(ErrorReason::TokenInvalid), "{header}");
        }
        assert_eq!(read(&["Bearer a", "Bearer b"]), Err(ErrorReason::TokenInvalid));
    }

    #[test]
    fn a_call_that_needs_a_token_says_so() {
        assert_eq!(read(&[]), Ok(None));
        let status = Token::required(&MetadataMap::new()).err().unwrap();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenMissing));
    }
}
