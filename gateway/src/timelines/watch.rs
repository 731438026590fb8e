//! Watching a home timeline: a stream that its caller pulls. Nothing is read of the timeline
//! service, and nothing is kept, before the caller takes it.
//!
//! What the timeline service sent may have waited here, or on the way, since before an Unfollow or a
//! Block answered. So each message is checked against the follow graph when it is made, and made
//! when the HTTP/2 server asks for it. That hands a message on when the caller's window has room for
//! some of it, and takes one more before it waits for room: so up to two messages are made ahead,
//! beside those that fit into the window.

use std::time::Duration;

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

use super::hydrate::PART_MAX;
use crate::{
    limits::WatchPermit, people::Visit, refusal, rpc::Gateway, skeleton::SINCE, viewer::Token,
};

/// How long the timeline service has to begin.
const OPENING_MAX: Duration = Duration::from_secs(10);

/// What a caller of WatchHome gets.
pub(crate) type News = BoxStream<'static, Result<WatchHomeResponse, Status>>;

impl Gateway {
    /// Streams what comes new into the viewer's home timeline. 2 calls to begin with:
    /// user.Authenticate, then timeline.WatchHomeTimeline. Each message costs user.Authenticate ∥
    /// post.BatchGetPosts, then user.BatchGetUsers ∥ relation.BatchGetRelations ∥
    /// post.BatchGetLiked (only about what somebody likes) ∥ user.BatchResolveNames (not where
    /// nobody is mentioned), and up to 7 more where a post that has stand-ins is not shown; as many
    /// again for each repost of somebody who is not followed any more; where
    /// nothing comes, user.Authenticate every `--session-check-ms`.
    pub(crate) async fn watch_home(
        &self,
        token: Token,
        request: gateway::WatchHomeRequest,
    ) -> Result<News, Status> {
        let viewer = self.viewer(token.clone()).await?;
        let permit = self.limits.acquire_watch(viewer)?;
        chassis::context::watch()?;
        let (user_id, since_token) = (viewer.get(), request.since_token);
        let request =
            timeline::WatchHomeTimelineRequest { user_id, since_token: since_token.clone() };
        let client = self.peers.timeline();
        // A stream has no deadline, and its connection may have no place for one more.
        let arrivals = timeout(OPENING_MAX, client.watch_home_timeline(request)).await;
        let arrivals = arrivals.unwrap_or_else(|_elapsed| Err(Status::unavailable("late")));
        let arrivals = arrivals.map_err(|status| refusal::pass_on(status, SINCE))?.into_inner();
        let gateway = self.clone();
        let arrived = WatchHomeTimelineResponse::default();
        let seen = since_token;
        let watch = Watch { gateway, token, viewer, arrivals, arrived, seen, _permit: permit };
        Ok(stream::try_unfold(watch, Watch::step).boxed())
    }
}

/// A watch that goes on.
struct Watch {
    gateway: Gateway,
    token: Token,
    viewer: UserId,
    arrivals: Streaming<WatchHomeTimelineResponse>,
    /// What arrived together last, as far as it is not told yet.
    arrived: WatchHomeTimelineResponse,
    /// Stands for what was told wholly.
    seen: String,
    /// Counts among the viewer's streams for as long as it is open.
    _permit: WatchPermit,
}

impl Watch {
    /// Returns the next message. Nothing is told to a session that has ended.
    async fn step(mut self) -> Result<Option<(WatchHomeResponse, Self)>, Status> {
        let Some(entries) = self.next_part().await? else { return Ok(None) };
        let (session, posts) =
            tokio::join!(self.gateway.viewer(self.token.clone()), self.followed(&entries));
        session?;
        let posts = posts?;
        let since_token = self.seen.clone();
        Ok(Some((WatchHomeResponse { posts, since_token }, self)))
    }

    /// Returns what the viewer is shown of entries now: what accounts wrote that the viewer follows.
    /// Where an author is not followed any more, what stands in for the post may be somebody's who
    /// is.
    async fn followed(&self, entries: &[Entry]) -> Result<Vec<ViewedPost>, Status> {
        let visit = Visit::of(Some(self.viewer));
        let mut shown = self.gateway.hydrate_entries(visit, entries).await?;
        loop {
            let mut places = Vec::new();
            let mut stand_ins = Vec::new();
            for (place, (entry, viewed)) in entries.iter().zip(&mut shown).enumerate() {
                let Some(post) = viewed.take_if(|viewed| !self.is_followed(viewed)) else {
                    continue;
                };
                if let Some(entry) = stands_in(entry, &post) {
                    places.push(place);
                    stand_ins.push(entry);
                }
            }
            if stand_ins.is_empty() {
                return Ok(each_once(shown));
            }
            let others = self.gateway.hydrate_entries(visit, &stand_ins).await?;
            for (place, other) in places.into_iter().zip(others) {
                shown[place] = other;
            }
        }
    }

    fn is_followed(&self, viewed: &ViewedPost) -> bool {
        let Some(author) = &viewed.author else { return false };
        let is_own = author.user.as_ref().is_some_and(|user| user.id == self.viewer.get());
        is_own || matches!(author.relation(), RelationState::Following | RelationState::Mutual)
    }

    /// Returns as much of what arrived as is certain to fit into a message; `None` when the timeline
    /// service ends the watch.
    async fn next_part(&mut self) -> Result<Option<Vec<Entry>>, Status> {
        if self.arrived.entries.is_empty() {
            let Some(arrived) = self.arrival().await? else { return Ok(None) };
            self.arrived = arrived;
        }
        let size = self.arrived.entries.len().min(PART_MAX);
        let rest = self.arrived.entries.split_off(size);
        let part = std::mem::replace(&mut self.arrived.entries, rest);
        if self.arrived.entries.is_empty() {
            self.seen.clone_from(&self.arrived.since_token);
        }
        Ok(Some(part))
    }

    /// Waits for the timeline service, and ends the watch meanwhile if the session ends.
    async fn arrival(&mut self) -> Result<Option<WatchHomeTimelineResponse>, Status> {
        loop {
            match timeout(self.gateway.session_check, self.arrivals.message()).await {
                Ok(arrival) => return arrival.map_err(|status| refusal::pass_on(status, SINCE)),
                Err(_elapsed) => {
                    self.gateway.viewer(self.token.clone()).await?;
                }
            }
        }
    }
}

/// Returns what stands in for an entry besides this post and what comes before it; `None` if nothing
/// does.
fn stands_in(entry: &Entry, post: &ViewedPost) -> Option<Entry> {
    let id = post.post.as_ref()?.id;
    let mut ids = std::iter::once(entry.post_id).chain(entry.stand_in_ids.iter().copied());
    ids.find(|&other| other == id)?;
    let post_id = ids.next()?;
    Some(Entry { post_id, stand_in_ids: ids.collect(), ..Entry::default() })
}

fn each_once(shown: Vec<Option<ViewedPost>>) -> Vec<ViewedPost> {
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
    fn what_comes_behind_a_post_stands_in_for_it() {
        let entry = Entry { post_id: 5, stand_in_ids: vec![6, 7, 8], ..Entry::default() };
        let rest =
            |id| stands_in(&entry, &viewed(id)).map(|entry| (entry.post_id, entry.stand_in_ids));
        assert_eq!(rest(5), Some((6, vec![7, 8])));
        assert_eq!(rest(7), Some((8, vec![])));
        assert_eq!([rest(8), rest(9)], [None, None]);
    }

    #[test]
    fn nothing_is_told_twice_in_a_message() {
        let shown = vec![Some(viewed(5)), None, Some(viewed(5)), Some(viewed(4))];
        assert_eq!(each_once(shown), [viewed(5), viewed(4)]);
    }
}
