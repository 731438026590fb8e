//! Login identifiers: a name or an e-mail address. Pure.

use microblog_domain::Invalid;

use crate::{address::Address, email::Email, identifier::Identifier, name::Name};

/// A name or an e-mail address. They never overlap: addresses contain an `@`, names do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// An account's name.
    Name(Name),
    /// An account's address. Requests have e-mail addresses only.
    Address(Address),
}

impl Login {
    /// Parses a request field.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        match text.contains('@') {
            true => Email::parse(field, text).map(|email| Self::Address(email.into())),
            false => Name::parse(field, text).map(Self::Name),
        }
    }

    /// Returns the identifier.
    pub(crate) fn identifier(&self) -> Identifier {
        match self {
            Self::Name(name) => name.into(),
            Self::Address(address) => address.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_login_with_an_at_sign_is_an_address() {
        let is_name = |text: &str| matches!(Login::parse("login", text).unwrap(), Login::Name(_));
        assert!(is_name("Ann"));
        assert!(!is_name("Ann@example.org"));
        for text in ["", "@ann", "ann@", "a nn", "ann@example.org ", "李雷"] {
            assert_eq!(Login::parse("login", text).unwrap_err().field, "login", "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".*") {
            let _ = Login::parse("login", &text);
        }
    }
}
