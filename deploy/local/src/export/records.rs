//! The records of each kind of export line. Times are in RFC 3339 format.

use microblog_proto::{post, relation, user};
use serde::Serialize;

/// An account with its private fields.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Account {
    pub(super) id: u64,
    name: String,
    display_name: String,
    bio: String,
    avatar_url: String,
    location: String,
    email: String,
    /// In place of an e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<ExternalId>,
    created_at: Option<String>,
}

/// An entry of a list: another account.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Edge {
    user_id: u64,
    /// `None` for a deleted account.
    name: Option<String>,
    since: Option<String>,
}

/// A post.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Post {
    id: u64,
    created_at: Option<String>,
    text: String,
    likes: u64,
    comments: u64,
    reposts: u64,
    #[serde(flatten)]
    repeats: Option<Repeats>,
}

/// An id in another system.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ExternalId {
    issuer: String,
    id: String,
}

/// References of a repost.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Repeats {
    reposted_id: u64,
    root_id: u64,
    root_deleted: bool,
}

/// A post that the account likes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Like {
    post_id: u64,
    since: Option<String>,
}

/// A comment.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Comment {
    id: u64,
    post_id: u64,
    created_at: Option<String>,
    text: String,
    /// The parent comment, if it is a reply.
    in_reply_to_id: Option<u64>,
}

impl Account {
    /// Returns the record of an account; `None` if the response has no user.
    pub(super) fn of(account: user::Account) -> Option<Self> {
        let user = account.user?;
        Some(Self {
            id: user.id,
            name: user.name,
            display_name: user.display_name,
            bio: user.bio,
            avatar_url: user.avatar_url,
            location: user.location,
            email: account.email,
            external_id: account
                .external
                .map(|external| ExternalId { issuer: external.issuer, id: external.external_id }),
            created_at: user.created_at.as_ref().map(ToString::to_string),
        })
    }
}

impl Edge {
    /// Returns the record of an entry.
    pub(super) fn of(edge: &relation::Edge, name: Option<String>) -> Self {
        let since = edge.since.as_ref().map(ToString::to_string);
        Self { user_id: edge.user_id, name, since }
    }
}

impl Post {
    /// Returns the record of a post.
    pub(super) fn of(post: post::Post) -> Self {
        let post::Post { reposted_id, root_id, root_deleted, .. } = post;
        Self {
            id: post.id,
            created_at: post.created_at.as_ref().map(ToString::to_string),
            text: post.text,
            likes: post.likes,
            comments: post.comments,
            reposts: post.reposts,
            repeats: (root_id != 0).then_some(Repeats { reposted_id, root_id, root_deleted }),
        }
    }
}

impl Like {
    /// Returns the record of a like.
    pub(super) fn of(like: &post::LikedPost) -> Self {
        let since = like.liked_at.as_ref().map(ToString::to_string);
        Self { post_id: like.post_id, since }
    }
}

impl Comment {
    /// Returns the record of a comment.
    pub(super) fn of(comment: post::Comment) -> Self {
        let post::Comment { id, post_id, text, in_reply_to_id, .. } = comment;
        let created_at = comment.created_at.as_ref().map(ToString::to_string);
        let in_reply_to_id = Some(in_reply_to_id).filter(|&id| id != 0);
        Self { id, post_id, created_at, text, in_reply_to_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_and_reposts_have_different_fields() {
        let created_at = Some("2026-01-02T03:04:05.678Z".parse().unwrap());
        let mut post =
            post::Post { id: 7, text: "\"a\"\n".into(), created_at, ..post::Post::default() };
        post.likes = 3;
        let json = serde_json::to_string(&Post::of(post.clone())).unwrap();
        let expected = r#"{"id":7,"created_at":"2026-01-02T03:04:05.678Z","text":"\"a\"\n","likes":3,"comments":0,"reposts":0}"#;
        assert_eq!(json, expected);
        (post.reposted_id, post.root_id) = (6, 5);
        let json = serde_json::to_string(&Post::of(post.clone())).unwrap();
        let repeats = r#","reposted_id":6,"root_id":5,"root_deleted":false}"#;
        assert_eq!(json, expected.replace('}', repeats));
    }
}
