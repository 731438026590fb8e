//! Identifiers that accounts claim: names and e-mail addresses. Pure.

use microblog_domain::Partition;

use crate::{email::Email, name::Name, profile::Registration};

/// The kind of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifierKind {
    /// A name.
    Name,
    /// An e-mail address.
    Email,
}

/// An identifier that accounts claim: a name or an e-mail address.
#[derive(Clone, Copy, Debug)]
pub enum Identifier<'a> {
    /// A name.
    Name(&'a Name),
    /// An e-mail address.
    Email(&'a Email),
}

impl<'a> Identifier<'a> {
    /// Returns an identifier of a registration.
    pub const fn of(registration: &'a Registration, kind: IdentifierKind) -> Self {
        match kind {
            IdentifierKind::Name => Self::Name(&registration.name),
            IdentifierKind::Email => Self::Email(&registration.email),
        }
    }

    /// Returns the partition of the claim.
    pub(crate) fn partition(self) -> Partition {
        match self {
            Self::Name(name) => name.partition(),
            Self::Email(email) => email.partition(),
        }
    }
}
