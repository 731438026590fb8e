//! User timelines: an author's own posts, and how they reach followers.

use std::time::Duration;

use microblog_domain::UserId;
use microblog_keyspace::{Batch, Call, Error, decode, redis::cmd};

use super::Store;
use crate::{
    entry::{Entry, USER_RECORD},
    keys,
};

/// After how long a crossing counts as lost whose first step was not done; and one that was begun and
/// did not come to an end.
const FIRST_STEP_MAX: Duration = Duration::from_secs(60);
const CROSSING_MAX: Duration = Duration::from_secs(60 * 60);

/// How an author's posts reach followers. `functions.lua` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They are written into their home timelines.
    Pushed = 0,
    /// They are written there, and all home timelines are being told to fetch them.
    Crossing = 1,
    /// They are fetched when a home timeline is read.
    Pulled = 2,
}

/// What became of a post in its author's timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Whether it was not there before.
    pub is_new: bool,
    /// How the author's posts reach followers.
    pub state: State,
}

/// The end of a user timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The newest posts, oldest first.
    pub entries: Vec<Entry>,
    /// Whether there are no others.
    pub is_whole: bool,
}

impl State {
    // What is unknown is pushed: nothing is lost by that.
    fn read(number: i64) -> Self {
        let all = [Self::Pushed, Self::Crossing, Self::Pulled];
        all.into_iter().find(|&state| state as i64 == number).unwrap_or(Self::Pushed)
    }
}

impl Store {
    /// Takes posts into their authors' timelines, and into their own home timelines. All go out
    /// together; what was taken in before changes nothing.
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
            published.push(Published { is_new: is_new == 1, state: State::read(state) });
        }
        Ok(published)
    }

    /// Returns the newest posts of authors, up to `count` of each, or all that are kept. One
    /// command for each author, all sent together.
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
            tails.push(Tail::read(author, &decode::<Vec<u8>>(answer)?, count));
        }
        Ok(tails)
    }

    /// Returns how the posts of authors reach followers. One command for each, all sent together.
    pub async fn states(&self, authors: &[UserId]) -> Result<Vec<State>, Error> {
        let mut batch = Batch::with_capacity(authors.len());
        for &author in authors {
            let mut command = cmd("GETRANGE");
            batch.query(author.partition(), command.arg(keys::user(author)).arg(0).arg(0).take());
        }
        let mut states = Vec::with_capacity(authors.len());
        for answer in self.keyspace.send(batch).await? {
            let first: Vec<u8> = decode(answer)?;
            states.push(State::read(first.first().copied().unwrap_or_default().into()));
        }
        Ok(states)
    }

    /// Returns whether it is time to begin a crossing of an author, or to begin it again, since one
    /// that began long ago did not come to an end; and notes that it begins.
    pub async fn is_crossing_due(&self, author: UserId) -> Result<bool, Error> {
        let call = Call::new("tl_cross_due")
            .key(keys::user(author))
            .arg(FIRST_STEP_MAX.as_secs())
            .arg(CROSSING_MAX.as_secs());
        self.keyspace.call(call).await
    }

    /// Changes how an author's posts reach followers, unless it is not as expected. Returns how it
    /// was before.
    pub async fn cross(&self, author: UserId, from: State, to: State) -> Result<State, Error> {
        let call = Call::new("tl_cross").key(keys::user(author)).arg(from as u8).arg(to as u8);
        Ok(State::read(self.keyspace.call(call).await?))
    }
}

impl Tail {
    // The head is read with the records where there are few of them, and is none itself.
    fn read(author: UserId, bytes: &[u8], count: Option<usize>) -> Self {
        let (records, _) = bytes.as_chunks::<USER_RECORD>();
        let entries: Vec<_> =
            records.iter().filter_map(|record| Entry::from_user_record(author, record)).collect();
        let is_whole = count.is_none_or(|count| entries.len() < count);
        Self { entries, is_whole }
    }
}
