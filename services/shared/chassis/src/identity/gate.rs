//! Whom a service lets in, by what the contract declares of each method.

use microblog_proto::{Claim, common::ErrorReason};
use tonic::{Code, Status};

use super::Identity;
use crate::{context, status};

/// The check before each handler of a service: make its `…Guard` with it. It goes by who the current
/// call is from, and lets everything pass where there are no keys.
#[derive(Clone, Copy, Debug)]
pub struct Gate;

impl microblog_proto::Gate for Gate {
    fn admit(&self, claim: Claim) -> Result<(), Status> {
        let known = context::with(|call| (call.shared.keys.is_some(), call.identity.get()));
        match known {
            Some((false, _)) => Ok(()),
            Some((true, identity)) => admit(identity, claim),
            // What does not come by way of a server comes from nobody.
            None => admit(Identity::Nobody, claim),
        }
    }
}

fn admit(identity: Identity, claim: Claim) -> Result<(), Status> {
    let is_user = |claimed: u64| matches!(identity, Identity::User(user) if user.get() == claimed);
    let (may, text) = match claim {
        Claim::Actor(user) => (is_user(user), "acts for somebody else"),
        Claim::Viewer(user) => (user == 0 || is_user(user), "looks for somebody else"),
        Claim::System => (false, "only the system itself may call this"),
        Claim::Anybody => (true, ""),
    };
    if may || identity == Identity::System {
        return Ok(());
    }
    Err(status::refuse(Code::PermissionDenied, ErrorReason::IdentityMismatch, text))
}

#[cfg(test)]
mod tests {
    use microblog_domain::UserId;

    use super::*;

    #[test]
    fn each_is_let_in_where_the_contract_says_so() {
        let user = Identity::User(UserId::new(7).unwrap());
        let all = [
            Claim::Actor(7),
            Claim::Actor(8),
            Claim::Actor(0),
            Claim::Viewer(7),
            Claim::Viewer(8),
            Claim::Viewer(0),
            Claim::Anybody,
            Claim::System,
        ];
        let let_in = |identity| all.map(|claim| u8::from(admit(identity, claim).is_ok()));
        assert_eq!(let_in(user), [1, 0, 0, 1, 0, 1, 1, 0]);
        assert_eq!(let_in(Identity::Nobody), [0, 0, 0, 0, 0, 1, 1, 0]);
        assert_eq!(let_in(Identity::System), [1; 8]);
    }

    #[test]
    fn a_refusal_says_why() {
        let status = admit(Identity::Nobody, Claim::Actor(7)).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::IdentityMismatch));
    }
}
