//! Comments: adding and deleting, as a user.

use microblog_domain::{CommentId, PostId, UserId};
use microblog_post::{Comment, CommentAdmission, Error};

use crate::{
    case::{Case, Made, Model, patiently, until},
    operation::{Fate, Operation},
    user_operations::{found, pick, request_id},
};

impl Case {
    /// Comments on a post, or replies to a comment on it.
    pub(crate) async fn comment(
        &self,
        author: UserId,
        operation: Operation,
        post: PostId,
        answered: Option<CommentId>,
    ) -> Result<(), Error> {
        let Operation { place, fate, again, .. } = operation;
        let (request, text) = (request_id(), place.to_string());
        let before = self.deletion(&[post], answered);
        let add = || self.reactions.add_comment(author, request, post, text.clone(), answered);
        let whole = || patiently(add);
        let mut answers = match fate {
            Fate::Truth => {
                let admitted = self.store.admit_comment(post, author, request).await?;
                assert_eq!(admitted, CommentAdmission::Admitted);
                Vec::new()
            }
            Fate::Twice => {
                let both = futures::join!(whole(), whole());
                vec![found(both.0), found(both.1)]
            }
            _ => vec![found(whole().await)],
        };
        if again {
            answers.push(found(whole().await));
        }
        let after = self.deletion(&[post], answered);
        let made = answers.iter().flatten().next().cloned();
        assert!(made.is_none() || !before.has_ended, "{operation:?}: on a deleted post or comment");
        let is_one = |answer: &Option<_>| *answer == made && made.is_some() || after.has_begun;
        assert!(answers.iter().all(is_one), "{operation:?}: {answers:?}");
        assert!(answers.iter().flatten().all(|answer| Some(answer) == made.as_ref()));
        let Some(comment) = made else { return Ok(()) };
        assert_eq!((comment.content.author, &comment.content.text), (author, &text));
        assert_eq!(comment.content.in_reply_to.map(|reply| reply.to), answered);
        let made = Made { it: comment.clone(), ends: false, ended: false };
        self.model().comments.insert(comment.id, made);
        Ok(())
    }

    /// Deletes a comment of the user, or on a post of the user.
    pub(crate) async fn uncomment(&self, user: UserId, operation: Operation) -> Result<(), Error> {
        let Operation { place, fate, again, .. } = operation;
        let picked = {
            let mut model = self.model();
            let Model { posts, comments, .. } = &mut *model;
            let may_go = |made: &&mut Made<Comment>| {
                let author = posts[&made.it.post].it.author;
                !made.ends && [made.it.content.author, author].contains(&user)
            };
            let picked = pick(comments.values_mut().filter(may_go), place);
            picked.map(|made| {
                made.ends = true;
                made.it.clone()
            })
        };
        let Some(Comment { id, post, .. }) = picked else { return Ok(()) };
        let deletion = || self.reactions.delete_comment(user, post, id);
        let delete = || patiently(deletion);
        if fate < Fate::Whole {
            let restore = || self.tiered.restore(post);
            let is_done = || async {
                Ok::<_, Error>(
                    self.store.delete_comment(post, id).await? || !patiently(restore).await?,
                )
            };
            until(is_done).await?;
        } else {
            delete().await?;
        }
        if again {
            delete().await?;
        }
        assert_eq!(self.tiered.comments(post, &[id]).await?, []);
        self.model().comments.get_mut(&id).unwrap().ended = true;
        Ok(())
    }
}
