//! E-mail addresses. Pure: does not know where they are kept, and never shows one in a log.

use std::fmt;

use email_address::{EmailAddress, Options};
use microblog_domain::{Invalid, Partition};

/// The most bytes of an address, after RFC 5321, section 4.5.3.1.3.
const LENGTH_MAX: usize = 254;

/// An e-mail address by which an account logs in. Unique without regard to case.
#[derive(Clone, PartialEq, Eq)]
pub struct Email(String);

impl Email {
    /// Reads the address in a request's field: after RFC 5321, in ASCII (an international domain is
    /// written in its `xn--` form), with a dot in its domain, without quotes or a display name, up
    /// to 254 bytes.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        if text.len() > LENGTH_MAX {
            return Err(Invalid::new(field, format!("must have at most {LENGTH_MAX} bytes")));
        }
        // Beyond ASCII, two spellings of one address would be two accounts, and RFC 6531 leaves
        // their comparison open. A quoted first part has many spellings as well: "ann" is ann.
        let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'"');
        let options =
            Options::default().with_required_tld().without_domain_literal().without_display_text();
        match EmailAddress::parse_with_options(text, options) {
            Ok(_) if plain => Ok(Self(text.to_owned())),
            _ => Err(Invalid::new(field, "must be an e-mail address, such as ann@example.org")),
        }
    }

    /// Returns the address as registered.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns what must be unique: the address in lower case. Its first part could mean something
    /// by case, but in practice it does not, and people expect it not to.
    pub fn unique(&self) -> String {
        self.0.to_ascii_lowercase()
    }

    /// Returns the partition in which the claim on the address lies.
    pub fn partition(&self) -> Partition {
        Partition::of_text(&self.unique())
    }
}

// It belongs to a person: it is not for logs.
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
    fn what_is_not_an_address_is_refused() {
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
        fn any_text_is_answered(text in ".*") {
            let _ = Email::parse("email", &text);
        }
    }
}
