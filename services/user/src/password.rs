//! Passwords: what is taken for one, and hashing them at a bounded rate. A password or its hash
//! never shows in a log. Does not know where hashes are kept.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use argon2::{Algorithm, Argon2, Params, PasswordHasher as _, PasswordVerifier as _, Version};
use microblog_domain::Invalid;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use unicode_normalization::UnicodeNormalization as _;

const CHARACTERS_MIN: usize = 8;
const CHARACTERS_MAX: usize = 128;
// Before normalisation, which is not run on more.
const BYTES_MAX: usize = 4096;

// So many calls wait for each that hashes: less than a second's work, and at the default of two far
// fewer than a connection has streams, so that waiting log-ins do not stop its other calls.
const WAITING_PER_TURN: usize = 16;

/// A password as somebody sent it, normalised to NFC, so that it is the same from every keyboard.
/// Nothing is trimmed and no case is changed.
#[derive(Clone)]
pub struct Password(String);

impl Password {
    /// Reads a password to be set: 8 to 128 characters (Unicode code points, after NFC), no control
    /// character among them.
    pub fn parse_new(field: &str, text: &str) -> Result<Self, Invalid> {
        Self::parse(field, text, CHARACTERS_MIN)
    }

    /// Reads a password to be compared: up to 128 characters, at least 1.
    pub fn parse_given(field: &str, text: &str) -> Result<Self, Invalid> {
        Self::parse(field, text, 1)
    }

    fn parse(field: &str, text: &str, min: usize) -> Result<Self, Invalid> {
        let problem = || format!("must have {min} to {CHARACTERS_MAX} characters");
        if text.len() > BYTES_MAX {
            return Err(Invalid::new(field, problem()));
        }
        let text: String = text.nfc().collect();
        if !(min..=CHARACTERS_MAX).contains(&text.chars().count()) {
            return Err(Invalid::new(field, problem()));
        }
        if text.chars().any(char::is_control) {
            return Err(Invalid::new(field, "must not contain control characters"));
        }
        Ok(Self(text))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The hash of a password in PHC form, or the empty text of an account that nobody can log in to.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash(String);

impl Hash {
    /// Returns the hash that no password has.
    pub const fn none() -> Self {
        Self(String::new())
    }

    /// Returns a hash as it was stored.
    pub const fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the hash as it is to be stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash(…)")
    }
}

/// Hashing failed: a fault of the service or of a stored hash.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// The algorithm refused.
    #[error("password hashing failed")]
    Algorithm(#[source] argon2::password_hash::Error),
    /// The blocking thread ended early.
    #[error("password hashing was cut off")]
    Thread(#[source] tokio::task::JoinError),
    /// As many wait for their turn as may.
    #[error("too many passwords wait to be hashed")]
    Full,
    /// The process is going down.
    #[error("password hashing has stopped")]
    Stopped(#[source] tokio::sync::AcquireError),
}

/// Hashes passwords off the async threads, so many at once in the whole process: it takes 20 to 45
/// ms and 19 MiB each, and must leave the CPU to other calls. So many wait for their turn, and are
/// let go with their calls; all others are refused.
#[derive(Clone)]
pub struct Hasher {
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// A turn at hashing, until it is dropped and the work begun under it is done.
#[derive(Clone, Debug)]
pub struct Permit {
    _turn: Arc<OwnedSemaphorePermit>,
}

// Of one password that nobody knows: work for addresses that no account has.
static DECOY: OnceLock<String> = OnceLock::new();

impl Hasher {
    /// Returns the process's hasher. Its worker threads share it; the first one says how many
    /// passwords are hashed at once.
    pub fn of_process(at_once: usize) -> Self {
        static SHARED: OnceLock<Hasher> = OnceLock::new();
        let hasher = || Self {
            turns: Arc::new(Semaphore::new(at_once)),
            places: Arc::new(Semaphore::new(at_once * WAITING_PER_TURN)),
        };
        SHARED.get_or_init(hasher).clone()
    }

    /// Waits for a turn. Fails at once with [`HashError::Full`] if too many wait already.
    pub async fn permit(&self) -> Result<Permit, HashError> {
        let _place = self.places.try_acquire().map_err(|_| HashError::Full)?;
        self.turn().await
    }

    /// Makes what the first comparison would otherwise have to make, so that an unknown address
    /// takes the same time as any other from the first call on. Takes as long as one hash; waits
    /// however many wait, since every worker thread of a process does it at its start.
    pub async fn warm_up(&self) -> Result<(), HashError> {
        self.turn().await?.run(|| decoy().map(drop)).await
    }

    async fn turn(&self) -> Result<Permit, HashError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(HashError::Stopped)?;
        Ok(Permit { _turn: Arc::new(turn) })
    }
}

impl Permit {
    /// Returns the hash of a password with a salt of its own.
    pub async fn hash(&self, password: Password) -> Result<Hash, HashError> {
        self.run(move || hash(&password.0)).await.map(Hash)
    }

    /// Returns whether the password has this hash. Without a hash, or with that of an account
    /// without password, it does the same work and returns false.
    pub async fn verify(
        &self,
        password: &Password,
        hash: Option<&Hash>,
    ) -> Result<bool, HashError> {
        let password = password.0.clone();
        let hash = hash.filter(|hash| !hash.0.is_empty()).cloned();
        self.run(move || match hash {
            Some(hash) => verify(&password, &hash.0),
            None => verify(&password, decoy()?).map(|_| false),
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, argon2::password_hash::Error> + Send + 'static,
    ) -> Result<T, HashError> {
        // The turn goes along: a caller who gives up does not make room while the work goes on.
        let turn = self.clone();
        let work = move || {
            let _turn = turn;
            work()
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(HashError::Thread)?;
        done.map_err(HashError::Algorithm)
    }
}

/// Argon2id with 19 MiB, 2 passes, 1 lane: the first choice of OWASP's Password Storage Cheat Sheet.
fn algorithm() -> Result<Argon2<'static>, argon2::password_hash::Error> {
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::new(19_456, 2, 1, None)?))
}

fn hash(password: &str) -> Result<String, argon2::password_hash::Error> {
    Ok(algorithm()?.hash_password(password.as_bytes())?.to_string())
}

fn verify(password: &str, hash: &str) -> Result<bool, argon2::password_hash::Error> {
    match algorithm()?.verify_password(password.as_bytes(), hash) {
        Ok(()) => Ok(true),
        Err(argon2::password_hash::Error::PasswordInvalid) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a hash for the work alone. The first call costs one hash more: see
/// [`Hasher::warm_up`].
fn decoy() -> Result<&'static str, argon2::password_hash::Error> {
    if let Some(decoy) = DECOY.get() {
        return Ok(decoy);
    }
    let made = hash(&uuid::Uuid::new_v4().to_string())?;
    Ok(DECOY.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn permit() -> Permit {
        Hasher::of_process(2).permit().await.unwrap()
    }

    #[test]
    fn a_password_has_8_to_128_characters() {
        for text in
            ["", "1234567", &"x".repeat(129), &"x".repeat(1 << 20), "1234567\0", "123456\n8"]
        {
            assert_eq!(Password::parse_new("password", text).unwrap_err().field, "password");
        }
        for text in ["12345678", " 234567 ", "密码密码密码密码", &"🔑".repeat(128)] {
            assert!(Password::parse_new("password", text).is_ok(), "{text:?}");
        }
        assert!(Password::parse_given("password", "1").is_ok());
    }

    #[test]
    fn nothing_secret_shows_in_debug() {
        let password = Password::parse_new("password", "correct horse").unwrap();
        assert!(!format!("{password:?}").contains("horse"));
        assert!(!format!("{:?}", Hash::stored("$argon2id$".to_owned())).contains("argon"));
    }

    #[tokio::test]
    async fn a_password_is_the_same_from_every_keyboard() {
        let composed = Password::parse_new("password", "caf\u{e9} 1234").unwrap();
        let decomposed = Password::parse_given("password", "cafe\u{301} 1234").unwrap();
        let hash = permit().await.hash(composed).await.unwrap();
        assert!(hash.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "the parameters");
        assert!(permit().await.verify(&decomposed, Some(&hash)).await.unwrap());
    }

    #[tokio::test]
    async fn no_hash_has_no_password() {
        Hasher::of_process(2).warm_up().await.unwrap();
        let password = Password::parse_given("password", "anything").unwrap();
        assert!(!permit().await.verify(&password, None).await.unwrap());
        assert!(!permit().await.verify(&password, Some(&Hash::none())).await.unwrap());
        let other = Password::parse_new("password", "something else").unwrap();
        let hash = permit().await.hash(other).await.unwrap();
        assert!(!permit().await.verify(&password, Some(&hash)).await.unwrap());
    }
}
