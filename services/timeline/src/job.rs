//! Fan-out jobs: the entries of the fan-out streams. Replicas of two versions may read each other's
//! jobs, so a job is a protobuf message. New fields may be added; existing ones must not change. Tag 6 must
//! not be used again.

use std::time::{Duration, SystemTime};

use microblog_domain::{PostId, UserId};

use crate::entry::Entry;

/// The queue's name in traces, for all streams together.
pub(crate) const QUEUE: &str = "fanout";

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Never written.
    Unspecified = 0,
    /// Fan-out on write: pushes a post to followers' home timelines.
    Push = 1,
    /// Switches an author to fan-out on read: adds the author to the pulled authors of followers'
    /// home timelines.
    SwitchToRead = 2,
    /// Checks whether an author with fan-out on read may switch back, and pushes this post if so.
    Reevaluate = 3,
}

/// A fan-out job, or the rest of one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Job {
    /// The kind.
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    /// The author whose followers are the targets.
    #[prost(uint64, tag = "2")]
    pub author_id: u64,
    /// The post; 0 if none.
    #[prost(uint64, tag = "3")]
    pub post_id: u64,
    /// The reposted post; 0 if it is not a repost.
    #[prost(uint64, tag = "4")]
    pub root_id: u64,
    /// Whether the post has a text.
    #[prost(bool, tag = "5")]
    pub has_text: bool,
    /// The page token in the list of followers; empty at the beginning.
    #[prost(string, tag = "7")]
    pub followers_token: String,
    /// The number of followers done.
    #[prost(uint64, tag = "8")]
    pub followers_done: u64,
    /// The enqueue time in milliseconds since 1970.
    #[prost(uint64, tag = "9")]
    pub added_ms: u64,
    /// The `traceparent` of W3C Trace Context. Empty if there is no trace, and in jobs of earlier
    /// versions.
    #[prost(string, tag = "10")]
    pub traceparent: String,
}

impl Job {
    /// Returns a job for a post, to push it or to reevaluate its author.
    pub fn of_post(kind: Kind, post: &Entry) -> Self {
        Self {
            kind: kind.into(),
            author_id: post.author.get(),
            post_id: post.post.get(),
            root_id: post.root.map_or(0, PostId::get),
            has_text: post.has_text,
            added_ms: now_ms(),
            ..Self::default()
        }
    }

    /// Returns a job that switches an author to fan-out on read.
    pub fn switch_to_read(author: UserId) -> Self {
        let kind = Kind::SwitchToRead.into();
        Self { kind, author_id: author.get(), added_ms: now_ms(), ..Self::default() }
    }

    /// Sets the trace context.
    pub(crate) fn with_traceparent(self, traceparent: &str) -> Self {
        Self { traceparent: traceparent.to_owned(), ..self }
    }

    /// Returns the job restarted at the first follower.
    pub(crate) fn restarted(&self) -> Self {
        let followers_token = String::new();
        Self { followers_token, followers_done: 0, ..self.clone() }
    }

    /// Returns the time since the job was enqueued.
    pub(crate) fn age(&self) -> Duration {
        age(self.added_ms)
    }

    /// Returns the author.
    pub fn author(&self) -> Option<UserId> {
        UserId::new(self.author_id)
    }

    /// Returns the post.
    pub fn post(&self) -> Option<Entry> {
        let (post, author) = (PostId::new(self.post_id)?, self.author()?);
        let root = PostId::new(self.root_id);
        Some(Entry { post, author, root, has_text: self.has_text })
    }

    /// Returns whether this version supports the job.
    pub(crate) fn is_supported(&self) -> bool {
        match self.kind() {
            Kind::Unspecified => false,
            Kind::Push | Kind::Reevaluate => self.post().is_some(),
            Kind::SwitchToRead => self.author().is_some(),
        }
    }
}

/// Returns the time since an enqueue time in milliseconds since 1970.
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
    fn a_job_round_trips_its_post() {
        let post = Entry {
            post: PostId::new(77).unwrap(),
            author: UserId::new(5).unwrap(),
            root: PostId::new(3),
            has_text: true,
        };
        let job = Job::of_post(Kind::Push, &post);
        let read = Job::decode(&job.encode_to_vec()[..]).unwrap();
        assert!(read.is_supported());
        assert_eq!((read.post(), read.kind()), (Some(post), Kind::Push));
    }

    #[test]
    fn jobs_without_a_traceparent_decode() {
        // Kind 1 of author 5, post 77, added at 9 ms.
        let job = Job::decode(&[0x08, 1, 0x10, 5, 0x18, 77, 0x48, 9][..]).unwrap();
        assert!(job.is_supported());
        assert_eq!((job.added_ms, &*job.traceparent), (9, ""));
        let unchanged = job.clone().with_traceparent("");
        assert_eq!(unchanged.encode_to_vec(), [0x08, 1, 0x10, 5, 0x18, 77, 0x48, 9]);
        assert_eq!(
            job.with_traceparent("00-1").restarted().traceparent,
            "00-1",
            "the rest keeps the trace context"
        );
    }

    #[test]
    fn unknown_job_kinds_are_unsupported() {
        let mut job = Job::switch_to_read(UserId::new(5).unwrap());
        assert!(job.is_supported());
        job.kind = 99;
        assert!(!job.is_supported());
    }

    #[test]
    fn fuzz_jobs() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(job) = Job::decode(bytes) {
                assert!(!job.is_supported() || job.author().is_some());
                assert_eq!(Job::decode(&*job.encode_to_vec()), Ok(job));
            }
        });
    }
}
