//! Encodes responses.

use microblog_domain::UserId;
use microblog_proto::user as pb;

use crate::{Name, Record, User};

pub(super) fn user(user: User) -> pb::User {
    pb::User {
        id: user.id.get(),
        created_at: Some(user.id.created_at().into()),
        name: user.name,
        display_name: user.display_name,
        bio: user.bio,
        avatar_url: user.avatar_url,
        location: user.location,
    }
}

pub(super) fn account(record: Record) -> pb::Account {
    pb::Account { user: Some(user(record.user)), email: record.email }
}

pub(super) fn named_user((name, id): (Name, UserId)) -> pb::NamedUser {
    pb::NamedUser { name: name.as_str().to_owned(), user_id: id.get() }
}
