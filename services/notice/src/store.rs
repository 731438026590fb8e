//! The store: the only module that calls Redis. One method for each atomic step or read.

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{
    self as keyspace, Batch, Call, Error, Keyspace, Library, decode,
    redis::{Value, cmd},
};
use microblog_proto::{common::FeedPosition, notice::NoticeKind};

use crate::{
    acts::{AccountChanges, Change, What},
    feed::Source,
    keys,
    notice::{KINDS, Notice},
};

/// The Redis functions of the service.
const LIBRARY: Library = Library {
    name: "note",
    source: concat!(include_str!("functions.lua"), include_str!("functions/feeds.lua")),
};

/// The most changes of an account that are applied in one step.
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
    /// Up to which position notices of the kinds are marked as seen, in the order of the kinds.
    pub(crate) seen: Vec<(NoticeKind, u64)>,
    /// The notices, newest first.
    pub(crate) notices: Vec<Notice>,
    /// The position below which the list continues; `None` at its end.
    pub(crate) next: Option<u64>,
}

/// How far a change feed was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The position; `None` before its start.
    pub(crate) position: Option<FeedPosition>,
    /// When it was read anew, in milliseconds since 1970; 0 if never. Numbers of changes are comparable
    /// within a generation.
    pub(crate) generation: u64,
    /// Until when all changes are applied, in milliseconds since 1970; 0 if it is not known.
    pub(crate) read_until: u64,
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

    /// Applies changes of a feed to the notices of accounts, those of each account in their order.
    /// Changes that were applied before have no effect.
    pub(crate) async fn apply(
        &self,
        source: Source,
        generation: u64,
        accounts: &[AccountChanges],
    ) -> Result<(), Error> {
        let most = accounts.iter().map(|(_, changes)| changes.len()).max().unwrap_or_default();
        for round in 0..most.div_ceil(CHANGES_MAX) {
            let mut batch = Batch::new();
            for (user, changes) in accounts {
                if let Some(part) = changes.chunks(CHANGES_MAX).nth(round) {
                    batch.call(user.partition(), apply(source, generation, *user, part));
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
        let (top, seen, values): (u64, Vec<u64>, Vec<Value>) = self.keyspace.call(call).await?;
        let found = entries(values)?;
        let seen = ordered(&query.kinds).map(|(kind, _)| kind).zip(seen).collect();
        let next = found.last().filter(|_| found.len() == query.count);
        let next = next.map(|&(_, position, _)| position);
        let decoded = |(name, position, packed): (String, u64, Vec<u8>)| {
            let notice = Notice::decode(&name, position, &packed);
            if notice.is_none() {
                tracing::error!(user = user.get(), name, "damaged notice left out");
            }
            notice
        };
        let notices = found.into_iter().filter_map(decoded).collect();
        Ok(Notices { top, seen, notices, next })
    }

    /// Returns the position of the newest act of an account's notices; 0 if there is none.
    pub(crate) async fn top(&self, user: UserId) -> Result<u64, Error> {
        let mut command = cmd("HGET");
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
        let mut command = cmd("ZRANGE");
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

    /// Claims a change feed for a time, or renews the claim. Returns how far it was read; `None` if
    /// another process follows it.
    pub(crate) async fn claim_feed(
        &self,
        source: Source,
        holder: &str,
        time: Duration,
    ) -> Result<Option<Progress>, Error> {
        let call = Call::new("note_claim_feed")
            .key(keys::feed(source))
            .arg(holder)
            .arg(time.as_millis() as u64);
        let (is_claimed, sequence, token, generation, read_until): (u8, u64, u64, u64, u64) =
            self.keyspace.call(call).await?;
        let position = (token != 0).then_some(FeedPosition { sequence, token });
        Ok((is_claimed == 1).then_some(Progress { position, generation, read_until }))
    }

    /// Ends this process's claim of a change feed, if it has one.
    pub(crate) async fn release_feed(&self, source: Source, holder: &str) -> Result<(), Error> {
        let call = Call::new("note_release_feed").key(keys::feed(source)).arg(holder);
        self.keyspace.call(call).await
    }

    /// Returns the process that claimed a change feed last.
    #[cfg(test)]
    pub(crate) async fn feed_holder(&self, source: Source) -> Result<Option<String>, Error> {
        self.keyspace.query(cmd("HGET").arg(keys::feed(source)).arg("holder").take()).await
    }

    /// Sets how far a change feed was read. Returns whether this process still follows it.
    pub(crate) async fn advance_feed(
        &self,
        source: Source,
        holder: &str,
        Progress { position, generation, read_until }: Progress,
    ) -> Result<bool, Error> {
        let position = position.unwrap_or_default();
        let call = Call::new("note_advance_feed")
            .key(keys::feed(source))
            .arg(holder)
            .arg(position.sequence)
            .arg(position.token)
            .arg(generation)
            .arg(read_until);
        Ok(self.keyspace.call::<u8>(call).await? == 1)
    }
}

fn apply(source: Source, generation: u64, user: UserId, changes: &[Change]) -> Call {
    let keys = [keys::notices(user), keys::order(user), keys::mentions(user)];
    let call = Call::new("note_apply").keys(keys).arg(source.name()).arg(generation);
    changes.iter().fold(call, |call, change| {
        let (what, name) = match change.what {
            What::Begin(subject) => ("begin", subject.to_string()),
            What::Undo(subject) => ("undo", subject.to_string()),
            What::Follow(subject) => ("follow", subject.to_string()),
            What::Mention(subject) => ("mention", subject.to_string()),
        };
        let call = call.arg(change.number).arg(what).arg(name).arg(change.id);
        call.arg(change.actor).arg(change.version.get())
    })
}

/// Returns name, position and encoded notice of each entry of a list.
fn entries(values: Vec<Value>) -> Result<Vec<(String, u64, Vec<u8>)>, Error> {
    let (entries, rest) = values.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(Error::Malformed("list of notices".into()));
    }
    let entry = |[name, position, packed]: &[Value; 3]| {
        Ok((decode(name.clone())?, decode(position.clone())?, decode(packed.clone())?))
    };
    entries.iter().map(entry).collect()
}

/// Returns kinds with their letters, in the order of [`KINDS`].
fn ordered(kinds: &[NoticeKind]) -> impl Iterator<Item = (NoticeKind, char)> {
    KINDS.into_iter().filter(|(kind, _)| kinds.contains(kind))
}

fn letters(kinds: &[NoticeKind]) -> String {
    ordered(kinds).map(|(_, letter)| letter).collect()
}
