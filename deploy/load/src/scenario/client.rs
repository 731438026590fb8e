//! A client of the gateway. It decodes a response only if the next call
//! needs it, because clients share the machine with the system. [Sanity
//! checks](super::sanity_checks) validate responses before the measurement.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use http::uri::PathAndQuery;
use microblog_local::raw_call;
use microblog_proto::gateway::{
    FollowRequest, LikeRequest, PublishRequest, UnfollowRequest, UnlikeRequest, UserRef,
    ViewFollowersRequest, ViewHomeRequest, ViewUserTimelineRequest, user_ref,
};
use prost::Message as _;
use rand::{RngExt as _, rngs::SmallRng, seq::IndexedRandom as _};
use tonic::{Request, Status, transport::Channel};
use uuid::Uuid;

use super::{MIX, Scenario, methods::Method};
use crate::data_set::{DataSet, Session};

/// The size of a page of followers.
pub(crate) const PAGE_SIZE: usize = 50;

/// A text of typical length.
const TEXT: &str = "the quick brown fox jumps over a lazy dog while people write about weather, \
     music, food, travel, work, football, cats, politics and books and it";

/// A client.
pub(crate) struct Client<'a> {
    pub(super) data_set: &'a DataSet,
    gateway: Channel,
    random: RefCell<SmallRng>,
    /// The change that the next call reverts: the session, and the account or post.
    undo: Cell<Option<(&'a Session, u64)>>,
}

impl<'a> Client<'a> {
    /// Returns a client with these channels and this source of random numbers.
    pub(crate) fn new(data_set: &'a DataSet, gateway: Channel, random: SmallRng) -> Self {
        Self { data_set, gateway, random: RefCell::new(random), undo: Cell::new(None) }
    }

    /// Runs a scenario once.
    pub(crate) async fn perform(&self, scenario: Scenario) -> Result<(), Status> {
        match scenario {
            Scenario::ViewFollowers => self.view_followers().await,
            Scenario::Follow => self.follow().await,
            Scenario::Publish => self.publish().await,
            Scenario::Home => self.call(self.session().request(home())).await.map(drop),
            Scenario::UserTimeline => self.user_timeline().await,
            Scenario::Mixed => Box::pin(self.perform(self.random_of_mix())).await,
            Scenario::Like => self.like().await,
        }
    }

    /// Calls the gateway and returns the encoded response.
    pub(super) async fn call<M: Method>(&self, request: Request<M>) -> Result<Bytes, Status> {
        call(self.gateway.clone(), request).await
    }

    /// Calls the gateway and decodes the response.
    pub(super) async fn call_and_decode<M: Method>(
        &self,
        request: Request<M>,
    ) -> Result<M::Response, Status> {
        let answer = M::Response::decode(self.call(request).await?);
        answer.map_err(|error| Status::data_loss(format!("invalid response: {error}")))
    }

    fn random_of_mix(&self) -> Scenario {
        let one = MIX.choose_weighted(&mut *self.random.borrow_mut(), |&(_, share)| share);
        // The mix is not empty.
        one.map_or_else(|error| unreachable!("{error}"), |&(scenario, _)| scenario)
    }

    fn random_below(&self, end: usize) -> usize {
        self.random.borrow_mut().random_range(0..end)
    }

    pub(super) fn session(&self) -> &'a Session {
        &self.data_set.sessions[self.random_below(self.data_set.sessions.len())]
    }

    pub(super) fn account(&self) -> u64 {
        self.data_set.accounts[self.random_below(self.data_set.accounts.len())]
    }

    pub(super) fn post(&self) -> u64 {
        self.data_set.posts[self.random_below(self.data_set.posts.len())]
    }

    async fn view_followers(&self) -> Result<(), Status> {
        // In proportion to the number of followers.
        let listed = self.data_set.followed[self.random_below(self.data_set.followed.len())];
        self.call(self.session().request(followers(listed))).await.map(drop)
    }

    async fn follow(&self) -> Result<(), Status> {
        if let Some((session, target)) = self.undo.take() {
            return self.call(session.request(unfollow(target))).await.map(drop);
        }
        let session = self.session();
        let mut target = self.account();
        while target == session.account {
            target = self.account();
        }
        self.call(session.request(follow(target))).await?;
        self.undo.set(Some((session, target)));
        Ok(())
    }

    async fn publish(&self) -> Result<(), Status> {
        self.call(self.session().request(publish())).await.map(drop)
    }

    async fn user_timeline(&self) -> Result<(), Status> {
        self.call(self.session().request(timeline(self.account()))).await.map(drop)
    }

    async fn like(&self) -> Result<(), Status> {
        if let Some((session, post_id)) = self.undo.take() {
            return self.call(session.request(UnlikeRequest { post_id })).await.map(drop);
        }
        let (session, post_id) = (self.session(), self.post());
        self.call(session.request(LikeRequest { post_id })).await?;
        self.undo.set(Some((session, post_id)));
        Ok(())
    }
}

async fn call<M: Method>(channel: Channel, request: Request<M>) -> Result<Bytes, Status> {
    let request = request.map(|message| message.encode_to_vec().into());
    let path = PathAndQuery::from_static(M::PATH);
    let answer = raw_call::unary(channel, path, request).await?;
    if answer.is_empty() && !M::MAY_BE_EMPTY {
        return Err(Status::data_loss("response is empty"));
    }
    Ok(answer)
}

pub(super) fn followers(listed: u64) -> ViewFollowersRequest {
    ViewFollowersRequest { user: by_id(listed), page_size: PAGE_SIZE as i32, ..Default::default() }
}

pub(super) fn follow(target: u64) -> FollowRequest {
    FollowRequest { user: by_id(target) }
}

pub(super) fn unfollow(target: u64) -> UnfollowRequest {
    UnfollowRequest { user: by_id(target) }
}

pub(super) fn publish() -> PublishRequest {
    PublishRequest { request_id: Uuid::new_v4().to_string(), text: TEXT.to_owned() }
}

pub(super) fn home() -> ViewHomeRequest {
    ViewHomeRequest::default()
}

pub(super) fn timeline(of: u64) -> ViewUserTimelineRequest {
    ViewUserTimelineRequest { user: by_id(of), ..Default::default() }
}

fn by_id(id: u64) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(user_ref::Ref::Id(id)) })
}
