//! What somebody logs in by: a name or an e-mail address. Pure: does not know where either is kept.

use microblog_domain::{Invalid, Partition};

use crate::{Claim, Email, Name};

/// A name or an e-mail address. They cannot be taken for each other: no name has an `@`, and every
/// address has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// An account's name.
    Name(Name),
    /// An account's e-mail address.
    Email(Email),
}

impl Login {
    /// Reads the name or address in a request's field.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        match text.contains('@') {
            true => Email::parse(field, text).map(Self::Email),
            false => Name::parse(field, text).map(Self::Name),
        }
    }

    /// Returns what is unique: the name or address in lower case.
    pub fn unique(&self) -> String {
        match self {
            Self::Name(name) => name.unique(),
            Self::Email(email) => email.unique(),
        }
    }

    /// Returns the partition in which the claim on it lies.
    pub fn partition(&self) -> Partition {
        self.claim().partition()
    }

    /// Returns it as what accounts claim.
    pub const fn claim(&self) -> Claim<'_> {
        match self {
            Self::Name(name) => Claim::Name(name),
            Self::Email(email) => Claim::Email(email),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_has_an_at_and_a_name_has_none() {
        let is_name = |text: &str| matches!(Login::parse("login", text).unwrap(), Login::Name(_));
        assert!(is_name("Ann"));
        assert!(!is_name("Ann@example.org"));
        for text in ["", "@ann", "ann@", "a nn", "ann@example.org ", "李雷"] {
            assert_eq!(Login::parse("login", text).unwrap_err().field, "login", "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".*") {
            let _ = Login::parse("login", &text);
        }
    }
}
