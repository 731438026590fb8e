//! The steps of the tour, each with what its answer must be: accounts and sessions here, the rest
//! by theme.

mod feed;
mod graph;
mod posts;
mod reactions;
mod reposts;

use std::time::Duration;

use anyhow::ensure;
use microblog_proto::{
    gateway::{self, Author, ListedUser},
    relation::RelationState,
};
use tokio::time;

use super::person::Person;

/// Takes the whole tour.
pub(super) async fn tour(people: &mut [Person; 3]) -> anyhow::Result<()> {
    println!("Three people register and log in");
    for person in &mut *people {
        person.register().await?;
        person.log_in().await?;
    }
    let [ada, bob, cleo] = people;
    name_is_taken(ada, bob).await?;

    graph::tour(ada, bob, cleo).await?;
    let post = posts::publishing(ada, bob, cleo).await?;
    reactions::likes(&post, ada, bob, cleo).await?;
    reactions::comments(&post, ada, bob, cleo).await?;
    let repost = reposts::reposts(&post, ada, bob, cleo).await?;
    posts::blocking(&post, &repost, ada, cleo).await?;
    posts::deleting(&post, &repost, ada, bob).await?;
    feed::tour(&repost, ada, bob, cleo).await?;

    println!("\nA session ends when its owner says so");
    ada.call(
        "logs out",
        gateway::LogoutRequest {},
        async |mut c, r| c.logout(r).await,
        |_| "the token is worth nothing now".to_owned(),
    )
    .await?;
    let message = gateway::MeRequest {};
    ada.refused("asks who she is", "TOKEN_INVALID", message, async |mut c, r| c.me(r).await)
        .await?;
    Ok(())
}

async fn name_is_taken(owner: &Person, asker: &Person) -> anyhow::Result<()> {
    // Names are one without regard to case.
    let name = owner.name.to_uppercase();
    let what = format!("asks whether {name} is free");
    let message = gateway::CheckAvailabilityRequest { name };
    let call = asker.call(
        &what,
        message,
        async |mut c, r| c.check_availability(r).await,
        |a| {
            if a.name_available() { "free".to_owned() } else { "taken".to_owned() }
        },
    );
    ensure!(!call.await?.name_available(), "a name that has an account is said to be free");
    Ok(())
}

/// Lets time pass: lists are in its order, to the millisecond.
async fn moment() {
    time::sleep(Duration::from_millis(5)).await;
}

/// Checks who is on a list, in which order, and how they stand to the viewer.
fn ensure_listed(
    what: &str,
    listed: &[ListedUser],
    expected: &[(&Person, RelationState)],
) -> anyhow::Result<()> {
    let seen = listed.iter().map(|listed| (name(listed), listed.relation()));
    let expected = expected.iter().map(|(person, state)| (person.name.as_str(), *state));
    ensure!(seen.eq(expected), "{what}: not the people, states or order that there should be");
    Ok(())
}

fn name(listed: &ListedUser) -> &str {
    listed.user.as_ref().map_or("", |user| &user.name)
}

fn entry(listed: &ListedUser) -> String {
    format!("{}: {}", name(listed), word(listed.relation()))
}

/// Says each thing of a list in a line of its own; that there is nothing, of an empty one.
fn lines<T>(listed: &[T], line: impl FnMut(&T) -> String) -> String {
    if listed.is_empty() {
        "nothing".to_owned()
    } else {
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Returns a text as it is shown; a repost may have none.
fn quoted(text: &str) -> String {
    if text.is_empty() { "no text".to_owned() } else { format!("`{text}`") }
}

/// Returns who wrote something, and how they stand to the viewer.
fn written_by(author: Option<&Author>) -> (&str, RelationState) {
    let Some(author) = author else { return ("", RelationState::Unspecified) };
    (author.user.as_ref().map_or("", |user| &user.name), author.relation())
}

fn word(state: RelationState) -> &'static str {
    match state {
        RelationState::Unspecified => "unknown",
        RelationState::None => "none",
        RelationState::Following => "following",
        RelationState::Follower => "follower",
        RelationState::Mutual => "mutual",
        RelationState::Self_ => "oneself",
    }
}
