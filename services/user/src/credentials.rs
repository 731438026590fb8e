//! Checking passwords, so that guessing is slow and tells nothing about who has an account.

use microblog_domain::UserId;

use crate::{
    Accounts, Email, Error, Password, Permit, Record, State,
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
        let permit = self.hasher.permit().await?;
        let holder = self.announce(&permit, email.clone()).await?;
        let ids: Vec<_> = holder.or_else(decoy).into_iter().collect();
        let record = self.store.read(&ids).await?.pop().flatten();
        let record = record.filter(|r| r.state == State::Active && r.has_email(email));
        compare(&permit, record, password).await
    }

    /// Returns the account if this is its password. Failures count together with those of logging
    /// in by its address.
    pub(crate) async fn check_password(
        &self,
        permit: &Permit,
        id: UserId,
        password: &Password,
    ) -> Result<Record, Error> {
        let record = self.get_own(id).await?;
        self.announce(permit, intact(record.claims(), "an account")?.email).await?;
        compare(permit, Some(record), password).await
    }

    /// Counts an attempt as failed before its password is compared: many at once are no way around
    /// the waits. Success takes the count back. Needs the permit to hash, since who is refused it or
    /// gives up waiting for it has not guessed.
    async fn announce(&self, _: &Permit, email: Email) -> Result<Option<UserId>, Error> {
        let store = self.store.clone();
        match write(async move { store.attempt(&email).await }).await? {
            Attempt::Allowed(holder) => Ok(holder),
            Attempt::Refused(wait) => Err(Error::Throttled(wait)),
        }
    }
}

async fn compare(
    permit: &Permit,
    found: Option<Record>,
    password: &Password,
) -> Result<Record, Error> {
    let hash = found.as_ref().map(|record| &record.password);
    let matches = permit.verify(password, hash).await?;
    found.filter(|_| matches).ok_or(Error::BadCredentials)
}
