//! Recently verified sessions. A read of such a session starts before the session is verified again,
//! and its result is discarded if the session has ended meanwhile.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use microblog_domain::UserId;

/// How long a verification counts as recent: as long as a signed identity is valid.
const RECENT: Duration = Duration::from_secs(60);

/// The most sessions in memory: some 3 MB.
const SESSIONS_MAX: usize = 50_000;

/// The viewers of recently verified tokens, by a seeded hash of the token: the tokens themselves are
/// not kept. Of two tokens with one hash, calls may fail with INTERNAL.
#[derive(Clone, Default)]
pub(crate) struct RecentSessions {
    viewers: Arc<Mutex<HashMap<u64, (UserId, Instant)>>>,
    hasher: RandomState,
}

impl RecentSessions {
    /// Returns the viewer of a token that was verified recently.
    pub(crate) fn viewer(&self, token: &str) -> Option<UserId> {
        let hash = self.hasher.hash_one(token);
        let (viewer, verified_at) = *self.lock().get(&hash)?;
        (verified_at.elapsed() < RECENT).then_some(viewer)
    }

    /// Records that a token was verified now.
    pub(crate) fn insert(&self, token: &str, viewer: UserId) {
        let hash = self.hasher.hash_one(token);
        let mut viewers = self.lock();
        if viewers.len() >= SESSIONS_MAX {
            viewers.retain(|_, (_, verified_at)| verified_at.elapsed() < RECENT);
            // Otherwise each insertion would scan all of them.
            if viewers.len() > SESSIONS_MAX / 2 {
                viewers.clear();
            }
        }
        viewers.insert(hash, (viewer, Instant::now()));
    }

    /// Removes a token that could not be verified.
    pub(crate) fn remove(&self, token: &str) {
        let hash = self.hasher.hash_one(token);
        self.lock().remove(&hash);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (UserId, Instant)>> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u64) -> UserId {
        UserId::new(id).unwrap()
    }

    #[test]
    fn a_session_is_recent_until_it_is_removed_or_a_minute_old() {
        let sessions = RecentSessions::default();
        sessions.insert("a", user(1));
        sessions.clone().insert("b", user(2));
        assert_eq!(
            ["a", "b", "c"].map(|token| sessions.viewer(token)),
            [Some(user(1)), Some(user(2)), None]
        );
        sessions.remove("a");
        for (_, verified_at) in sessions.lock().values_mut() {
            *verified_at -= RECENT;
        }
        assert_eq!(["a", "b"].map(|token| sessions.viewer(token)), [None, None]);
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let sessions = RecentSessions::default();
        for number in 0..2 * SESSIONS_MAX {
            sessions.insert(&number.to_string(), user(1));
            assert!(sessions.lock().len() <= SESSIONS_MAX);
        }
        assert_eq!(sessions.viewer(&(2 * SESSIONS_MAX - 1).to_string()), Some(user(1)));
    }
}
