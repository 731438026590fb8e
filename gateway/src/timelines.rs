//! Timelines as their viewers see them: what the timeline service names, with all that belongs to
//! it, and without what is deleted or not for the viewer. They go on behind its newest posts, to the
//! first ones.

mod fill;
mod hydrate;
mod past;
mod watch;

use microblog_domain::{Fields, UserId};
use microblog_proto::{gateway, timeline};
use tonic::Status;

use crate::{
    pages::PageRequest,
    people::{Host, Visit},
    reference::Reference,
    refusal,
    rpc::Gateway,
    skeleton::{SINCE, Timeline, Whose},
    viewer::Token,
};

use fill::TimelinePage;
pub(crate) use watch::News;

impl Gateway {
    /// Shows the viewer's home timeline. Up to 7 calls for a page of up to 25 that is full at once:
    /// user.Authenticate, then timeline.GetHomeTimeline, then post.BatchGetPosts, then
    /// user.BatchGetUsers ∥ relation.BatchGetRelations (only about authors of whom the timeline
    /// service says nothing, which are those of roots) ∥ post.BatchGetLiked (only about what
    /// somebody likes) ∥ user.BatchResolveNames (not where nobody is mentioned).
    ///
    /// A page of more is put together of slices of up to 50, and where much is not shown they are
    /// more: up to 48 slices, which costs up to 7 each (post.BatchGetPosts twice). Where a post
    /// that has stand-ins is not shown, its slice costs up to 10 more: post.BatchGetPosts up to 6
    /// times, then the last four once more; and that again as long as none of those is shown either
    /// and there are others, up to 9 times.
    ///
    /// Behind the newest 800 posts, a page costs whom the viewer follows: relation.ListFollowing once
    /// for every 200, one after the other, then relation.BatchGetRelations once for every 500, all at
    /// once. Then come the posts, post.ListAuthorsPosts once for every 500, all at once, then the last
    /// four of above once for every 50 posts; and where texts are long, or something is not shown,
    /// the same up to 7 times more. The page that comes to the end of the newest 800 goes on behind
    /// it, and costs both.
    pub(crate) async fn view_home(
        &self,
        token: Token,
        request: gateway::ViewHomeRequest,
    ) -> Result<gateway::ViewHomeResponse, Status> {
        let gateway::ViewHomeRequest { page_size, page_token, since_token } = request;
        let ((), page) = PageRequest::parse(Fields::default(), Some(()), page_size, page_token)?;
        let page = self.view_own_timeline(Whose::Home, token, since_token, page).await?;
        let TimelinePage { posts, next_page_token, since_token } = page;
        Ok(gateway::ViewHomeResponse { posts, next_page_token, since_token })
    }

    /// Shows the posts of those whom the viewer follows and is followed by. As
    /// [`Gateway::view_home`], with timeline.GetFriendsTimeline, and behind the newest 800 posts with
    /// relation.ListMutuals in the place of relation.ListFollowing.
    pub(crate) async fn view_friends(
        &self,
        token: Token,
        request: gateway::ViewFriendsRequest,
    ) -> Result<gateway::ViewFriendsResponse, Status> {
        let gateway::ViewFriendsRequest { page_size, page_token, since_token } = request;
        let ((), page) = PageRequest::parse(Fields::default(), Some(()), page_size, page_token)?;
        let page = self.view_own_timeline(Whose::Friends, token, since_token, page).await?;
        let TimelinePage { posts, next_page_token, since_token } = page;
        Ok(gateway::ViewFriendsResponse { posts, next_page_token, since_token })
    }

    /// Shows the posts of anybody to anybody whom they do not block. Up to 8 calls, 5 without a
    /// token, for a page of up to 25 that is full at once: by id, user.Authenticate ∥ user.GetUser ∥
    /// timeline.GetUserTimeline, then post.BatchGetPosts and the rest as [`Gateway::view_home`]; by
    /// name, user.Authenticate ∥ user.GetUserByName, then the timeline, then the same. The timeline
    /// service says nothing of anybody here: relation.BatchGetRelations is about all authors.
    ///
    /// Behind the newest 1,000 posts, post.ListAuthorsPosts is in the place of the timeline and of
    /// post.BatchGetPosts, up to 8 times as of [`Gateway::view_home`].
    pub(crate) async fn view_user_timeline(
        &self,
        token: Option<Token>,
        request: gateway::ViewUserTimelineRequest,
    ) -> Result<gateway::ViewUserTimelineResponse, Status> {
        let gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token } = request;
        let mut fields = Fields::default();
        let user = fields.read(Reference::parse(user));
        let (user, page) = PageRequest::parse(fields, user, page_size, page_token)?;
        let timeline = |id| Timeline { whose: Whose::User(id), since_token };
        let viewer = self.viewer_if_any(token);
        let (viewer, id, timeline, first) = match user {
            Reference::Id(id) => {
                let timeline = timeline(id);
                let first = self.first(&timeline, &page);
                let (viewer, profile, first) = tokio::join!(viewer, self.profile(&user), first);
                let viewer = viewer?;
                profile?;
                (viewer, id, timeline, first?)
            }
            Reference::Name(_) => {
                let (viewer, profile) = tokio::join!(viewer, self.profile(&user));
                let viewer = viewer?;
                let id = refusal::sent_id(profile?.id)?;
                let timeline = timeline(id);
                let first = self.first(&timeline, &page).await?;
                (viewer, id, timeline, first)
            }
        };
        let visit = Visit::of(viewer).at(Host::Account(id.get()));
        let page = self.fill_timeline(&timeline, visit, page, first).await?;
        let TimelinePage { posts, next_page_token, since_token } = page;
        Ok(gateway::ViewUserTimelineResponse { posts, next_page_token, since_token })
    }

    /// Counts what is new in the viewer's home timeline. 2 calls: user.Authenticate, then
    /// timeline.CountNew.
    pub(crate) async fn count_new(
        &self,
        token: Token,
        request: gateway::CountNewRequest,
    ) -> Result<gateway::CountNewResponse, Status> {
        let user_id = self.viewer(token).await?.get();
        let since_token = request.since_token;
        let request = timeline::CountNewRequest { user_id, since_token };
        let response = self.peers.timeline().count_new(request).await;
        let response = response.map_err(|status| refusal::pass_on(status, SINCE))?;
        Ok(gateway::CountNewResponse { count: response.into_inner().count })
    }

    /// Shows the viewer a timeline that is only theirs to see.
    async fn view_own_timeline(
        &self,
        whose: fn(UserId) -> Whose,
        token: Token,
        since_token: String,
        page: PageRequest,
    ) -> Result<TimelinePage, Status> {
        let viewer = self.viewer(token).await?;
        let timeline = Timeline { whose: whose(viewer), since_token };
        let first = self.first(&timeline, &page).await?;
        let visit = Visit::of(Some(viewer));
        self.fill_timeline(&timeline, visit, page, first).await
    }
}
