//! User timelines and the fan-out state of authors.

use std::time::Duration;

use microblog_domain::{PostId, Stamp, UserId};
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::Store;
use crate::{
    entry::{Entry, USER_RECORD},
    keys,
};

/// Timeouts of a switch to fan-out on read, until its first step and until its end. After that, it
/// is started again.
const FIRST_STEP_TIMEOUT: Duration = Duration::from_secs(60);
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The fan-out state of an author. `functions.lua` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanoutState {
    /// Fan-out on write: posts are pushed into followers' home timelines.
    OnWrite = 0,
    /// Posts are pushed while a job adds the author to the pulled authors of home timelines.
    Switching = 1,
    /// Fan-out on read: posts are fetched when a home timeline is read.
    OnRead = 2,
}

/// The result of publishing a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Whether the user timeline did not have it before.
    pub is_new: bool,
    /// The author's fan-out state.
    pub state: FanoutState,
}

/// The newest part of a user timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Its posts, oldest first.
    pub entries: Vec<Entry>,
    /// The post below which posts of the author may be missing; `None` if none are. Above all posts
    /// if Redis has no timeline of the author.
    pub known_down_to: Option<PostId>,
    /// Whether Redis has no other posts of the author.
    pub is_all: bool,
}

impl FanoutState {
    // An unknown state reads as `OnWrite`, which loses no post.
    fn read(number: i64) -> Self {
        let all = [Self::OnWrite, Self::Switching, Self::OnRead];
        all.into_iter().find(|&state| state as i64 == number).unwrap_or(Self::OnWrite)
    }
}

impl Store {
    /// Writes posts into their authors' user timelines and own home timelines, all concurrently.
    /// Idempotent.
    pub async fn publish(&self, posts: &[Entry]) -> Result<Vec<Published>, Error> {
        let mut batch = Batch::with_capacity(posts.len());
        for post in posts {
            let call = Call::new("tl_publish")
                .key(keys::user(post.author))
                .key(keys::home(post.author))
                .arg(&post.user_record()[..])
                .arg(&post.home_record()[..]);
            batch.call(post.author.partition(), call);
        }
        let mut published = Vec::with_capacity(posts.len());
        for answer in self.keyspace.send(batch).await? {
            let (is_new, state): (i64, i64) = decode(answer)?;
            published.push(Published { is_new: is_new == 1, state: FanoutState::read(state) });
        }
        Ok(published)
    }

    /// Returns the newest posts of authors, up to `count` of each, or all. One command per author,
    /// all concurrent.
    pub async fn tails(
        &self,
        authors: &[UserId],
        count: Option<usize>,
    ) -> Result<Vec<Tail>, Error> {
        let bytes = count.map(|count| (count * USER_RECORD) as i64);
        let mut batch = Batch::with_capacity(authors.len());
        for &author in authors {
            let mut command = cmd("GETRANGE");
            let from = bytes.map_or(0, |bytes| -bytes);
            batch.query(
                author.partition(),
                command.arg(keys::user(author)).arg(from).arg(-1).take(),
            );
        }
        let mut tails = Vec::with_capacity(authors.len());
        for (answer, &author) in self.keyspace.send(batch).await?.into_iter().zip(authors) {
            tails.push(Tail::read(author, &decode::<Vec<u8>>(answer)?));
        }
        Ok(tails)
    }

    /// Adds posts to the user timelines of authors, as the post service has them: in any order, and
    /// all of these authors down to `known_down_to`, or all. One command per author, all concurrent.
    pub async fn complete(
        &self,
        authors: &[UserId],
        posts: &[Entry],
        known_down_to: Option<PostId>,
    ) -> Result<(), Error> {
        let mut posts = posts.to_vec();
        posts.sort_unstable_by_key(|post| (post.author, post.post));
        let mut batch = Batch::with_capacity(authors.len());
        for &author in authors {
            let from = posts.partition_point(|post| post.author < author);
            let own = posts[from..].iter().take_while(|post| post.author == author);
            let records: Vec<u8> = own.flat_map(Entry::user_record).collect();
            let call = Call::new("tl_complete")
                .key(keys::user(author))
                .arg(known_down_to.map_or(0, PostId::get))
                .arg(records);
            batch.call(author.partition(), call);
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<()>(answer)?;
        }
        Ok(())
    }

    /// Returns the fan-out states of authors. One command per author, all concurrent.
    pub async fn fanout_states(&self, authors: &[UserId]) -> Result<Vec<FanoutState>, Error> {
        let mut batch = Batch::with_capacity(authors.len());
        for &author in authors {
            let mut command = cmd("GETRANGE");
            batch.query(author.partition(), command.arg(keys::user(author)).arg(0).arg(0).take());
        }
        let mut states = Vec::with_capacity(authors.len());
        for answer in self.keyspace.send(batch).await? {
            let first: Vec<u8> = decode(answer)?;
            states.push(FanoutState::read(first.first().copied().unwrap_or_default().into()));
        }
        Ok(states)
    }

    /// Returns whether a switch of an author to fan-out on read must start, or restart after a
    /// timeout. If so, records its start.
    pub async fn is_fanout_switch_due(&self, author: UserId) -> Result<bool, Error> {
        let call = Call::new("tl_fanout_switch_due")
            .key(keys::user(author))
            .arg(FIRST_STEP_TIMEOUT.as_secs())
            .arg(SWITCH_TIMEOUT.as_secs());
        self.keyspace.call(call).await
    }

    /// Sets an author's fan-out state if it equals `from` (compare-and-set). Returns the previous
    /// state.
    pub async fn switch_fanout(
        &self,
        author: UserId,
        from: FanoutState,
        to: FanoutState,
    ) -> Result<FanoutState, Error> {
        let call =
            Call::new("tl_switch_fanout").key(keys::user(author)).arg(from as u8).arg(to as u8);
        Ok(FanoutState::read(self.keyspace.call(call).await?))
    }
}

impl Tail {
    // A read of more bytes than the records begins with the head.
    fn read(author: UserId, bytes: &[u8]) -> Self {
        let (records, _) = bytes.as_chunks::<USER_RECORD>();
        let entries: Vec<_> =
            records.iter().filter_map(|record| Entry::from_user_record(author, record)).collect();
        let head = records.first().filter(|head| head[7] == HEAD_MARK);
        let known_down_to = match (head, entries.first()) {
            (Some(&[.., a, b, c, d, e, f, g, h]), _) => {
                PostId::new(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
            }
            (None, Some(oldest)) => Some(oldest.post),
            (None, None) => PostId::new(Stamp::END - 1),
        };
        let is_all = head.is_some() || bytes.is_empty();
        Self { entries, known_down_to, is_all }
    }
}

/// The byte of the head that no record has at its place.
const HEAD_MARK: u8 = 0xff;
