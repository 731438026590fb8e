//! The store: the only module that calls Redis. One method for each atomic step or read.

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, Error, Keyspace, Library, decode};
use microblog_proto::{common::FeedPosition, notice::NoticeKind};

use crate::{
    acts::{Change, What},
    feed::Source,
    keys,
    notice::{KINDS, Notice},
};

/// The Redis functions of the service.
const LIBRARY: Library = Library {
    name: "note",
    source: concat!(include_str!("functions.lua"), include_str!("functions/feeds.lua")),
};

/// The most changes of an account that are applied in one step, which takes about a millisecond.
const CHANGES_MAX: usize = 200;

/// Which notices to list.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// The kinds.
    pub(crate) kinds: Vec<NoticeKind>,
    /// Only notices below this position, if any.
    pub(crate) below: Option<u64>,
    /// Only notices above this position.
    pub(crate) above: u64,
    /// The most notices.
    pub(crate) count: usize,
    /// Only notices that are not marked as seen.
    pub(crate) unseen: bool,
}

/// A part of an account's notices.
#[derive(Clone, Debug)]
pub(crate) struct Notices {
    /// The position of the newest act of all notices; 0 if there was none.
    pub(crate) top: u64,
    /// The notices, newest first.
    pub(crate) notices: Vec<Notice>,
    /// The position below which the list continues; `None` at its end.
    pub(crate) next: Option<u64>,
}

/// The notice service's Redis store.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
}

impl Store {
    /// Opens the store without waiting for Redis.
    pub fn open(config: &keyspace::Config) -> Result<Self, Error> {
        Ok(Self { keyspace: Keyspace::open(config, LIBRARY)? })
    }

    /// Returns whether Redis responds and has the functions loaded.
    pub(crate) async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }

    /// Applies changes to the notices of accounts, those of each account in their order. Idempotent.
    pub(crate) async fn apply(&self, changes: &[(UserId, Vec<Change>)]) -> Result<(), Error> {
        let most = changes.iter().map(|(_, changes)| changes.len()).max().unwrap_or_default();
        for round in 0..most.div_ceil(CHANGES_MAX) {
            let mut batch = Batch::new();
            for (user, changes) in changes {
                if let Some(part) = changes.chunks(CHANGES_MAX).nth(round) {
                    batch.call(user.partition(), apply(*user, part));
                }
            }
            for reply in self.keyspace.send(batch).await? {
                decode::<()>(reply)?;
            }
        }
        Ok(())
    }

    /// Returns notices of an account. One round trip.
    pub(crate) async fn list(&self, user: UserId, query: &Query) -> Result<Notices, Error> {
        let below = query.below.map_or_else(|| "+inf".to_owned(), |below| below.to_string());
        let call = Call::new("note_list")
            .key(keys::notices(user))
            .key(keys::order(user))
            .arg(letters(&query.kinds))
            .arg(below)
            .arg(query.above)
            .arg(query.count)
            .arg(u8::from(query.unseen));
        let (top, found): (u64, Vec<(String, u64, Vec<u8>)>) = self.listed(call).await?;
        let next = found.last().filter(|_| found.len() == query.count);
        let next = next.map(|&(_, position, _)| position);
        let decoded = |(name, position, packed): (String, u64, Vec<u8>)| {
            let notice = Notice::decode(&name, position, &packed);
            if notice.is_none() {
                tracing::error!(user = user.get(), name, "damaged notice left out");
            }
            notice
        };
        Ok(Notices { top, notices: found.into_iter().filter_map(decoded).collect(), next })
    }

    async fn listed(&self, call: Call) -> Result<(u64, Vec<(String, u64, Vec<u8>)>), Error> {
        let reply: Vec<keyspace::redis::Value> = self.keyspace.call(call).await?;
        let mut values = reply.into_iter();
        let malformed = || Error::Malformed("list of notices".into());
        let top = decode(values.next().ok_or_else(malformed)?)?;
        let mut found = Vec::with_capacity(values.len() / 3);
        while let Some(name) = values.next() {
            let (position, packed) = values.next().zip(values.next()).ok_or_else(malformed)?;
            found.push((decode(name)?, decode(position)?, decode(packed)?));
        }
        Ok((top, found))
    }

    /// Returns the position of the newest act of an account's notices; 0 if there is none.
    pub(crate) async fn top(&self, user: UserId) -> Result<u64, Error> {
        let mut command = keyspace::redis::cmd("HGET");
        let top: Option<u64> =
            self.keyspace.query(command.arg(keys::notices(user)).arg("top").take()).await?;
        Ok(top.unwrap_or_default())
    }

    /// Marks notices up to a position as seen.
    pub(crate) async fn mark_seen(
        &self,
        user: UserId,
        kinds: &[NoticeKind],
        position: u64,
    ) -> Result<(), Error> {
        let call =
            Call::new("note_mark_seen").key(keys::notices(user)).arg(letters(kinds)).arg(position);
        self.keyspace.call(call).await
    }

    /// Returns up to `count` posts that mention an account, below one, newest first.
    pub(crate) async fn mentions(
        &self,
        user: UserId,
        below: Option<PostId>,
        count: usize,
    ) -> Result<Vec<u64>, Error> {
        let mut command = keyspace::redis::cmd("ZRANGE");
        let below = below.map_or_else(|| "+inf".to_owned(), |below| format!("({below}"));
        command.arg(keys::mentions(user)).arg(below).arg("-inf").arg("BYSCORE").arg("REV");
        self.keyspace.query(command.arg("LIMIT").arg(0).arg(count).take()).await
    }

    /// Deletes what a deleted account has. Later changes have no effect.
    pub(crate) async fn erase(&self, user: UserId) -> Result<(), Error> {
        let call = Call::new("note_erase").keys([
            keys::notices(user),
            keys::order(user),
            keys::mentions(user),
        ]);
        self.keyspace.call(call).await
    }

    /// Claims a change feed for a time, or renews the claim. Returns the position, if there is one;
    /// or `None` if another process follows the feed.
    pub(crate) async fn claim_feed(
        &self,
        source: Source,
        holder: &str,
        time: Duration,
    ) -> Result<Option<Option<FeedPosition>>, Error> {
        let call = Call::new("note_claim_feed")
            .key(keys::feed(source))
            .arg(holder)
            .arg(time.as_millis() as u64);
        let (is_claimed, sequence, token): (u8, u64, u64) = self.keyspace.call(call).await?;
        let position = (token != 0).then_some(FeedPosition { sequence, token });
        Ok((is_claimed == 1).then_some(position))
    }

    /// Sets the position in a change feed. Returns whether this process still follows it.
    pub(crate) async fn advance_feed(
        &self,
        source: Source,
        holder: &str,
        position: FeedPosition,
    ) -> Result<bool, Error> {
        let call = Call::new("note_advance_feed")
            .key(keys::feed(source))
            .arg(holder)
            .arg(position.sequence)
            .arg(position.token);
        Ok(self.keyspace.call::<u8>(call).await? == 1)
    }
}

fn apply(user: UserId, changes: &[Change]) -> Call {
    let call = Call::new("note_apply").keys([
        keys::notices(user),
        keys::order(user),
        keys::mentions(user),
    ]);
    changes.iter().fold(call, |call, change| {
        let (what, name) = match change.what {
            What::Begin(subject) => ("begin", subject.to_string()),
            What::Undo(subject) => ("undo", subject.to_string()),
            What::Follow(subject) => ("follow", subject.to_string()),
            What::Unfollow => ("unfollow", String::new()),
            What::Mention(subject) => ("mention", subject.to_string()),
        };
        call.arg(what).arg(name).arg(change.id).arg(change.actor).arg(change.version.get())
    })
}

fn letters(kinds: &[NoticeKind]) -> String {
    let is_asked = |(kind, _): &&(NoticeKind, char)| kinds.contains(kind);
    KINDS.iter().filter(is_asked).map(|(_, letter)| letter).collect()
}
