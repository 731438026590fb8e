//! Who acts: a user, the system itself, or nobody in particular. Said by each server to the next in
//! a header that they sign with keys of theirs, so that no service believes what just any caller
//! says. Without keys (`--identity-key-file`) nothing is sent and nothing is checked.

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

/// The metadata that says who acts.
pub const HEADER: &str = "microblog-identity";

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Somebody who is not known, by way of a server that is trusted: not logged in, or not yet known
    /// to be.
    Nobody,
    /// Somebody who showed a session.
    User(UserId),
    /// The system itself, which acts for all.
    System,
}

/// Puts into the headers of a call who acts.
pub(crate) fn inject(keys: &KeyFile, identity: Identity, headers: &mut HeaderMap) {
    if let Ok(mut value) = HeaderValue::from_bytes(keys.sign(identity).as_bytes()) {
        // Not to be shown, nor to be remembered by a connection: each is another.
        value.set_sensitive(true);
        headers.insert(HEADER, value);
    }
}

/// Returns who acts, as the headers of a call from outside the process say. One that is not valid
/// is rejected, not ignored: its sender counts on being somebody.
pub(crate) fn extract(keys: &KeyFile, headers: &HeaderMap) -> Result<Identity, Status> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else {
        return Err(rejected("missing metadata `microblog-identity`: a signed identity"));
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
