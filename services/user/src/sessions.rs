//! Sessions: opened with a password, authenticated by a token, ended by expiry, log-out, a new
//! password, the account's deletion, or by the log-ins of others if the account has too many.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use microblog_domain::UserId;
use microblog_record::Database;
use microblog_storage::Item as _;

use crate::{
    accounts::{Accounts, part, unix_ms},
    error::Error,
    items::{AccountItem, Sessions},
    login::Login,
    password::Password,
    profile::User,
    steps::{Call, Outcome, USE_NOTED_MS},
    token::{Fingerprint, Token},
};

/// A new session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The session token, for the client.
    pub(crate) token: Token,
    /// The expiry.
    pub(crate) expires_at: SystemTime,
    /// The account.
    pub(crate) user: User,
}

/// How long a worker does not try again to note the use of a session that was last noted at the same time. The
/// attempt may have failed, or the clock of the database may be behind.
const NOTED_AGAIN: Duration = Duration::from_secs(60);

/// The sessions whose use this worker has tried to note a moment ago, each with the use that was noted before,
/// in Unix ms.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashMap<(Fingerprint, u64), Instant>>);

impl Uses {
    /// Returns whether to note the use of a session now.
    fn begin(&self, token: Fingerprint, used_ms: u64, now: Instant) -> bool {
        let mut tried = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tried.get(&(token, used_ms)).is_some_and(|at| now < *at + NOTED_AGAIN) {
            return false;
        }
        if tried.len() == tried.capacity() {
            tried.retain(|_, at| now < *at + NOTED_AGAIN);
            // So that this is done seldom.
            let room = tried.len() + 1;
            tried.reserve(room);
        }
        tried.insert((token, used_ms), now);
        true
    }
}

impl Accounts {
    /// Opens a session.
    pub(crate) async fn login(&self, login: Login, password: Password) -> Result<Session, Error> {
        let account = self.check_credentials(&login, &password).await?;
        let (id, user) = (account.user.id, account.user);
        let token = Token::issue(id)?;
        let lifetime_ms = self.session_ttl.as_millis() as u64;
        let (checked, fingerprint) = (account.password, token.fingerprint());
        let open = Call::Open { id, checked, token: fingerprint, lifetime_ms };
        match self.write(open).await? {
            Outcome::Opened(expires_ms) => {
                let expires_at = UNIX_EPOCH + Duration::from_millis(expires_ms);
                Ok(Session { token, expires_at, user })
            }
            // The password changed, or the account was deleted, during the check.
            _ => Err(Error::BadCredentials),
        }
    }

    /// Ends a session, if it exists.
    pub(crate) async fn logout(&self, token: &str) -> Result<(), Error> {
        let Some(token) = Token::parse(token) else { return Ok(()) };
        let (user, fingerprint) = (token.user(), token.fingerprint());
        // A made-up token locks no row.
        let item = AccountItem::Sessions;
        let is_there = |front: &[u8]| Sessions::find(front, fingerprint).is_some();
        if !is_there(&self.reader.read(&part(item, user.get())).await?.front) {
            // A failover may have set back what the cache has.
            let load = async |database: &Database| item.load(database, user.get()).await;
            let is_known = is_there(&self.reader.uncached(load).await?.contents.front);
            // What the cache answers, it answers to all. The database does not tell them that a session has
            // ended, if the process that has ended it did not.
            if !is_known && self.reader.is_trusted(user.get()) {
                return Ok(());
            }
        }
        self.write(Call::Close(user, fingerprint)).await.map(drop)
    }

    /// Returns the account and the expiry of a session. Notes its use, at most once an hour.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<(UserId, SystemTime), Error> {
        let token = Token::parse(token).ok_or(Error::TokenInvalid)?;
        let sessions = self.reader.read(&part(AccountItem::Sessions, token.user().get())).await?;
        self.check_session(&token, &sessions.front)
    }

    /// Does the same with the entry of the account's sessions.
    pub(crate) fn check_session(
        &self,
        token: &Token,
        front: &[u8],
    ) -> Result<(UserId, SystemTime), Error> {
        let (user, fingerprint) = (token.user(), token.fingerprint());
        let now_ms = unix_ms(SystemTime::now());
        let found = Sessions::find(front, fingerprint).filter(|(_, end)| *end > now_ms);
        let (used_ms, expires_ms) = found.ok_or(Error::TokenInvalid)?;
        if used_ms + USE_NOTED_MS <= now_ms {
            self.note_use(user, fingerprint, used_ms);
        }
        Ok((user, UNIX_EPOCH + Duration::from_millis(expires_ms)))
    }

    // Notes the use of a session in the background. If that fails, a later use is noted.
    fn note_use(&self, user: UserId, token: Fingerprint, used_ms: u64) {
        if self.uses.begin(token, used_ms, Instant::now()) {
            let accounts = self.clone();
            tokio::spawn(async move { accounts.writer.write(Call::Use(user, token)).await });
        }
    }

    /// Changes the password after checking the current one, and ends all sessions.
    pub(crate) async fn change_password(
        &self,
        id: UserId,
        current: Password,
        new: Password,
    ) -> Result<(), Error> {
        let permit = self.hasher.permit().await?;
        let account = self.check_password(&permit, id, &current).await?;
        let new = permit.hash(new).await?;
        drop(permit);
        let checked = account.password;
        match self.write(Call::ChangePassword { id, checked, new }).await? {
            Outcome::Done => Ok(()),
            _ => Err(Error::BadCredentials),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_a_session_is_not_noted_again_at_once() {
        let (uses, begin) = (Uses::default(), Instant::now());
        let [one, other] = [Fingerprint::FIRST, Fingerprint::LAST];
        assert!(uses.begin(one, 1, begin) && !uses.begin(one, 1, begin));
        assert!(uses.begin(other, 1, begin) && uses.begin(one, 2, begin), "others are noted");
        let before = begin + NOTED_AGAIN - Duration::from_millis(1);
        assert!(!uses.begin(one, 1, before) && uses.begin(one, 1, begin + NOTED_AGAIN));
    }

    #[test]
    fn uses_that_were_noted_long_ago_take_no_memory() {
        let (uses, begin) = (Uses::default(), Instant::now());
        for n in 0..100_000_u32 {
            let token = Token::issue(UserId::new(1).unwrap()).unwrap().fingerprint();
            uses.begin(token, 1, begin + n * Duration::from_millis(10));
        }
        let tried = uses.0.lock().unwrap();
        // Of a minute are 6,000.
        assert!(tried.capacity() < 50_000, "{}", tried.capacity());
    }
}
