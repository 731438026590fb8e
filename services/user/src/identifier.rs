//! Identifiers that accounts claim: names and addresses. Pure.

use microblog_domain::Partition;

use crate::{address::Address, name::Name, profile::Registration};

/// The kind of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifierKind {
    /// A name.
    Name,
    /// An address.
    Address,
}

/// An identifier that accounts claim: a name or an address.
#[derive(Clone, Copy, Debug)]
pub enum Identifier<'a> {
    /// A name.
    Name(&'a Name),
    /// An address.
    Address(&'a Address),
}

impl<'a> Identifier<'a> {
    /// Returns an identifier of a registration.
    pub const fn of(registration: &'a Registration, kind: IdentifierKind) -> Self {
        match kind {
            IdentifierKind::Name => Self::Name(&registration.name),
            IdentifierKind::Address => Self::Address(&registration.address),
        }
    }

    /// Returns the partition of the claim.
    pub(crate) fn partition(self) -> Partition {
        match self {
            Self::Name(name) => name.partition(),
            Self::Address(address) => address.partition(),
        }
    }
}
