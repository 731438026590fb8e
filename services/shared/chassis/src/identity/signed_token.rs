//! Signed identity token, in one header:
//!
//! ```text
//! v1.<subject>.<expiry>.<signature>
//! ```
//!
//! The subject is `anonymous`, `system` or `user:<id>`. The expiry is Unix time in seconds. The
//! signature is HMAC-SHA256 of everything before its dot, in URL-safe base64 without padding.

use std::io::Write as _;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use microblog_domain::UserId;

use super::keys::{Keys, TAG_BYTES};

/// Validity of a token, in seconds: the maximum duration of a call.
const LIFETIME: u64 = 60;
/// Tolerated clock skew between two servers, in seconds.
const CLOCK_SKEW_MAX: u64 = 30;

const VERSION: &str = "v1";
/// Payload with the largest user id and the latest expiry.
const PAYLOAD_BYTES_MAX: usize = "v1.user:.".len() + 2 * 20;
const SIGNATURE_BYTES: usize = 43;
const BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 1 + SIGNATURE_BYTES;

/// The identity that a call acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// An unauthenticated caller, forwarded by a trusted server.
    Anonymous,
    /// A user with a valid session.
    User(UserId),
    /// The system itself, authorized for every method.
    System,
}

/// A signed identity.
pub(crate) struct SignedToken {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl SignedToken {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerifyError {
    /// Malformed, or signed by an unknown key.
    BadSignature,
    /// Past its expiry.
    Expired,
    /// Its expiry is too far in the future: the servers' clocks differ.
    NotYetValid,
}

/// Signs an identity, valid from now on.
pub(super) fn sign(keys: &Keys, identity: Identity, now: u64) -> SignedToken {
    let mut bytes = [0; BYTES_MAX];
    let expiry = now.saturating_add(LIFETIME);
    let mut rest = &mut bytes[..PAYLOAD_BYTES_MAX];
    // The buffer has room for every identity.
    let _ = match identity {
        Identity::Anonymous => write!(rest, "{VERSION}.anonymous.{expiry}"),
        Identity::System => write!(rest, "{VERSION}.system.{expiry}"),
        Identity::User(id) => write!(rest, "{VERSION}.user:{id}.{expiry}"),
    };
    let length = PAYLOAD_BYTES_MAX - rest.len();
    let tag = keys.sign(&bytes[..length]);
    bytes[length] = b'.';
    let signature = &mut bytes[length + 1..];
    let written = URL_SAFE_NO_PAD.encode_slice(tag, signature).unwrap_or_default();
    SignedToken { bytes, length: length + 1 + written }
}

/// Verifies a token of [`sign()`].
pub(super) fn verify(keys: &Keys, text: &[u8], now: u64) -> Result<Identity, VerifyError> {
    let (text, tag) = split(text).ok_or(VerifyError::BadSignature)?;
    if !keys.verify(text.as_bytes(), &tag) {
        return Err(VerifyError::BadSignature);
    }
    // The signature is valid, but the version is unknown.
    let (identity, expiry) = parse(text).ok_or(VerifyError::BadSignature)?;
    if now > expiry.saturating_add(CLOCK_SKEW_MAX) {
        return Err(VerifyError::Expired);
    }
    if expiry > now.saturating_add(LIFETIME + CLOCK_SKEW_MAX) {
        return Err(VerifyError::NotYetValid);
    }
    Ok(identity)
}

fn split(text: &[u8]) -> Option<(&str, [u8; TAG_BYTES])> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= BYTES_MAX)?;
    let (text, signature) = text.rsplit_once('.')?;
    let mut tag = [0; TAG_BYTES];
    let length = URL_SAFE_NO_PAD.decode_slice(signature, &mut tag).ok()?;
    (length == TAG_BYTES).then_some((text, tag))
}

fn parse(text: &str) -> Option<(Identity, u64)> {
    let (subject, expiry) = text.strip_prefix(VERSION)?.strip_prefix('.')?.split_once('.')?;
    let identity = match subject.split_once(':') {
        None if subject == "anonymous" => Identity::Anonymous,
        None if subject == "system" => Identity::System,
        Some(("user", id)) => Identity::User(UserId::new(id.parse().ok()?)?),
        None | Some(_) => return None,
    };
    Some((identity, expiry.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn keys(byte: u8) -> Keys {
        Keys::parse(&hex::encode([byte; 32])).unwrap()
    }

    fn identities() -> impl Strategy<Value = Identity> {
        prop_oneof![
            Just(Identity::Anonymous),
            Just(Identity::System),
            (1..1_u64 << 53).prop_filter_map("an id", UserId::new).prop_map(Identity::User),
        ]
    }

    fn signed(text: &str) -> Vec<u8> {
        let tag = URL_SAFE_NO_PAD.encode(keys(1).sign(text.as_bytes()));
        format!("{text}.{tag}").into_bytes()
    }

    #[test]
    fn token_format_is_stable() {
        let text = sign(&keys(1), Identity::User(UserId::new(7).unwrap()), NOW);
        assert_eq!(text.as_bytes(), signed("v1.user:7.1800000060"));
        let text = sign(&keys(1), Identity::Anonymous, NOW);
        assert_eq!(text.as_bytes(), signed("v1.anonymous.1800000060"));
        let text = sign(&keys(1), Identity::System, NOW);
        assert_eq!(text.as_bytes(), signed("v1.system.1800000060"));
    }

    #[test]
    fn token_is_valid_for_its_lifetime_plus_clock_skew() {
        let text = sign(&keys(1), Identity::System, NOW);
        let at = |now| verify(&keys(1), text.as_bytes(), now);
        assert_eq!(at(NOW), Ok(Identity::System));
        assert_eq!(at(NOW - 30), Ok(Identity::System));
        assert_eq!(at(NOW - 31), Err(VerifyError::NotYetValid));
        assert_eq!(at(NOW + 90), Ok(Identity::System));
        assert_eq!(at(NOW + 91), Err(VerifyError::Expired));
    }

    #[test]
    fn signed_but_malformed_tokens_are_rejected() {
        for text in [
            "v2.system.1800000060",
            "v1.root.1800000060",
            "v1.user:0.1800000060",
            "v1.user:9007199254740992.1800000060",
            "v1.user:x.1800000060",
            "v1.group:1.1800000060",
            "v1.system.",
            "v1.system.1.2",
            "v1.system",
            "v1",
            "",
        ] {
            assert_eq!(
                verify(&keys(1), &signed(text), NOW),
                Err(VerifyError::BadSignature),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn tokens_round_trip(identity in identities(), now in 0..u64::MAX) {
            let text = sign(&keys(1), identity, now);
            prop_assert_eq!(verify(&keys(1), text.as_bytes(), now), Ok(identity));
            prop_assert_eq!(verify(&keys(2), text.as_bytes(), now), Err(VerifyError::BadSignature));
        }

        #[test]
        fn tampered_tokens_are_rejected(
            identity in identities(), at in any::<prop::sample::Index>(), byte in any::<u8>()
        ) {
            let mut text = sign(&keys(1), identity, NOW).as_bytes().to_vec();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            prop_assert_eq!(verify(&keys(1), &text, NOW), Err(VerifyError::BadSignature));
        }

        #[test]
        fn random_bytes_are_rejected(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(verify(&keys(1), &text, NOW), Err(VerifyError::BadSignature));
        }

        #[test]
        fn tokens_with_random_signatures_are_rejected(text in r"v1\.(user:[0-9]{1,20}|system)\.[0-9]{1,20}\.[A-Za-z0-9_-]{43}") {
            prop_assert_eq!(verify(&keys(1), text.as_bytes(), NOW), Err(VerifyError::BadSignature));
        }
    }

    #[test]
    fn fuzz_signed_identities() {
        let keys = keys(1);
        bolero::check!().for_each(|bytes: &[u8]| {
            assert!(verify(&keys, bytes, NOW).is_err());
            // What has a valid signature is still no identity, unless it is one.
            let text = String::from_utf8_lossy(bytes);
            if let Ok(identity) = verify(&keys, &signed(&text), NOW) {
                let time = text.rsplit('.').next().and_then(|time| time.parse().ok());
                assert_eq!(sign(&keys, identity, time.unwrap()).as_bytes(), signed(&text));
            }
        });
    }
}
