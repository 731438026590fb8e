//! One who calls the gateway, or a service behind it. Answers are read only as far as the next call needs them: clients share
//! the machine with what they measure. Whether they make sense is asked [once](super::sense).

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use http::uri::PathAndQuery;
use microblog_proto::gateway::{
    FollowRequest, LikeRequest, LoginRequest, PublishRequest, RegisterRequest, UnfollowRequest,
    UnlikeRequest, UserRef, ViewFollowersRequest, ViewHomeRequest, ViewUserRequest,
    ViewUserTimelineRequest, user_ref,
};
use microblog_proto::relation::BatchGetRelationsRequest;
use prost::Message as _;
use rand::{Rng as _, RngExt as _, rngs::SmallRng, seq::IndexedRandom as _};
use tonic::{Request, Status, transport::Channel};
use uuid::Uuid;

use super::{MIX, Scenario, methods::Method};
use crate::{
    raw,
    world::{PASSWORD, Session, World},
};

/// The accounts that a page of followers has room for.
pub(crate) const PAGE: usize = 50;

/// The pages of somebody who scrolls.
const PAGES: usize = 5;

/// As long as many posts are.
const TEXT: &str = "the quick brown fox jumps over a lazy dog while people write about weather, \
     music, food, travel, work, football, cats, politics and books and it";

/// One who calls.
pub(crate) struct Caller<'a> {
    pub(super) world: &'a World,
    gateway: Channel,
    relation: Channel,
    random: RefCell<SmallRng>,
    /// What the last call did and the next one takes back: the session, and the account or post.
    done: Cell<Option<(&'a Session, u64)>>,
}

impl<'a> Caller<'a> {
    /// Returns one who calls the gateway and the relation service over these channels, and chooses by
    /// these random numbers.
    pub(crate) fn new(
        world: &'a World,
        gateway: Channel,
        relation: Channel,
        random: SmallRng,
    ) -> Self {
        Self { world, gateway, relation, random: RefCell::new(random), done: Cell::new(None) }
    }

    /// Does it once.
    pub(crate) async fn perform(&self, scenario: Scenario) -> Result<(), Status> {
        match scenario {
            Scenario::ViewFollowers => self.view_followers().await,
            Scenario::Relation => {
                self.ask_relation(pair(self.session(), self.account())).await.map(drop)
            }
            Scenario::ViewUser => self.view_user().await,
            Scenario::Follow => self.follow().await,
            Scenario::Publish => self.publish().await,
            Scenario::Home => self.ask(self.session().request(home(String::new()))).await.map(drop),
            Scenario::Scroll => self.scroll().await,
            Scenario::UserTimeline => self.user_timeline().await,
            Scenario::Mixed => Box::pin(self.perform(self.one_of_the_mix())).await,
            Scenario::Like => self.like().await,
            Scenario::RegisterLogin => self.register_and_login().await,
        }
    }

    /// Makes a call whose answer says something, but nobody reads what.
    pub(super) async fn ask<M: Method>(&self, request: Request<M>) -> Result<Bytes, Status> {
        ask(self.gateway.clone(), request).await
    }

    /// Makes a call of the relation service likewise.
    pub(super) async fn ask_relation<M: Method>(&self, message: M) -> Result<Bytes, Status> {
        ask(self.relation.clone(), Request::new(message)).await
    }

    /// Makes a call, and reads its answer.
    pub(super) async fn read<M: Method>(&self, request: Request<M>) -> Result<M::Answer, Status> {
        let answer = M::Answer::decode(self.ask(request).await?);
        answer.map_err(|error| Status::data_loss(format!("not an answer: {error}")))
    }

    fn one_of_the_mix(&self) -> Scenario {
        let one = MIX.choose_weighted(&mut *self.random.borrow_mut(), |&(_, share)| share);
        // There is something in the mix.
        one.map_or_else(|error| unreachable!("{error}"), |&(scenario, _)| scenario)
    }

    fn below(&self, end: usize) -> usize {
        self.random.borrow_mut().random_range(0..end)
    }

    pub(super) fn session(&self) -> &'a Session {
        &self.world.sessions[self.below(self.world.sessions.len())]
    }

    pub(super) fn account(&self) -> u64 {
        self.world.accounts[self.below(self.world.accounts.len())]
    }

    pub(super) fn post(&self) -> u64 {
        self.world.posts[self.below(self.world.posts.len())]
    }

    async fn view_followers(&self) -> Result<(), Status> {
        // Whoever has more followers is looked at more often.
        let listed = self.world.followed[self.below(self.world.followed.len())];
        self.ask(self.session().request(followers(listed))).await.map(drop)
    }

    async fn view_user(&self) -> Result<(), Status> {
        self.ask(self.session().request(user(self.account()))).await.map(drop)
    }

    async fn follow(&self) -> Result<(), Status> {
        if let Some((session, target)) = self.done.take() {
            return self.ask(session.request(unfollow(target))).await.map(drop);
        }
        let (session, target) = (self.session(), self.account());
        if target == session.account {
            return self.view_user().await;
        }
        self.ask(session.request(follow(target))).await?;
        self.done.set(Some((session, target)));
        Ok(())
    }

    async fn publish(&self) -> Result<(), Status> {
        self.ask(self.session().request(publish())).await.map(drop)
    }

    async fn scroll(&self) -> Result<(), Status> {
        let (session, mut page_token) = (self.session(), String::new());
        for _ in 0..PAGES {
            page_token = self.read(session.request(home(page_token))).await?.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(())
    }

    async fn user_timeline(&self) -> Result<(), Status> {
        self.ask(self.session().request(timeline(self.account()))).await.map(drop)
    }

    async fn like(&self) -> Result<(), Status> {
        if let Some((session, post_id)) = self.done.take() {
            return self.ask(session.request(UnlikeRequest { post_id })).await.map(drop);
        }
        let (session, post_id) = (self.session(), self.post());
        self.ask(session.request(LikeRequest { post_id })).await?;
        self.done.set(Some((session, post_id)));
        Ok(())
    }

    pub(super) async fn register_and_login(&self) -> Result<(), Status> {
        let name = format!("l{:015x}", self.random.borrow_mut().next_u64() >> 4);
        let email = format!("{name}@load.invalid");
        let password = PASSWORD.to_owned();
        let message = RegisterRequest {
            request_id: Uuid::new_v4().to_string(),
            email: email.clone(),
            name,
            password: password.clone(),
            display_name: String::new(),
        };
        self.ask(Request::new(message)).await?;
        let session = self.read(Request::new(LoginRequest { login: email, password })).await?;
        if session.token.is_empty() {
            return Err(Status::data_loss("a log-in without a token"));
        }
        Ok(())
    }
}

async fn ask<M: Method>(channel: Channel, request: Request<M>) -> Result<Bytes, Status> {
    let request = request.map(|message| message.encode_to_vec().into());
    let path = PathAndQuery::from_static(M::PATH);
    let answer = raw::call(channel, path, request).await?;
    if answer.is_empty() && !M::MAY_BE_EMPTY {
        return Err(Status::data_loss("an answer with nothing in it"));
    }
    Ok(answer)
}

pub(super) fn pair(viewer: &Session, target: u64) -> BatchGetRelationsRequest {
    BatchGetRelationsRequest {
        viewer_id: viewer.account,
        target_ids: vec![target],
        ..Default::default()
    }
}

pub(super) fn followers(listed: u64) -> ViewFollowersRequest {
    ViewFollowersRequest { user: by_id(listed), page_size: PAGE as i32, ..Default::default() }
}

pub(super) fn user(id: u64) -> ViewUserRequest {
    ViewUserRequest { user: by_id(id) }
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

pub(super) fn home(page_token: String) -> ViewHomeRequest {
    ViewHomeRequest { page_token, ..Default::default() }
}

pub(super) fn timeline(of: u64) -> ViewUserTimelineRequest {
    ViewUserTimelineRequest { user: by_id(of), ..Default::default() }
}

fn by_id(id: u64) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(user_ref::Ref::Id(id)) })
}
