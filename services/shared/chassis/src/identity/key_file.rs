//! The key file, reloaded when its content changes.

use std::{
    fmt, fs, io,
    io::Read as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_files::Looks;
use sha2::{Digest as _, Sha256};

use super::{
    keys::{KeyError, Keys},
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
pub struct KeyFile(Arc<Inner>);

// Not a `Reloaded`: every call reads the keys, and its mutex would serialize them.
struct Inner {
    path: PathBuf,
    keys: RwLock<Keys>,
    check_interval: Looks,
    /// Result of the last check.
    content: Mutex<Content>,
}

/// Result of a check, without the keys.
#[derive(PartialEq, Eq)]
enum Content {
    Text([u8; 32]),
    Unreadable,
}

/// Why the keys of a file are unusable.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    // Includes its cause: clap shows only this line for an invalid flag.
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Unreadable(io::Error),
    /// The content is invalid. Names the line, without its content.
    #[error("{0}")]
    Invalid(String),
}

impl KeyFile {
    /// Reads the keys of a file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, KeyFileError> {
        let path = path.into();
        let text = read(&path).map_err(KeyFileError::Unreadable)?;
        let keys =
            Keys::parse(&text).map_err(|problem| KeyFileError::Invalid(problem.to_string()))?;
        Ok(Self(Arc::new(Inner {
            path,
            keys: RwLock::new(keys),
            check_interval: Looks::every(CHECK_INTERVAL),
            content: Mutex::new(Content::text(&text)),
        })))
    }

    /// Signs an identity, for a call to a service with one of the keys.
    pub(crate) fn sign(&self, identity: Identity) -> SignedToken {
        self.0.reload_if_due();
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        signed_token::sign(&keys, identity, now())
    }

    /// Verifies a token, and returns its identity.
    pub(super) fn verify(&self, text: &[u8]) -> Result<Identity, VerifyError> {
        self.0.reload_if_due();
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        signed_token::verify(&keys, text, now())
    }
}

// For clap.
impl FromStr for KeyFile {
    type Err = KeyFileError;

    fn from_str(path: &str) -> Result<Self, KeyFileError> {
        Self::open(path)
    }
}

impl Inner {
    fn reload_if_due(&self) {
        if self.check_interval.is_due() {
            self.reload();
        }
    }

    fn reload(&self) {
        let text = read(&self.path);
        let content = text.as_deref().map_or(Content::Unreadable, Content::text);
        let mut before = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == content {
            return;
        }
        *before = content;
        let file = self.path.display();
        match text.map(|text| Keys::parse(&text)) {
            Ok(Ok(keys)) => {
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
                tracing::info!(%file, "the keys of identities were read anew");
            }
            Ok(Err(problem)) => warn(&file, &problem as &KeyError),
            Err(error) => warn(&file, &error),
        }
    }
}

fn warn(file: &dyn fmt::Display, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(%file, error, "the keys of identities cannot be read anew, the former stay");
}

impl Content {
    fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(Sha256::digest(text).into())
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = fs::File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if size as u64 > BYTES_MAX {
        return Err(io::Error::other("larger than the limit for key files"));
    }
    Ok(text)
}

// Unix time in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

// Hides the keys.
impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFile").field(&self.0.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f";

    fn file(text: &str) -> (tempfile::NamedTempFile, KeyFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let keys = KeyFile::open(file.path()).unwrap();
        (file, keys)
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
            for (path, file) in [(one.path(), &caller), (two.path(), &callee)] {
                fs::write(path, &text).unwrap();
                file.0.reload();
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
        keys.0.reload();
        assert!(accepts(&keys, &same));
        fs::remove_file(path.path()).unwrap();
        keys.0.reload();
        assert!(accepts(&keys, &same));
        fs::write(path.path(), TWO).unwrap();
        keys.0.reload();
        assert!(!accepts(&keys, &same));
    }

    #[test]
    fn file_is_checked_again_after_the_interval() {
        let (path, mut keys) = file(ONE);
        let (_, other) = file(TWO);
        fs::write(path.path(), TWO).unwrap();
        assert!(!accepts(&keys, &other), "not yet");
        Arc::get_mut(&mut keys.0).unwrap().check_interval = Looks::every(Duration::ZERO);
        assert!(accepts(&keys, &other));
    }

    #[test]
    fn keys_are_never_shown() {
        let (_file, keys) = file(ONE);
        assert!(!format!("{keys:?}").contains(ONE));
        let broken = tempfile::NamedTempFile::new().unwrap();
        fs::write(broken.path(), format!("{ONE}\n{}", &TWO[1..])).unwrap();
        let error = KeyFile::open(broken.path()).err().unwrap();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(!error.to_string().contains(&TWO[1..]));
        assert!(error.source().is_none());
    }
}
