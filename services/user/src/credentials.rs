//! Checking passwords, so that guessing is slow and no answer tells who has an account.

use microblog_domain::UserId;

use crate::{
    Accounts, Error, Login, Password, Permit, Record, State,
    accounts::write,
    store::{Attempt, Holder, decoy, intact},
};

impl Accounts {
    /// Returns the account with this name or address, and password.
    ///
    /// Whether nobody has the name or address or the password is wrong, the answer is the same, and
    /// so are the round trips to the store and the hashing.
    pub(crate) async fn check_credentials(
        &self,
        login: &Login,
        password: &Password,
    ) -> Result<Record, Error> {
        let permit = self.hasher.permit().await?;
        let counted = self.counted(login).await?;
        let holder = self.announce(&permit, counted).await?;
        let record = self.look_up(holder, login).await?;
        compare(&permit, record, password).await
    }

    /// Returns for what the failures of a log-in count: always an account's address, whether it is
    /// called by that or by its name, so that no name is a way around the waits. Of a name that no
    /// account has, the name itself.
    async fn counted(&self, login: &Login) -> Result<Login, Error> {
        if let Login::Email(_) = login {
            return Ok(login.clone());
        }
        let holder = self.store.holders(&[login.claim()]).await?.pop().flatten();
        let holder = holder.and_then(Holder::id);
        match self.look_up(holder, login).await? {
            Some(record) => Ok(Login::Email(intact(record.claims(), "an account")?.email)),
            None => Ok(login.clone()),
        }
    }

    /// Returns the account of a claim's holder, if it is one that has this name or address. One
    /// round trip, also where there is no holder.
    async fn look_up(
        &self,
        holder: Option<UserId>,
        login: &Login,
    ) -> Result<Option<Record>, Error> {
        let ids: Vec<_> = holder.or_else(decoy).into_iter().collect();
        let record = self.store.read(&ids).await?.pop().flatten();
        Ok(record.filter(|r| r.state == State::Active && login.claim().is_worth(r)))
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
        let email = intact(record.claims(), "an account")?.email;
        self.announce(permit, Login::Email(email)).await?;
        compare(permit, Some(record), password).await
    }

    /// Counts an attempt as failed before its password is compared: many at once are no way around
    /// the waits. Success takes the count back. Needs the permit to hash, since who is refused it or
    /// gives up waiting for it has not guessed.
    async fn announce(&self, _: &Permit, counted: Login) -> Result<Option<UserId>, Error> {
        let store = self.store.clone();
        match write(async move { store.attempt(&counted).await }).await? {
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
