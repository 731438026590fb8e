//! Passwords: validation, and hashing with bounded concurrency. `Debug` shows neither passwords nor
//! hashes.

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
// Checked before normalisation, to bound its cost. The longest password has far fewer: a code point
// in NFC stands for at most four others.
const BYTES_MAX: usize = 4096;

// Queued calls per concurrent hash: less than a second's work. At the default concurrency of two,
// far fewer than a connection's streams, so that queued log-ins do not block its other calls.
const QUEUED_PER_PERMIT: usize = 16;

/// A password, normalised to NFC, so that it does not depend on the keyboard. Not trimmed;
/// case-sensitive.
#[derive(Clone)]
pub(crate) struct Password(String);

impl Password {
    /// Parses a new password: 8 to 128 characters (Unicode code points in NFC), up to 4,096 bytes,
    /// without control characters.
    pub(crate) fn parse_new(field: &str, text: &str) -> Result<Self, Invalid> {
        Self::parse(field, text, CHARACTERS_MIN)
    }

    /// Parses a password to compare: 1 to 128 characters.
    pub(crate) fn parse_given(field: &str, text: &str) -> Result<Self, Invalid> {
        Self::parse(field, text, 1)
    }

    fn parse(field: &str, text: &str, min: usize) -> Result<Self, Invalid> {
        if text.len() > BYTES_MAX {
            return Err(Invalid::new(field, format!("must have at most {BYTES_MAX} bytes")));
        }
        let text: String = text.nfc().collect();
        if !(min..=CHARACTERS_MAX).contains(&text.chars().count()) {
            let limits = format!("{min} to {CHARACTERS_MAX} characters (Unicode code points)");
            return Err(Invalid::new(field, format!("must have {limits}")));
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

/// The hash of a password in PHC form; empty for an account without a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hash(String);

impl Hash {
    /// Returns the hash that matches no password.
    pub(crate) const fn none() -> Self {
        Self(String::new())
    }

    /// Returns a stored hash.
    pub(crate) const fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the hash to store.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash(…)")
    }
}

/// Hashing failed.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// The algorithm failed.
    #[error("password hashing failed")]
    Algorithm(#[source] argon2::password_hash::Error),
    /// The blocking thread panicked or was canceled.
    #[error("password hashing thread failed")]
    Thread(#[source] tokio::task::JoinError),
    /// The queue is full.
    #[error("password hashing queue is full")]
    QueueFull,
    /// The process is shutting down.
    #[error("password hashing stopped")]
    Stopped(#[source] tokio::sync::AcquireError),
}

/// Hashes passwords on blocking threads, with bounded concurrency for the whole process: each takes
/// 20 to 45 ms and 19 MiB, and other calls need the CPU. Further calls wait in a bounded queue, or
/// leave it if they are canceled. All others are rejected.
#[derive(Clone)]
pub(crate) struct Hasher {
    permits: Arc<Semaphore>,
    queue_slots: Arc<Semaphore>,
}

/// A permit to hash. It is released when it is dropped and its work is done.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    _permit: Arc<OwnedSemaphorePermit>,
}

// The hash of a random password: equal work for unknown accounts.
static DECOY: OnceLock<String> = OnceLock::new();

impl Hasher {
    /// Returns the process's hasher, which its worker threads share. The first call sets the
    /// concurrency.
    pub(crate) fn of_process(at_once: usize) -> Self {
        static SHARED: OnceLock<Hasher> = OnceLock::new();
        let hasher = || Self {
            permits: Arc::new(Semaphore::new(at_once)),
            queue_slots: Arc::new(Semaphore::new(at_once * QUEUED_PER_PERMIT)),
        };
        SHARED.get_or_init(hasher).clone()
    }

    /// Waits for a permit. Fails with [`HashError::QueueFull`] if the queue is full.
    pub(crate) async fn permit(&self) -> Result<Permit, HashError> {
        let _slot = self.queue_slots.try_acquire().map_err(|_| HashError::QueueFull)?;
        self.acquire().await
    }

    /// Computes the decoy hash in advance, so that the first check of an unknown account takes no
    /// longer than others. Takes one hash. Ignores the queue limit, since each worker thread calls
    /// it at its start.
    pub(crate) async fn warm_up(&self) -> Result<(), HashError> {
        self.acquire().await?.run(|| decoy().map(drop)).await
    }

    async fn acquire(&self) -> Result<Permit, HashError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(HashError::Stopped)?;
        Ok(Permit { _permit: Arc::new(permit) })
    }
}

impl Permit {
    /// Hashes a password with a random salt.
    pub(crate) async fn hash(&self, password: Password) -> Result<Hash, HashError> {
        self.run(move || hash(&password.0)).await.map(Hash)
    }

    /// Returns whether a password matches a hash. Without a hash, or with an empty one, does the
    /// same work and returns false.
    pub(crate) async fn verify(
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
        // The work holds the permit: a canceled call does not release it early.
        let permit = self.clone();
        let work = move || {
            let _permit = permit;
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

/// Returns the decoy hash. The first call computes it: see [`Hasher::warm_up`].
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
    fn the_exceeded_limit_of_a_password_is_named() {
        let problem = |text: &str| Password::parse_new("password", text).unwrap_err().problem;
        let characters = "must have 8 to 128 characters (Unicode code points)";
        for text in ["1234567", &"x".repeat(129), &"x".repeat(4_096)] {
            assert_eq!(problem(text), characters);
        }
        assert_eq!(problem(&"x".repeat(4_097)), "must have at most 4096 bytes");
        // The most bytes that 128 characters can have before normalisation.
        let longest = "\u{3b1}\u{313}\u{300}\u{345}".repeat(128);
        assert!(Password::parse_new("password", &longest).is_ok());
    }

    #[test]
    fn debug_hides_secrets() {
        let password = Password::parse_new("password", "correct horse").unwrap();
        assert!(!format!("{password:?}").contains("horse"));
        assert!(!format!("{:?}", Hash::stored("$argon2id$".to_owned())).contains("argon"));
    }

    #[tokio::test]
    async fn passwords_are_compared_in_nfc() {
        let composed = Password::parse_new("password", "caf\u{e9} 1234").unwrap();
        let decomposed = Password::parse_given("password", "cafe\u{301} 1234").unwrap();
        let hash = permit().await.hash(composed).await.unwrap();
        assert!(hash.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "the parameters");
        assert!(permit().await.verify(&decomposed, Some(&hash)).await.unwrap());
    }

    #[tokio::test]
    async fn an_empty_hash_matches_no_password() {
        Hasher::of_process(2).warm_up().await.unwrap();
        let password = Password::parse_given("password", "anything").unwrap();
        assert!(!permit().await.verify(&password, None).await.unwrap());
        assert!(!permit().await.verify(&password, Some(&Hash::none())).await.unwrap());
        let other = Password::parse_new("password", "something else").unwrap();
        let hash = permit().await.hash(other).await.unwrap();
        assert!(!permit().await.verify(&password, Some(&hash)).await.unwrap());
    }
}
