//! Blocks: their effect on posts.

use microblog_proto::{
    gateway::{self, RootState},
    post::Post,
    relation::RelationState,
};
use uuid::Uuid;

use super::{
    graph,
    posts::{self, Seen},
    reposts,
};
use crate::demo::person::Person;

/// Shows the effect of a block on posts, and unblocks.
pub(super) async fn of_posts(
    post: &Post,
    repost: &Post,
    ada: &Person,
    cleo: &Person,
) -> anyhow::Result<()> {
    println!("\nAn account that the author blocks can neither view nor react to their posts");
    graph::block(ada, cleo).await?;
    let (post_id, blocked) = (post.id, "BLOCKED_BY_TARGET");
    let what = format!("views post {post_id}");
    let message = gateway::ViewPostRequest { post_id };
    cleo.expect_error(&what, blocked, message, async |mut c, r| c.view_post(r).await).await?;
    let what = format!("likes post {post_id}");
    let message = gateway::LikeRequest { post_id };
    cleo.expect_error(&what, blocked, message, async |mut c, r| c.like(r).await).await?;
    let what = format!("comments on post {post_id}");
    let (request_id, text) = (Uuid::new_v4().to_string(), "Still there?".to_owned());
    let message = gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 };
    cleo.expect_error(&what, blocked, message, async |mut c, r| c.comment(r).await).await?;
    let what = format!("reposts post {post_id}");
    let (request_id, text) = (Uuid::new_v4().to_string(), String::new());
    let message = gateway::RepostRequest { request_id, post_id, text };
    cleo.expect_error(&what, blocked, message, async |mut c, r| c.repost(r).await).await?;
    let relation = RelationState::Following;
    let hidden = Seen { relation, reposts: 1, root: RootState::Hidden, ..Seen::default() };
    posts::view(cleo, repost, hidden).await?;
    reposts::list(ada, post, &[(repost, RelationState::Mutual)]).await?;
    graph::unblock(ada, cleo).await
}
