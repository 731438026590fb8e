//! E-mail addresses. Pure. `Debug` does not show the address.

use std::fmt;

use email_address::{EmailAddress, Options};
use microblog_domain::Invalid;

/// The maximum length of an address in bytes, by RFC 5321, section 4.5.3.1.3.
const LENGTH_MAX: usize = 254;

/// An account's e-mail address. Unique, ignoring case.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Email(String);

impl Email {
    /// Parses a request field: an RFC 5321 address in ASCII (international domains in `xn--` form),
    /// with a dot in its domain, without quotes or a display name, up to 254 bytes.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        if text.len() > LENGTH_MAX {
            return Err(Invalid::new(field, format!("must have at most {LENGTH_MAX} bytes")));
        }
        // Non-ASCII addresses may have several spellings, whose comparison RFC 6531 leaves open.
        // Quoted local parts have several spellings too: "ann" equals ann.
        let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'"');
        let options =
            Options::default().with_required_tld().without_domain_literal().without_display_text();
        match EmailAddress::parse_with_options(text, options) {
            Ok(_) if plain => Ok(Self(text.to_owned())),
            _ => Err(Invalid::new(field, "must be an e-mail address, such as ann@example.org")),
        }
    }

    /// Returns an address that was parsed once.
    pub(crate) const fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the address as registered.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the unique form: the address in lower case. Local parts are case-sensitive by the
    /// standard, but not in practice.
    pub(crate) fn unique(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

// Personal data must not appear in logs.
impl fmt::Debug for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Email(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_is_unique_without_case() {
        let email = Email::parse("email", "Ann.Lee+x@Example.org").unwrap();
        assert_eq!(email.as_str(), "Ann.Lee+x@Example.org");
        assert_eq!(email.unique(), "ann.lee+x@example.org");
    }

    #[test]
    fn an_address_does_not_show_in_debug() {
        let email = Email::parse("email", "ann@example.org").unwrap();
        assert!(!format!("{email:?}").contains("ann"));
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        let long = format!("{}@{}.example.org", "a".repeat(60), "b.".repeat(100));
        for text in [
            "",
            "ann",
            "@example.org",
            "ann@",
            "ann@localhost",
            "ann@[127.0.0.1]",
            "Ann <ann@example.org>",
            "\"ann\"@example.org",
            "\"ann@home\"@example.org",
            " ann@example.org",
            "ann@example.org\n",
            "ann\0@example.org",
            "\u{202e}ann@example.org",
            "ann@例子.中国",
            &long,
        ] {
            assert_eq!(Email::parse("email", text).unwrap_err().field, "email", "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".*") {
            let _ = Email::parse("email", &text);
        }
    }
}
