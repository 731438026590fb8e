//! Descriptions of responses, a line for each item. The tour prints them, and compares them with
//! the expected ones.

use microblog_proto::{
    gateway::{Author, ListedUser, RootState, ViewedComment, ViewedPost},
    post::{Post, entity::Target},
    relation::RelationState,
    user::User,
};

pub(super) fn relation(state: RelationState) -> String {
    state.as_str_name().trim_start_matches("RELATION_STATE_").to_lowercase()
}

pub(super) fn users(listed: &[ListedUser]) -> String {
    lines(listed, |listed| account(listed.user.as_ref(), listed.relation()))
}

pub(super) fn posts(viewed: &[ViewedPost]) -> String {
    lines(viewed, post)
}

/// Describes a post with its counts that are not 0, or a repost with its root.
pub(super) fn post(viewed: &ViewedPost) -> String {
    let author = author(viewed.author.as_ref());
    let post = viewed.post.clone().unwrap_or_default();
    if post.root_id == 0 {
        let own = if post.liked { " (own included)" } else { "" };
        let counts = [
            ("likes", post.likes, own),
            ("comments", post.comments, ""),
            ("reposts", post.reposts, ""),
        ];
        let counts = counts.iter().filter(|(_, count, _)| *count > 0);
        let counts: String =
            counts.map(|(name, count, note)| format!(", {name} {count}{note}")).collect();
        return format!("{author}: `{}`{counts}", post.text);
    }
    let with = if post.text.is_empty() { String::new() } else { format!(" with `{}`", post.text) };
    let root = match (viewed.root_state(), &viewed.root) {
        (RootState::Shown, Some(root)) => format!(": {}", self::post(root)),
        (RootState::Deleted, _) => ": a deleted post".to_owned(),
        (RootState::Hidden, _) => ": a post hidden from the viewer".to_owned(),
        _ => String::new(),
    };
    format!("{author} reposted{with}{root}")
}

pub(super) fn comments(viewed: &[ViewedComment]) -> String {
    lines(viewed, |viewed| {
        let comment = viewed.comment.clone().unwrap_or_default();
        let replies = match comment.in_reply_to_id {
            0 => String::new(),
            id => format!(" replies to {id}"),
        };
        format!("{}{replies}: `{}`", author(viewed.author.as_ref()), comment.text)
    })
}

/// Describes the mentions and hashtags of a post.
pub(super) fn entities(post: &Post) -> String {
    lines(&post.entities, |entity| match &entity.target {
        Some(Target::Mention(mention)) => format!("@{} is {}", mention.name, mention.user_id),
        Some(Target::Hashtag(hashtag)) => format!("topic `{}`", hashtag.tag),
        None => "unknown".to_owned(),
    })
}

fn author(author: Option<&Author>) -> String {
    let Author { user, relation } = author.cloned().unwrap_or_default();
    account(user.as_ref(), relation.try_into().unwrap_or_default())
}

fn account(user: Option<&User>, state: RelationState) -> String {
    format!("{} ({})", user.map_or("", |user| &user.name), relation(state))
}

fn lines<T>(items: &[T], line: impl Fn(&T) -> String) -> String {
    items.iter().map(line).collect::<Vec<_>>().join("\n")
}
