//! The calls of a run, with retries on overload.

use std::{collections::BTreeMap, time::Duration};

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Keyspace, Library, decode,
    redis::{Value, cmd},
};
use microblog_proto::{relation, timeline as pb};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::{
    Case,
    check::{Page, Scroll},
    history::{Action, Kind, Moment, Post, Span},
    support::{id, pages::Timeline},
};

/// The most attempts of a call.
const ATTEMPTS: usize = 100;

/// The delay before a retry; and how long a retried call may still run on the server.
const PAUSE: Duration = Duration::from_millis(300);
const STRAGGLER_MAX: Duration = Duration::from_secs(5);

/// The number of fan-out streams, and the partition of each.
const STREAMS: u64 = 16;

/// No function of it is called.
const LIBRARY: Library = Library { name: "model", source: "" };

/// Returns the keyspace with the service's credentials.
pub(crate) fn keyspace(config: &microblog_timeline::Config) -> Keyspace {
    Keyspace::open(&config.redis, LIBRARY).unwrap()
}

// Calls until success or final rejection; also returns whether there were several attempts.
macro_rules! again {
    ($call:expr) => {{
        let mut attempt = 1;
        loop {
            match $call.await {
                Err(status) if may_repeat(&status) && attempt < ATTEMPTS => {
                    attempt += 1;
                    sleep(PAUSE).await;
                }
                answer => break (answer.map(tonic::Response::into_inner), attempt > 1),
            }
        }
    }};
}

fn may_repeat(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled)
}

// Rejected because of a block by either side.
fn is_rejection(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::PermissionDenied)
}

fn text(status: Status) -> String {
    format!("{status:?}")
}

type Pages = (Vec<pb::Entry>, String, String);

impl Case {
    pub(crate) fn tick(&self) -> Moment {
        self.history().tick()
    }

    pub(crate) async fn deliver(&self, posts: &[Post]) -> Result<(), String> {
        let delivery = |post: &Post| pb::Delivery {
            post_id: post.id,
            author_id: id(post.author as u64),
            root_id: post.root,
            has_text: post.has_text,
        };
        let request = pb::DeliverRequest { deliveries: posts.iter().map(delivery).collect() };
        self.history().delivery_begins(posts);
        let client = || self.client.clone();
        let (answer, was_repeated) = again!(client().deliver(request.clone()));
        answer.map_err(text)?;
        if was_repeated {
            sleep(STRAGGLER_MAX).await;
        }
        self.history().delivery_ends(posts);
        Ok(())
    }

    /// Changes the relation to another user, unless a change between the two is pending.
    pub(crate) async fn act(&self, action: Action, own: usize, other: usize) -> Result<(), String> {
        let Some(is_accepted) = self.history().action_begins(action, own, other) else {
            return Ok(());
        };
        let (user_id, target_id) = (id(own as u64), id(other as u64));
        let (follower_id, to) = (user_id, || self.relation.clone());
        let (answer, was_repeated) = match action {
            Action::Follow => {
                let request = relation::FollowRequest { follower_id, target_id };
                let (answer, was_repeated) = again!(to().follow(request));
                (answer.map(drop), was_repeated)
            }
            Action::Unfollow => {
                let request = relation::UnfollowRequest { follower_id, target_id };
                let (answer, was_repeated) = again!(to().unfollow(request));
                (answer.map(drop), was_repeated)
            }
            Action::RemoveFollower => {
                let request = relation::RemoveFollowerRequest { user_id, follower_id: target_id };
                let (answer, was_repeated) = again!(to().remove_follower(request));
                (answer.map(drop), was_repeated)
            }
            Action::Block => {
                let request = relation::BlockRequest { user_id, target_id };
                let (answer, was_repeated) = again!(to().block(request));
                (answer.map(drop), was_repeated)
            }
            Action::Unblock => {
                let request = relation::UnblockRequest { user_id, target_id };
                let (answer, was_repeated) = again!(to().unblock(request));
                (answer.map(drop), was_repeated)
            }
            Action::Mute => {
                let request = relation::MuteRequest { user_id, target_id };
                let (answer, was_repeated) = again!(to().mute(request));
                (answer.map(drop), was_repeated)
            }
            Action::Unmute => {
                let request = relation::UnmuteRequest { user_id, target_id };
                let (answer, was_repeated) = again!(to().unmute(request));
                (answer.map(drop), was_repeated)
            }
        };
        if was_repeated {
            sleep(STRAGGLER_MAX).await;
        }
        self.history().deed_ends(own, other);
        match answer {
            Ok(()) if is_accepted => Ok(()),
            Err(status) if !is_accepted && is_rejection(&status) => Ok(()),
            answer => Err(format!("{action:?} of {own} to {other}: {answer:?}")),
        }
    }

    /// Reads up to so many pages of a timeline, and returns them with the last since token.
    pub(crate) async fn scroll(
        &self,
        kind: Kind,
        owner: usize,
        page_size: usize,
        pages_max: usize,
        since: &str,
    ) -> Result<(Scroll, String), String> {
        let (mut pages, mut next, mut seen) = (Vec::new(), String::new(), String::new());
        let (mut last, mut is_in_order) = (u64::MAX, true);
        // Pages out of order are rejected by the checks; the scroll might not end.
        while pages.len() < pages_max && is_in_order && (pages.is_empty() || !next.is_empty()) {
            let begin = self.tick();
            let entries;
            (entries, next, seen) = self.page(kind, owner, page_size, next, since).await?;
            let span = Span { begin, end: self.tick() };
            let before = last;
            last = entries.last().map_or(before, |entry| entry.post_id);
            is_in_order = last < before || next.is_empty();
            pages.push(Page { span, entries, has_next: !next.is_empty() });
            if kind == Kind::Home {
                self.history().home_was_read(owner, begin);
            }
        }
        let page_size = if kind == Kind::User { pages[0].entries.len() } else { page_size };
        let scroll = Scroll { kind, owner, page_size, pages };
        // The model identifies users by their numbers.
        for entry in scroll.pages.iter().flat_map(|page| &page.entries) {
            let post = self.history().posts.get(&entry.post_id).copied();
            let is_of = post.is_some_and(|post| id(post.author as u64) == entry.author_id);
            if !is_of {
                return Err(format!("shown with another author: {entry:?}, {post:?}"));
            }
        }
        Ok((scroll, seen))
    }

    async fn page(
        &self,
        kind: Kind,
        owner: usize,
        size: usize,
        page_token: String,
        since: &str,
    ) -> Result<Pages, String> {
        let (user_id, page_size) = (id(owner as u64), size as i32);
        let (since_token, to) = (since.to_owned(), || self.client.clone());
        let timeline = match kind {
            // No call returns it; a page has all of it.
            Kind::User => return Ok((self.published(user_id).await, String::new(), String::new())),
            Kind::Home => pb::TimelineKind::Home,
            Kind::Friends => pb::TimelineKind::Friends,
        };
        let kind = timeline.into();
        let request = pb::GetTimelineRequest { user_id, kind, page_size, page_token, since_token };
        let (page, _) = again!(to().get_timeline(request.clone()));
        let page = page.map(|page| (page.entries, page.next_page_token, page.since_token));
        page.map_err(text)
    }

    /// Returns the stored user timeline, newest first.
    async fn published(&self, author: u64) -> Vec<pb::Entry> {
        let tails = self.store.tails(&[UserId::new(author).unwrap()], None).await.unwrap();
        let entry = |entry: microblog_timeline::Entry| pb::Entry {
            post_id: entry.post.get(),
            author_id: entry.author.get(),
            root_id: entry.root.map_or(0, PostId::get),
            stand_in_ids: Vec::new(),
        };
        tails.into_iter().flat_map(|tail| tail.entries).rev().map(entry).collect()
    }

    /// Returns the authors of a timeline by their ids, sorted.
    pub(crate) async fn authors(
        &self,
        timeline: Timeline,
        owner: usize,
    ) -> Result<Vec<u64>, String> {
        let user_id = id(owner as u64);
        let (answer, _) = again!(async {
            timeline.authors(&self.client, user_id).await.map(tonic::Response::new)
        });
        answer.map_err(text)
    }

    pub(crate) async fn count(&self, owner: usize, since: &str) -> Result<usize, String> {
        let request =
            pb::CountNewRequest { user_id: id(owner as u64), since_token: since.to_owned() };
        let client = || self.client.clone();
        let (answer, _) = again!(client().count_new(request.clone()));
        answer.map(|answer| answer.count as usize).map_err(text)
    }

    /// Deletes a home timeline, as if it had expired.
    pub(crate) async fn expire(&self, user: usize) -> Result<(), String> {
        let id = id(user as u64);
        let key = format!("tl:{{{}}}:home:{id}", (id >> 2) & 1023);
        let dropped = self.keyspace.query::<u64>(cmd("UNLINK").arg(key).take()).await;
        // Needs no retry.
        drop(dropped);
        Ok(())
    }

    /// Checks which streams are empty, and records it in the history. Returns whether all are.
    pub(crate) async fn check_if_idle(&self) -> bool {
        let mut batch = Batch::new();
        for stream in 0..STREAMS {
            let command = cmd("XLEN").arg(format!("tl:{{{stream}}}:fanout")).take();
            batch.query(Partition::new(stream as u16), command);
        }
        let at = self.tick();
        let Ok(answers) = self.keyspace.send(batch).await else { return false };
        let depth = |answer: Value| decode::<u64>(answer).unwrap();
        let depths: BTreeMap<u64, u64> = (0..).zip(answers.into_iter().map(depth)).collect();
        let stream_of = |author: usize| ((id(author as u64) >> 2) & 1023) % STREAMS;
        self.history().settled(at, |author| depths[&stream_of(author)] == 0);
        depths.values().all(|&depth| depth == 0)
    }
}
