//! References to accounts in requests, by id or by name, and the accounts they mean.

use microblog_domain::{Invalid, UserId};
use microblog_proto::{
    gateway::{self, user_ref::Ref},
    user,
};
use tonic::Status;

use crate::{refusal, rpc::Gateway};

/// A reference that can mean an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// The id of one that may exist.
    Id(UserId),
    /// A name as the caller wrote it; the user service knows the rules for names.
    Name(String),
}

impl Reference {
    /// Reads the field `user` of a request.
    pub(crate) fn parse(user: Option<gateway::UserRef>) -> Result<Self, Invalid> {
        match user.and_then(|user| user.r#ref) {
            Some(Ref::Id(id)) => UserId::parse("user.id", id).map(Self::Id),
            Some(Ref::Name(name)) => Ok(Self::Name(name)),
            None => Err(Invalid::new("user", "must have an id or a name")),
        }
    }
}

impl Gateway {
    /// Returns the profile of the account meant, or USER_NOT_FOUND. One call: user.GetUser or
    /// user.GetUserByName.
    pub(crate) async fn profile(&self, reference: &Reference) -> Result<user::User, Status> {
        let client = self.peers.user();
        let user = match reference {
            Reference::Id(id) => {
                let request = user::GetUserRequest { user_id: id.get() };
                client.get_user(request).await.map(|response| response.into_inner().user)
            }
            Reference::Name(name) => {
                let request = user::GetUserByNameRequest { name: name.clone() };
                client.get_user_by_name(request).await.map(|response| response.into_inner().user)
            }
        };
        let user = user.map_err(|status| refusal::pass_on(status, &[("name", "user.name")]))?;
        refusal::sent(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(reference: Option<Ref>) -> Result<Reference, Invalid> {
        Reference::parse(Some(gateway::UserRef { r#ref: reference }))
    }

    #[test]
    fn a_reference_names_the_field_that_is_wrong() {
        assert_eq!(Reference::parse(None).unwrap_err().field, "user");
        assert_eq!(parse(None).unwrap_err().field, "user");
        for id in [0, 1 << 53, 1 << 63, u64::MAX] {
            assert_eq!(parse(Some(Ref::Id(id))).unwrap_err().field, "user.id", "{id}");
        }
    }

    #[test]
    fn an_id_and_a_name_are_told_apart() {
        assert_eq!(parse(Some(Ref::Id(7))), Ok(Reference::Id(UserId::new(7).unwrap())));
        assert_eq!(parse(Some(Ref::Name("7".into()))), Ok(Reference::Name("7".into())));
    }
}
