//! Unique account names. Pure.

use std::fmt;

use microblog_domain::Invalid;

/// The maximum length of a name in characters.
const LENGTH_MAX: usize = 30;

/// An account's name. Unique, ignoring case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(String);

impl Name {
    /// Parses a request field: 1 to 30 of `A-Z`, `a-z`, `0-9` and `_`.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if text.is_empty() || text.len() > LENGTH_MAX || !text.bytes().all(allowed) {
            let problem = "must be 1 to 30 of A-Z, a-z, 0-9 and underscore";
            return Err(Invalid::new(field, problem));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the name as registered.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the unique form: the name in lower case.
    pub(crate) fn unique(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_keeps_its_case_and_is_unique_without_it() {
        let name = Name::parse("name", "Li_Lei42").unwrap();
        assert_eq!(name.as_str(), "Li_Lei42");
        assert_eq!(name.unique(), "li_lei42");
    }

    #[test]
    fn invalid_names_are_rejected() {
        let long = "a".repeat(31);
        // The last two look like "admin": a Cyrillic letter, and a bidirectional override.
        for text in ["", " a", "a b", "a-b", "李雷", "a\0", "a\n", &long, "аdmin", "\u{202e}nimda"]
        {
            assert_eq!(Name::parse("name", text).unwrap_err().field, "name", "{text:?}");
        }
        assert!(Name::parse("name", &"a".repeat(30)).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".*") {
            if let Ok(name) = Name::parse("name", &text) {
                prop_assert_eq!(name.as_str(), text);
            }
        }
    }
}
