//! Password checks, with throttled guesses and without account enumeration.

use std::time::Duration;

use microblog_domain::UserId;

use crate::{
    accounts::Accounts,
    error::Error,
    identifier::guesses_of,
    login::Login,
    password::{Password, Permit},
    steps::{AccountRow, Call, Outcome},
};

impl Accounts {
    /// Returns the account with this name or address, and password.
    ///
    /// To prevent account enumeration, an unknown account gets the same error as a wrong password,
    /// with the same statements and the same hashing.
    pub(crate) async fn check_credentials(
        &self,
        login: &Login,
        password: &Password,
    ) -> Result<AccountRow, Error> {
        let permit = self.hasher.permit().await?;
        let identifier = login.identifier();
        let account = self.owner(&identifier).await?;
        // Guesses of a password count together, whether they come with the name or the address.
        let guesses = account.as_ref().map(|account| guesses_of(account.user.id));
        self.count_guess(&permit, guesses.unwrap_or_else(|| identifier.digest())).await?;
        compare(&permit, account, password).await
    }

    /// Returns the account if the password matches. Its failures count together with those of log-ins.
    pub(crate) async fn check_password(
        &self,
        permit: &Permit,
        id: UserId,
        password: &Password,
    ) -> Result<AccountRow, Error> {
        let account = self.get_own(id).await?;
        self.count_guess(permit, guesses_of(id)).await?;
        compare(permit, Some(account), password).await
    }

    /// Counts a guess as failed before the password is compared, so that concurrent guesses are
    /// throttled too. Success ends the failures. Requires a hashing permit: a guess that is
    /// rejected or canceled in the queue does not count.
    async fn count_guess(&self, _: &Permit, digest: u64) -> Result<(), Error> {
        match self.write(Call::Guess(digest)).await? {
            Outcome::Wait(wait_ms) => Err(Error::Throttled(Duration::from_millis(wait_ms))),
            _ => Ok(()),
        }
    }
}

async fn compare(
    permit: &Permit,
    found: Option<AccountRow>,
    password: &Password,
) -> Result<AccountRow, Error> {
    let hash = found.as_ref().map(|account| &account.password);
    let matches = permit.verify(password, hash).await?;
    found.filter(|_| matches).ok_or(Error::BadCredentials)
}
