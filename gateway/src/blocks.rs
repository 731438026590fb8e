//! What a block between a viewer and the author of a post forbids, in the relation service's words.

use microblog_chassis::status;
use microblog_domain::UserId;
use microblog_proto::{common::ErrorReason, post::Post, relation::Relation};
use tonic::{Code, Status};

use crate::{people::Detail, rpc::Gateway, viewer::Token};

/// Refuses to show the viewer what belongs to an account that blocks them.
pub(crate) fn refuse_blocked(relation: &Relation) -> Result<(), Status> {
    if relation.blocked_by {
        let text = "the account has blocked you";
        return Err(status::refuse(Code::PermissionDenied, ErrorReason::BlockedByTarget, text));
    }
    Ok(())
}

/// Refuses to let the viewer act on what belongs to an account that has a block with them.
fn refuse_any(relation: &Relation) -> Result<(), Status> {
    refuse_blocked(relation)?;
    if relation.blocking {
        let text = "you have blocked the account";
        return Err(status::refuse(Code::FailedPrecondition, ErrorReason::TargetBlocked, text));
    }
    Ok(())
}

impl Gateway {
    /// Returns the viewer, who may act on a post: nobody among those whom `authors` names has a
    /// block with them. Three calls: user.Authenticate ∥ post.GetPost, then
    /// relation.BatchGetRelations, if anybody but the viewer is among those.
    ///
    /// A block that is made between this and what follows comes too late for it, as if it had been
    /// made after both.
    pub(crate) async fn unblocked_viewer(
        &self,
        token: Token,
        post_id: u64,
        authors: fn(&Post) -> Vec<u64>,
    ) -> Result<UserId, Status> {
        let (viewer, post) = tokio::join!(self.viewer(token), self.post(post_id));
        let (viewer, mut authors) = (viewer?, authors(&post?));
        authors.retain(|&author| author != viewer.get());
        if !authors.is_empty() {
            let relations = self.relations(Some(viewer), authors, Detail::Blocks).await?;
            relations.iter().try_for_each(refuse_any)?;
        }
        Ok(viewer)
    }
}

/// Returns who wrote a post.
pub(crate) fn author(post: &Post) -> Vec<u64> {
    vec![post.author_id]
}

/// Returns who wrote a post, and who wrote its root.
pub(crate) fn authors(post: &Post) -> Vec<u64> {
    let root = post.root.iter().map(|root| root.author_id);
    let mut authors: Vec<u64> = std::iter::once(post.author_id).chain(root).collect();
    authors.dedup();
    authors
}
