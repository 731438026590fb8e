//! Sanity checks of responses before a measurement.

use anyhow::{Context as _, anyhow, ensure};
use microblog_proto::{
    gateway::{LikeRequest, UnlikeRequest, ViewedPost},
    relation::RelationState,
};
use tonic::Request;

use super::{
    Scenario,
    client::{self, Client, PAGE_SIZE},
    methods::Method,
};
use crate::{results, service_clients::status_to_error};

/// Maximum number of viewers or accounts to read until one has posts.
const ATTEMPTS_MAX: usize = 100;

impl Client<'_> {
    /// Runs the calls of a scenario once and checks the responses.
    pub(crate) async fn check(&self, scenario: Scenario) -> anyhow::Result<()> {
        let checked = async {
            match scenario {
                Scenario::ViewFollowers => self.check_followers().await,
                Scenario::Follow => self.check_follow().await,
                Scenario::Publish => self.check_publish().await,
                Scenario::Home => self.check_home().await,
                Scenario::UserTimeline => self.check_timeline().await,
                Scenario::Mixed => {
                    self.check_home().await?;
                    self.check_timeline().await?;
                    self.check_publish().await
                }
                Scenario::Like => self.check_like().await,
            }
        };
        checked.await.with_context(|| format!("sanity check of {} failed", results::name(scenario)))
    }

    async fn answer<M: Method>(&self, request: Request<M>) -> anyhow::Result<M::Response> {
        status_to_error(self.call_and_decode(request).await)
    }

    async fn check_followers(&self) -> anyhow::Result<()> {
        let most =
            self.data_set.followers().into_iter().max_by_key(|&(account, count)| (count, account));
        let (listed, count) = most.context("the graph has no follows")?;
        let page = self.answer(self.session().request(client::followers(listed))).await?;
        let (listed, expected) = (page.users.len(), count.min(PAGE_SIZE));
        ensure!(listed >= expected, "page has {listed} followers, expected {expected}");
        for listed in page.users {
            let name = listed.user.unwrap_or_default().name;
            ensure!(!name.is_empty() && listed.since.is_some(), "follower has no name or no time");
            ensure!(is_known(listed.relation), "follower {name} has no relation");
        }
        Ok(())
    }

    async fn check_follow(&self) -> anyhow::Result<()> {
        let session = self.session();
        let mut others = self.data_set.accounts.iter().filter(|&&other| other != session.account);
        let &target = others.next().context("no account to follow")?;
        let followed = self.answer(session.request(client::follow(target))).await?;
        let follows = [RelationState::Following, RelationState::Mutual];
        ensure!(follows.contains(&followed.relation()), "follow has no effect");
        let unfollowed = self.answer(session.request(client::unfollow(target))).await?;
        let is_over = is_known(unfollowed.relation) && !follows.contains(&unfollowed.relation());
        ensure!(is_over, "unfollow has no effect");
        Ok(())
    }

    async fn check_publish(&self) -> anyhow::Result<()> {
        let (session, message) = (self.session(), client::publish());
        let text = message.text.clone();
        let post = self.answer(session.request(message)).await?.post.unwrap_or_default();
        ensure!(post.author_id == session.account && post.text == text, "response is another post");
        Ok(())
    }

    async fn check_home(&self) -> anyhow::Result<()> {
        for session in self.data_set.sessions.iter().take(ATTEMPTS_MAX) {
            let page = self.answer(session.request(client::home())).await?;
            page.posts.iter().try_for_each(check_post)?;
            if !page.posts.is_empty() {
                return Ok(());
            }
        }
        Err(anyhow!("no home timeline has a post"))
    }

    async fn check_timeline(&self) -> anyhow::Result<()> {
        for &account in self.data_set.accounts.iter().take(ATTEMPTS_MAX) {
            let page = self.answer(self.session().request(client::timeline(account))).await?;
            for post in &page.posts {
                check_post(post)?;
                let author = post.author.clone().unwrap_or_default().user.unwrap_or_default();
                ensure!(author.id == account, "user timeline has a post of another author");
            }
            if !page.posts.is_empty() {
                return Ok(());
            }
        }
        Err(anyhow!("no user timeline has a post"))
    }

    async fn check_like(&self) -> anyhow::Result<()> {
        let (session, post_id) = (self.session(), self.post());
        let like = self.answer(session.request(LikeRequest { post_id })).await?;
        ensure!(like.liked_at.is_some() && like.likes > 0, "like has no effect");
        self.answer(session.request(UnlikeRequest { post_id })).await.map(drop)
    }
}

fn is_known(relation: i32) -> bool {
    RelationState::try_from(relation).is_ok_and(|state| state != RelationState::Unspecified)
}

fn check_post(viewed: &ViewedPost) -> anyhow::Result<()> {
    let author = viewed.author.as_ref().context("post has no author")?;
    ensure!(
        author.user.is_some() && is_known(author.relation),
        "author has no account or relation"
    );
    ensure!(viewed.post.as_ref().is_some_and(|post| post.id != 0), "post is missing");
    Ok(())
}
