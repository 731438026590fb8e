//! Password checks with login throttling, and without account enumeration.

use microblog_domain::UserId;

use crate::{
    accounts::{Accounts, write},
    error::Error,
    login::Login,
    password::{Password, Permit},
    profile::{Record, State},
    store::{Attempt, ClaimOwner, decoy, intact},
};

impl Accounts {
    /// Returns the account with this name or address, and password.
    ///
    /// To prevent account enumeration, an unknown account gets the same error as a wrong password,
    /// with the same Redis round trips and the same hashing.
    pub(crate) async fn check_credentials(
        &self,
        login: &Login,
        password: &Password,
    ) -> Result<Record, Error> {
        let permit = self.hasher.permit().await?;
        let throttle_key = self.throttle_key(login).await?;
        let owner = self.record_attempt(&permit, throttle_key).await?;
        let record = self.look_up(owner, login).await?;
        compare(&permit, record, password).await
    }

    /// Returns the throttle key of a log-in. It is the account's address, also if the caller logs
    /// in by name, so that both share one counter. For an unknown name, it is the name.
    async fn throttle_key(&self, login: &Login) -> Result<Login, Error> {
        if let Login::Address(_) = login {
            return Ok(login.clone());
        }
        let owner = self.store.claim_owners(&[login.claim()]).await?.pop().flatten();
        let owner = owner.and_then(ClaimOwner::id);
        match self.look_up(owner, login).await? {
            Some(record) => Ok(Login::Address(intact(record.claims(), "an account")?.address)),
            None => Ok(login.clone()),
        }
    }

    /// Returns the account of a claim's owner, if the claim is valid. One round trip, also without
    /// an owner.
    async fn look_up(&self, owner: Option<UserId>, login: &Login) -> Result<Option<Record>, Error> {
        let ids: Vec<_> = owner.or_else(decoy).into_iter().collect();
        let record = self.store.read(&ids).await?.pop().flatten();
        Ok(record.filter(|r| r.state == State::Active && login.claim().is_valid(r)))
    }

    /// Returns the account if the password matches. Shares the failure counter with log-ins.
    pub(crate) async fn check_password(
        &self,
        permit: &Permit,
        id: UserId,
        password: &Password,
    ) -> Result<Record, Error> {
        let record = self.get_own(id).await?;
        let address = intact(record.claims(), "an account")?.address;
        self.record_attempt(permit, Login::Address(address)).await?;
        compare(permit, Some(record), password).await
    }

    /// Counts an attempt as failed before the password is compared, so that concurrent guesses are
    /// throttled too. Success resets the counter. Requires a hashing permit: an attempt that is
    /// rejected or canceled in the queue does not count.
    async fn record_attempt(
        &self,
        _: &Permit,
        throttle_key: Login,
    ) -> Result<Option<UserId>, Error> {
        let store = self.store.clone();
        match write(async move { store.attempt(&throttle_key).await }).await? {
            Attempt::Allowed(owner) => Ok(owner),
            Attempt::Throttled(wait) => Err(Error::Throttled(wait)),
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
