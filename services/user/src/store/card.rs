//! How the store writes what everybody may see of an account: as one text, which is read as one
//! field of a hash. It is the account's card, or the draft of one.
//!
//! It always has five parts: name, display name, bio, avatar URL and location, in this order. What
//! is not there is an empty part. `functions.lua` says the same in Lua.

use std::sync::Arc;

use microblog_domain::UserId;
use microblog_keyspace::{
    self as keyspace, Error,
    redis::{Cmd, Value, cmd},
};

use crate::{Draft, User, keys};

/// Stands between two parts, and in none: ASCII's unit separator, a control character.
/// A `char`, since a text is split at one in a fraction of the time that a `&str` takes.
const SEPARATOR: char = '\u{1f}';

/// Returns the command that reads one, for those who want nothing else.
pub(super) fn command(id: UserId) -> Cmd {
    cmd("HGET").arg(keys::profile(id)).arg("card").take()
}

/// Reads the answer: a card that can be read; `None` for whoever is no account, or has a damaged one.
pub(super) fn decode(id: UserId, answer: Value) -> Result<Option<Arc<str>>, Error> {
    let Some(card) = keyspace::decode::<Option<Vec<u8>>>(answer)? else { return Ok(None) };
    let card = String::from_utf8(card).ok().filter(|card| read(id, card).is_some());
    if card.is_none() {
        tracing::error!(%id, "an account's card is damaged");
    }
    Ok(card.map(Into::into))
}

/// Writes the draft of a registration.
pub(super) fn write(draft: &Draft) -> String {
    [draft.name.as_str(), &draft.display_name, "", "", ""].join(SEPARATOR.encode_utf8(&mut [0]))
}

/// Reads a card or draft; `None` where it is damaged.
pub(super) fn read(id: UserId, text: &str) -> Option<User> {
    let mut parts = text.split(SEPARATOR).map(str::to_owned);
    let user = User {
        id,
        name: parts.next()?,
        display_name: parts.next()?,
        bio: parts.next()?,
        avatar_url: parts.next()?,
        location: parts.next()?,
    };
    parts.next().is_none().then_some(user)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Email, Hash, Name, Part};

    const PARTS: [Part; 4] = [Part::DisplayName, Part::Bio, Part::AvatarUrl, Part::Location];

    fn id() -> UserId {
        UserId::new(4096).unwrap()
    }

    #[test]
    fn a_draft_has_all_parts() {
        let draft = Draft {
            name: Name::parse("name", "ann").unwrap(),
            email: Email::parse("email", "ann@example.org").unwrap(),
            password: Hash::none(),
            display_name: "Ann 李".to_owned(),
            request: String::new(),
        };
        assert_eq!(write(&draft), "ann\u{1f}Ann 李\u{1f}\u{1f}\u{1f}");
        let user = read(id(), &write(&draft)).unwrap();
        assert_eq!((user.name.as_str(), user.display_name.as_str()), ("ann", "Ann 李"));
        assert!(user.bio.is_empty() && user.avatar_url.is_empty() && user.location.is_empty());
    }

    #[test]
    fn parts_are_read_in_their_order() {
        let user =
            read(id(), "ann\u{1f}Ann\u{1f}two\nlines\u{1f}https://a.org/\u{1f}here").unwrap();
        let expected = User {
            id: id(),
            name: "ann".to_owned(),
            display_name: "Ann".to_owned(),
            bio: "two\nlines".to_owned(),
            avatar_url: "https://a.org/".to_owned(),
            location: "here".to_owned(),
        };
        assert_eq!(user, expected);
    }

    #[test]
    fn what_has_another_number_of_parts_is_damaged() {
        for separators in [0, 1, 3, 5] {
            assert_eq!(
                read(id(), &format!("ann{}", SEPARATOR.to_string().repeat(separators))),
                None
            );
        }
        assert_eq!(read(id(), ""), None);
    }

    #[test]
    fn no_text_contains_the_separator() {
        for text in ["\u{1f}", "\u{1f}a", "a\u{1f}b", "a\u{1f}", "http://a.org/\u{1f}"] {
            assert!(Name::parse("name", text).is_err(), "{text:?}");
            for part in PARTS {
                assert!(part.parse(text).is_err(), "{part:?} {text:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_has_it_whatever_comes_in(text in "(\\PC|[\u{0}-\u{1f}]){0,20}") {
            for part in PARTS {
                if let Ok(kept) = part.parse(&text) {
                    prop_assert!(!kept.contains(SEPARATOR));
                }
            }
        }
    }
}
