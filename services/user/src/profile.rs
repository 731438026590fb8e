//! Domain types of accounts, and the validation of profile fields. Pure.

use microblog_domain::{
    Invalid, UserId,
    text::{self, Lines},
};
use url::Url;

const DISPLAY_NAME_MAX: usize = 50;
const BIO_MAX: usize = 160;
const LOCATION_MAX: usize = 50;
const AVATAR_URL_BYTES_MAX: usize = 500;

/// The public part of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// The account id.
    pub(crate) id: UserId,
    /// The unique name, as registered.
    pub(crate) name: String,
    /// The display name; may be empty.
    pub(crate) display_name: String,
    /// The biography; may be empty.
    pub(crate) bio: String,
    /// The URL of a picture; may be empty.
    pub(crate) avatar_url: String,
    /// The location; may be empty.
    pub(crate) location: String,
}

impl User {
    /// Replaces a field.
    pub(crate) fn set(&mut self, field: ProfileField, text: String) {
        *match field {
            ProfileField::DisplayName => &mut self.display_name,
            ProfileField::Bio => &mut self.bio,
            ProfileField::AvatarUrl => &mut self.avatar_url,
            ProfileField::Location => &mut self.location,
        } = text;
    }
}

/// A profile field that its owner may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileField {
    /// The display name, up to 50 characters.
    DisplayName,
    /// The biography, up to 160 characters on any number of lines.
    Bio,
    /// An http or https URL, up to 500 bytes.
    AvatarUrl,
    /// The location, up to 50 characters.
    Location,
}

impl ProfileField {
    /// Parses a request field; an empty text clears the profile field.
    pub(crate) fn parse(self, field: &str, text: &str) -> Result<String, Invalid> {
        match self {
            Self::DisplayName => text::clean(field, text, DISPLAY_NAME_MAX, Lines::One),
            Self::Bio => text::clean(field, text, BIO_MAX, Lines::Many),
            Self::AvatarUrl => avatar_url(field, text),
            Self::Location => text::clean(field, text, LOCATION_MAX, Lines::One),
        }
    }
}

fn avatar_url(field: &str, text: &str) -> Result<String, Invalid> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let too_long =
        || Invalid::new(field, format!("must have at most {AVATAR_URL_BYTES_MAX} bytes"));
    if text.len() > AVATAR_URL_BYTES_MAX {
        return Err(too_long());
    }
    let bad = || Invalid::new(field, "must be an http or https URL with a host, and no user in it");
    // The URL parser drops some of these silently.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(bad());
    }
    let url = Url::parse(text).map_err(|_| bad())?;
    let fine = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none();
    // Normalised and percent-encoded, hence without control or bidirectional characters.
    let url = String::from(url);
    match () {
        () if !fine => Err(bad()),
        () if url.len() > AVATAR_URL_BYTES_MAX => Err(too_long()),
        () => Ok(url),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_avatar_is_an_http_url() {
        let parse = |text: &str| ProfileField::AvatarUrl.parse("avatar_url", text);
        assert_eq!(parse("https://Example.org/a.png").unwrap(), "https://example.org/a.png");
        assert_eq!(
            parse("http://例子.中国/头.png").unwrap(),
            "http://xn--fsqu00a.xn--fiqs8s/%E5%A4%B4.png"
        );
        assert_eq!(parse("").unwrap(), "");
        let long = format!("https://example.org/{}", "a".repeat(481));
        let grows = format!("https://example.org/{}", "头".repeat(100));
        for text in [
            "example.org",
            "ftp://example.org/a",
            "javascript:alert(1)",
            "data:image/png;base64,AAAA",
            "https://",
            "https://user:secret@example.org/",
            "https://example.org/a\nb",
            " https://example.org/",
            &long,
            &grows,
        ] {
            assert_eq!(parse(text).unwrap_err().field, "avatar_url", "{text:?}");
        }
    }

    #[test]
    fn each_field_has_its_limits() {
        for (field, max) in [
            (ProfileField::DisplayName, 50),
            (ProfileField::Bio, 160),
            (ProfileField::Location, 50),
        ] {
            let parse = |text: &str| field.parse("field", text);
            assert!(parse(&"微".repeat(max)).is_ok());
            assert_eq!(parse(&"微".repeat(max + 1)).unwrap_err().field, "field");
            assert!(parse("a\u{202e}b").is_err());
        }
        assert!(ProfileField::Bio.parse("bio", "two\nlines").is_ok());
        assert!(ProfileField::DisplayName.parse("name", "two\nlines").is_err());
    }

    #[test]
    fn names_and_locations_show_something_and_an_invisible_bio_is_empty() {
        for field in [ProfileField::DisplayName, ProfileField::Location] {
            for text in ["\u{2800}", "\u{ffa0}", "a\u{2060}b", "\u{fe0f}", "\u{301}"] {
                assert!(field.parse("field", text).is_err(), "{text:?}");
            }
        }
        assert_eq!(ProfileField::Bio.parse("bio", "\u{2800}\u{ffa0}").unwrap(), "");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".*") {
            for field in [ProfileField::DisplayName, ProfileField::Bio, ProfileField::AvatarUrl, ProfileField::Location] {
                if let Ok(parsed) = field.parse("field", &text) {
                    prop_assert!(parsed.len() <= 160 * 35);
                }
            }
        }
    }
}
