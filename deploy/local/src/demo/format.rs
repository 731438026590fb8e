//! Checks and descriptions that the steps of the tour share.

use std::time::Duration;

use anyhow::ensure;
use microblog_proto::{
    gateway::{Author, ListedUser},
    relation::RelationState,
};
use tokio::time;

use super::person::Person;

/// Waits, since lists are ordered by time in milliseconds.
pub(super) async fn wait_for_next_ms() {
    time::sleep(Duration::from_millis(5)).await;
}

/// Checks the accounts of a list, their order, and their relations to the viewer.
pub(super) fn check_list(
    what: &str,
    listed: &[ListedUser],
    expected: &[(&Person, RelationState)],
) -> anyhow::Result<()> {
    let seen = listed.iter().map(|listed| (name(listed), listed.relation()));
    let expected = expected.iter().map(|(person, state)| (person.name.as_str(), *state));
    ensure!(seen.eq(expected), "{what}: unexpected accounts, relations or order");
    Ok(())
}

pub(super) fn name(listed: &ListedUser) -> &str {
    listed.user.as_ref().map_or("", |user| &user.name)
}

pub(super) fn list_entry(listed: &ListedUser) -> String {
    format!("{}: {}", name(listed), relation_name(listed.relation()))
}

/// Returns a line per item, or a placeholder for an empty list.
pub(super) fn lines<T>(listed: &[T], line: impl FnMut(&T) -> String) -> String {
    if listed.is_empty() {
        "nothing".to_owned()
    } else {
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Returns a text in quotes; a repost may have none.
pub(super) fn quoted(text: &str) -> String {
    if text.is_empty() { "no text".to_owned() } else { format!("`{text}`") }
}

/// Returns the author's name and relation to the viewer.
pub(super) fn author_of(author: Option<&Author>) -> (&str, RelationState) {
    let Some(author) = author else { return ("", RelationState::Unspecified) };
    (author.user.as_ref().map_or("", |user| &user.name), author.relation())
}

pub(super) fn relation_name(state: RelationState) -> &'static str {
    match state {
        RelationState::Unspecified => "unknown",
        RelationState::None => "none",
        RelationState::Following => "following",
        RelationState::Follower => "follower",
        RelationState::Mutual => "mutual",
        RelationState::Self_ => "oneself",
    }
}
