//! Caller identity: a user, the system, or nobody. Each server sends it to the next in a signed
//! header. Services therefore trust no unsigned claim. Without keys (`--identity-key-file`),
//! identities are neither sent nor checked.

mod authorizer;
mod key_file;
mod keys;
mod signed_token;
mod signer;

use http::{HeaderMap, HeaderValue};
use microblog_domain::UserId;
use microblog_proto::common::ErrorReason;
use tonic::Status;

use self::signed_token::VerifyError;
pub use self::{
    authorizer::CallAuthorizer,
    key_file::{KeyFile, KeyFileError},
    signer::Signer,
};
use crate::status;

/// Metadata key of the signed identity.
pub const HEADER: &str = "microblog-identity";

/// The identity that a call acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// An unauthenticated caller, forwarded by a trusted server.
    Nobody,
    /// A user with a valid session.
    User(UserId),
    /// The system itself, authorized for every method.
    System,
}

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
    keys.verify(value.as_bytes()).map_err(|why| {
        rejected(match why {
            VerifyError::BadSignature => "the identity has no valid signature",
            VerifyError::Expired => "the identity has expired",
            VerifyError::NotYetValid => "the identity is not valid yet: check the servers' clocks",
        })
    })
}

fn rejected(text: &str) -> Status {
    status::unauthenticated(ErrorReason::IdentityInvalid, text)
}
