//! Reactions to a post: likes and comments.

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, ViewedComment},
    post::{Comment, CommentOrder, Post},
    relation::RelationState,
};
use uuid::Uuid;

use super::posts::{self, Seen};
use crate::demo::format::{
    author_of, check_list, lines, list_entry, relation_name, wait_for_next_ms,
};
use crate::demo::person::Person;

/// Afterwards only bob likes ada's post.
pub(super) async fn likes(
    post: &Post,
    ada: &Person,
    bob: &Person,
    cleo: &Person,
) -> anyhow::Result<()> {
    println!("\nLikes are idempotent: an account counts once");
    let first = like(bob, post, 1).await?;
    let again = like(bob, post, 1).await?;
    ensure!(again.liked_at == first.liked_at, "a repeated like has another time");
    like(cleo, post, 2).await?;
    let what = format!("views the likers of post {}", post.id);
    let message = gateway::ViewLikersRequest { post_id: post.id, ..Default::default() };
    let call = ada.call(
        &what,
        message,
        async |mut c, r| c.view_likers(r).await,
        |a| lines(&a.users, list_entry),
    );
    let expected = [(cleo, RelationState::Follower), (bob, RelationState::Mutual)];
    check_list(&what, &call.await?.users, &expected)?;
    unlike(cleo, post).await?;
    let relation = RelationState::Mutual;
    posts::view(bob, post, Seen { relation, likes: 1, liked: true, ..Seen::default() }).await
}

/// Likes a post, and checks the count.
pub(super) async fn like(
    person: &Person,
    post: &Post,
    expected: u64,
) -> anyhow::Result<gateway::LikeResponse> {
    wait_for_next_ms().await;
    let what = format!("likes post {}", post.id);
    let message = gateway::LikeRequest { post_id: post.id };
    let call = person.call(
        &what,
        message,
        async |mut c, r| c.like(r).await,
        |a| format!("likes {}", a.likes),
    );
    let answer = call.await?;
    ensure!(answer.likes == expected, "{what}: expected {expected}");
    Ok(answer)
}

async fn unlike(person: &Person, post: &Post) -> anyhow::Result<()> {
    let what = format!("unlikes post {}", post.id);
    let message = gateway::UnlikeRequest { post_id: post.id };
    let call = person.call(
        &what,
        message,
        async |mut c, r| c.unlike(r).await,
        |_| "taken back".to_owned(),
    );
    call.await?;
    Ok(())
}

/// Afterwards the post has a comment of bob and a reply of ada.
pub(super) async fn comments(
    post: &Post,
    ada: &Person,
    bob: &Person,
    cleo: &Person,
) -> anyhow::Result<()> {
    println!("\nComments answer a post, or each other, and are read in either order");
    let question = comment(bob, post, "Where does it lead?", None).await?;
    let answer = comment(ada, post, "Down this page", Some(&question)).await?;
    ensure!(
        (answer.in_reply_to_id, answer.in_reply_to_author_id) == (question.id, bob.id),
        "the reply has no parent comment"
    );
    view_comments(cleo, post, CommentOrder::OldestFirst, &[&question, &answer]).await?;
    view_comments(cleo, post, CommentOrder::NewestFirst, &[&answer, &question]).await
}

async fn comment(
    person: &Person,
    post: &Post,
    text: &str,
    answered: Option<&Comment>,
) -> anyhow::Result<Comment> {
    let what = match answered {
        None => format!("comments on post {}: `{text}`", post.id),
        Some(answered) => format!("answers comment {}: `{text}`", answered.id),
    };
    let message = gateway::CommentRequest {
        request_id: Uuid::new_v4().to_string(),
        post_id: post.id,
        text: text.to_owned(),
        in_reply_to_id: answered.map_or(0, |answered| answered.id),
    };
    let call = person.call(
        &what,
        message,
        async |mut c, r| c.comment(r).await,
        |a| format!("comment {}", a.comment.as_ref().map_or(0, |comment| comment.id)),
    );
    let made = call.await?.comment.with_context(|| format!("{what}: response has no comment"))?;
    let is_ours = made.author_id == person.id && made.post_id == post.id && made.text == text;
    ensure!(is_ours, "{what}: response is another comment");
    Ok(made)
}

async fn view_comments(
    viewer: &Person,
    post: &Post,
    order: CommentOrder,
    expected: &[&Comment],
) -> anyhow::Result<()> {
    let first = if order == CommentOrder::NewestFirst { "newest" } else { "oldest" };
    let what = format!("views the comments, {first} first");
    let message = gateway::ViewCommentsRequest {
        post_id: post.id,
        order: order.into(),
        ..Default::default()
    };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.view_comments(r).await,
        |a| lines(&a.comments, shown),
    );
    let viewed = call.await?.comments;
    let ids = viewed.iter().filter_map(|viewed| viewed.comment.as_ref()).map(|comment| comment.id);
    let is_right = ids.eq(expected.iter().map(|comment| comment.id));
    ensure!(is_right, "{what}: unexpected comments or order");
    Ok(())
}

fn shown(viewed: &ViewedComment) -> String {
    let (author, relation) = author_of(viewed.author.as_ref());
    let comment = viewed.comment.clone().unwrap_or_default();
    let answered = match comment.in_reply_to_id {
        0 => String::new(),
        id => format!(", to comment {id}"),
    };
    format!("{author}, {}{answered}: `{}`", relation_name(relation), comment.text)
}
