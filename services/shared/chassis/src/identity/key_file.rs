//! The key file, reloaded when its content changes.

use std::{
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_files::{HotReload, TextFile, TextFileError};

use super::{
    keys::Keys,
    signed_token::{self, Identity, SignedToken, VerifyError},
};

/// Minimum interval between two checks of the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Room for eight keys and comments.
const BYTES_MAX: u64 = 64 * 1024;

/// The keys of `--identity-key-file`. Cheap to clone; clones share the keys.
///
/// The first use after ten seconds checks the file. Changed keys replace the previous ones. An
/// unreadable or invalid file keeps them, with a warning in the log.
#[derive(Clone)]
pub struct KeyFile(Arc<HotReload<TextFile<Keys>>>);

impl KeyFile {
    /// Reads the keys of a file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TextFileError> {
        let parse = |text: &str| Keys::parse(text).map_err(|problem| problem.to_string());
        let file = TextFile { path: path.into(), bytes_max: BYTES_MAX, parse };
        let keys = HotReload::new("identity keys", file);
        let keys = keys.map_err(|unusable| unusable.problem)?;
        Ok(Self(Arc::new(keys.check_every(CHECK_INTERVAL))))
    }

    /// Signs an identity, for a call to a service with one of the keys.
    pub(crate) fn sign(&self, identity: Identity) -> SignedToken {
        signed_token::sign(&self.0.current(), identity, now())
    }

    /// Verifies a token, and returns its identity.
    pub(super) fn verify(&self, text: &[u8]) -> Result<Identity, VerifyError> {
        signed_token::verify(&self.0.current(), text, now())
    }
}

// For clap.
impl FromStr for KeyFile {
    type Err = TextFileError;

    fn from_str(path: &str) -> Result<Self, TextFileError> {
        Self::open(path)
    }
}

// Unix time in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::{error::Error as _, fs};

    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f";

    fn file(text: &str) -> (tempfile::NamedTempFile, KeyFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let keys = KeyFile::open(file.path()).unwrap();
        (file, checking_each_use(keys))
    }

    fn checking_each_use(KeyFile(keys): KeyFile) -> KeyFile {
        KeyFile(Arc::new(Arc::into_inner(keys).unwrap().check_every(Duration::ZERO)))
    }

    fn accepts(file: &KeyFile, other: &KeyFile) -> bool {
        file.verify(other.sign(Identity::System).as_bytes()) == Ok(Identity::System)
    }

    #[test]
    fn key_rotation_rejects_no_call() {
        let (one, caller) = file(ONE);
        let (two, callee) = file(ONE);
        for text in [format!("{ONE}\n{TWO}"), format!("{TWO}\n{ONE}"), TWO.to_owned()] {
            // In either order, each file accepts the keys of the previous step.
            for path in [one.path(), two.path()] {
                fs::write(path, &text).unwrap();
                assert!(accepts(&callee, &caller) && accepts(&caller, &callee), "{text}");
            }
        }
        let (_, former) = file(ONE);
        assert!(!accepts(&callee, &former));
    }

    #[test]
    fn invalid_key_file_keeps_the_previous_keys() {
        let (path, keys) = file(ONE);
        let (_, same) = file(ONE);
        fs::write(path.path(), "rubbish").unwrap();
        assert!(accepts(&keys, &same));
        fs::remove_file(path.path()).unwrap();
        assert!(accepts(&keys, &same));
        fs::write(path.path(), TWO).unwrap();
        assert!(!accepts(&keys, &same));
    }

    #[test]
    fn file_is_checked_again_after_the_interval() {
        let (path, _) = file(ONE);
        let (_other, other) = file(TWO);
        let keys = KeyFile::open(path.path()).unwrap();
        fs::write(path.path(), TWO).unwrap();
        assert!(!accepts(&keys, &other), "not yet");
        assert!(accepts(&checking_each_use(keys), &other));
    }

    #[test]
    fn keys_are_never_shown() {
        let broken = tempfile::NamedTempFile::new().unwrap();
        fs::write(broken.path(), format!("{ONE}\n{}", &TWO[1..])).unwrap();
        let error = KeyFile::open(broken.path()).err().unwrap();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(!error.to_string().contains(&TWO[1..]));
        assert!(error.source().is_none());
    }
}
