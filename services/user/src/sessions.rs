//! Sessions: opened with a password, authenticated by a token, ended by expiry, log-out, a new
//! password or the account's deletion.

use std::time::SystemTime;

use microblog_domain::UserId;

use crate::{
    accounts::{Accounts, write},
    error::Error,
    login::Login,
    password::Password,
    profile::User,
    store::{self, intact},
    token::Token,
};

/// A new session.
#[derive(Debug)]
pub struct Session {
    /// The session token, for the client.
    pub token: Token,
    /// The expiry.
    pub expires_at: SystemTime,
    /// The account.
    pub user: User,
}

impl Accounts {
    /// Opens a session.
    pub async fn login(&self, login: Login, password: Password) -> Result<Session, Error> {
        let record = self.check_credentials(&login, &password).await?;
        let address = intact(record.claims(), "an account")?.address;
        let token = Token::issue(record.user.id)?;
        let expires_at = store::whole_ms(SystemTime::now() + self.session_ttl);
        let (store, id, fingerprint) = (self.store.clone(), record.user.id, token.fingerprint());
        let open = async move {
            store.open_session(id, &address, &record.password, fingerprint, expires_at).await
        };
        // The password changed, or the account was deleted, during the check.
        if !write(open).await? {
            return Err(Error::BadCredentials);
        }
        Ok(Session { token, expires_at, user: record.user })
    }

    /// Ends a session, if it exists.
    pub async fn logout(&self, token: &str) -> Result<(), Error> {
        let Some(token) = Token::parse(token) else { return Ok(()) };
        let store = self.store.clone();
        write(async move { store.close_session(token.user(), token.fingerprint()).await }).await
    }

    /// Returns the account and the expiry of a session. Usually one round trip.
    pub async fn authenticate(&self, token: &str) -> Result<(UserId, SystemTime), Error> {
        let token = Token::parse(token).ok_or(Error::TokenInvalid)?;
        let expires_at = self.store.session(token.user(), token.fingerprint()).await?;
        let alive = expires_at.filter(|&expires_at| expires_at > SystemTime::now());
        alive.map(|expires_at| (token.user(), expires_at)).ok_or(Error::TokenInvalid)
    }

    /// Changes the password after checking the current one, and ends all sessions.
    pub async fn change_password(
        &self,
        id: UserId,
        current: Password,
        new: Password,
    ) -> Result<(), Error> {
        let permit = self.hasher.permit().await?;
        let record = self.check_password(&permit, id, &current).await?;
        let new = permit.hash(new).await?;
        drop(permit);
        let address = intact(record.claims(), "an account")?.address;
        let store = self.store.clone();
        write(async move {
            if !store.change_password(id, &record.password, &new).await? {
                return Err(Error::BadCredentials);
            }
            store.reset_attempts(&address).await
        })
        .await
    }
}
