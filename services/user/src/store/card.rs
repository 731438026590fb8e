//! The encoding of a card: the public part of an account as one text, in one field of a hash. A
//! draft has the same encoding.
//!
//! It always has five parts: name, display name, bio, avatar URL and location, in this order.
//! Missing ones are empty. `functions.lua` has the same encoding in Lua.

use std::sync::Arc;

use microblog_domain::UserId;
use microblog_keyspace::{
    self as keyspace, Error,
    redis::{Cmd, Value, cmd},
};

use crate::{Draft, User, keys};

/// The separator, which no part contains: ASCII's unit separator, a control character. A `char`,
/// since splitting at one is much faster than at a `&str`.
const SEPARATOR: char = '\u{1f}';

/// Returns the command that reads a card.
pub(super) fn command(id: UserId) -> Cmd {
    cmd("HGET").arg(keys::profile(id)).arg("card").take()
}

/// Decodes the response: a valid card; `None` without an account, or for a damaged card.
pub(super) fn decode(id: UserId, answer: Value) -> Result<Option<Arc<str>>, Error> {
    let Some(card) = keyspace::decode::<Option<Vec<u8>>>(answer)? else { return Ok(None) };
    let card = String::from_utf8(card).ok().filter(|card| read(id, card).is_some());
    if card.is_none() {
        tracing::error!(%id, "damaged account card");
    }
    Ok(card.map(Into::into))
}

/// Encodes the draft of a registration.
pub(super) fn write(draft: &Draft) -> String {
    [draft.name.as_str(), &draft.display_name, "", "", ""].join(SEPARATOR.encode_utf8(&mut [0]))
}

/// Decodes a card or draft; `None` if it is damaged.
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
    use crate::{Email, Hash, Name, ProfileField};

    const PARTS: [ProfileField; 4] = [
        ProfileField::DisplayName,
        ProfileField::Bio,
        ProfileField::AvatarUrl,
        ProfileField::Location,
    ];

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
    fn a_card_with_a_wrong_number_of_parts_is_damaged() {
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
        fn no_parsed_text_contains_the_separator(text in "(\\PC|[\u{0}-\u{1f}]){0,20}") {
            for part in PARTS {
                if let Ok(kept) = part.parse(&text) {
                    prop_assert!(!kept.contains(SEPARATOR));
                }
            }
        }
    }
}
