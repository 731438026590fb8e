//! Sessions, and the counters of failed log-ins.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_domain::UserId;
use microblog_keyspace::{
    self as keyspace, Batch, Call,
    redis::{self, Cmd, Value},
};

use super::{CacheKey, CachedValue, ClaimOwner, Store, intact};
use crate::{
    address::Address, error::Error, keys, login::Login, password::Hash, throttle,
    token::Fingerprint,
};

/// The most sessions per account; a further one evicts the one that expires first.
pub const SESSIONS_MAX: usize = 50;

/// The result of an attempt to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Allowed, and counted as failed until it succeeds. Has the owner of the claim, if any.
    Allowed(Option<UserId>),
    /// Throttled: the next attempt is allowed after this time.
    Throttled(Duration),
}

/// The sessions of an account with their expiry in Unix ms. The key expires with the last one; each
/// cached session has its own expiry.
#[derive(Clone, Debug)]
pub(super) struct Sessions(Arc<[(Fingerprint, u64)]>);

/// Returns the command that reads an account's sessions, which are few.
pub(super) fn command(id: UserId) -> Cmd {
    redis::cmd("ZRANGE").arg(keys::sessions(id)).arg(0).arg(-1).arg("WITHSCORES").take()
}

impl Sessions {
    /// Decodes the response.
    pub(super) fn decode(answer: Value) -> Result<Self, keyspace::Error> {
        let sessions: Vec<(Vec<u8>, f64)> = keyspace::decode(answer)?;
        let session = |(token, end_ms): (Vec<u8>, f64)| {
            Some((Fingerprint::from_bytes(&token)?, end_ms as u64))
        };
        Ok(Self(sessions.into_iter().filter_map(session).collect()))
    }

    /// Returns their approximate size in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    fn end_of(&self, token: Fingerprint) -> Option<SystemTime> {
        let (_, end_ms) = self.0.iter().find(|(stored, _)| *stored == token)?;
        Some(UNIX_EPOCH + Duration::from_millis(*end_ms))
    }
}

impl Store {
    /// Counts a log-in as failed in advance unless it is throttled, and returns the owner of the
    /// claim. One round trip, with or without an owner.
    pub async fn attempt(&self, throttle_key: &Login) -> Result<Attempt, Error> {
        let call = Call::new("user_attempt")
            .key(keys::attempts(throttle_key))
            .key(keys::claim(throttle_key.claim()))
            .arg(rand::random::<u64>())
            .arg(throttle::UNDELAYED_FAILURES_TTL.as_millis() as u64)
            .arg(throttle::FAILURES_TTL.as_millis() as u64)
            .arg(throttle::delays_ms());
        let (wait_ms, owner): (u64, String) = self.keyspace.call(call).await?;
        if wait_ms > 0 {
            return Ok(Attempt::Throttled(Duration::from_millis(wait_ms)));
        }
        if owner.is_empty() {
            return Ok(Attempt::Allowed(None));
        }
        let owner = owner.parse().ok().and_then(ClaimOwner::decode);
        intact(owner, "a claim").map(|owner| Attempt::Allowed(owner.id()))
    }

    /// Resets the counter of failed log-ins. One round trip.
    pub async fn reset_attempts(&self, address: &Address) -> Result<(), Error> {
        self.keyspace.query::<u64>(reset_attempts(address)).await?;
        Ok(())
    }

    /// Opens a session if `checked` is still the account's password hash, and resets the counter of
    /// failed log-ins. Returns whether it did. One round trip.
    pub async fn open_session(
        &self,
        id: UserId,
        address: &Address,
        checked: &Hash,
        token: Fingerprint,
        expires_at: SystemTime,
    ) -> Result<bool, Error> {
        let call = Call::new("user_open_session")
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .arg(checked.as_str())
            .arg(token.as_bytes())
            .arg(unix_ms(expires_at))
            .arg(unix_ms(SystemTime::now()))
            .arg(SESSIONS_MAX);
        let mut batch = Batch::new();
        batch.call(id.partition(), call);
        batch.query(address.partition(), reset_attempts(address));
        let opened = self.keyspace.send(batch).await?.into_iter().next();
        let opened: u64 = keyspace::decode(intact(opened, "a response")?)?;
        Ok(opened == 1)
    }

    /// Returns the expiry of a session, also if it is past; `None` if there is none. Costs as much
    /// as a cached card.
    pub async fn session(
        &self,
        id: UserId,
        token: Fingerprint,
    ) -> Result<Option<SystemTime>, Error> {
        match self.cache.read(&[CacheKey::Sessions(id)]).await?.pop() {
            Some(CachedValue::Sessions(sessions)) => Ok(sessions.end_of(token)),
            Some(CachedValue::Card(_)) | None => Err(Error::Damaged("a response")),
        }
    }

    /// Ends a session, if it exists. One round trip.
    pub async fn close_session(&self, id: UserId, token: Fingerprint) -> Result<(), Error> {
        let call = Call::new("user_close_session")
            .journal(id.partition(), keys::journal(id.partition()))
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .arg(id.get())
            .arg(token.as_bytes());
        self.keyspace.call::<u64>(call).await?;
        Ok(())
    }

    /// Changes a password if `checked` still is its hash, and ends all sessions of the account.
    /// Returns whether it did. One round trip.
    pub async fn change_password(
        &self,
        id: UserId,
        checked: &Hash,
        new: &Hash,
    ) -> Result<bool, Error> {
        let call = Call::new("user_change_password")
            .journal(id.partition(), keys::journal(id.partition()))
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .arg(id.get())
            .arg(checked.as_str())
            .arg(new.as_str());
        Ok(self.keyspace.call::<u64>(call).await? == 1)
    }
}

fn reset_attempts(address: &Address) -> redis::Cmd {
    let mut reset = redis::cmd("DEL");
    reset.arg(keys::attempts(&Login::Address(address.clone())));
    reset
}

/// Returns a time as stored: in whole milliseconds.
pub(crate) fn whole_ms(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix_ms(time))
}

/// Returns a time in Unix ms.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
