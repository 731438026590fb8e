//! What is to be done to the home timelines of an author's followers. Kept in streams, so that
//! replicas of two versions may have to understand each other's: a protobuf message, of which new
//! fields may come and none may change.

use std::time::{Duration, SystemTime};

use microblog_domain::{PostId, UserId};

use crate::entry::Entry;

/// What traces call all of the streams together.
pub(crate) const QUEUE: &str = "fanout";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Never written.
    Unspecified = 0,
    /// Writes a post into the home timelines.
    Push = 1,
    /// Makes the home timelines fetch the author's posts from now on.
    Cross = 2,
    /// Looks whether the posts of the author, which are fetched, may be pushed again, and pushes
    /// this one if so.
    Weigh = 3,
}

/// A job: as much of it as is still to be done.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Job {
    /// What is to be done.
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    /// Whose followers it is about.
    #[prost(uint64, tag = "2")]
    pub author_id: u64,
    /// The post; 0 for none.
    #[prost(uint64, tag = "3")]
    pub post_id: u64,
    /// Of a repost, the post that it repeats; 0 of any other.
    #[prost(uint64, tag = "4")]
    pub root_id: u64,
    /// Whether the post has a text.
    #[prost(bool, tag = "5")]
    pub has_text: bool,
    /// Whether the post may have been pushed before: then nobody is to have it twice.
    #[prost(bool, tag = "6")]
    pub is_repeat: bool,
    /// From where to go on in the list of followers; empty at the beginning.
    #[prost(string, tag = "7")]
    pub followers_token: String,
    /// How many followers are done.
    #[prost(uint64, tag = "8")]
    pub followers_done: u64,
    /// When the job was added, in milliseconds since 1970.
    #[prost(uint64, tag = "9")]
    pub added_ms: u64,
    /// Where it comes from, as a line of W3C trace context; empty where that is not recorded, and
    /// of what earlier versions wrote.
    #[prost(string, tag = "10")]
    pub traceparent: String,
}

impl Job {
    /// Returns the job to push a post, or to look whether it is to be pushed.
    pub fn of_post(kind: Kind, post: &Entry, is_repeat: bool) -> Self {
        Self {
            kind: kind.into(),
            author_id: post.author.get(),
            post_id: post.post.get(),
            root_id: post.root.map_or(0, PostId::get),
            has_text: post.has_text,
            is_repeat,
            added_ms: now_ms(),
            ..Self::default()
        }
    }

    /// Returns the job to make all home timelines fetch an author's posts.
    pub fn crossing(author: UserId) -> Self {
        let kind = Kind::Cross.into();
        Self { kind, author_id: author.get(), added_ms: now_ms(), ..Self::default() }
    }

    /// Returns the same job, which comes from there.
    pub(crate) fn from(self, traceparent: &str) -> Self {
        Self { traceparent: traceparent.to_owned(), ..self }
    }

    /// Returns the same job as at its beginning, of which a part may be done.
    pub(crate) fn begun_again(&self) -> Self {
        let followers_token = String::new();
        Self { followers_token, followers_done: 0, is_repeat: true, ..self.clone() }
    }

    /// Returns how long ago it was added.
    pub(crate) fn age(&self) -> Duration {
        age(self.added_ms)
    }

    /// Returns whose followers it is about.
    pub fn author(&self) -> Option<UserId> {
        UserId::new(self.author_id)
    }

    /// Returns the post that it is about.
    pub fn post(&self) -> Option<Entry> {
        let (post, author) = (PostId::new(self.post_id)?, self.author()?);
        let root = PostId::new(self.root_id);
        Some(Entry { post, author, root, has_text: self.has_text })
    }

    /// Returns whether this version knows what is to be done.
    pub(crate) fn is_understood(&self) -> bool {
        match self.kind() {
            Kind::Unspecified => false,
            Kind::Push | Kind::Weigh => self.post().is_some(),
            Kind::Cross => self.author().is_some(),
        }
    }
}

/// Returns how long ago a job was added that was added then, in milliseconds since 1970.
pub(crate) fn age(added_ms: u64) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(added_ms))
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_job_keeps_its_post() {
        let post = Entry {
            post: PostId::new(77).unwrap(),
            author: UserId::new(5).unwrap(),
            root: PostId::new(3),
            has_text: true,
        };
        let job = Job::of_post(Kind::Push, &post, false);
        let read = Job::decode(&job.encode_to_vec()[..]).unwrap();
        assert!(read.is_understood());
        assert_eq!((read.post(), read.kind()), (Some(post), Kind::Push));
    }

    #[test]
    fn what_an_earlier_version_wrote_comes_from_nowhere() {
        // Kind 1 of author 5, post 77, added at 9 ms.
        let job = Job::decode(&[0x08, 1, 0x10, 5, 0x18, 77, 0x48, 9][..]).unwrap();
        assert!(job.is_understood());
        assert_eq!((job.added_ms, &*job.traceparent), (9, ""));
        let unchanged = job.clone().from("");
        assert_eq!(unchanged.encode_to_vec(), [0x08, 1, 0x10, 5, 0x18, 77, 0x48, 9]);
        assert_eq!(job.from("00-1").begun_again().traceparent, "00-1", "goes with what is left");
    }

    #[test]
    fn what_a_later_version_wrote_is_not_understood() {
        let mut job = Job::crossing(UserId::new(5).unwrap());
        assert!(job.is_understood());
        job.kind = 99;
        assert!(!job.is_understood());
    }
}
