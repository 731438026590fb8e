//! What identifies an account: its name, and its e-mail address or external id. Pure. `Debug` does not
//! show the value.

use std::fmt;

use microblog_domain::UserId;
use sha2::{Digest as _, Sha256};

use crate::{address::Address, name::Name};

/// The kind of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentifierKind {
    /// A name.
    Name,
    /// An e-mail address.
    Email,
    /// An id in another system.
    External,
}

/// An identifier in its unique form.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identifier {
    /// The kind.
    pub(crate) kind: IdentifierKind,
    /// The kind, a space, and the value.
    text: String,
}

impl Identifier {
    fn new(kind: IdentifierKind, value: &str) -> Self {
        let name = match kind {
            IdentifierKind::Name => "name",
            IdentifierKind::Email => "email",
            IdentifierKind::External => "external",
        };
        Self { kind, text: format!("{name} {value}") }
    }

    /// Returns the text that is stored.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the key of its row.
    pub(crate) fn digest(&self) -> u64 {
        digest(&self.text)
    }
}

impl From<&Name> for Identifier {
    fn from(name: &Name) -> Self {
        Self::new(IdentifierKind::Name, &name.unique())
    }
}

impl From<&Address> for Identifier {
    fn from(address: &Address) -> Self {
        let kind = match address {
            Address::Email(_) => IdentifierKind::Email,
            Address::External(_) => IdentifierKind::External,
        };
        Self::new(kind, &address.unique())
    }
}

/// Returns the key of the guesses of an account's password.
pub(crate) fn guesses_of(account: UserId) -> u64 {
    digest(&format!("account {account}"))
}

/// Returns 63 bits of a hash. Of a hundred million texts, two have the same with a probability below 1 in
/// 1,000; then the second one is taken.
fn digest(text: &str) -> u64 {
    let hash: [u8; 32] = Sha256::digest(text).into();
    hash.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte)) >> 1
}

// Personal data must not appear in logs.
impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identifier({:?})", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_unique_without_case_and_by_its_kind() {
        let name = |text: &str| Identifier::from(&Name::parse("name", text).unwrap());
        assert_eq!(name("Ann"), name("aNN"));
        let address = |text: &str| Identifier::from(&Address::stored(text.to_owned()));
        assert_eq!(address("Ann@example.org"), address("ann@Example.org"));
        assert_ne!(address("sso ann").digest(), address("sso Ann").digest());
        assert_ne!(name("ann").digest(), name("anne").digest());
    }

    #[test]
    fn a_digest_is_stable_and_fits_a_bigint() {
        let digests = ["", "name ann"].map(digest);
        assert_eq!(digests, [8203414616412130826, 2946162447969823683]);
        assert!(digests.iter().all(|&digest| i64::try_from(digest).is_ok()));
    }

    #[test]
    fn debug_hides_the_value() {
        let name = Identifier::from(&Name::parse("name", "ann").unwrap());
        assert_eq!(format!("{name:?}"), "Identifier(Name)");
    }
}
