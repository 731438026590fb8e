//! Checking passwords, so that guessing is slow and tells nothing about who has an account.

use microblog_domain::UserId;

use crate::{
    Accounts, Email, Error, Password, Record, State,
    accounts::write,
    store::{Attempt, decoy, intact},
};

impl Accounts {
    /// Returns the account with this address and password.
    ///
    /// Whether the address is unknown or the password wrong, the answer is the same, and so are the
    /// round trips to the store and the hashing.
    pub(crate) async fn check_credentials(
        &self,
        email: &Email,
        password: &Password,
    ) -> Result<Record, Error> {
        let holder = self.announce(email.clone()).await?;
        let ids: Vec<_> = holder.or_else(decoy).into_iter().collect();
        let record = self.store.read(&ids).await?.pop().flatten();
        let record = record.filter(|r| r.state == State::Active && r.has_email(email));
        self.compare(record, password).await
    }

    /// Returns the account if this is its password. Failures count together with those of logging
    /// in by its address.
    pub(crate) async fn check_password(
        &self,
        id: UserId,
        password: &Password,
    ) -> Result<Record, Error> {
        let record = self.get_own(id).await?;
        self.announce(intact(record.claims(), "an account")?.email).await?;
        self.compare(Some(record), password).await
    }

    async fn compare(&self, found: Option<Record>, password: &Password) -> Result<Record, Error> {
        let hash = found.as_ref().map(|record| &record.password);
        let matches = self.hasher.permit().await?.verify(password, hash).await?;
        found.filter(|_| matches).ok_or(Error::BadCredentials)
    }

    /// Counts an attempt as failed, before any work is done for it: many at once are no way around
    /// the waits. Success takes the count back.
    async fn announce(&self, email: Email) -> Result<Option<UserId>, Error> {
        let store = self.store.clone();
        match write(async move { store.attempt(&email).await }).await? {
            Attempt::Allowed(holder) => Ok(holder),
            Attempt::Refused(wait) => Err(Error::Throttled(wait)),
        }
    }
}
