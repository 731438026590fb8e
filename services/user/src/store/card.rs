//! The stored format of a card, the public part of an account: a protobuf message in one field of a
//! hash. A draft has the same format.
//!
//! Replicas of two versions read and change the same cards. So fields may be added, but existing
//! ones must not change. `functions.lua` changes a card field by field and keeps unknown fields.

use std::sync::Arc;

use microblog_domain::UserId;
use microblog_keyspace::{
    self as keyspace, Error,
    redis::{Cmd, Value, cmd},
};
use prost::Message;

use crate::{
    keys,
    profile::{Draft, ProfileField, User},
};

/// A card, or the fields of one that change. An absent text is empty.
#[derive(Clone, PartialEq, Message)]
struct Card {
    /// Not empty, except among fields that change. Its number is also in `functions.lua`.
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, optional, tag = "2")]
    display_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    bio: Option<String>,
    #[prost(string, optional, tag = "4")]
    avatar_url: Option<String>,
    #[prost(string, optional, tag = "5")]
    location: Option<String>,
}

impl Card {
    fn field(&mut self, field: ProfileField) -> &mut Option<String> {
        match field {
            ProfileField::DisplayName => &mut self.display_name,
            ProfileField::Bio => &mut self.bio,
            ProfileField::AvatarUrl => &mut self.avatar_url,
            ProfileField::Location => &mut self.location,
        }
    }
}

/// Returns the command that reads a card.
pub(super) fn command(id: UserId) -> Cmd {
    cmd("HGET").arg(keys::profile(id)).arg("card").take()
}

/// Decodes the response: a valid card; `None` without an account, or for a damaged card.
pub(super) fn decode(id: UserId, answer: Value) -> Result<Option<Arc<[u8]>>, Error> {
    let Some(card) = keyspace::decode::<Option<Vec<u8>>>(answer)? else { return Ok(None) };
    if read(id, &card).is_none() {
        tracing::error!(%id, "damaged account card");
        return Ok(None);
    }
    Ok(Some(card.into()))
}

/// Encodes the draft of a registration.
pub(super) fn write(draft: &Draft) -> Vec<u8> {
    let display_name = Some(draft.display_name.clone()).filter(|text| !text.is_empty());
    Card { name: draft.name.as_str().to_owned(), display_name, ..Card::default() }.encode_to_vec()
}

/// Encodes the fields to change, including empty ones.
pub(super) fn write_changes(changes: &[(ProfileField, String)]) -> Vec<u8> {
    let mut card = Card::default();
    for (field, text) in changes {
        *card.field(*field) = Some(text.clone());
    }
    card.encode_to_vec()
}

/// Decodes a card or draft; `None` if it is damaged.
pub(super) fn read(id: UserId, bytes: &[u8]) -> Option<User> {
    let Card { name, display_name, bio, avatar_url, location } = Card::decode(bytes).ok()?;
    (!name.is_empty()).then(|| User {
        id,
        name,
        display_name: display_name.unwrap_or_default(),
        bio: bio.unwrap_or_default(),
        avatar_url: avatar_url.unwrap_or_default(),
        location: location.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{address::Address, name::Name, password::Hash};

    fn id() -> UserId {
        UserId::new(4096).unwrap()
    }

    fn draft(display_name: &str) -> Draft {
        Draft {
            name: Name::parse("name", "ann").unwrap(),
            address: Address::stored("ann@example.org").unwrap(),
            password: Hash::none(),
            display_name: display_name.to_owned(),
            request: String::new(),
        }
    }

    #[test]
    fn a_draft_has_the_fields_that_are_set() {
        assert_eq!(write(&draft("")), b"\x0a\x03ann");
        assert_eq!(write(&draft("Ann")), b"\x0a\x03ann\x12\x03Ann");
        let user = read(id(), &write(&draft("Ann 李"))).unwrap();
        assert_eq!(user, draft("Ann 李").into_user(id()));
    }

    #[test]
    fn each_field_is_read() {
        let card = b"\x22\x0ehttps://a.org/\x1a\x09two\nlines\x12\x03Ann\x0a\x03ann\x2a\x04here";
        let expected = User {
            id: id(),
            name: "ann".to_owned(),
            display_name: "Ann".to_owned(),
            bio: "two\nlines".to_owned(),
            avatar_url: "https://a.org/".to_owned(),
            location: "here".to_owned(),
        };
        assert_eq!(read(id(), card), Some(expected));
    }

    #[test]
    fn changes_include_empty_texts() {
        for (field, expected) in [
            (ProfileField::DisplayName, b"\x12\x00"),
            (ProfileField::Bio, b"\x1a\x00"),
            (ProfileField::AvatarUrl, b"\x22\x00"),
            (ProfileField::Location, b"\x2a\x00"),
        ] {
            assert_eq!(write_changes(&[(field, String::new())]), expected, "{field:?}");
        }
        let both =
            [(ProfileField::Location, "here".to_owned()), (ProfileField::Bio, String::new())];
        assert_eq!(write_changes(&both), b"\x1a\x00\x2a\x04here");
    }

    #[test]
    fn unknown_fields_are_skipped() {
        // Fields 15 and 16 as varint, 64-bit, text and 32-bit values.
        for unknown in
            [&b"\x78\x80\x01"[..], b"\x79\0\0\0\0\0\0\0\0", b"\x82\x01\x02ab", b"\x85\x01\0\0\0\0"]
        {
            let cards = [[unknown, &write(&draft(""))], [&write(&draft("")), unknown]];
            for card in cards {
                assert_eq!(read(id(), &card.concat()), Some(draft("").into_user(id())));
            }
        }
    }

    #[test]
    fn a_malformed_card_or_one_without_a_name_is_damaged() {
        for card in [
            &b""[..],
            b"\x0a\x00",
            b"\x12\x03Ann",
            b"\x0a\x04ann",
            b"\x0a\x03ann\x12",
            b"\x0a\x03ann\x00\x00",
            b"\x0a\x03ann\x12\x01\xff",
            b"\x0d\x01\x02\x03\x04",
            b"ann",
        ] {
            assert_eq!(read(id(), card), None, "{card:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(id(), &bytes);
        }
    }

    #[test]
    fn fuzz_cards() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Some(user) = read(id(), bytes) {
                assert!(!user.name.is_empty());
            }
        });
    }
}
