//! WatchHome: a stream of new posts in the viewer's home timeline, driven by the caller. The
//! gateway reads from the timeline service only when the caller's connection asks for the next
//! message.
//!
//! Entries from the timeline service may have waited on the way since before an Unfollow or a Block
//! was confirmed. So each message is hydrated, and checked against the follow graph, when the
//! HTTP/2 server asks for it. The server sends a message when the caller's flow-control window has
//! room for some of it, and takes one more before it waits for room. So up to two messages exist
//! ahead, beside those that fit into the window.

use std::{mem, time::Instant};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::{IdSet, UserId};
use microblog_proto::{
    gateway::{self, ViewedPost, WatchHomeResponse},
    relation::RelationState,
    timeline::{self, Entry, WatchHomeTimelineResponse},
};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::{
    callers,
    context::{ViewContext, authenticate},
    credentials::Credentials,
    errors,
    hydration::posts::{ENTRIES_PER_MESSAGE, hydrate_entries},
    limits::WatchPermit,
    state::Gateway,
};

/// The method's name.
pub(crate) const METHOD: &str = "WatchHome";

/// The fields of the timeline service's request that the caller controls.
const FIELDS: errors::Fields = &[("since_token", "since_token")];

/// The stream of WatchHome.
pub(crate) type HomeUpdates = BoxStream<'static, Result<WatchHomeResponse, Status>>;

/// Streams the new posts of the viewer's home timeline. 2 calls at the start: user.Authenticate,
/// then timeline.WatchHomeTimeline. Each message costs user.Authenticate ∥ post.BatchGetPosts, then
/// user.BatchGetUsers ∥ relation.BatchGetRelations, and up to 7 more if a post with suppressed
/// reposts is not shown; as many again for each repost by an account that is no longer followed. An
/// idle stream costs user.Authenticate every `--session-check-ms`. For a service caller, user.GetUser
/// or user.GetAccount takes the place of user.Authenticate.
pub(crate) async fn watch_home(
    gateway: &Gateway,
    credentials: Credentials,
    request: gateway::WatchHomeRequest,
) -> Result<HomeUpdates, Status> {
    let viewer = authenticate(gateway, credentials.clone()).await?;
    let permit = gateway.limits.acquire_watch(viewer)?;
    chassis::context::watch()?;
    let (user_id, since_token) = (viewer.get(), request.since_token);
    let request = timeline::WatchHomeTimelineRequest { user_id, since_token: since_token.clone() };
    let client = gateway.peers.timeline();
    let updates = errors::stream(client.watch_home_timeline(request), FIELDS).await?;
    let watch = Watch {
        gateway: gateway.clone(),
        credentials,
        session_checked_at: Instant::now(),
        viewer,
        updates,
        pending: WatchHomeTimelineResponse::default(),
        since_token,
        _permit: permit,
    };
    Ok(stream::try_unfold(watch, Watch::step).boxed())
}

/// An open stream.
struct Watch {
    gateway: Gateway,
    credentials: Credentials,
    session_checked_at: Instant,
    viewer: UserId,
    updates: Streaming<WatchHomeTimelineResponse>,
    /// The part of the last update that is not sent yet.
    pending: WatchHomeTimelineResponse,
    /// The since token of the last update that is sent completely.
    since_token: String,
    /// Counts the stream towards the viewer's limit while it is open.
    _permit: WatchPermit<UserId>,
}

impl Watch {
    /// Returns the next message. The session is checked for each, so none is sent after its end.
    async fn step(mut self) -> Result<Option<(WatchHomeResponse, Self)>, Status> {
        let Some(entries) = self.skeleton().await? else { return Ok(None) };
        self.credentials = self.current_credentials()?;
        let (session, posts) = tokio::join!(self.authenticate(), self.hydrate(&entries));
        session?;
        self.session_checked_at = Instant::now();
        let posts = posts?;
        let since_token = self.since_token.clone();
        Ok(Some((WatchHomeResponse { posts, since_token }, self)))
    }

    /// Returns pending entries that fit into one message, whatever their size; `None` when the
    /// timeline service ends the stream.
    async fn skeleton(&mut self) -> Result<Option<Vec<Entry>>, Status> {
        if self.pending.entries.is_empty() {
            let Some(update) = self.update().await? else { return Ok(None) };
            self.pending = update;
        }
        let size = self.pending.entries.len().min(ENTRIES_PER_MESSAGE);
        let rest = self.pending.entries.split_off(size);
        let entries = mem::replace(&mut self.pending.entries, rest);
        if self.pending.entries.is_empty() {
            self.since_token.clone_from(&self.pending.since_token);
        }
        Ok(Some(entries))
    }

    /// Waits for an update of the timeline service. Meanwhile, the end of the session or of the
    /// service caller's rights ends the stream.
    async fn update(&mut self) -> Result<Option<WatchHomeTimelineResponse>, Status> {
        let session_check = self.gateway.session_check;
        let check = match &self.credentials {
            Credentials::Session(_) => session_check,
            Credentials::Caller(_) => session_check.min(callers::CHECK_INTERVAL),
        };
        loop {
            match timeout(check, self.updates.message()).await {
                Ok(update) => return update.map_err(|status| errors::map(status, FIELDS)),
                Err(_elapsed) => {
                    let current = self.current_credentials()?;
                    let has_changed = current.has_changed(&self.credentials);
                    self.credentials = current;
                    if has_changed || self.session_checked_at.elapsed() >= session_check {
                        self.authenticate().await?;
                        self.session_checked_at = Instant::now();
                    }
                }
            }
        }
    }

    /// Checks the viewer's session, or that the service caller may act for the viewer.
    async fn authenticate(&self) -> Result<(), Status> {
        authenticate(&self.gateway, self.credentials.clone()).await.map(|_viewer| ())
    }

    fn current_credentials(&self) -> Result<Credentials, Status> {
        self.credentials.current(self.gateway.callers.as_ref(), METHOD)
    }

    /// Returns the posts of entries as the viewer sees them now, from authors that the viewer
    /// follows. If an author is no longer followed, a suppressed repost may be by one who is.
    async fn hydrate(&self, entries: &[Entry]) -> Result<Vec<ViewedPost>, Status> {
        let context = ViewContext::new(Some(self.viewer));
        let mut shown = hydrate_entries(&self.gateway, context, entries).await?;
        loop {
            let (mut slots, mut suppressed) = (Vec::new(), Vec::new());
            for (slot, (entry, viewed)) in entries.iter().zip(&mut shown).enumerate() {
                let Some(post) = viewed.take_if(|viewed| !self.is_followed(viewed)) else {
                    continue;
                };
                if let Some(entry) = suppressed_after(entry, &post) {
                    slots.push(slot);
                    suppressed.push(entry);
                }
            }
            if suppressed.is_empty() {
                return Ok(distinct(shown));
            }
            let others = hydrate_entries(&self.gateway, context, &suppressed).await?;
            for (slot, other) in slots.into_iter().zip(others) {
                shown[slot] = other;
            }
        }
    }

    /// Returns whether the viewer follows the author of a post, or is the author.
    fn is_followed(&self, viewed: &ViewedPost) -> bool {
        let Some(author) = &viewed.author else { return false };
        let is_own = author.user.as_ref().is_some_and(|user| user.id == self.viewer.get());
        is_own || matches!(author.relation(), RelationState::Following | RelationState::Mutual)
    }
}

/// Returns an entry of the suppressed reposts that come after a post in an entry; `None` if none
/// do.
fn suppressed_after(entry: &Entry, post: &ViewedPost) -> Option<Entry> {
    let id = post.post.as_ref()?.id;
    let mut ids = std::iter::once(entry.post_id).chain(entry.stand_in_ids.iter().copied());
    ids.find(|&other| other == id)?;
    let post_id = ids.next()?;
    Some(Entry { post_id, stand_in_ids: ids.collect(), ..Entry::default() })
}

/// Returns the posts without repetitions.
fn distinct(shown: Vec<Option<ViewedPost>>) -> Vec<ViewedPost> {
    let mut seen = IdSet::default();
    let is_first =
        |viewed: &ViewedPost| viewed.post.as_ref().is_some_and(|post| seen.insert(post.id));
    shown.into_iter().flatten().filter(is_first).collect()
}

#[cfg(test)]
mod tests {
    use microblog_proto::post::Post;

    use super::*;

    fn viewed(id: u64) -> ViewedPost {
        ViewedPost { post: Some(Post { id, ..Post::default() }), ..ViewedPost::default() }
    }

    #[test]
    fn the_suppressed_reposts_after_a_post_are_next() {
        let entry = Entry { post_id: 5, stand_in_ids: vec![6, 7, 8], ..Entry::default() };
        let rest = |id| {
            suppressed_after(&entry, &viewed(id)).map(|entry| (entry.post_id, entry.stand_in_ids))
        };
        assert_eq!(rest(5), Some((6, vec![7, 8])));
        assert_eq!(rest(7), Some((8, vec![])));
        assert_eq!([rest(8), rest(9)], [None, None]);
    }

    #[test]
    fn a_message_has_each_post_once() {
        let shown = vec![Some(viewed(5)), None, Some(viewed(5)), Some(viewed(4))];
        assert_eq!(distinct(shown), [viewed(5), viewed(4)]);
    }
}
