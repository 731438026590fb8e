//! The sequential operations of one user, each checked against what is certain at its end.

use std::time::Duration;

use microblog_domain::{CommentId, PostId, RequestId, UserId};
use microblog_post::{Comment, Error};
use tokio::time::sleep;

use crate::{
    case::{Case, patiently},
    evictors::any_below,
    operation::{Operation, Verb},
    support,
};

/// The state of a deletion.
#[derive(Clone, Copy, Default)]
pub(crate) struct Deletion {
    pub(crate) has_begun: bool,
    pub(crate) has_ended: bool,
}

/// Executes the operations of a user.
pub(crate) async fn run(case: Case, user: UserId, operations: Vec<Operation>) -> Result<(), Error> {
    for operation in operations {
        if case.archived.is_some() {
            // So that posts move meanwhile.
            sleep(Duration::from_millis(any_below(40))).await;
        }
        case.run(user, operation).await?;
    }
    Ok(())
}

/// Returns a new idempotency key.
pub(crate) fn request_id() -> RequestId {
    RequestId::parse("request_id", &support::request_id()).unwrap()
}

/// Picks one of some, if there are any.
pub(crate) fn pick<T>(candidates: impl Iterator<Item = T>, place: usize) -> Option<T> {
    let mut candidates: Vec<_> = candidates.collect();
    let place = place.checked_rem(candidates.len())?;
    Some(candidates.swap_remove(place))
}

/// Returns the result of a call; `None` if the subject does not exist.
pub(crate) fn found<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(made) => Some(made),
        Err(Error::PostNotFound | Error::CommentNotFound) => None,
        Err(error) => panic!("{error:?}"),
    }
}

impl Case {
    async fn run(&self, user: UserId, operation: Operation) -> Result<(), Error> {
        let Operation { verb, place, .. } = operation;
        let target = pick(self.model().posts.keys().copied(), place);
        match (verb, target) {
            (Verb::Create, _) => self.make(user, operation, None).await,
            (Verb::Repost, Some(target)) => self.make(user, operation, Some(target)).await,
            (Verb::Like, Some(target)) => self.like(user, target).await,
            (Verb::Unlike, Some(target)) => self.unlike(user, target).await,
            (Verb::Comment, Some(target)) => self.comment(user, operation, target, None).await,
            (Verb::Answer, Some(_)) => {
                let answered = pick(self.model().comments.values().map(|c| c.it.clone()), place);
                let Some(Comment { id, post, .. }) = answered else { return Ok(()) };
                self.comment(user, operation, post, Some(id)).await
            }
            (Verb::Delete, Some(_)) => self.delete(user, operation).await,
            (Verb::Uncomment, Some(_)) => self.uncomment(user, operation).await,
            (_, None) => Ok(()),
        }
    }

    /// Returns the state of the deletion of any of these.
    pub(crate) fn deletion(&self, posts: &[PostId], comment: Option<CommentId>) -> Deletion {
        let model = self.model();
        let posts = posts.iter().map(|id| &model.posts[id]).map(|made| (made.ends, made.ended));
        let comment = comment.map(|id| &model.comments[&id]).map(|made| (made.ends, made.ended));
        let any = |all: Deletion, (ends, ended)| Deletion {
            has_begun: all.has_begun || ends,
            has_ended: all.has_ended || ended,
        };
        posts.chain(comment).fold(Deletion::default(), any)
    }

    async fn like(&self, user: UserId, post: PostId) -> Result<(), Error> {
        let before = self.deletion(&[post], None);
        let liked = found(patiently(|| self.reactions.like(user, post)).await);
        let after = self.deletion(&[post], None);
        assert!(liked.is_none() || !before.has_ended, "{post} is deleted");
        let Some((since, likes)) = liked else {
            assert!(after.has_begun, "{post} exists");
            return Ok(());
        };
        assert!(likes > 0);
        let first = *self.model().likes.entry((post, user)).or_insert(since);
        assert_eq!(since, first, "a like keeps its first time");
        let is_liked = self.tiered.liked(user, &[post]).await? == [true];
        assert!(is_liked || self.deletion(&[post], None).has_begun);
        Ok(())
    }

    async fn unlike(&self, user: UserId, post: PostId) -> Result<(), Error> {
        self.model().likes.remove(&(post, user));
        patiently(|| self.reactions.unlike(user, post)).await?;
        assert_eq!(self.tiered.liked(user, &[post]).await?, [false]);
        Ok(())
    }
}
