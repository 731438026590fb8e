//! Caller identity: a user, the system, or anonymous. Each server sends it to the next in a signed
//! header. Services therefore trust no unsigned claim. Without keys (`--identity-key-file`),
//! identities are neither sent nor checked.

mod key_file;
mod keys;
mod signed_token;

use http::{HeaderMap, HeaderValue};
use microblog_proto::common::ErrorReason;
use tonic::{Request, Status, metadata::MetadataValue, service::Interceptor};

use self::signed_token::VerifyError;
pub use self::{key_file::KeyFile, signed_token::Identity};
use crate::status;

/// Metadata key of the signed identity.
pub const HEADER: &str = "microblog-identity";

/// Adds the signed identity to the headers of an outgoing call.
pub(crate) fn inject(keys: &KeyFile, identity: Identity, headers: &mut HeaderMap) {
    if let Ok(mut value) = HeaderValue::from_bytes(keys.sign(identity).as_bytes()) {
        // Sensitive: hidden from logs, and not added to HPACK's dynamic table, since each value is
        // new.
        value.set_sensitive(true);
        headers.insert(HEADER, value);
    }
}

/// Verifies the identity in the headers of an incoming call. An invalid one is rejected, not
/// ignored: the caller relies on it.
pub(crate) fn extract(keys: &KeyFile, headers: &HeaderMap) -> Result<Identity, Status> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else {
        return Err(rejected("missing metadata `microblog-identity` with a signed identity"));
    };
    if values.next().is_some() {
        return Err(rejected("duplicate metadata `microblog-identity`"));
    }
    keys.verify(value.as_bytes()).map_err(|error| {
        rejected(match error {
            VerifyError::BadSignature => "the identity has no valid signature",
            VerifyError::Expired => "the identity has expired",
            VerifyError::NotYetValid => "the identity is not valid yet: check the servers' clocks",
        })
    })
}

fn rejected(text: &str) -> Status {
    status::unauthenticated(ErrorReason::IdentityInvalid, text)
}

/// tonic interceptor that adds a signed identity to each call, if there are keys: for clients that
/// hold the keys but are no servers, such as operators' commands.
#[derive(Clone)]
pub struct Signer {
    keys: Option<KeyFile>,
    identity: Identity,
}

impl Signer {
    /// Returns a signer with the keys of a file. Without a file, it adds nothing.
    pub const fn new(keys: Option<KeyFile>, identity: Identity) -> Self {
        Self { keys, identity }
    }
}

impl Interceptor for Signer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(keys) = &self.keys
            && let Ok(mut value) = MetadataValue::try_from(keys.sign(self.identity).as_bytes())
        {
            value.set_sensitive(true);
            request.metadata_mut().insert(HEADER, value);
        }
        Ok(request)
    }
}
