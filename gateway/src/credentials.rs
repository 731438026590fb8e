//! Credentials of a call: a session token, or a service caller with the account that it acts for.

use microblog_chassis::{Connection, status};
use microblog_domain::{Invalid, UserId};
use microblog_proto::common::ErrorReason;
use tonic::{Request, Status, metadata::MetadataMap};

use crate::callers::{AuthenticatedCaller, Callers, caller_invalid, not_allowed};

/// The metadata key of the account that a service caller acts for.
const VIEWER: &str = "microblog-viewer";

/// Who makes a call.
pub(crate) struct Principal {
    /// `None` for people.
    pub(crate) caller: Option<AuthenticatedCaller>,
    /// `None` for a call without a viewer.
    pub(crate) credentials: Option<Credentials>,
}

/// Credentials of a viewer. Has no `Debug`, so that no token is logged.
#[derive(Clone)]
pub(crate) enum Credentials {
    /// A session token, not verified.
    Session(Token),
    /// The account that a service caller acts for. It may not exist.
    Caller(ActingCaller),
}

/// A session token, not verified.
#[derive(Clone)]
pub(crate) struct Token(String);

/// A service caller that acts for an account.
#[derive(Clone)]
pub(crate) struct ActingCaller {
    pub(crate) caller: AuthenticatedCaller,
    pub(crate) viewer: UserId,
}

impl Principal {
    /// Reads the metadata of a call, and the certificate of its connection.
    ///
    /// A header that is neither `Bearer <token>` nor a valid `Caller <name>:<secret>` is rejected, not
    /// ignored: its sender expects to be authenticated.
    pub(crate) fn of<T>(request: &Request<T>, callers: Option<&Callers>) -> Result<Self, Status> {
        let metadata = request.metadata();
        if let Some(caller) = caller(request, callers)? {
            let viewer = viewer(metadata)?;
            let acting = viewer.map(|viewer| ActingCaller { caller: caller.clone(), viewer });
            return Ok(Self { caller: Some(caller), credentials: acting.map(Credentials::Caller) });
        }
        let token = token(metadata)?;
        Ok(Self { caller: None, credentials: token.map(Credentials::Session) })
    }

    /// Reads the metadata of a call without a viewer, where a session token is ignored, and
    /// [`check_no_viewer`] rejects the account that a service caller would act for.
    pub(crate) fn without_viewer<T>(
        request: &Request<T>,
        callers: Option<&Callers>,
    ) -> Result<Self, Status> {
        Ok(Self { caller: caller(request, callers)?, credentials: None })
    }

    /// Returns the credentials of a call that requires a viewer.
    pub(crate) fn required(self) -> Result<Credentials, Status> {
        self.credentials.ok_or_else(|| {
            let text = match self.caller {
                None => "needs a session token: send metadata `authorization: Bearer <token>`",
                Some(_) => "needs a viewer: send metadata `microblog-viewer: <account id>`",
            };
            status::unauthenticated(ErrorReason::TokenMissing, text)
        })
    }

    /// Returns the account that a service caller acts for.
    pub(crate) fn acts_for(&self) -> Option<UserId> {
        match &self.credentials {
            Some(Credentials::Caller(acting)) => Some(acting.viewer),
            Some(Credentials::Session(_)) | None => None,
        }
    }
}

impl Credentials {
    /// Returns the session token, or CALLER_NOT_ALLOWED for a service caller, which has no session.
    pub(crate) fn into_token(self) -> Result<String, Status> {
        match self {
            Self::Session(Token(token)) => Ok(token),
            Self::Caller(_) => Err(not_allowed("a service caller has no session")),
        }
    }

    /// Returns the credentials with the rights that a service caller has now, if it may still make a
    /// call; a session as it is.
    pub(crate) fn current(&self, callers: Option<&Callers>, method: &str) -> Result<Self, Status> {
        let Self::Caller(ActingCaller { caller, viewer }) = self else { return Ok(self.clone()) };
        let caller = callers.ok_or_else(caller_invalid)?.current(caller, method, Some(*viewer))?;
        Ok(Self::Caller(ActingCaller { caller, viewer: *viewer }))
    }

    /// Returns whether the rights of a service caller may differ from earlier ones.
    pub(crate) fn has_changed(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Caller(now), Self::Caller(earlier)) => !now.caller.is_same_as(&earlier.caller),
            _ => false,
        }
    }
}

impl Token {
    /// Returns the token itself, for the user service.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
impl From<&str> for Token {
    fn from(token: &str) -> Self {
        Self(token.to_owned())
    }
}

/// Returns scheme and value of the header `authorization`; `None` without the header, and an error for
/// several.
fn authorization(metadata: &MetadataMap) -> Result<Option<(&str, &str)>, Status> {
    let mut headers = metadata.get_all("authorization").iter();
    let Some(header) = headers.next() else { return Ok(None) };
    if headers.next().is_some() {
        return Err(token_invalid());
    }
    let (scheme, value) =
        header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(token_invalid)?;
    Ok(Some((scheme, value.trim())))
}

/// Returns the session token.
fn token(metadata: &MetadataMap) -> Result<Option<Token>, Status> {
    if metadata.contains_key(VIEWER) {
        let text = "microblog-viewer is for service callers: send `authorization: Caller …`";
        return Err(status::unauthenticated(ErrorReason::CallerInvalid, text));
    }
    match authorization(metadata)? {
        None => Ok(None),
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() => {
            Ok(Some(Token(token.to_owned())))
        }
        Some(_) => Err(token_invalid()),
    }
}

/// Returns the service caller: by its header, or without any header by the certificate of its
/// connection; `None` for another header.
fn caller<T>(
    request: &Request<T>,
    callers: Option<&Callers>,
) -> Result<Option<AuthenticatedCaller>, Status> {
    let value = match authorization(request.metadata()) {
        Ok(Some((scheme, value))) if scheme.eq_ignore_ascii_case("caller") => value,
        Ok(None) => {
            let connection = request.extensions().get::<Connection>();
            let names = connection.map(|connection| &*connection.certificate_names);
            return Ok(callers
                .zip(names)
                .and_then(|(callers, names)| callers.of_certificate(names)));
        }
        Ok(Some(_)) | Err(_) => return Ok(None),
    };
    let caller = value.split_once(':').zip(callers);
    let caller = caller.and_then(|((name, secret), callers)| callers.authenticate(name, secret));
    caller.map(Some).ok_or_else(caller_invalid)
}

/// Checks that a call without a viewer names none, or INVALID_FIELD: its sender expects it to count.
pub(crate) fn check_no_viewer(metadata: &MetadataMap) -> Result<(), Status> {
    match metadata.contains_key(VIEWER) {
        true => {
            Err(status::invalid([Invalid::new(VIEWER, "must not be set: this call has no viewer")]))
        }
        false => Ok(()),
    }
}

/// Returns the account that a service caller acts for.
fn viewer(metadata: &MetadataMap) -> Result<Option<UserId>, Status> {
    let mut headers = metadata.get_all(VIEWER).iter();
    let Some(header) = headers.next() else { return Ok(None) };
    let id = header.to_str().ok().and_then(|id| id.parse().ok()).and_then(UserId::new);
    match (id, headers.next()) {
        (Some(id), None) => Ok(Some(id)),
        _ => {
            let text = "microblog-viewer must be one account id";
            Err(status::unauthenticated(ErrorReason::CallerInvalid, text))
        }
    }
}

fn token_invalid() -> Status {
    status::unauthenticated(ErrorReason::TokenInvalid, "the session token is not valid")
}

#[cfg(test)]
mod tests {
    use microblog_testkit::Files;
    use tonic::Code;

    use super::*;

    /// `printf %s secret | sha256sum`.
    const SECRET_SHA256: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    /// Returns the session token, or the caller's name and the account that it acts for.
    fn read_with(
        certificate: &[&str],
        headers: &[(&'static str, &'static str)],
    ) -> Result<(String, u64), ErrorReason> {
        let files = Files::new();
        let file = files.write(
            "callers.json",
            format!(
                r#"{{"callers": [{{"name": "search", "secrets_sha256": ["{SECRET_SHA256}"],
                    "methods": [], "acts_for": "anybody"}},
                    {{"name": "feed", "certificate_names": ["feed.test"], "methods": [],
                    "acts_for": "anybody"}}]}}"#
            ),
        );
        let callers = Callers::open(file).unwrap();
        let mut request = Request::new(());
        let connection = request.extensions_mut().get_or_insert_default::<Connection>();
        connection.certificate_names = certificate.iter().map(|&name| name.to_owned()).collect();
        for (name, value) in headers {
            request.metadata_mut().append(*name, value.parse().unwrap());
        }
        let principal = Principal::of(&request, Some(&callers))
            .map_err(|status| status::reason_of(&status).unwrap())?;
        let name = principal.caller.as_ref().map(|caller| caller.name().to_owned());
        Ok(match principal.credentials {
            None => (name.unwrap_or_default(), 0),
            Some(Credentials::Session(Token(token))) => (token, 0),
            Some(Credentials::Caller(acting)) => (name.unwrap(), acting.viewer.get()),
        })
    }

    fn read(headers: &[(&'static str, &'static str)]) -> Result<(String, u64), ErrorReason> {
        read_with(&[], headers)
    }

    fn read_one(authorization: &'static str) -> Result<(String, u64), ErrorReason> {
        read(&[("authorization", authorization)])
    }

    #[test]
    fn the_scheme_is_case_insensitive() {
        for header in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(read_one(header), Ok(("abc".to_owned(), 0)), "{header}");
        }
        for header in ["Caller search:secret", "caller search:secret", "CALLER  search:secret "] {
            assert_eq!(read_one(header), Ok(("search".to_owned(), 0)), "{header}");
        }
    }

    #[test]
    fn an_invalid_header_is_rejected_and_not_ignored() {
        for header in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"] {
            assert_eq!(read_one(header), Err(ErrorReason::TokenInvalid), "{header}");
        }
        let twice = [("authorization", "Bearer a"), ("authorization", "Caller search:secret")];
        assert_eq!(read(&twice), Err(ErrorReason::TokenInvalid));
        for header in ["Caller ", "Caller search", "Caller search:", "Caller search:wrong"] {
            assert_eq!(read_one(header), Err(ErrorReason::CallerInvalid), "{header}");
        }
    }

    #[test]
    fn only_a_service_caller_chooses_the_viewer() {
        let caller = ("authorization", "Caller search:secret");
        assert_eq!(read(&[caller, (VIEWER, "7")]), Ok(("search".to_owned(), 7)));
        for viewer in ["", "0", "-1", "ada", "9007199254740992"] {
            let read = read(&[caller, (VIEWER, viewer)]);
            assert_eq!(read, Err(ErrorReason::CallerInvalid), "{viewer}");
        }
        let twice = read(&[caller, (VIEWER, "7"), (VIEWER, "8")]);
        assert_eq!(twice, Err(ErrorReason::CallerInvalid));
        for other in [&[][..], &[("authorization", "Bearer abc")]] {
            let read = read(&[other, &[(VIEWER, "7")]].concat());
            assert_eq!(read, Err(ErrorReason::CallerInvalid));
        }
    }

    #[test]
    fn without_a_header_a_certificate_shows_the_caller() {
        let feed = &["feed.test"];
        assert_eq!(read_with(feed, &[]), Ok(("feed".to_owned(), 0)));
        assert_eq!(read_with(feed, &[(VIEWER, "7")]), Ok(("feed".to_owned(), 7)));
        assert_eq!(read_with(&["other.test"], &[]), Ok((String::new(), 0)));
        // A header counts, whatever the certificate.
        for (header, expected) in [
            ("Bearer abc", Ok(("abc".to_owned(), 0))),
            ("Caller search:secret", Ok(("search".to_owned(), 0))),
            ("Caller search:wrong", Err(ErrorReason::CallerInvalid)),
            ("Basic abc", Err(ErrorReason::TokenInvalid)),
        ] {
            assert_eq!(read_with(feed, &[("authorization", header)]), expected, "{header}");
        }
        let twice = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
        assert_eq!(read_with(feed, &twice), Err(ErrorReason::TokenInvalid));
    }

    #[test]
    fn a_required_viewer_that_is_missing_is_reported() {
        let principal = Principal::of(&Request::new(()), None).ok().unwrap();
        let status = principal.required().err().unwrap();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::TokenMissing));
    }
}
