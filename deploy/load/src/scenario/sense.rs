//! Whether a system's answers make sense, before it is measured how fast they come.

use anyhow::{Context as _, anyhow, bail, ensure};
use microblog_proto::{
    gateway::{LikeRequest, UnlikeRequest, ViewedPost},
    relation::{BatchGetRelationsResponse, RelationState},
};
use prost::Message as _;
use tonic::Request;

use super::{
    Scenario,
    caller::{self, Caller, PAGE},
    methods::Method,
};
use crate::services::told;

/// How many viewers or accounts are looked at, until one has posts to show.
const LOOKS: usize = 100;

impl Caller<'_> {
    /// Makes the calls of a scenario once, and reads their answers.
    pub(crate) async fn check(&self, scenario: Scenario) -> anyhow::Result<()> {
        let checked = async {
            match scenario {
                Scenario::ViewFollowers => self.check_followers().await,
                Scenario::Relation => self.check_relation().await,
                Scenario::ViewUser => self.check_user().await,
                Scenario::Follow => self.check_follow().await,
                Scenario::Publish => self.check_publish().await,
                Scenario::Home | Scenario::Scroll => self.check_home().await,
                Scenario::UserTimeline => self.check_timeline().await,
                Scenario::Mixed => {
                    self.check_home().await?;
                    self.check_timeline().await?;
                    self.check_publish().await
                }
                Scenario::Like => self.check_like().await,
                Scenario::RegisterLogin => Ok(told(self.register_and_login().await)?),
            }
        };
        checked.await.with_context(|| format!("{} does not work", scenario.name()))
    }

    async fn answer<M: Method>(&self, request: Request<M>) -> anyhow::Result<M::Answer> {
        told(self.read(request).await)
    }

    async fn check_followers(&self) -> anyhow::Result<()> {
        let most =
            self.world.followers().into_iter().max_by_key(|&(account, count)| (count, account));
        let (listed, count) = most.context("nobody follows anybody")?;
        let page = self.answer(self.session().request(caller::followers(listed))).await?;
        let (listed, expected) = (page.users.len(), count.min(PAGE));
        ensure!(listed >= expected, "{listed} followers on a page of {expected}");
        for listed in page.users {
            let name = listed.user.unwrap_or_default().name;
            ensure!(!name.is_empty() && listed.since.is_some(), "a follower who is nobody");
            ensure!(is_known(listed.relation), "no relation to {name}");
        }
        Ok(())
    }

    async fn check_relation(&self) -> anyhow::Result<()> {
        let id = self.account();
        let answer = told(self.ask_relation(caller::pair(self.session(), id)).await)?;
        let answer = BatchGetRelationsResponse::decode(answer).context("not an answer")?;
        let [relation] = &answer.relations[..] else { bail!("not one relation") };
        ensure!(relation.user_id == id && is_known(relation.state), "no relation to {id}");
        Ok(())
    }

    async fn check_user(&self) -> anyhow::Result<()> {
        let id = self.account();
        let answer = self.answer(self.session().request(caller::user(id))).await?;
        ensure!(answer.user.is_some_and(|user| user.id == id), "another account than {id}");
        ensure!(answer.counts.is_some(), "an account without counts");
        let relation = answer.relation.context("an account without a relation")?;
        ensure!(relation.user_id == id && is_known(relation.state), "no relation to {id}");
        Ok(())
    }

    async fn check_follow(&self) -> anyhow::Result<()> {
        let session = self.session();
        let mut others = self.world.accounts.iter().filter(|&&other| other != session.account);
        let &target = others.next().context("there is nobody to follow")?;
        let followed = self.answer(session.request(caller::follow(target))).await?;
        let follows = [RelationState::Following, RelationState::Mutual];
        ensure!(follows.contains(&followed.relation()), "a follow that is none");
        let unfollowed = self.answer(session.request(caller::unfollow(target))).await?;
        let is_over = is_known(unfollowed.relation) && !follows.contains(&unfollowed.relation());
        ensure!(is_over, "the end of a follow that is none");
        Ok(())
    }

    async fn check_publish(&self) -> anyhow::Result<()> {
        let (session, message) = (self.session(), caller::publish());
        let text = message.text.clone();
        let post = self.answer(session.request(message)).await?.post.unwrap_or_default();
        ensure!(post.author_id == session.account && post.text == text, "another post than told");
        Ok(())
    }

    async fn check_home(&self) -> anyhow::Result<()> {
        for session in self.world.sessions.iter().take(LOOKS) {
            let page = self.answer(session.request(caller::home(String::new()))).await?;
            page.posts.iter().try_for_each(is_whole)?;
            if !page.posts.is_empty() {
                return Ok(());
            }
        }
        Err(anyhow!("nobody has a post at home"))
    }

    async fn check_timeline(&self) -> anyhow::Result<()> {
        for &account in self.world.accounts.iter().take(LOOKS) {
            let page = self.answer(self.session().request(caller::timeline(account))).await?;
            for post in &page.posts {
                is_whole(post)?;
                let author = post.author.clone().unwrap_or_default().user.unwrap_or_default();
                ensure!(author.id == account, "another one's post in a timeline");
            }
            if !page.posts.is_empty() {
                return Ok(());
            }
        }
        Err(anyhow!("nobody has a post in their timeline"))
    }

    async fn check_like(&self) -> anyhow::Result<()> {
        let (session, post_id) = (self.session(), self.post());
        let like = self.answer(session.request(LikeRequest { post_id })).await?;
        ensure!(like.liked_at.is_some() && like.likes > 0, "a like that is none");
        self.answer(session.request(UnlikeRequest { post_id })).await.map(drop)
    }
}

fn is_known(relation: i32) -> bool {
    RelationState::try_from(relation).is_ok_and(|state| state != RelationState::Unspecified)
}

fn is_whole(viewed: &ViewedPost) -> anyhow::Result<()> {
    let author = viewed.author.as_ref().context("a post without an author")?;
    ensure!(author.user.is_some() && is_known(author.relation), "an author who is nobody");
    ensure!(viewed.post.as_ref().is_some_and(|post| post.id != 0), "no post");
    Ok(())
}
