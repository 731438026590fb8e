//! What an account is made of, and what may stand in its profile. Pure: knows neither the wire nor
//! where accounts are kept.

use std::fmt;

use microblog_domain::{
    Invalid, UserId,
    text::{self, Lines},
};
use url::Url;

use crate::{Email, Hash, Name};

const DISPLAY_NAME_MAX: usize = 50;
const BIO_MAX: usize = 160;
const LOCATION_MAX: usize = 50;
const AVATAR_URL_BYTES_MAX: usize = 500;

/// An account as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Identifies the account.
    pub id: UserId,
    /// The unique name, as registered.
    pub name: String,
    /// A name to show; may be empty.
    pub display_name: String,
    /// About the account; may be empty.
    pub bio: String,
    /// A picture; may be empty.
    pub avatar_url: String,
    /// Where the account says it is; may be empty.
    pub location: String,
}

/// What a profile in the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// An account.
    Active,
    /// A registration under way.
    Pending,
    /// A deleted account. Its claim on its e-mail address is worth nothing.
    Deleted,
    /// A registration given up: its claims are worth nothing.
    Gone,
}

/// All that is known of an account, what nobody else may see among it.
#[derive(Clone)]
pub struct Record {
    /// What it is.
    pub state: State,
    /// What everybody may see.
    pub user: User,
    /// The address by which the account logs in, as registered.
    pub email: String,
    /// The hash of its password.
    pub password: Hash,
    /// The id of the request that registered it.
    pub request: String,
}

impl User {
    /// Returns whether a name is this account's.
    pub fn has_name(&self, name: &Name) -> bool {
        self.name.eq_ignore_ascii_case(name.as_str())
    }
}

impl Record {
    /// Returns whether a claim on a name is this account's or registration's.
    pub fn has_name(&self, name: &Name) -> bool {
        self.user.has_name(name)
    }

    /// Returns whether a claim on an address is this account's or registration's.
    pub fn has_email(&self, email: &Email) -> bool {
        self.email.eq_ignore_ascii_case(email.as_str())
    }

    /// Returns what it claims; `None` where that is damaged.
    pub fn claims(&self) -> Option<Registration> {
        Registration::of(self.user.id, &self.user.name, &self.email)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("state", &self.state)
            .field("id", &self.user.id)
            .finish_non_exhaustive()
    }
}

/// An account to be registered.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The name it wants.
    pub name: Name,
    /// The address it wants.
    pub email: Email,
    /// The hash of its password.
    pub password: Hash,
    /// A name to show; may be empty.
    pub display_name: String,
    /// The id of the request.
    pub request: String,
}

/// A registration under way, or one whose claims are to be released.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The id that was issued for it.
    pub id: UserId,
    /// The name it wants.
    pub name: Name,
    /// The address it wants.
    pub email: Email,
}

impl Registration {
    /// Returns the registration of what was stored; `None` where that is damaged.
    pub fn of(id: UserId, name: &str, email: &str) -> Option<Self> {
        let (name, email) = (Name::parse("name", name).ok()?, Email::parse("email", email).ok()?);
        Some(Self { id, name, email })
    }
}

/// A part of the profile that its owner can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A name to show, up to 50 characters.
    DisplayName,
    /// About the account, up to 160 characters on any number of lines.
    Bio,
    /// An http or https URL, up to 500 bytes.
    AvatarUrl,
    /// Where the account says it is, up to 50 characters.
    Location,
}

impl Part {
    /// Returns its name on the wire and in the store's functions.
    pub const fn field(self) -> &'static str {
        match self {
            Self::DisplayName => "display_name",
            Self::Bio => "bio",
            Self::AvatarUrl => "avatar_url",
            Self::Location => "location",
        }
    }

    /// Reads a new text for it; an empty one clears it.
    pub fn parse(self, text: &str) -> Result<String, Invalid> {
        match self {
            Self::DisplayName => text::clean(self.field(), text, DISPLAY_NAME_MAX, Lines::One),
            Self::Bio => text::clean(self.field(), text, BIO_MAX, Lines::Many),
            Self::AvatarUrl => avatar_url(self.field(), text),
            Self::Location => text::clean(self.field(), text, LOCATION_MAX, Lines::One),
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
    // The parser would drop some of these silently.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(bad());
    }
    let url = Url::parse(text).map_err(|_| bad())?;
    let fine = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none();
    // Normalised: percent-encoded, so without control or bidirectional characters.
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
    fn an_avatar_is_a_web_address() {
        let parse = |text: &str| Part::AvatarUrl.parse(text);
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
    fn each_part_has_its_bounds() {
        for (part, max) in [(Part::DisplayName, 50), (Part::Bio, 160), (Part::Location, 50)] {
            assert!(part.parse(&"微".repeat(max)).is_ok());
            let error = part.parse(&"微".repeat(max + 1)).unwrap_err();
            assert_eq!(error.field, part.field());
            assert!(part.parse("a\u{202e}b").is_err());
        }
        assert!(Part::Bio.parse("two\nlines").is_ok());
        assert!(Part::DisplayName.parse("two\nlines").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".*") {
            for part in [Part::DisplayName, Part::Bio, Part::AvatarUrl, Part::Location] {
                if let Ok(kept) = part.parse(&text) {
                    prop_assert!(kept.len() <= 160 * 16);
                }
            }
        }
    }
}
