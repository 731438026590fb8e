//! Home timelines: built, filled, read.

use std::time::Duration;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::{LIFETIME, Store, hours, malformed};
use crate::{
    entry::{Entry, HOME_RECORD},
    keys,
    list::HOME_MAX,
};

const HEAD: usize = 40;
const FORMAT: u8 = 1;

/// The bytes of an author whose posts are fetched.
const PULL: usize = 8;

/// After how long a builder counts as dead: longer than a build takes in all but bad moments, far
/// less than a reader waits.
const BUILD_MAX: Duration = Duration::from_secs(5);

/// How many hours old the note may be that a home timeline is read.
const TOUCH_HOURS: u32 = 24;

/// What stands at the beginning of a home timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whether it was ever built: else it has only what was pushed since its builder began.
    pub was_built: bool,
    /// The version of the newest follow that it reflects.
    pub version: u64,
    /// Changes with every replacement.
    pub edition: u64,
    /// Whether it has no room: what comes takes the place of what came first.
    pub is_full: bool,
    // When it was built from nothing, in seconds since 2024.
    built_at: u64,
    /// Where the next record goes.
    next: usize,
    /// How many posts came since the edition began.
    came: u32,
    read_at_hour: u32,
}

/// A home timeline as it is stored.
#[derive(Clone, Debug)]
pub struct Home {
    /// What stands at its beginning.
    pub head: Head,
    /// Its posts, in the order in which they came: mostly that of the posts. Some may be there twice.
    pub entries: Vec<Entry>,
    /// Authors whose posts are to be fetched.
    pub pulls: Vec<UserId>,
    /// Whether posts may be missing since it was built: they were not pushed to anybody.
    pub is_stale: bool,
}

/// What a home timeline is to be.
#[derive(Clone, Debug, Default)]
pub struct Replacement {
    /// The version of the newest follow that it reflects.
    pub version: u64,
    /// Its posts, oldest first.
    pub entries: Vec<Entry>,
    /// Authors whose posts are to be fetched.
    pub pulls: Vec<UserId>,
    /// Whether nothing of it was there before.
    pub is_whole: bool,
}

/// What became of the wish to build a home timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is to be replaced as this edition.
    Edition(u64),
    /// Somebody else is building it.
    BeingBuilt,
    /// It is another edition by now.
    Changed,
}

impl Head {
    /// Returns whether it is time to note that the timeline is read.
    pub fn is_to_be_touched(&self) -> bool {
        hours().saturating_sub(self.read_at_hour) >= TOUCH_HOURS
    }

    // What cannot be read is as if it were not there: it is built again.
    fn read(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD>().filter(|head| head[0] == FORMAT)?;
        Some(Self {
            was_built: head[1] == 1,
            next: number(&head[2..4]) as usize,
            is_full: number(&head[4..6]) >= HOME_MAX as u64,
            came: number(&head[6..10]) as u32,
            read_at_hour: number(&head[10..14]) as u32,
            edition: number(&head[16..24]),
            version: number(&head[24..32]),
            built_at: number(&head[36..40]),
        })
    }
}

impl Store {
    /// Returns a user's home timeline as it is stored; `None` where there is none. One round trip.
    pub async fn home(&self, user: UserId) -> Result<Option<Home>, Error> {
        let partition = user.partition();
        let keys = [keys::home(user), keys::pulls(user), keys::unpushed(partition)];
        let get = cmd("MGET").arg(&keys).take();
        type Strings = (Option<Vec<u8>>, Option<Vec<u8>>, Option<u64>);
        let (home, pulls, unpushed): Strings = self.keyspace.query(get).await?;
        let bytes = home.unwrap_or_default();
        let Some(head) = Head::read(&bytes) else { return Ok(None) };
        let (records, _) = bytes[HEAD..].as_chunks::<HOME_RECORD>();
        let mut entries = Vec::with_capacity(records.len());
        // Of a full ring, the next place is that of the record that came first.
        let (last, first) = records.split_at(head.next.min(records.len()));
        entries.extend(first.iter().chain(last).filter_map(Entry::from_home_record));
        let pulls = pulls.unwrap_or_default();
        let (pulls, _) = pulls.as_chunks::<PULL>();
        let pulls = pulls.iter().filter_map(|author| UserId::new(u64::from_le_bytes(*author)));
        let pulls = pulls.collect();
        let is_stale = unpushed.is_some_and(|until| head.built_at * 1000 < until);
        Ok(Some(Home { head, entries, pulls, is_stale }))
    }

    /// Returns what stands at the beginning of a user's home timeline, which changes whenever a
    /// post comes.
    pub async fn head(&self, user: UserId) -> Result<Option<Head>, Error> {
        let command = cmd("GETRANGE").arg(keys::home(user)).arg(0).arg(HEAD - 1).take();
        Ok(Head::read(&self.keyspace.query::<Vec<u8>>(command).await?))
    }

    /// Begins to build a home timeline that was never built, or to replace this edition of it. From
    /// then on, posts that are pushed come into it.
    pub async fn begin(&self, user: UserId, again: Option<u64>) -> Result<Begun, Error> {
        let call = Call::new("tl_begin")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .arg(BUILD_MAX.as_secs())
            .arg(hours())
            .arg(LIFETIME.as_secs())
            .arg(again.unwrap_or(0));
        Ok(match self.keyspace.call::<i64>(call).await? {
            0 => Begun::BeingBuilt,
            -1 => Begun::Changed,
            edition => {
                let edition = u64::try_from(edition).map_err(|_| malformed("edition"))?;
                Begun::Edition(edition)
            }
        })
    }

    /// Replaces what is in a home timeline, but for what came since this edition began.
    ///
    /// Returns whether it did: not if somebody else did meanwhile, or the timeline is gone.
    pub async fn replace(
        &self,
        user: UserId,
        edition: u64,
        with: &Replacement,
    ) -> Result<bool, Error> {
        let records: Vec<u8> = with.entries.iter().flat_map(Entry::home_record).collect();
        let pulls = with.pulls.iter().flat_map(|author| author.get().to_le_bytes());
        let call = Call::new("tl_replace")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .arg(edition)
            .arg(with.version)
            .arg(hours())
            .arg(LIFETIME.as_secs())
            .arg(records)
            .arg(pulls.collect::<Vec<u8>>())
            .arg(u8::from(with.is_whole));
        self.keyspace.call(call).await
    }

    /// Notes that a home timeline is read: it is kept for 14 days from now.
    pub async fn touch(&self, user: UserId) -> Result<(), Error> {
        let call = Call::new("tl_touch")
            .key(keys::home(user))
            .key(keys::pulls(user))
            .arg(hours())
            .arg(LIFETIME.as_secs());
        self.keyspace.call(call).await
    }

    /// Writes a post into the home timelines that there are of these users; with `once`, only where
    /// it is not there already. One round trip for every 500 users. Returns into how many it was
    /// written.
    pub async fn push(&self, post: &Entry, users: &[UserId], once: bool) -> Result<u64, Error> {
        let record = post.home_record();
        self.of_users(users, |users| {
            let call =
                users.iter().fold(Call::new("tl_push"), |call, &user| call.key(keys::home(user)));
            call.arg(&record[..]).arg(u8::from(once))
        })
        .await
    }

    /// Adds an author to those whose posts are fetched, for the home timelines that there are of
    /// these users. One round trip for every 500 of them. Returns to how many.
    pub async fn pull(&self, author: UserId, users: &[UserId]) -> Result<u64, Error> {
        self.of_users(users, |users| {
            let call = users.iter().fold(Call::new("tl_pull"), |call, &user| {
                call.key(keys::home(user)).key(keys::pulls(user))
            });
            call.arg(&author.get().to_le_bytes()[..]).arg(LIFETIME.as_secs())
        })
        .await
    }

    /// Notes that posts are not pushed to anybody for so long from now: home timelines that were
    /// built before that is over are built again when they are read.
    pub async fn note_unpushed(&self, duration: Duration) -> Result<(), Error> {
        let mut batch = Batch::new();
        for partition in Partition::all() {
            let call = Call::new("tl_unpushed").key(keys::unpushed(partition));
            let call = call.arg(duration.as_millis() as u64);
            // For longer than any home timeline that it is about is kept.
            batch.call(partition, call.arg(2 * LIFETIME.as_secs()));
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<()>(answer)?;
        }
        Ok(())
    }

    // One call for some users of a partition, or of any where the keyspace joins partitions: a few
    // hundred followers have hardly a partition in common. One round trip for some hundred users.
    async fn of_users(
        &self,
        users: &[UserId],
        call: impl Fn(&[UserId]) -> Call,
    ) -> Result<u64, Error> {
        let mut users = users.to_vec();
        users.sort_unstable_by_key(|user| user.partition());
        let is_joined = self.keyspace.joins_partitions();
        let may_share = |a: &UserId, b: &UserId| is_joined || a.partition() == b.partition();
        let mut sum = 0;
        for users in users.chunks(TOGETHER_MAX) {
            let mut batch = Batch::new();
            for users in users.chunk_by(may_share) {
                for users in users.chunks(CALL_MAX) {
                    batch.call(users[0].partition(), call(users));
                }
            }
            for answer in self.keyspace.send(batch).await? {
                sum += decode::<u64>(answer)?;
            }
        }
        Ok(sum)
    }
}

/// The most home timelines that one call touches: 0.1 milliseconds of the store's time, and 1 where
/// each is searched first.
const CALL_MAX: usize = 50;

/// The most home timelines that are touched by calls that are sent together: up to 5 milliseconds
/// of the store's time, and some more where each gets more room first. The readers' commands wait
/// behind them, and they wait behind those of other steps, for far less than a time-out.
const TOGETHER_MAX: usize = 500;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| (number << 8) | u64::from(byte))
}
