//! Page sizes and page tokens (<https://google.aip.dev/158>).

use std::hash::Hasher as _;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use siphasher::sip::SipHasher24;

use crate::Invalid;

/// Maximum entries of a page: 0 means 20, above 200 means 200, negative is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize(usize);

impl PageSize {
    /// The maximum.
    pub const MAX: usize = 200;
    /// The default.
    pub const DEFAULT: usize = 20;

    /// Parses the field `page_size` of a request.
    pub fn parse(value: i32) -> Result<Self, Invalid> {
        Self::parse_field("page_size", value, Self::DEFAULT, Self::MAX)
    }

    /// Parses a similar field with another default and maximum.
    pub fn parse_field(
        field: &str,
        value: i32,
        default: usize,
        max: usize,
    ) -> Result<Self, Invalid> {
        match usize::try_from(value) {
            Ok(0) => Ok(Self(default)),
            Ok(size) => Ok(Self(size.min(max))),
            Err(_) => Err(Invalid::new(field, "must not be negative")),
        }
    }

    /// Returns the number of entries, at least 1.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// Scope of a page token: a list and its arguments, without the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope(u64);

/// Why a page token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Malformed, damaged, or of another version.
    #[error("not a page token that was issued here")]
    Invalid,
    /// Issued for another list or other arguments.
    #[error("the page token belongs to a call with other arguments")]
    Mismatch,
}

// In every token, so that a later format can recognise this one.
const TOKEN_VERSION: u8 = 1;

impl Scope {
    /// Returns the scope of a list, named like its RPC.
    pub fn new(list: &str) -> Self {
        Self(hash(&[list.as_bytes()]))
    }

    /// Returns the scope narrowed by an argument. The order of arguments matters.
    pub fn with(self, argument: u64) -> Self {
        Self(hash(&[&self.0.to_le_bytes(), &argument.to_le_bytes()]))
    }

    /// Returns a page token for a position.
    ///
    /// The token is opaque, not secret. A checksum rejects damaged and forged tokens. A position
    /// only points into a list that the caller may read anyway.
    pub fn token<const N: usize>(self, position: [u64; N]) -> String {
        self.token_of(&position)
    }

    /// Returns a token for any number of values: a position, and additional state.
    pub fn token_of(self, numbers: &[u64]) -> String {
        let mut bytes = Vec::with_capacity(1 + 8 + 8 * numbers.len() + 8);
        bytes.push(TOKEN_VERSION);
        bytes.extend(self.0.to_le_bytes());
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(hash(&[&bytes]).to_le_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Parses a page token of this scope; an empty one is the first page, `None`.
    pub fn read<const N: usize>(self, token: &str) -> Result<Option<[u64; N]>, TokenError> {
        let numbers = self.read_all(token)?;
        numbers.map(|numbers| numbers.try_into().map_err(|_| TokenError::Invalid)).transpose()
    }

    /// Parses a token of any length; an empty one is `None`.
    pub fn read_all(self, token: &str) -> Result<Option<Vec<u64>>, TokenError> {
        if token.is_empty() {
            return Ok(None);
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| TokenError::Invalid)?;
        let (content, checksum) = bytes.split_last_chunk::<8>().ok_or(TokenError::Invalid)?;
        if u64::from_le_bytes(*checksum) != hash(&[content]) {
            return Err(TokenError::Invalid);
        }
        let (version, content) = content.split_first().ok_or(TokenError::Invalid)?;
        let (scope, content) = content.split_first_chunk::<8>().ok_or(TokenError::Invalid)?;
        if *version != TOKEN_VERSION {
            return Err(TokenError::Invalid);
        }
        if u64::from_le_bytes(*scope) != self.0 {
            return Err(TokenError::Mismatch);
        }
        let (words, rest) = content.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(TokenError::Invalid);
        }
        Ok(Some(words.iter().map(|&word| u64::from_le_bytes(word)).collect()))
    }

    /// Returns the scope narrowed by a text, such as another token.
    pub fn with_text(self, argument: &str) -> Self {
        Self(hash(&[&self.0.to_le_bytes(), argument.as_bytes()]))
    }
}

fn hash(parts: &[&[u8]]) -> u64 {
    // A key of this project, so that tokens of other systems do not verify.
    let mut hasher = SipHasher24::new_with_keys(0x6d69_6372_6f62_6c6f, 0x6720_7061_6765_7321);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn page_size_has_a_default_and_a_maximum() {
        assert_eq!(PageSize::parse(0).unwrap().get(), 20);
        assert_eq!(PageSize::parse(7).unwrap().get(), 7);
        assert_eq!(PageSize::parse(i32::MAX).unwrap().get(), 200);
        assert_eq!(PageSize::parse(-1).unwrap_err().field, "page_size");
    }

    #[test]
    fn token_of_other_arguments_is_a_mismatch() {
        let token = Scope::new("ListFollowers").with(1).token([5, 6]);
        let other = Scope::new("ListFollowers").with(2);
        assert_eq!(other.read::<2>(&token), Err(TokenError::Mismatch));
        let other = Scope::new("ListFollowing").with(1);
        assert_eq!(other.read::<2>(&token), Err(TokenError::Mismatch));
    }

    proptest! {
        #[test]
        fn page_token_round_trips(score: u64, member: u64) {
            let scope = Scope::new("ListFollowers").with(42);
            prop_assert_eq!(scope.read(&scope.token([score, member])), Ok(Some([score, member])));
        }

        #[test]
        fn page_token_of_any_length_round_trips(numbers: Vec<u64>) {
            let scope = Scope::new("GetTimeline").with_text("since");
            let token = scope.token_of(&numbers);
            prop_assert_eq!(scope.read_all(&token), Ok(Some(numbers.clone())));
            if numbers.len() != 2 {
                prop_assert_eq!(scope.read::<2>(&token), Err(TokenError::Invalid));
            }
        }

        #[test]
        fn damaged_token_is_rejected(score: u64, at in 0usize..44, to in "[A-Za-z0-9_-]") {
            let scope = Scope::new("ListFollowers").with(42);
            let token = scope.token([score, 7]);
            let mut damaged = token.clone();
            damaged.replace_range(at..=at, &to);
            prop_assume!(damaged != token);
            prop_assert_eq!(scope.read::<2>(&damaged), Err(TokenError::Invalid));
        }

        #[test]
        fn malformed_tokens_are_rejected(rubbish in ".{1,100}") {
            prop_assert_eq!(Scope::new("ListFollowers").read::<2>(&rubbish), Err(TokenError::Invalid));
        }
    }

    #[test]
    fn fuzz_page_tokens() {
        let scope = Scope::new("ListFollowers").with(42);
        bolero::check!().for_each(|bytes: &[u8]| {
            // As text, and as the content of a token.
            let text = String::from_utf8_lossy(bytes);
            for token in [text.into_owned(), URL_SAFE_NO_PAD.encode(bytes)] {
                if let Ok(Some(numbers)) = scope.read_all(&token) {
                    assert_eq!(scope.token_of(&numbers), token);
                }
            }
        });
    }
}
