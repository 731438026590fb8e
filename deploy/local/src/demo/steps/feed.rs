//! Timelines: what those whom one follows post, what is new of it, and what comes while one watches.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, RootState, ViewHomeResponse, ViewedPost},
    post::Post,
    relation::RelationState,
};
use tokio::time;

use super::{graph, lines, posts, quoted, reactions, reposts, word, written_by};
use crate::demo::person::Person;

// What a call promises to show once another one has answered.
const AT_ONCE: Duration = Duration::ZERO;
// What is under way: mostly for some milliseconds, on a busy machine for longer.
const SOON: Duration = Duration::from_secs(60);

/// Shows what each of them reads. `repost` is bob's, of a post that is deleted.
pub(super) async fn tour(
    repost: &Post,
    ada: &Person,
    bob: &Person,
    cleo: &Person,
) -> anyhow::Result<()> {
    println!("\nA home timeline has what those whom one follows post and repost, and one's own");
    graph::follow(cleo, ada, RelationState::Following).await?;
    let letter = posts::say(ada, "The tide left a bottle with a letter in it").await?;
    reactions::like(bob, &letter, 1).await?;
    home(cleo, SOON, &[&letter, repost]).await?;
    let look = home(ada, SOON, &[&letter, repost]).await?;

    println!("\nWhat is new since a look is counted, and shown, by the token of that look");
    let answer = posts::say(cleo, "Whoever finds this: I am writing back").await?;
    let news = reposts::repost(bob, &answer, &answer, "").await?;
    since(ada, &look.since_token, &[&news]).await?;

    println!(
        "\nWhoever is unfollowed is gone at the next look, and there again when followed again"
    );
    graph::unfollow(ada, bob, RelationState::Follower).await?;
    home(ada, AT_ONCE, &[&letter]).await?;
    graph::follow(ada, bob, RelationState::Mutual).await?;
    home(ada, AT_ONCE, &[&news, &letter, repost]).await?;

    println!("\nThe friends timeline has what one's mutuals post and repost");
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
            "counts what is new",
            SOON,
            message,
            async |mut c, r| c.count_new(r).await,
            |a| format!("{} new", a.count),
            |a| a.count as usize == expected.len(),
        )
        .await?;
    let message = gateway::ViewHomeRequest { since_token, ..Default::default() };
    viewer
        .call_until(
            "views what is new",
            AT_ONCE,
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
            AT_ONCE,
            message,
            async |mut c, r| c.view_friends(r).await,
            |a| lines(&a.posts, |viewed| entry(viewer, viewed)),
            |a| are(&a.posts, expected),
        )
        .await?;
    Ok(())
}

/// Shows that what is posted comes to whoever watches, without being asked for.
async fn watching(viewer: &Person, author: &Person) -> anyhow::Result<()> {
    println!("\nWhoever watches is told of what comes, as it comes");
    let message = gateway::WatchHomeRequest::default();
    let call = viewer.call(
        "watches the home timeline",
        message,
        async |mut c, r| c.watch_home(r).await,
        |_| "a stream of what comes".to_owned(),
    );
    let mut notes = call.await?;
    let begun = time::timeout(SOON, notes.message()).await.context("watching never begins")??;
    ensure!(begun.is_some_and(|note| note.posts.is_empty()), "what was there before comes as new");
    let post = posts::say(author, "The bottle goes back to the sea").await?;
    let note = time::timeout(SOON, notes.message()).await.context("nothing comes")??;
    let posts = note.context("the stream ended")?.posts;
    viewer.tell("is told", &lines(&posts, |viewed| entry(viewer, viewed)));
    ensure!(are(&posts, &[&post]), "something else came than what was published");
    Ok(())
}

fn are(viewed: &[ViewedPost], expected: &[&Post]) -> bool {
    let ids = viewed.iter().map(|viewed| viewed.post.as_ref().map_or(0, |post| post.id));
    ids.eq(expected.iter().map(|post| post.id))
}

/// Says in a line what a viewer sees of an entry.
fn entry(viewer: &Person, viewed: &ViewedPost) -> String {
    let author = named(viewer, viewed);
    let text = viewed.post.as_ref().map_or("", |post| &post.text);
    let own = if text.is_empty() { String::new() } else { format!(" with {}", quoted(text)) };
    match (viewed.root_state(), &viewed.root) {
        (RootState::None, _) => format!("{author}: {}", said(viewed)),
        (RootState::Shown, Some(root)) => {
            format!("{author} reposted{own}: {}: {}", named(viewer, root), said(root))
        }
        (RootState::Deleted, _) => format!("{author} reposted{own}: a deleted post"),
        _ => format!("{author} reposted{own}: a post that is not for the viewer"),
    }
}

fn named(viewer: &Person, viewed: &ViewedPost) -> String {
    match written_by(viewed.author.as_ref()) {
        (name, _) if name == viewer.name => format!("{name} (own)"),
        (name, relation) => format!("{name} ({})", word(relation)),
    }
}

fn said(viewed: &ViewedPost) -> String {
    let Post { text, likes, comments, reposts, .. } = viewed.post.clone().unwrap_or_default();
    format!("{}, likes {likes}, comments {comments}, reposts {reposts}", quoted(&text))
}
