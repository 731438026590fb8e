//! Session tokens: opaque to clients, 256 random bits with the account's id. Only a hash is stored.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use microblog_domain::UserId;
use rand::{TryRng as _, rngs::SysRng};
use sha2::{Digest as _, Sha256};

const SECRET_BYTES: usize = 32;
const BYTES: usize = 8 + SECRET_BYTES;
// 40 bytes in base64 without padding.
const TEXT_BYTES: usize = 54;

/// The stored form of a token: its SHA-256. With 256 random bits, a fast hash without salt is
/// enough.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fingerprint([u8; 32]);

/// The first bytes of a fingerprint, which tell the sessions of an account apart.
pub(crate) type FingerprintStart = [u8; 16];

impl Fingerprint {
    /// The first one, in order.
    pub(crate) const FIRST: Self = Self([0; 32]);
    /// The last one.
    pub(crate) const LAST: Self = Self([u8::MAX; 32]);

    /// Returns a fingerprint from its stored text; `None` if it is malformed.
    pub(crate) fn stored(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    /// Returns the text to store.
    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Returns the first bytes.
    pub(crate) fn start(&self) -> FingerprintStart {
        let mut start = FingerprintStart::default();
        start.copy_from_slice(&self.0[..size_of::<FingerprintStart>()]);
        start
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(…)")
    }
}

/// A session token: the base64url text of the account's id (8 bytes, big-endian) and 32 random
/// bytes. The id tells the partition of the session; the hash covers it too.
pub(crate) struct Token {
    user: UserId,
    bytes: [u8; BYTES],
}

/// The system's random number generator failed.
#[derive(Debug, thiserror::Error)]
#[error("system random number generator failed")]
pub struct RngError(#[source] rand::rngs::SysError);

impl Token {
    /// Generates a token for an account.
    pub(crate) fn issue(user: UserId) -> Result<Self, RngError> {
        let mut bytes = [0; BYTES];
        let (id, secret) = bytes.split_at_mut(8);
        id.copy_from_slice(&user.get().to_be_bytes());
        SysRng.try_fill_bytes(secret).map_err(RngError)?;
        Ok(Self { user, bytes })
    }

    /// Parses a token; `None` if the text is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != TEXT_BYTES {
            return None;
        }
        let bytes: [u8; BYTES] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        let user = UserId::new(u64::from_be_bytes(*bytes.first_chunk()?))?;
        Some(Self { user, bytes })
    }

    /// Returns the account of the session, if there is one.
    pub(crate) const fn user(&self) -> UserId {
        self.user
    }

    /// Returns the stored form.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.bytes).into())
    }

    /// Returns the text for the client.
    pub(crate) fn reveal(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.bytes)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_has_its_user_and_debug_hides_it() {
        let user = UserId::new(42).unwrap();
        let token = Token::issue(user).unwrap();
        let read = Token::parse(&token.reveal()).unwrap();
        assert_eq!(read.user(), user);
        assert!(read.fingerprint() == token.fingerprint());
        assert!(token.fingerprint() != Token::issue(user).unwrap().fingerprint());
        assert!(!format!("{token:?}").contains(&token.reveal()));
    }

    #[test]
    fn a_token_has_one_encoding() {
        // The last character has four unused bits, which must be zero.
        let text = Token::issue(UserId::new(42).unwrap()).unwrap().reveal();
        let spellings = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']);
        let read = |c: char| Token::parse(&format!("{}{c}", &text[..TEXT_BYTES - 1]));
        assert_eq!(spellings.filter(|&c| read(c).is_some()).count(), 4);
        assert!(Token::parse(&format!("{text}=")).is_none());
        assert!(Token::parse(&URL_SAFE_NO_PAD.encode([0; BYTES])).is_none());
        assert!(Token::parse(&URL_SAFE_NO_PAD.encode([255; BYTES])).is_none());
    }

    proptest! {
        #[test]
        fn malformed_tokens_do_not_parse(text in ".{0,200}") {
            prop_assert!(Token::parse(&text).is_none());
        }
    }

    #[test]
    fn fuzz_session_tokens() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for text in [String::from_utf8_lossy(bytes).into_owned(), URL_SAFE_NO_PAD.encode(bytes)]
            {
                if let Some(token) = Token::parse(&text) {
                    assert_eq!(token.reveal(), text);
                }
            }
        });
    }
}
