//! Posts: publishing, viewing, deleting.

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, RootState, ViewedPost},
    post::{Post, entity::Target},
    relation::RelationState,
};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use crate::demo::format::{author_of, quoted, relation_name, wait_for_next_ms};
use crate::demo::person::Person;

/// The expected view of a post.
pub(super) struct Seen {
    pub(super) relation: RelationState,
    pub(super) likes: u64,
    pub(super) comments: u64,
    pub(super) reposts: u64,
    pub(super) liked: bool,
    pub(super) root: RootState,
}

impl Default for Seen {
    /// Returns a post without author, counts and root.
    fn default() -> Self {
        let (relation, root) = (RelationState::None, RootState::None);
        Self { relation, likes: 0, comments: 0, reposts: 0, liked: false, root }
    }
}

/// Publishes a post of ada that mentions bob, and checks what the others see.
pub(super) async fn publishing(ada: &Person, bob: &Person, cleo: &Person) -> anyhow::Result<Post> {
    println!("\nA post has its mentions and hashtags; the same request id makes no second post");
    let text = format!("Good morning @{}, this is #a tour# of #microblog", bob.name);
    let request_id = Uuid::new_v4().to_string();
    let what = format!("publishes `{text}`");
    let post = publish(ada, &what, &request_id, &text).await?;
    let targets: Vec<_> = post.entities.iter().filter_map(|found| found.target.as_ref()).collect();
    let is_found = match targets[..] {
        [Target::Mention(mention), Target::Hashtag(first), Target::Hashtag(second)] => {
            mention.user_id == bob.id && first.tag == "a tour" && second.tag == "microblog"
        }
        _ => false,
    };
    ensure!(is_found, "the post does not have the mention and the hashtags of its text");
    let again = publish(ada, "repeats that, with the same request id", &request_id, &text).await?;
    ensure!(again.id == post.id, "the same request made a second post");

    let message = gateway::PublishRequest { request_id, text: String::new() };
    let rejected =
        ada.expect_error("publishes nothing", "INVALID_FIELD", message, async |mut c, r| {
            c.publish(r).await
        });
    let fields = rejected.await?.get_details_bad_request().map(|bad| bad.field_violations);
    let is_named = fields.is_some_and(|fields| fields.iter().any(|field| field.field == "text"));
    ensure!(is_named, "the error does not name the field `text`");

    view(bob, &post, Seen { relation: RelationState::Mutual, ..Seen::default() }).await?;
    view(cleo, &post, Seen { relation: RelationState::Following, ..Seen::default() }).await?;
    Ok(post)
}

/// Publishes a text.
pub(super) async fn publish_text(author: &Person, text: &str) -> anyhow::Result<Post> {
    // Lists are ordered by time in milliseconds.
    wait_for_next_ms().await;
    let what = format!("publishes `{text}`");
    publish(author, &what, &Uuid::new_v4().to_string(), text).await
}

async fn publish(
    author: &Person,
    what: &str,
    request_id: &str,
    text: &str,
) -> anyhow::Result<Post> {
    let message =
        gateway::PublishRequest { request_id: request_id.to_owned(), text: text.to_owned() };
    let call = author.call(
        what,
        message,
        async |mut c, r| c.publish(r).await,
        |a| a.post.as_ref().map_or_else(String::new, found),
    );
    let post = call.await?.post.with_context(|| format!("{what}: response has no post"))?;
    ensure!(post.author_id == author.id && post.text == text, "{what}: response is another post");
    Ok(post)
}

// Describes the entities of a post's text.
fn found(post: &Post) -> String {
    let part = |start: u32, end: u32| -> String {
        post.text.chars().skip(start as usize).take((end - start) as usize).collect()
    };
    let mut lines = vec![format!("post {}", post.id)];
    lines.extend(post.entities.iter().filter_map(|entity| {
        let points_to = match entity.target.as_ref()? {
            Target::Mention(mention) => format!("account {}", mention.user_id),
            Target::Hashtag(hashtag) => format!("topic `{}`", hashtag.tag),
        };
        Some(format!("{} is {points_to}", part(entity.start, entity.end)))
    }));
    lines.join("\n")
}

/// Views a post and checks the response.
pub(super) async fn view(viewer: &Person, post: &Post, expected: Seen) -> anyhow::Result<()> {
    let what = format!("views post {}", post.id);
    let message = gateway::ViewPostRequest { post_id: post.id };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.view_post(r).await,
        |a| a.post.as_ref().map_or_else(String::new, shown),
    );
    let viewed = call.await?.post.unwrap_or_default();
    let (_, relation) = author_of(viewed.author.as_ref());
    let root = viewed.root_state();
    let Post { likes, comments, reposts, liked, .. } = viewed.post.unwrap_or_default();
    ensure!(relation == expected.relation, "{what}: expected {}", relation_name(expected.relation));
    ensure!(
        (likes, comments, reposts, liked)
            == (expected.likes, expected.comments, expected.reposts, expected.liked),
        "{what}: unexpected counts"
    );
    ensure!(root == expected.root, "{what}: unexpected root");
    Ok(())
}

/// Describes a post as a viewer sees it.
pub(super) fn shown(viewed: &ViewedPost) -> String {
    let (author, relation) = author_of(viewed.author.as_ref());
    let post = viewed.post.as_ref();
    let text = post.map_or("", |post| &post.text);
    let Post { likes, comments, reposts, liked, .. } = post.cloned().unwrap_or_default();
    let own = if liked { " (the viewer's among them)" } else { "" };
    let counts = format!("likes {likes}{own}, comments {comments}, reposts {reposts}");
    let line = format!("{author}, {}: {}\n{counts}", relation_name(relation), quoted(text));
    match (viewed.root_state(), &viewed.root) {
        (RootState::Shown, Some(root)) => {
            let (author, relation) = author_of(root.author.as_ref());
            let text = root.post.as_ref().map_or("", |post| &post.text);
            format!("{line}\nits root: {author}, {}: {}", relation_name(relation), quoted(text))
        }
        (RootState::Deleted, _) => format!("{line}\nits root is deleted"),
        (RootState::Hidden, _) => format!("{line}\nits root is hidden from the viewer"),
        _ => line,
    }
}

/// Deletes a post and shows its repost.
pub(super) async fn deleting(
    post: &Post,
    repost: &Post,
    ada: &Person,
    bob: &Person,
) -> anyhow::Result<()> {
    println!("\nOnly the author can delete a post; its reposts stay, with a deleted root");
    let post_id = post.id;
    let what = format!("deletes post {post_id}");
    let message = gateway::DeletePostRequest { post_id };
    bob.expect_error(&what, "NOT_THE_AUTHOR", message, async |mut c, r| c.delete_post(r).await)
        .await?;
    ada.call(&what, message, async |mut c, r| c.delete_post(r).await, |_| "deleted".to_owned())
        .await?;
    let what = format!("views post {post_id}");
    let message = gateway::ViewPostRequest { post_id };
    bob.expect_error(&what, "POST_NOT_FOUND", message, async |mut c, r| c.view_post(r).await)
        .await?;
    let relation = RelationState::Mutual;
    view(ada, repost, Seen { relation, reposts: 1, root: RootState::Deleted, ..Seen::default() })
        .await
}
