//! Sessions, and the counting of failed log-ins.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use microblog_domain::UserId;
use microblog_keyspace::{
    self as keyspace, Batch, Call,
    redis::{self, Cmd, Value},
};

use super::{Holder, Recalled, Store, Which, intact};
use crate::{Email, Error, Hash, Login, keys, throttle, token::Fingerprint};

/// The most sessions of one account; a further one ends the one that would end first.
pub const SESSIONS_MAX: usize = 50;

/// What came of announcing a log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It counts as failed until it succeeds. The name or address is claimed by this id, if by any.
    Allowed(Option<UserId>),
    /// Too many have failed: the next one is allowed after this time.
    Refused(Duration),
}

/// The sessions of an account, and when each ends, in Unix ms. Their key goes with the last of them;
/// what is still known of it then is over, as each session says.
#[derive(Clone, Debug)]
pub(super) struct Sessions(Arc<[(Fingerprint, u64)]>);

/// Returns the command that reads an account's sessions, of which there are few.
pub(super) fn command(id: UserId) -> Cmd {
    redis::cmd("ZRANGE").arg(keys::sessions(id)).arg(0).arg(-1).arg("WITHSCORES").take()
}

impl Sessions {
    /// Reads the answer.
    pub(super) fn decode(answer: Value) -> Result<Self, keyspace::Error> {
        let sessions: Vec<(Vec<u8>, f64)> = keyspace::decode(answer)?;
        let kept = sessions.into_iter();
        let kept =
            kept.filter_map(|(kept, end)| Some((Fingerprint::from_bytes(&kept)?, end as u64)));
        Ok(Self(kept.collect()))
    }

    /// Returns how many bytes they take, about.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    fn end_of(&self, token: Fingerprint) -> Option<SystemTime> {
        let (_, end_ms) = self.0.iter().find(|(kept, _)| *kept == token)?;
        Some(UNIX_EPOCH + Duration::from_millis(*end_ms))
    }
}

impl Store {
    /// Counts a log-in as failed in advance, unless one must wait, and finds who claims what it
    /// counts for. One round trip, whether anybody does or not.
    pub async fn attempt(&self, counted: &Login) -> Result<Attempt, Error> {
        let call = Call::new("user_attempt")
            .key(keys::attempts(counted))
            .key(keys::claim(counted.claim()))
            .arg(rand::random::<u64>())
            .arg(throttle::MEMORY_WHILE_FREE.as_millis() as u64)
            .arg(throttle::MEMORY.as_millis() as u64)
            .arg(throttle::waits_ms());
        let (wait_ms, holder): (u64, String) = self.keyspace.call(call).await?;
        if wait_ms > 0 {
            return Ok(Attempt::Refused(Duration::from_millis(wait_ms)));
        }
        if holder.is_empty() {
            return Ok(Attempt::Allowed(None));
        }
        let holder = holder.parse().ok().and_then(Holder::decode);
        intact(holder, "a claim").map(|holder| Attempt::Allowed(holder.id()))
    }

    /// Forgets failed log-ins. One round trip.
    pub async fn forget_attempts(&self, email: &Email) -> Result<(), Error> {
        self.keyspace.query::<u64>(forget_attempts(email)).await?;
        Ok(())
    }

    /// Opens a session if this still is the hash of the account's password, and forgets failed
    /// log-ins. Returns whether it did. One round trip.
    pub async fn open_session(
        &self,
        id: UserId,
        email: &Email,
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
        batch.query(email.partition(), forget_attempts(email));
        let opened = self.keyspace.send(batch).await?.into_iter().next();
        let opened: u64 = keyspace::decode(intact(opened, "no answer")?)?;
        Ok(opened == 1)
    }

    /// Returns when a session ends, also if that is over; `None` if there is none. As much as to
    /// recall a card.
    pub async fn session(
        &self,
        id: UserId,
        token: Fingerprint,
    ) -> Result<Option<SystemTime>, Error> {
        match self.recall.read(&[Which::Sessions(id)]).await?.pop() {
            Some(Recalled::Sessions(sessions)) => Ok(sessions.end_of(token)),
            Some(Recalled::Card(_)) | None => Err(Error::Damaged("an answer")),
        }
    }

    /// Ends a session. One command.
    pub async fn close_session(&self, id: UserId, token: Fingerprint) -> Result<(), Error> {
        let mut remove = redis::cmd("ZREM");
        remove.arg(keys::sessions(id)).arg(token.as_bytes());
        self.keyspace.query::<u64>(remove).await?;
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
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .arg(checked.as_str())
            .arg(new.as_str());
        Ok(self.keyspace.call::<u64>(call).await? == 1)
    }
}

fn forget_attempts(email: &Email) -> redis::Cmd {
    let mut forget = redis::cmd("DEL");
    forget.arg(keys::attempts(&Login::Email(email.clone())));
    forget
}

/// Returns a time as it is kept: in whole milliseconds.
pub(crate) fn whole_ms(time: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix_ms(time))
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
