//! Authorization by the principal that the proto declares for each method.

use microblog_proto::{Principal, common::ErrorReason};
use tonic::{Code, Status};

use super::context;
use crate::{identity::Identity, status};

/// Authorizer for the generated `…Guard` around each handler. It checks the current call's
/// identity, and allows everything without keys.
#[derive(Clone, Copy, Debug)]
pub struct CallAuthorizer;

impl microblog_proto::Authorizer for CallAuthorizer {
    fn authorize(&self, principal: Principal) -> Result<(), Status> {
        let caller = context::with(|call| (call.server_state.keys.is_some(), call.identity.get()));
        match caller {
            Some((false, _)) => Ok(()),
            Some((true, identity)) => authorize(identity, principal),
            // A call outside any server has no identity.
            None => authorize(Identity::Anonymous, principal),
        }
    }
}

fn authorize(identity: Identity, principal: Principal) -> Result<(), Status> {
    let is_user = |claimed: u64| matches!(identity, Identity::User(user) if user.get() == claimed);
    let (may, text) = match principal {
        Principal::Actor(user) => (is_user(user), "the caller does not act for this user"),
        Principal::Viewer(user) => {
            (user == 0 || is_user(user), "the caller does not act for this viewer")
        }
        Principal::System => (false, "only the system may call this method"),
        Principal::Anybody => (true, ""),
    };
    if may || identity == Identity::System {
        return Ok(());
    }
    Err(status::with_reason(Code::PermissionDenied, ErrorReason::IdentityMismatch, text))
}

#[cfg(test)]
mod tests {
    use microblog_domain::UserId;

    use super::*;

    #[test]
    fn authorization_follows_the_declared_principal() {
        let user = Identity::User(UserId::new(7).unwrap());
        let all = [
            Principal::Actor(7),
            Principal::Actor(8),
            Principal::Actor(0),
            Principal::Viewer(7),
            Principal::Viewer(8),
            Principal::Viewer(0),
            Principal::Anybody,
            Principal::System,
        ];
        let allowed =
            |identity| all.map(|principal| u8::from(authorize(identity, principal).is_ok()));
        assert_eq!(allowed(user), [1, 0, 0, 1, 0, 1, 1, 0]);
        assert_eq!(allowed(Identity::Anonymous), [0, 0, 0, 0, 0, 1, 1, 0]);
        assert_eq!(allowed(Identity::System), [1; 8]);
    }

    #[test]
    fn rejection_has_the_reason_identity_mismatch() {
        let status = authorize(Identity::Anonymous, Principal::Actor(7)).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::IdentityMismatch));
    }
}
