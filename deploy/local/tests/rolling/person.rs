//! A simulated person who follows, publishes, likes and reads, with a record of acknowledged
//! writes.

use std::{collections::BTreeSet, time::Duration};

use microblog_proto::{
    gateway::{
        FollowRequest, LikeRequest, LoginRequest, PublishRequest, RegisterRequest, UnfollowRequest,
        UserRef, ViewFollowersRequest, ViewHomeRequest, ViewUserTimelineRequest, ViewedPost,
        user_ref::Ref,
    },
    relation::RelationState,
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::retrying_client::{Failed, RetryingClient};

const PASSWORD: &str = "correct horse battery";
/// Pause between calls, which reduces the load.
const THOUGHT: Duration = Duration::from_millis(10);

/// A logged-in person.
pub(crate) struct Person {
    name: String,
    token: String,
    pub(crate) caller: RetryingClient,
    /// The names of the followed accounts.
    pub(crate) follows: BTreeSet<String>,
    /// Own posts, oldest first.
    pub(crate) posts: Vec<u64>,
    /// The liked posts.
    pub(crate) likes: BTreeSet<u64>,
    /// The last seen post.
    seen: Option<u64>,
}

impl Person {
    /// Registers an account and logs in.
    pub(crate) async fn join(name: String, caller: RetryingClient) -> Self {
        let email = format!("{name}@example.org");
        let registration = RegisterRequest {
            request_id: request_id(),
            name: name.clone(),
            email: email.clone(),
            password: PASSWORD.to_owned(),
            ..Default::default()
        };
        let registered =
            caller.call("Register", "", registration, async |g, r| g.register(r).await);
        registered.await.unwrap();
        let login = LoginRequest { login: email, password: PASSWORD.to_owned() };
        let session = caller.call("Login", "", login, async |g, r| g.login(r).await).await.unwrap();
        Self {
            name,
            token: session.token,
            caller,
            follows: BTreeSet::new(),
            posts: Vec::new(),
            likes: BTreeSet::new(),
            seen: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Makes calls until stopped, or until a call fails.
    pub(crate) async fn live(&mut self, names: &[String]) {
        while !self.caller.tally().has_ended() && self.act(names).await.is_ok() {
            sleep(THOUGHT).await;
        }
    }

    async fn act(&mut self, names: &[String]) -> Result<(), Failed> {
        let other = &names[rand::random_range(0..names.len())];
        match rand::random_range(0..10) {
            0 => self.publish().await,
            1 | 2 if *other != self.name => self.follow(other).await,
            3 if *other != self.name => self.unfollow(other).await,
            4 | 5 => self.like().await,
            6 => self.followers(other).await.map(drop),
            _ => self.home().await,
        }
    }

    async fn follow(&mut self, name: &str) -> Result<(), Failed> {
        let request = FollowRequest { user: by_name(name) };
        let answer =
            self.caller.call("Follow", &self.token, request, async |g, r| g.follow(r).await);
        let state = answer.await?.relation();
        let follows = [RelationState::Following, RelationState::Mutual].contains(&state);
        self.expect(follows, || format!("Follow of {name}: {state:?}"))?;
        self.follows.insert(name.to_owned());
        Ok(())
    }

    async fn unfollow(&mut self, name: &str) -> Result<(), Failed> {
        let request = UnfollowRequest { user: by_name(name) };
        let answer =
            self.caller.call("Unfollow", &self.token, request, async |g, r| g.unfollow(r).await);
        answer.await?;
        self.follows.remove(name);
        Ok(())
    }

    /// Publishes, and checks that the post is on top of the own timeline.
    async fn publish(&mut self) -> Result<(), Failed> {
        let text = format!("post of {} number {}", self.name, self.posts.len());
        let request = PublishRequest { request_id: request_id(), text };
        let answer =
            self.caller.call("Publish", &self.token, request, async |g, r| g.publish(r).await);
        let id = answer.await?.post.unwrap().id;
        self.posts.push(id);
        let (top, _) = self.timeline_of(&self.name, 1, String::new()).await?;
        self.expect(top == [id], || format!("Publish: {id} is not on top, but {top:?}"))
    }

    async fn like(&mut self) -> Result<(), Failed> {
        let Some(post_id) = self.seen else { return Ok(()) };
        let request = LikeRequest { post_id };
        self.caller.call("Like", &self.token, request, async |g, r| g.like(r).await).await?;
        self.likes.insert(post_id);
        Ok(())
    }

    async fn home(&mut self) -> Result<(), Failed> {
        let posts = self.home_page(20).await?;
        self.seen = posts.first().copied().or(self.seen);
        Ok(())
    }

    /// Returns the newest posts of the home timeline.
    pub(crate) async fn home_page(&self, page_size: i32) -> Result<Vec<u64>, Failed> {
        let request = ViewHomeRequest { page_size, ..Default::default() };
        let answer =
            self.caller.call("ViewHome", &self.token, request, async |g, r| g.view_home(r).await);
        Ok(ids(answer.await?.posts))
    }

    /// Returns a page of an account's posts, newest first, and the next page token.
    pub(crate) async fn timeline_of(
        &self,
        name: &str,
        page_size: i32,
        page_token: String,
    ) -> Result<(Vec<u64>, String), Failed> {
        let user = by_name(name);
        let request = ViewUserTimelineRequest { user, page_size, page_token, ..Default::default() };
        let answer = self.caller.call("ViewUserTimeline", &self.token, request, async |g, r| {
            g.view_user_timeline(r).await
        });
        let answer = answer.await?;
        Ok((ids(answer.posts), answer.next_page_token))
    }

    /// Returns the names of an account's followers.
    pub(crate) async fn followers(&self, name: &str) -> Result<BTreeSet<String>, Failed> {
        let request =
            ViewFollowersRequest { user: by_name(name), page_size: 100, ..Default::default() };
        let answer = self
            .caller
            .call("ViewFollowers", &self.token, request, async |g, r| g.view_followers(r).await);
        let users = answer.await?.users.into_iter();
        Ok(users.map(|listed| listed.user.unwrap().name).collect())
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), Failed> {
        if holds { Ok(()) } else { Err(self.caller.fail(format!("{}: {}", self.name, what()))) }
    }
}

pub(crate) fn by_name(name: &str) -> Option<UserRef> {
    Some(UserRef { r#ref: Some(Ref::Name(name.to_owned())) })
}

fn ids(posts: Vec<ViewedPost>) -> Vec<u64> {
    posts.into_iter().map(|viewed| viewed.post.unwrap().id).collect()
}

fn request_id() -> String {
    Uuid::new_v4().to_string()
}
