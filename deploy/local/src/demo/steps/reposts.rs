//! Reposts, and their lists.

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, RootState},
    post::Post,
    relation::RelationState,
};
use uuid::Uuid;

use super::posts::{self, Seen};
use crate::demo::format::{author_of, lines, quoted, relation_name, wait_for_next_ms};
use crate::demo::person::Person;

/// Returns bob's repost of ada's post, which cleo reposts again.
pub(super) async fn reposts(
    post: &Post,
    ada: &Person,
    bob: &Person,
    cleo: &Person,
) -> anyhow::Result<Post> {
    println!("\nA repost of a repost repeats the same root, and both count it");
    let first = repost(bob, post, post, "Worth the walk").await?;
    let second = repost(cleo, &first, post, "").await?;
    let expected = [(&second, RelationState::Follower), (&first, RelationState::Mutual)];
    list(ada, post, &expected).await?;
    list(ada, &first, &expected[..1]).await?;
    let relation = RelationState::Following;
    let root =
        Seen { relation, likes: 1, comments: 2, reposts: 2, liked: false, ..Seen::default() };
    posts::view(cleo, post, root).await?;
    let repeated = Seen { relation, reposts: 1, root: RootState::Shown, ..Seen::default() };
    posts::view(cleo, &first, repeated).await?;
    Ok(first)
}

/// Reposts a post, and checks the root.
pub(super) async fn repost(
    person: &Person,
    reposted: &Post,
    root: &Post,
    text: &str,
) -> anyhow::Result<Post> {
    wait_for_next_ms().await;
    let what = format!("reposts post {}: {}", reposted.id, quoted(text));
    let (request_id, text) = (Uuid::new_v4().to_string(), text.to_owned());
    let message = gateway::RepostRequest { request_id, post_id: reposted.id, text };
    let call = person.call(
        &what,
        message,
        async |mut c, r| c.repost(r).await,
        |a| {
            let Post { id, root_id, .. } = a.post.clone().unwrap_or_default();
            format!("post {id}, its root is {root_id}")
        },
    );
    let made = call.await?.post.with_context(|| format!("{what}: response has no post"))?;
    let is_right = (made.root_id, made.reposted_id) == (root.id, reposted.id);
    ensure!(is_right, "{what}: unexpected root");
    Ok(made)
}

/// Views the reposts of a post, with the viewer's relation to each author.
pub(super) async fn list(
    viewer: &Person,
    post: &Post,
    expected: &[(&Post, RelationState)],
) -> anyhow::Result<()> {
    let what = format!("views the reposts of post {}", post.id);
    let message = gateway::ViewRepostsRequest { post_id: post.id, ..Default::default() };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.view_reposts(r).await,
        |a| {
            lines(&a.posts, |viewed| {
                let (author, relation) = author_of(viewed.author.as_ref());
                let Post { id, text, .. } = viewed.post.clone().unwrap_or_default();
                format!("post {id} of {author}, {}: {}", relation_name(relation), quoted(&text))
            })
        },
    );
    let viewed = call.await?.posts;
    let seen = viewed.iter().map(|viewed| {
        let id = viewed.post.as_ref().map_or(0, |post| post.id);
        (id, author_of(viewed.author.as_ref()).1)
    });
    let is_right = seen.eq(expected.iter().map(|(post, relation)| (post.id, *relation)));
    ensure!(is_right, "{what}: unexpected reposts, relations or order");
    Ok(())
}
