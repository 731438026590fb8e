//! The operations of one user, one after the other, each with what is certain at its end.

use microblog_domain::{CommentId, PostId, RequestId, UserId};
use microblog_post::{
    Admitted, Backlink, Change, Comment, Content, Error, Origin, Post, Published, WithRoot,
};

use crate::{Case, Fate, Made, Model, Operation, USERS, Verb, support};

/// How far the deletion of something is.
#[derive(Clone, Copy, Default)]
struct Deletion {
    has_begun: bool,
    has_ended: bool,
}

/// Carries out the operations of a user.
pub(crate) async fn run(case: Case, operations: Vec<Operation>) -> Result<(), Error> {
    for operation in operations {
        case.run(operation).await?;
    }
    Ok(())
}

fn request_id() -> RequestId {
    RequestId::parse("request_id", &support::request_id()).unwrap()
}

fn pick<T>(candidates: impl Iterator<Item = T>, place: usize) -> Option<T> {
    let mut candidates: Vec<_> = candidates.collect();
    let place = place.checked_rem(candidates.len())?;
    Some(candidates.swap_remove(place))
}

fn changes(id: PostId, content: &Content, version: u64, exists: bool) -> Vec<Change> {
    let change = |target| Change { backlink: Backlink { repost: id, target }, version, exists };
    content.counted_by().map(change).collect()
}

// What a call came to, `None` where what it is about is not there.
fn found<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(made) => Some(made),
        Err(Error::PostNotFound | Error::CommentNotFound) => None,
        Err(error) => panic!("{error:?}"),
    }
}

impl Case {
    async fn run(&self, operation: Operation) -> Result<(), Error> {
        let Operation { user, verb, place, .. } = operation;
        let user = USERS[user];
        let target = pick(self.model().posts.keys().copied(), place);
        match (verb, target) {
            (Verb::Create, _) => self.make(operation, None).await,
            (Verb::Repost, Some(target)) => self.make(operation, Some(target)).await,
            (Verb::Like, Some(target)) => self.like(user, target).await,
            (Verb::Unlike, Some(target)) => self.unlike(user, target).await,
            (Verb::Comment, Some(target)) => self.comment(operation, target, None).await,
            (Verb::Answer, Some(_)) => {
                let answered = pick(self.model().comments.values().map(|c| c.it.clone()), place);
                let Some(Comment { id, post, .. }) = answered else { return Ok(()) };
                self.comment(operation, post, Some(id)).await
            }
            (Verb::Delete, Some(_)) => self.delete(operation).await,
            (Verb::Uncomment, Some(_)) => self.uncomment(operation).await,
            (_, None) => Ok(()),
        }
    }

    fn deletion(&self, posts: &[PostId], comment: Option<CommentId>) -> Deletion {
        let model = self.model();
        let posts = posts.iter().map(|id| &model.posts[id]).map(|made| (made.ends, made.ended));
        let comment = comment.map(|id| &model.comments[&id]).map(|made| (made.ends, made.ended));
        let any = |all: Deletion, (ends, ended)| Deletion {
            has_begun: all.has_begun || ends,
            has_ended: all.has_ended || ended,
        };
        posts.chain(comment).fold(Deletion::default(), any)
    }

    /// Makes a post, or a repost.
    async fn make(&self, operation: Operation, target: Option<PostId>) -> Result<(), Error> {
        let Operation { user, place, fate, again, .. } = operation;
        let origin = target.map(|reposted| {
            let root = self.model().posts[&reposted].it.origin.map_or(reposted, |of| of.root);
            Origin { root, reposted }
        });
        let content = Content { author: USERS[user], text: place.to_string(), origin };
        let targets: Vec<_> = content.counted_by().collect();
        let before = self.deletion(&targets, None);

        let request = request_id();
        let whole = || self.make_whole(&content, request);
        let mut answers = match fate {
            Fate::Whole => vec![whole().await],
            Fate::Twice => <[_; 2]>::from(futures::join!(whole(), whole())).to_vec(),
            _ => vec![self.make_by_steps(&content, request, fate).await?],
        };
        if again {
            answers.push(whole().await);
        }

        let after = self.deletion(&targets, None);
        let made = answers.iter().flatten().next().copied();
        assert!(made.is_none() || !before.has_ended, "{operation:?}: of what is gone");
        assert!(after.has_begun || made.is_some(), "{operation:?}: refused");
        let is_one = |answer: &Option<_>| *answer == made || answer.is_none() && after.has_begun;
        assert!(answers.iter().all(is_one), "{operation:?}: {answers:?}");
        let Some(id) = made else { return Ok(()) };
        if again || fate >= Fate::Telling {
            for &target in &targets {
                let is_listed = self.store.are_listed(&[(id, target)]).await? == [true];
                let is_going = self.deletion(&[target], None).has_begun;
                assert!(is_listed || is_going, "{operation:?}: {target} does not know of {id}");
            }
        }
        let mut model = self.model();
        if again || fate >= Fate::Stall {
            model.told.extend(changes(id, &content, id.get(), true));
        }
        model.posts.insert(id, Made { it: content, ends: false, ended: false });
        Ok(())
    }

    async fn make_whole(&self, content: &Content, request: RequestId) -> Option<PostId> {
        let (author, text) = (content.author, content.text.clone());
        let made: Result<Post, _> = match content.origin {
            None => self.posts.create(author, request, text).await,
            Some(Origin { reposted, .. }) => {
                let made = self.posts.repost(author, request, reposted, text).await;
                made.map(|WithRoot { post, .. }| post)
            }
        };
        let made = found(made)?;
        assert_eq!(made.content, *content);
        Some(made.id)
    }

    async fn make_by_steps(
        &self,
        content: &Content,
        request: RequestId,
        fate: Fate,
    ) -> Result<Option<PostId>, Error> {
        let targets: Vec<_> = content.counted_by().collect();
        if self.store.exist(&targets).await?.contains(&false) {
            return Ok(None);
        }
        let published = self.store.publish(content, request).await?;
        let Published::New(id) = published else { panic!("{published:?}") };
        let told = changes(id, content, id.get(), true);
        if fate >= Fate::Telling {
            self.store.tell(&told).await?;
        }
        if fate >= Fate::Confirmation {
            self.store.confirm(&told).await?;
        }
        if fate >= Fate::Delivery {
            match self.delivery.deliver(&[id]).await {
                Ok(()) | Err(Error::Timeline(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(id))
    }

    /// Deletes one of the user's posts.
    async fn delete(&self, operation: Operation) -> Result<(), Error> {
        let Operation { user, place, fate, again, .. } = operation;
        let author = USERS[user];
        let own = |(id, made): (&PostId, &Made<Content>)| {
            (made.it.author == author && !made.ends).then(|| (*id, made.it.clone()))
        };
        let picked = pick(self.model().posts.iter().filter_map(own), place);
        let Some((id, content)) = picked else { return Ok(()) };
        self.model().posts.get_mut(&id).unwrap().ends = true;
        match fate {
            Fate::Whole => self.posts.delete(author, id).await?,
            Fate::Twice => {
                let deletion = || self.posts.delete(author, id);
                futures::try_join!(deletion(), deletion())?;
            }
            _ => {
                let version = self.store.delete(&crate::support::ending(id, &content)).await?;
                let told = changes(id, &content, version.expect("it was there"), false);
                if fate >= Fate::Stall {
                    self.model().told.extend(&told);
                }
                if fate >= Fate::Telling {
                    self.store.tell(&told).await?;
                }
                if fate >= Fate::Confirmation {
                    self.store.confirm(&told).await?;
                }
            }
        }
        self.model().posts.get_mut(&id).unwrap().ended = true;
        if again {
            self.posts.delete(author, id).await?;
        }
        assert_eq!(self.store.post(id, None).await?, None);
        if fate >= Fate::Telling {
            let pairs: Vec<_> = content.counted_by().map(|target| (id, target)).collect();
            let are_listed = self.store.are_listed(&pairs).await?;
            assert!(!are_listed.contains(&true), "{operation:?}: {id} is still listed");
        }
        Ok(())
    }

    async fn like(&self, user: UserId, post: PostId) -> Result<(), Error> {
        let before = self.deletion(&[post], None);
        let liked = self.store.like(user, post).await?;
        let after = self.deletion(&[post], None);
        assert!(liked.is_none() || !before.has_ended, "{post} is gone");
        let Some((since, likes)) = liked else {
            assert!(after.has_begun, "{post} is there");
            return Ok(());
        };
        assert!(likes > 0);
        let first = *self.model().likes.entry((post, user)).or_insert(since);
        assert_eq!(since, first, "a like keeps its first time");
        let is_liked = self.store.liked(user, &[post]).await? == [true];
        assert!(is_liked || self.deletion(&[post], None).has_begun);
        Ok(())
    }

    async fn unlike(&self, user: UserId, post: PostId) -> Result<(), Error> {
        self.store.unlike(user, post).await?;
        self.model().likes.remove(&(post, user));
        assert_eq!(self.store.liked(user, &[post]).await?, [false]);
        Ok(())
    }

    /// Comments on a post, or answers a comment on it.
    async fn comment(
        &self,
        operation: Operation,
        post: PostId,
        answered: Option<CommentId>,
    ) -> Result<(), Error> {
        let Operation { user, place, fate, again, .. } = operation;
        let (author, request, text) = (USERS[user], request_id(), place.to_string());
        let before = self.deletion(&[post], answered);
        let whole = || self.comments.add(author, request, post, text.clone(), answered);
        let mut answers = match fate {
            Fate::Truth => {
                let admitted = self.store.admit_comment(post, author, request).await?;
                assert_eq!(admitted, Admitted::Yes);
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
        assert!(made.is_none() || !before.has_ended, "{operation:?}: on what is gone");
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

    /// Deletes a comment of the user's, or on a post of the user's.
    async fn uncomment(&self, operation: Operation) -> Result<(), Error> {
        let Operation { user, place, fate, again, .. } = operation;
        let user = USERS[user];
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
        if fate < Fate::Whole {
            let was_there = self.store.delete_comment(post, id).await?;
            assert!(was_there || self.deletion(&[post], None).has_begun);
        } else {
            self.comments.delete(user, post, id).await?;
        }
        if again {
            self.comments.delete(user, post, id).await?;
        }
        assert_eq!(self.store.comments(post, &[id]).await?, []);
        self.model().comments.get_mut(&id).unwrap().ended = true;
        Ok(())
    }
}
