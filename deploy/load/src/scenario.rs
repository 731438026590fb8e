//! What clients do: one operation of each kind, on a world that was made for it.

use std::cell::{Cell, RefCell};

use microblog_proto::gateway::{
    FollowRequest, LikeRequest, LoginRequest, PublishRequest, RegisterRequest, UnfollowRequest,
    UnlikeRequest, UserRef, ViewFollowersRequest, ViewHomeRequest, ViewUserRequest,
    ViewUserTimelineRequest, gateway_service_client::GatewayServiceClient, user_ref,
};
use rand::{Rng as _, RngExt as _, rngs::SmallRng};
use tonic::{Request, Status, transport::Channel};
use uuid::Uuid;

use crate::world::{PASSWORD, Session, World};

/// The accounts of a page.
const PAGE: i32 = 50;

/// The pages of somebody who scrolls.
const PAGES: usize = 5;

/// As long as many posts are.
const TEXT: &str = "the quick brown fox jumps over a lazy dog while people write about weather, \
     music, food, travel, work, football, cats, politics and books and it";

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// A page of 50 of somebody's followers, with the viewer's relation to each
    ViewFollowers,
    /// One account, with the viewer's relation to it
    Relation,
    /// Follow somebody and, in the next call, not any more
    Follow,
    /// Publish a post
    Publish,
    /// The first page of the home timeline
    Home,
    /// Five pages of the home timeline, as one operation
    Scroll,
    /// The first page of somebody's timeline
    UserTimeline,
    /// 60% home, 30% somebody's timeline, 10% publish: as in DeathStarBench's social network
    Mixed,
    /// Like a post and, in the next call, not any more
    Like,
    /// Register an account and log in, as one operation
    RegisterLogin,
}

impl Scenario {
    /// Returns its name as the command line knows it.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// One who calls.
pub(crate) struct Caller<'a> {
    world: &'a World,
    gateway: GatewayServiceClient<Channel>,
    random: RefCell<SmallRng>,
    /// What the last call did and the next one takes back: the session, and the account or post.
    done: Cell<Option<(usize, u64)>>,
}

impl<'a> Caller<'a> {
    /// Returns one who calls over a channel, and chooses by these random numbers.
    pub(crate) fn new(world: &'a World, channel: Channel, random: SmallRng) -> Self {
        let gateway = GatewayServiceClient::new(channel);
        Self { world, gateway, random: RefCell::new(random), done: Cell::new(None) }
    }

    /// Does it once.
    pub(crate) async fn perform(&self, scenario: Scenario) -> Result<(), Status> {
        match scenario {
            Scenario::ViewFollowers => self.view_followers().await,
            Scenario::Relation => self.relation().await,
            Scenario::Follow => self.follow().await,
            Scenario::Publish => self.publish().await,
            Scenario::Home => self.home(1).await,
            Scenario::Scroll => self.home(PAGES).await,
            Scenario::UserTimeline => self.user_timeline().await,
            Scenario::Mixed => match self.below(10) {
                0..6 => self.home(1).await,
                6..9 => self.user_timeline().await,
                _ => self.publish().await,
            },
            Scenario::Like => self.like().await,
            Scenario::RegisterLogin => self.register_and_login().await,
        }
    }

    fn below(&self, end: usize) -> usize {
        self.random.borrow_mut().random_range(0..end)
    }

    fn session(&self) -> &'a Session {
        &self.world.sessions[self.below(self.world.sessions.len())]
    }

    fn account(&self) -> u64 {
        self.world.accounts[self.below(self.world.accounts.len())]
    }

    fn gateway(&self) -> GatewayServiceClient<Channel> {
        self.gateway.clone()
    }

    async fn view_followers(&self) -> Result<(), Status> {
        // Whoever has more followers is looked at more often.
        let listed = self.world.followed[self.below(self.world.followed.len())];
        let message = ViewFollowersRequest {
            user: Some(by_id(listed)),
            page_size: PAGE,
            page_token: String::new(),
        };
        self.gateway().view_followers(self.session().request(message)).await?;
        Ok(())
    }

    async fn relation(&self) -> Result<(), Status> {
        let message = ViewUserRequest { user: Some(by_id(self.account())) };
        self.gateway().view_user(self.session().request(message)).await?;
        Ok(())
    }

    async fn follow(&self) -> Result<(), Status> {
        if let Some((session, target)) = self.done.take() {
            let message = UnfollowRequest { user: Some(by_id(target)) };
            let request = self.world.sessions[session].request(message);
            self.gateway().unfollow(request).await?;
            return Ok(());
        }
        let session = self.below(self.world.sessions.len());
        let target = self.account();
        if target == self.world.sessions[session].account {
            return self.relation().await;
        }
        let message = FollowRequest { user: Some(by_id(target)) };
        let request = self.world.sessions[session].request(message);
        self.gateway().follow(request).await?;
        self.done.set(Some((session, target)));
        Ok(())
    }

    async fn publish(&self) -> Result<(), Status> {
        let request_id = Uuid::new_v4().to_string();
        let message = PublishRequest { request_id, text: TEXT.to_owned() };
        self.gateway().publish(self.session().request(message)).await?;
        Ok(())
    }

    async fn home(&self, pages: usize) -> Result<(), Status> {
        let (session, mut page_token) = (self.session(), String::new());
        for _ in 0..pages {
            let message = ViewHomeRequest { page_token, ..Default::default() };
            let answer = self.gateway().view_home(session.request(message)).await?;
            page_token = answer.into_inner().next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(())
    }

    async fn user_timeline(&self) -> Result<(), Status> {
        let user = Some(by_id(self.account()));
        let message = ViewUserTimelineRequest { user, ..Default::default() };
        self.gateway().view_user_timeline(self.session().request(message)).await?;
        Ok(())
    }

    async fn like(&self) -> Result<(), Status> {
        if let Some((session, post_id)) = self.done.take() {
            let request = self.world.sessions[session].request(UnlikeRequest { post_id });
            self.gateway().unlike(request).await?;
            return Ok(());
        }
        let session = self.below(self.world.sessions.len());
        let post_id = self.world.posts[self.below(self.world.posts.len())];
        let request = self.world.sessions[session].request(LikeRequest { post_id });
        self.gateway().like(request).await?;
        self.done.set(Some((session, post_id)));
        Ok(())
    }

    async fn register_and_login(&self) -> Result<(), Status> {
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
        self.gateway().register(Request::new(message)).await?;
        self.gateway().login(Request::new(LoginRequest { email, password })).await?;
        Ok(())
    }
}

fn by_id(id: u64) -> UserRef {
    UserRef { r#ref: Some(user_ref::Ref::Id(id)) }
}
