//! Reposts, and their lists.

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, RootState},
    post::Post,
    relation::RelationState,
};
use uuid::Uuid;

use super::{
    lines, moment,
    posts::{self, Seen},
    quoted, word, written_by,
};
use crate::demo::person::Person;

/// Returns bob's repost of ada's post, which cleo reposted again.
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

/// Reposts something, and checks what it then repeats.
pub(super) async fn repost(
    person: &Person,
    reposted: &Post,
    root: &Post,
    text: &str,
) -> anyhow::Result<Post> {
    moment().await;
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
    let made = call.await?.post.with_context(|| format!("{what}: no post came back"))?;
    let is_right = (made.root_id, made.reposted_id) == (root.id, reposted.id);
    ensure!(is_right, "{what}: it repeats something else");
    Ok(made)
}

/// Shows the reposts of a post, and how who made them stands to the viewer.
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
                let (author, relation) = written_by(viewed.author.as_ref());
                let Post { id, text, .. } = viewed.post.clone().unwrap_or_default();
                format!("post {id} of {author}, {}: {}", word(relation), quoted(&text))
            })
        },
    );
    let viewed = call.await?.posts;
    let seen = viewed.iter().map(|viewed| {
        let id = viewed.post.as_ref().map_or(0, |post| post.id);
        (id, written_by(viewed.author.as_ref()).1)
    });
    let is_right = seen.eq(expected.iter().map(|(post, relation)| (post.id, *relation)));
    ensure!(is_right, "{what}: not the reposts, states or order that there should be");
    Ok(())
}
