//! Cached home timelines: build lease, replacement, push and read.

use std::time::Duration;

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::{HOME_TTL, Store, hours, malformed};
use crate::{
    entry::{Entry, HOME_RECORD},
    keys,
    list::HOME_MAX,
};

const HEAD: usize = 48;
const FORMAT: u8 = 2;

/// The size of a pulled author's id in bytes.
const PULL: usize = 8;

/// The lifetime of a build lease: longer than nearly all builds, far shorter than a reader waits.
const BUILD_MAX: Duration = Duration::from_secs(5);

/// The longest time for which one record says that posts are not pushed: far longer than a delivery
/// takes.
pub(crate) const UNPUSHED_MAX: Duration = Duration::from_secs(60);

/// The interval in hours in which a read extends the lifetime.
const TOUCH_HOURS: u32 = 24;

/// The head of a cached home timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whether the first build is complete. Before, the timeline has only posts pushed since the
    /// build began.
    pub was_built: bool,
    /// The version of the newest follow that it reflects.
    pub version: u64,
    /// The edition: changes with each replacement.
    pub edition: u64,
    /// Whether the ring is full: a new post overwrites the oldest one.
    pub is_full: bool,
    // The time of the last rebuild, in seconds since 2006.
    built_at: u64,
    /// The ring position of the next record.
    next: usize,
    /// The number of posts that a replacement keeps, which each push changes.
    kept_count: u32,
    read_at_hour: u32,
}

/// A cached home timeline.
#[derive(Clone, Debug)]
pub struct Home {
    /// Its head.
    pub head: Head,
    /// Its posts, oldest first, each once.
    pub entries: Vec<Entry>,
    /// Authors with fan-out on read.
    pub pulled_authors: Vec<UserId>,
    /// Whether posts may be missing that were delivered in pull mode.
    pub is_stale: bool,
}

/// The new content of a home timeline.
#[derive(Clone, Debug, Default)]
pub struct Replacement {
    /// The version of the newest follow that it reflects.
    pub version: u64,
    /// Its posts, oldest first.
    pub entries: Vec<Entry>,
    /// Authors with fan-out on read.
    pub pulled_authors: Vec<UserId>,
    /// Whether it is a rebuild, without the existing content.
    pub is_rebuild: bool,
}

/// The result of acquiring a build lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildLease {
    /// The caller builds this edition.
    Acquired(u64),
    /// Another builder holds the lease.
    Held,
    /// The timeline has another edition now.
    EditionChanged,
}

impl Head {
    /// Returns whether a read must extend the lifetime.
    pub fn is_touch_due(&self) -> bool {
        hours().saturating_sub(self.read_at_hour) >= TOUCH_HOURS
    }

    // An unknown format reads as missing, so the timeline is rebuilt.
    fn read(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD>().filter(|head| head[0] == FORMAT)?;
        Some(Self {
            was_built: head[1] == 1,
            next: number(&head[2..4]) as usize,
            is_full: number(&head[4..6]) >= HOME_MAX as u64,
            kept_count: number(&head[6..10]) as u32,
            read_at_hour: number(&head[18..22]) as u32,
            edition: number(&head[24..32]),
            version: number(&head[32..40]),
            built_at: number(&head[44..48]),
        })
    }
}

impl Home {
    /// Returns the post down to which no post is missing: the oldest one of a full timeline. Returns
    /// `None` if none is missing at all.
    pub fn complete_down_to(&self) -> Option<PostId> {
        self.entries.first().filter(|_| self.head.is_full).map(|oldest| oldest.post)
    }
}

impl Store {
    /// Returns a user's cached home timeline; `None` if there is none. One round trip.
    pub async fn home(&self, user: UserId) -> Result<Option<Home>, Error> {
        let partition = user.partition();
        let keys = [keys::home(user), keys::pulls(user), keys::unpushed(partition)];
        let get = cmd("MGET").arg(&keys).take();
        type Strings = (Option<Vec<u8>>, Option<Vec<u8>>, Option<u64>);
        let (home, pulled_authors, unpushed): Strings = self.keyspace.query(get).await?;
        let bytes = home.unwrap_or_default();
        let Some(head) = Head::read(&bytes) else { return Ok(None) };
        let (records, _) = bytes[HEAD..].as_chunks::<HOME_RECORD>();
        let mut entries = Vec::with_capacity(records.len());
        // In a full ring, the oldest record is at the next position.
        let (last, first) = records.split_at(head.next.min(records.len()));
        entries.extend(first.iter().chain(last).filter_map(Entry::from_home_record));
        let pulled_authors = pulled_authors.unwrap_or_default();
        let (pulled_authors, _) = pulled_authors.as_chunks::<PULL>();
        let pulled_authors =
            pulled_authors.iter().filter_map(|author| UserId::new(u64::from_le_bytes(*author)));
        let pulled_authors = pulled_authors.collect();
        let is_stale = unpushed.is_some_and(|until| head.built_at * 1000 < until);
        Ok(Some(Home { head, entries, pulled_authors, is_stale }))
    }

    /// Returns the head of a user's home timeline, which changes with each pushed post.
    pub async fn head(&self, user: UserId) -> Result<Option<Head>, Error> {
        let command = cmd("GETRANGE").arg(keys::home(user)).arg(0).arg(HEAD - 1).take();
        Ok(Head::read(&self.keyspace.query::<Vec<u8>>(command).await?))
    }

    /// Acquires the lease to build a home timeline that was never built, or to replace the edition
    /// `replaced_edition`. Creates the key, so that concurrent posts are pushed to it. Sets back a time
    /// until which posts are not pushed, if a clock was ahead when it was recorded.
    pub async fn begin_build(
        &self,
        user: UserId,
        replaced_edition: Option<u64>,
    ) -> Result<BuildLease, Error> {
        let call = Call::new("tl_begin_build")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .key(keys::unpushed(user.partition()))
            .arg(BUILD_MAX.as_secs())
            .arg(hours())
            .arg(HOME_TTL.as_secs())
            .arg(replaced_edition.unwrap_or(0))
            .arg(UNPUSHED_MAX.as_millis() as u64);
        Ok(match self.keyspace.call::<i64>(call).await? {
            0 => BuildLease::Held,
            -1 => BuildLease::EditionChanged,
            edition => {
                let edition = u64::try_from(edition).map_err(|_| malformed("edition"))?;
                BuildLease::Acquired(edition)
            }
        })
    }

    /// Replaces the content of a home timeline, but keeps the posts pushed since this edition
    /// began.
    ///
    /// Returns false if another builder replaced it, or if it does not exist any more.
    pub async fn replace(
        &self,
        user: UserId,
        edition: u64,
        with: &Replacement,
    ) -> Result<bool, Error> {
        let records: Vec<u8> = with.entries.iter().flat_map(Entry::home_record).collect();
        let pulled_authors =
            with.pulled_authors.iter().flat_map(|author| author.get().to_le_bytes());
        let call = Call::new("tl_replace")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .arg(edition)
            .arg(with.version)
            .arg(hours())
            .arg(HOME_TTL.as_secs())
            .arg(records)
            .arg(pulled_authors.collect::<Vec<u8>>())
            .arg(u8::from(with.is_rebuild));
        self.keyspace.call(call).await
    }

    /// Extends the lifetime of a home timeline to 14 days from now.
    pub async fn touch_home(&self, user: UserId) -> Result<(), Error> {
        let call = Call::new("tl_touch")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .arg(hours())
            .arg(HOME_TTL.as_secs());
        self.keyspace.call(call).await
    }

    /// Pushes a post into the existing home timelines of users, except those that have it and full ones
    /// whose posts are all newer. One round trip per 500 users. Returns the number of writes.
    pub async fn push(&self, post: &Entry, users: &[UserId]) -> Result<u64, Error> {
        let record = post.home_record();
        self.call_for_users(users, |users| {
            let call =
                users.iter().fold(Call::new("tl_push"), |call, &user| call.key(keys::home(user)));
            call.arg(&record[..])
        })
        .await
    }

    /// Adds an author to the pulled authors of existing home timelines. One round trip per 500
    /// users. Returns the number of additions.
    pub async fn add_pulled_author(&self, author: UserId, users: &[UserId]) -> Result<u64, Error> {
        self.call_for_users(users, |users| {
            let call = users.iter().fold(Call::new("tl_add_pulled_author"), |call, &user| {
                call.key(keys::home(user)).key(keys::pulls(user))
            });
            call.arg(&author.get().to_le_bytes()[..]).arg(HOME_TTL.as_secs())
        })
        .await
    }

    /// Records that posts are not pushed for this duration, of a minute at most. Home timelines built
    /// before its end are rebuilt at their next read.
    pub async fn record_unpushed(&self, duration: Duration) -> Result<(), Error> {
        let mut batch = Batch::new();
        for partition in Partition::all() {
            let call = Call::new("tl_record_unpushed").key(keys::unpushed(partition));
            let call = call.arg(duration.as_millis() as u64).arg(UNPUSHED_MAX.as_millis() as u64);
            // Longer than the lifetime of any affected home timeline.
            batch.call(partition, call.arg(2 * HOME_TTL.as_secs()));
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<()>(answer)?;
        }
        Ok(())
    }

    // One call for the users of a partition, or of any partition where the keyspace joins them: a
    // few hundred followers hardly share partitions. One round trip per batch. A node of a cluster that
    // is full fails the call, and keeps no others from being called.
    async fn call_for_users(
        &self,
        users: &[UserId],
        call: impl Fn(&[UserId]) -> Call,
    ) -> Result<u64, Error> {
        let mut users = users.to_vec();
        users.sort_unstable_by_key(|user| user.partition());
        let is_joined = self.keyspace.joins_partitions();
        let may_share = |a: &UserId, b: &UserId| is_joined || a.partition() == b.partition();
        let (mut sum, mut full) = (0, None);
        for users in users.chunks(BATCH_USERS_MAX) {
            let mut batch = Batch::new();
            for users in users.chunk_by(may_share) {
                for users in users.chunks(CALL_USERS_MAX) {
                    batch.call(users[0].partition(), call(users));
                }
            }
            match self.keyspace.send(batch).await {
                Err(error) if error.is_full() => full = Some(error),
                answers => {
                    for answer in answers? {
                        sum += decode::<u64>(answer)?;
                    }
                }
            }
        }
        full.map_or(Ok(sum), Err)
    }
}

/// The most home timelines per call: 0.1 milliseconds of Redis' time, or 1 millisecond for a post that
/// is not the newest.
const CALL_USERS_MAX: usize = 50;

/// The most home timelines per batch of calls: up to 5 milliseconds of Redis' time, and more where
/// rings grow. Reads wait behind a batch, and batches of concurrent steps queue, for far less than
/// a timeout.
const BATCH_USERS_MAX: usize = 500;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| (number << 8) | u64::from(byte))
}
