//! Who may act on a post: what a block between a viewer and an author forbids, in the relation
//! service's words, and that nothing can be done to what is by an account that is gone.

use microblog_chassis::status;
use microblog_domain::{CommentId, PostId, UserId};
use microblog_proto::{common::ErrorReason, post::Post, relation::Relation};
use tonic::{Code, Status};

use crate::{
    people::{Detail, Host, Visit},
    rpc::Gateway,
};

/// What a viewer is about to do to a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// To like it, or to comment on it.
    React,
    /// To answer this comment on it.
    Answer(u64),
    /// To repeat it, and its root if it has one.
    Repost,
}

impl Act {
    /// Returns who wrote what the viewer is about to act on: the post's author first.
    fn authors(self, post: &Post) -> Vec<u64> {
        let root = post.root.iter().filter(|_| self == Self::Repost).map(|root| root.author_id);
        let mut authors: Vec<u64> = std::iter::once(post.author_id).chain(root).collect();
        authors.dedup();
        authors
    }
}

/// Refuses to show the viewer what belongs to an account that blocks them.
pub(crate) fn refuse_blocked(relation: &Relation) -> Result<(), Status> {
    if relation.blocked_by {
        let text = "the account has blocked you";
        return Err(status::with_reason(
            Code::PermissionDenied,
            ErrorReason::BlockedByTarget,
            text,
        ));
    }
    Ok(())
}

/// Refuses to let the viewer act on what belongs to an account that has a block with them.
pub(crate) fn refuse_any(relation: &Relation) -> Result<(), Status> {
    refuse_blocked(relation)?;
    if relation.blocking {
        let text = "you have blocked the account";
        return Err(status::with_reason(
            Code::FailedPrecondition,
            ErrorReason::TargetBlocked,
            text,
        ));
    }
    Ok(())
}

impl Gateway {
    /// Refuses to let the viewer act on a post where, of those who wrote it and what is repeated with
    /// it, somebody is gone (POST_NOT_FOUND) or has a block with the viewer; or where that holds for
    /// the author of the comment that is answered (COMMENT_NOT_FOUND). Of several faults the post's
    /// author's are told before the root's and the comment's; of one author's, that they are gone,
    /// then their block, then the viewer's.
    ///
    /// Up to 4 calls: post.GetPost ∥ post.GetComment (only for an answer), then user.BatchGetUsers ∥
    /// relation.BatchGetRelations, if anybody but the viewer is among the authors.
    ///
    /// A block or a deletion between this and what follows comes too late for it, as if it had come
    /// after both.
    pub(crate) async fn refuse_past_block(
        &self,
        viewer: UserId,
        post_id: u64,
        act: Act,
    ) -> Result<(), Status> {
        let (authors, commenter) =
            tokio::join!(self.authors(post_id, act), self.commenter(post_id, act));
        let hosts = authors?.into_iter().map(Host::Author);
        let hosts = hosts.chain(commenter?.map(Host::Commenter));
        let hosts: Vec<Host> = hosts.filter(|host| host.id() != viewer.get()).collect();
        let visit = Visit::of(Some(viewer));
        let ids = hosts.iter().map(|host| host.id()).collect();
        let people = self.people(visit, ids, Detail::Blocks).await?;
        hosts.into_iter().try_for_each(|host| people.admit(host, refuse_any))
    }

    /// Returns who wrote the comment that is to be answered; nobody where there is none, or the call
    /// that acts is to decide.
    async fn commenter(&self, post_id: u64, act: Act) -> Result<Option<u64>, Status> {
        let Act::Answer(id) = act else { return Ok(None) };
        // It refuses these, and names with them whatever else is wrong.
        if PostId::new(post_id).is_none() || CommentId::new(id).is_none() {
            return Ok(None);
        }
        match self.find_comment(post_id, id).await {
            // It may be a repeated call, which is answered with the comment that the first one made.
            // Any other is refused: ids are never used again.
            Err(status) if status::reason_of(&status) == Some(ErrorReason::CommentNotFound) => {
                Ok(None)
            }
            found => found.map(|comment| Some(comment.author_id)),
        }
    }

    /// Returns who wrote what is to be acted on; nobody where the call that acts is to decide.
    async fn authors(&self, post_id: u64, act: Act) -> Result<Vec<u64>, Status> {
        // It refuses this, and names with it whatever else is wrong.
        if PostId::new(post_id).is_none() {
            return Ok(Vec::new());
        }
        match self.post(post_id).await {
            // It may be a repeated call, which is answered with the repost that the first one made.
            // Any other is refused: ids are never used again, so the post does not come back.
            Err(status) if act == Act::Repost && is_not_found(&status) => Ok(Vec::new()),
            found => found.map(|post| act.authors(&post)),
        }
    }
}

fn is_not_found(status: &Status) -> bool {
    status::reason_of(status) == Some(ErrorReason::PostNotFound)
}
