//! Signing keys of identities, one per line of the key file.

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Length of a signature in bytes.
pub(super) const TAG_BYTES: usize = 32;

// The recommended minimum for HMAC-SHA256: <https://www.rfc-editor.org/rfc/rfc2104#section-3>.
const KEY_BYTES_MIN: usize = 32;
// Bounds the cost of rejecting a forged signature, which is tried with each key.
const KEYS_MAX: usize = 8;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Keys: the first one signs, all verify. There is at least one.
pub(super) struct Keys {
    first: Hmac<Sha256>,
    others: Vec<Hmac<Sha256>>,
}

/// Why a key file is unusable. Never shows its content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    #[error("line {0} is neither base64 nor hexadecimal")]
    Encoding(usize),
    #[error("the key in line {0} has {1} bytes, and must have at least {KEY_BYTES_MIN}")]
    Short(usize, usize),
    #[error("the file has no key")]
    Empty,
    #[error("the file has more than {KEYS_MAX} keys")]
    TooMany,
}

impl Keys {
    /// Parses keys, base64 or hexadecimal, one a line. Skips empty lines and those that begin with
    /// `#`.
    pub(super) fn parse(text: &str) -> Result<Self, KeyError> {
        let lines = text.lines().map(str::trim).zip(1..);
        let mut keys = lines
            .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, number)| key(line, number));
        let first = keys.next().ok_or(KeyError::Empty)??;
        let others = keys.collect::<Result<Vec<_>, _>>()?;
        if others.len() >= KEYS_MAX {
            return Err(KeyError::TooMany);
        }
        Ok(Self { first, others })
    }

    /// Signs a text with the first key.
    pub(super) fn sign(&self, text: &[u8]) -> [u8; TAG_BYTES] {
        self.first.clone().chain_update(text).finalize().into_bytes().into()
    }

    /// Verifies a signature with any of the keys, in constant time.
    pub(super) fn verify(&self, text: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        let mut keys = std::iter::once(&self.first).chain(&self.others);
        keys.any(|key| key.clone().chain_update(text).verify_slice(tag).is_ok())
    }
}

fn key(line: &str, number: usize) -> Result<Hmac<Sha256>, KeyError> {
    // Text of hexadecimal digits alone is also valid base64, with another value; also when one
    // digit is lost.
    let bytes = if line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        hex::decode(line).ok()
    } else {
        let decode = |alphabet| GeneralPurpose::new(alphabet, LENIENT).decode(line).ok();
        decode(&STANDARD).or_else(|| decode(&URL_SAFE))
    };
    let bytes = bytes.ok_or(KeyError::Encoding(number))?;
    if bytes.len() < KEY_BYTES_MIN {
        return Err(KeyError::Short(number, bytes.len()));
    }
    // Accepts keys of any length.
    Hmac::new_from_slice(&bytes).map_err(|_| KeyError::Encoding(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const OTHER: &str = "__________________________________________8";

    fn problem(text: &str) -> KeyError {
        Keys::parse(text).err().expect("an error")
    }

    #[test]
    fn signature_is_hmac_sha256() {
        // Output of `openssl dgst -sha256 -mac HMAC -macopt hexkey:…`.
        let expected = "16ce03e8b52f556b10870773ddd91b2c3a51e884daf253a8afeb2055a6cfbea0";
        let tag = Keys::parse(HEX).unwrap().sign(b"v1.system.1700000000");
        assert_eq!(hex::encode(tag), expected);
    }

    #[test]
    fn keys_may_be_base64_or_hexadecimal() {
        let tag = Keys::parse(HEX).unwrap().sign(b"text");
        let unpadded = BASE64.trim_end_matches('=');
        for text in [HEX, BASE64, unpadded, &HEX.to_uppercase(), &format!("# one\n\n  {HEX}\r\n")] {
            assert!(Keys::parse(text).unwrap().verify(b"text", &tag), "{text}");
        }
    }

    #[test]
    fn first_key_signs_and_all_keys_verify() {
        let (old, new) = (Keys::parse(HEX).unwrap(), Keys::parse(OTHER).unwrap());
        let both = Keys::parse(&format!("{HEX}\n{OTHER}")).unwrap();
        assert!(both.verify(b"text", &new.sign(b"text")));
        assert!(old.verify(b"text", &both.sign(b"text")));
        assert!(!new.verify(b"text", &both.sign(b"text")));
        assert!(!both.verify(b"another text", &both.sign(b"text")));
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(problem("# none\n"), KeyError::Empty);
        assert_eq!(problem(&format!("# one\n{HEX}\nnot a key!")), KeyError::Encoding(3));
        assert_eq!(problem(&format!("{HEX}\n{}", &HEX[..62])), KeyError::Short(2, 31));
        assert_eq!(problem(&format!("{}0", &HEX[..62])), KeyError::Encoding(1), "a digit is lost");
        assert_eq!(problem(&[HEX; 9].join("\n")), KeyError::TooMany);
        assert!(Keys::parse(&[HEX; 8].join("\n")).is_ok());
    }
}
