//! Timelines: home and friends timelines, new posts since a page, and the stream of new posts.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, RootState, ViewHomeResponse, ViewedPost},
    post::Post,
    relation::RelationState,
};
use tokio::time;

use super::{graph, posts, reactions, reposts};
use crate::demo::format::{author_of, lines, quoted, relation_name};
use crate::demo::person::Person;

// For responses that must be right after an earlier call.
const IMMEDIATE: Duration = Duration::ZERO;
// For asynchronous changes, which take milliseconds, or longer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the timeline steps. `repost` is bob's repost of a deleted post.
pub(super) async fn tour(
    repost: &Post,
    ada: &Person,
    bob: &Person,
    cleo: &Person,
) -> anyhow::Result<()> {
    println!("\nThe home timeline has posts and reposts of followed accounts and one's own");
    graph::follow(cleo, ada, RelationState::Following).await?;
    let letter = posts::publish_text(ada, "The tide left a bottle with a letter in it").await?;
    reactions::like(bob, &letter, 1).await?;
    home(cleo, TIMEOUT, &[&letter, repost]).await?;
    let earlier = home(ada, TIMEOUT, &[&letter, repost]).await?;

    println!("\nThe since token of a page counts and lists newer posts");
    let answer = posts::publish_text(cleo, "Whoever finds this: I am writing back").await?;
    let news = reposts::repost(bob, &answer, &answer, "").await?;
    since(ada, &earlier.since_token, &[&news]).await?;

    println!("\nPosts of an unfollowed account disappear at once, and return with the follow");
    graph::unfollow(ada, bob, RelationState::Follower).await?;
    home(ada, IMMEDIATE, &[&letter]).await?;
    graph::follow(ada, bob, RelationState::Mutual).await?;
    home(ada, IMMEDIATE, &[&news, &letter, repost]).await?;

    println!("\nThe friends timeline has posts and reposts of mutual follows");
    friends(ada, &[&news, repost]).await?;
    watching(cleo, ada).await
}

async fn home(
    viewer: &Person,
    within: Duration,
    expected: &[&Post],
) -> anyhow::Result<ViewHomeResponse> {
    let message = gateway::ViewHomeRequest::default();
    viewer
        .call_until(
            "views the home timeline",
            within,
            message,
            async |mut c, r| c.view_home(r).await,
            |a| lines(&a.posts, |viewed| entry(viewer, viewed)),
            |a| are(&a.posts, expected),
        )
        .await
}

async fn since(viewer: &Person, token: &str, expected: &[&Post]) -> anyhow::Result<()> {
    let since_token = token.to_owned();
    let message = gateway::CountNewRequest { since_token: since_token.clone() };
    viewer
        .call_until(
            "counts new posts",
            TIMEOUT,
            message,
            async |mut c, r| c.count_new(r).await,
            |a| format!("{} new", a.count),
            |a| a.count as usize == expected.len(),
        )
        .await?;
    let message = gateway::ViewHomeRequest { since_token, ..Default::default() };
    viewer
        .call_until(
            "views new posts",
            IMMEDIATE,
            message,
            async |mut c, r| c.view_home(r).await,
            |a| lines(&a.posts, |viewed| entry(viewer, viewed)),
            |a| are(&a.posts, expected),
        )
        .await?;
    Ok(())
}

async fn friends(viewer: &Person, expected: &[&Post]) -> anyhow::Result<()> {
    let message = gateway::ViewFriendsRequest::default();
    viewer
        .call_until(
            "views the friends timeline",
            IMMEDIATE,
            message,
            async |mut c, r| c.view_friends(r).await,
            |a| lines(&a.posts, |viewed| entry(viewer, viewed)),
            |a| are(&a.posts, expected),
        )
        .await?;
    Ok(())
}

/// Shows that a stream delivers new posts.
async fn watching(viewer: &Person, author: &Person) -> anyhow::Result<()> {
    println!("\nA stream delivers new posts as they are published");
    let message = gateway::WatchHomeRequest::default();
    let call = viewer.call(
        "watches the home timeline",
        message,
        async |mut c, r| c.watch_home(r).await,
        |_| "a stream of new posts".to_owned(),
    );
    let mut updates = call.await?;
    let first =
        time::timeout(TIMEOUT, updates.message()).await.context("the stream does not start")??;
    ensure!(
        first.is_some_and(|update| update.posts.is_empty()),
        "the stream starts with old posts"
    );
    let post = posts::publish_text(author, "The bottle goes back to the sea").await?;
    let update = time::timeout(TIMEOUT, updates.message())
        .await
        .context("the stream delivers nothing")??;
    let posts = update.context("the stream ended")?.posts;
    viewer.print_event("receives", &lines(&posts, |viewed| entry(viewer, viewed)));
    ensure!(are(&posts, &[&post]), "the stream delivered another post");
    Ok(())
}

fn are(viewed: &[ViewedPost], expected: &[&Post]) -> bool {
    let ids = viewed.iter().map(|viewed| viewed.post.as_ref().map_or(0, |post| post.id));
    ids.eq(expected.iter().map(|post| post.id))
}

/// Returns a line for an entry of a timeline.
fn entry(viewer: &Person, viewed: &ViewedPost) -> String {
    let author = named(viewer, viewed);
    let text = viewed.post.as_ref().map_or("", |post| &post.text);
    let own = if text.is_empty() { String::new() } else { format!(" with {}", quoted(text)) };
    match (viewed.root_state(), &viewed.root) {
        (RootState::None, _) => format!("{author}: {}", text_and_counts(viewed)),
        (RootState::Shown, Some(root)) => {
            format!("{author} reposted{own}: {}: {}", named(viewer, root), text_and_counts(root))
        }
        (RootState::Deleted, _) => format!("{author} reposted{own}: a deleted post"),
        _ => format!("{author} reposted{own}: a post hidden from the viewer"),
    }
}

fn named(viewer: &Person, viewed: &ViewedPost) -> String {
    match author_of(viewed.author.as_ref()) {
        (name, _) if name == viewer.name => format!("{name} (own)"),
        (name, relation) => format!("{name} ({})", relation_name(relation)),
    }
}

fn text_and_counts(viewed: &ViewedPost) -> String {
    let Post { text, likes, comments, reposts, .. } = viewed.post.clone().unwrap_or_default();
    format!("{}, likes {likes}, comments {comments}, reposts {reposts}", quoted(&text))
}
