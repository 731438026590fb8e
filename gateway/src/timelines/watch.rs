//! Watching a home timeline: a stream that its caller pulls. Nothing is read of the timeline
//! service, and nothing is kept, before the caller takes it.

use std::time::Duration;

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use microblog_chassis as chassis;
use microblog_domain::UserId;
use microblog_proto::{
    gateway::{self, WatchHomeResponse},
    timeline::{self, Entry, WatchHomeTimelineResponse},
};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::hydrate::PART_MAX;
use crate::{
    limits::Watching, people::Visit, refusal, rpc::Gateway, skeleton::SINCE, viewer::Token,
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
    /// nobody is mentioned), and up to 7 more where a post that has stand-ins is not shown; where
    /// nothing comes, user.Authenticate every `--session-check-ms`.
    pub(crate) async fn watch_home(
        &self,
        token: Token,
        request: gateway::WatchHomeRequest,
    ) -> Result<News, Status> {
        let viewer = self.viewer(token.clone()).await?;
        let watching = self.limits.watch(viewer)?;
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
        let watch = Watch { gateway, token, viewer, arrivals, arrived, seen, _watching: watching };
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
    _watching: Watching,
}

impl Watch {
    /// Returns the next message. Nothing is told to a session that has ended.
    async fn step(mut self) -> Result<Option<(WatchHomeResponse, Self)>, Status> {
        let Some(entries) = self.next_part().await? else { return Ok(None) };
        // What is told now may have waited: how its authors stand to the viewer is asked now, too.
        let visit = Visit::of(Some(self.viewer));
        let (session, found) = tokio::join!(
            self.gateway.viewer(self.token.clone()),
            self.gateway.hydrate_entries(visit, &entries)
        );
        session?;
        let posts = found?.into_iter().flatten().collect();
        let since_token = self.seen.clone();
        Ok(Some((WatchHomeResponse { posts, since_token }, self)))
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
