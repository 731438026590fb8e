//! Sessions: opened with a password, authenticated by a token, ended by expiry, log-out, a new
//! password, the account's deletion, or by the log-ins of others if the account has too many.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_domain::UserId;

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

/// The sessions whose use this worker is noting.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashSet<Fingerprint>>);

impl Uses {
    fn change<T>(&self, change: impl FnOnce(&mut HashSet<Fingerprint>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Accounts {
    /// Opens a session.
    pub(crate) async fn login(&self, login: Login, password: Password) -> Result<Session, Error> {
        let account = self.check_credentials(&login, &password).await?;
        let (id, user) = (account.user.id, account.user);
        let token = Token::issue(id)?;
        let expires_ms = unix_ms(SystemTime::now() + self.session_ttl);
        let (checked, fingerprint) = (account.password, token.fingerprint());
        let open = Call::Open { id, checked, token: fingerprint, expires_ms };
        match self.write(open).await? {
            Outcome::Done => {
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
        self.write(Call::Close(token.user(), token.fingerprint())).await.map(drop)
    }

    /// Returns the account and the expiry of a session. Notes its use, at most once an hour.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<(UserId, SystemTime), Error> {
        let token = Token::parse(token).ok_or(Error::TokenInvalid)?;
        let (user, fingerprint) = (token.user(), token.fingerprint());
        let front = self.reader.read(&part(AccountItem::Sessions, user.get())).await?;
        let now_ms = unix_ms(SystemTime::now());
        let found = Sessions::find(&front, fingerprint).filter(|(_, end)| *end > now_ms);
        let (used_ms, expires_ms) = found.ok_or(Error::TokenInvalid)?;
        if used_ms + USE_NOTED_MS <= now_ms {
            self.note_use(user, fingerprint);
        }
        Ok((user, UNIX_EPOCH + Duration::from_millis(expires_ms)))
    }

    // Notes the use of a session in the background. If that fails, the next use is noted.
    fn note_use(&self, user: UserId, token: Fingerprint) {
        if !self.uses.change(|noted| noted.insert(token)) {
            return;
        }
        let accounts = self.clone();
        tokio::spawn(async move {
            let _ = accounts.writer.write(Call::Use(user, token)).await;
            accounts.uses.change(|noted| noted.remove(&token));
        });
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
