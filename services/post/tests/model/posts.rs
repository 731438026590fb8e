//! Publishing, reposting and deleting posts, as a user.

use microblog_domain::{PostId, RequestId, UserId};
use microblog_post::{
    Backlink, BacklinkUpdate, Content, Error, List, Origin, Post, PostDeletion, Published, WithRoot,
};

use crate::{
    case::{Case, Made, patiently, until},
    operation::{Fate, Operation},
    user_operations::{found, pick, request_id},
};

fn changes(id: PostId, content: &Content, version: u64, exists: bool) -> Vec<BacklinkUpdate> {
    let change =
        |target| BacklinkUpdate { backlink: Backlink { repost: id, target }, version, exists };
    content.counted_by().map(change).collect()
}

impl Case {
    /// Publishes a post or a repost.
    pub(crate) async fn make(
        &self,
        author: UserId,
        operation: Operation,
        target: Option<PostId>,
    ) -> Result<(), Error> {
        let Operation { place, fate, again, .. } = operation;
        let origin = target.map(|reposted| {
            let root = self.model().posts[&reposted].it.origin.map_or(reposted, |of| of.root);
            Origin { root, reposted }
        });
        let content = Content { author, text: place.to_string(), origin };
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
        assert!(made.is_none() || !before.has_ended, "{operation:?}: of a deleted post");
        assert!(after.has_begun || made.is_some(), "{operation:?}: rejected");
        let is_one = |answer: &Option<_>| *answer == made || answer.is_none() && after.has_begun;
        assert!(answers.iter().all(is_one), "{operation:?}: {answers:?}");
        let Some(id) = made else { return Ok(()) };
        let mut listed = Vec::new();
        if again || fate >= Fate::Telling {
            for &target in &targets {
                let is_listed = self.is_listed(id, target).await?;
                let is_going = self.deletion(&[target], None).has_begun;
                assert!(is_listed || is_going, "{operation:?}: {target} does not list {id}");
                listed.push((id, target));
            }
        }
        let mut model = self.model();
        if again || fate >= Fate::Stall {
            model.notified.extend(changes(id, &content, id.get(), true));
        }
        model.listed.extend(listed);
        model.posts.insert(id, Made { it: content, ends: false, ended: false });
        Ok(())
    }

    async fn make_whole(&self, content: &Content, request: RequestId) -> Option<PostId> {
        let (author, text) = (content.author, content.text.clone());
        let made: Result<Post, _> = match content.origin {
            None => patiently(|| self.posts.create(author, request, text.clone())).await,
            Some(Origin { reposted, .. }) => {
                let repost = || self.posts.repost(author, request, reposted, text.clone());
                patiently(repost).await.map(|WithRoot { post, .. }| post)
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
        if self.tiered.exist(&targets).await?.contains(&false) {
            return Ok(None);
        }
        let published = self.store.publish(content, request).await?;
        let Published::New(id) = published else { panic!("{published:?}") };
        let updates = changes(id, content, id.get(), true);
        if fate >= Fate::Telling {
            self.notify(&updates).await?;
        }
        if fate >= Fate::Confirmation {
            self.store.confirm(&updates).await?;
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
    pub(crate) async fn delete(&self, author: UserId, operation: Operation) -> Result<(), Error> {
        let Operation { place, fate, again, .. } = operation;
        let own = |(id, made): (&PostId, &Made<Content>)| {
            (made.it.author == author && !made.ends).then(|| (*id, made.it.clone()))
        };
        let picked = pick(self.model().posts.iter().filter_map(own), place);
        let Some((id, content)) = picked else { return Ok(()) };
        self.model().posts.get_mut(&id).unwrap().ends = true;
        let was_here = self.store.exist(&[id]).await? == [true];
        let deletion = || patiently(|| self.posts.delete(author, id));
        match fate {
            Fate::Whole => deletion().await?,
            Fate::Twice => {
                futures::try_join!(deletion(), deletion())?;
            }
            _ => {
                let version = self.end(id, &content).await?;
                let updates = changes(id, &content, version, false);
                if fate >= Fate::Stall {
                    self.model().notified.extend(&updates);
                }
                if fate >= Fate::Telling {
                    self.notify(&updates).await?;
                }
                if fate >= Fate::Confirmation {
                    self.store.confirm(&updates).await?;
                }
            }
        }
        self.model().posts.get_mut(&id).unwrap().ended = true;
        if again {
            deletion().await?;
        }
        self.watch.count().archived_deleted += u64::from(!was_here);
        assert_eq!(self.tiered.post(id, None).await?, None);
        if fate >= Fate::Telling {
            for target in content.counted_by() {
                let is_listed = self.is_listed(id, target).await?;
                assert!(!is_listed, "{operation:?}: {id} is still listed");
            }
        }
        Ok(())
    }

    // Step 1 of a deletion, in either tier. Returns the version.
    async fn end(&self, id: PostId, content: &Content) -> Result<u64, Error> {
        let mut version = None;
        for _ in 0..100 {
            let in_archive = self.store.post(id, None).await?.is_none();
            assert!(self.tiered.post(id, None).await?.is_some(), "{id} existed");
            version = self.store.delete(&PostDeletion { id, content, in_archive }).await?;
            if version.is_some() {
                break;
            }
            // It was evicted in between.
        }
        Ok(version.expect("the post existed"))
    }

    // Step 2, also for archived posts.
    async fn notify(&self, changes: &[BacklinkUpdate]) -> Result<(), Error> {
        for change in changes {
            let restore = || self.tiered.restore(change.backlink.target);
            let is_done = || async {
                Ok::<_, Error>(
                    self.store.notify(&[*change]).await? == [true] || !patiently(restore).await?,
                )
            };
            until(is_done).await?;
        }
        Ok(())
    }

    async fn is_listed(&self, repost: PostId, target: PostId) -> Result<bool, Error> {
        let reposts = self.scroll(&self.tiered, List::Reposts, target, 100).await?;
        Ok(reposts.is_some_and(|reposts| reposts.contains(&repost.get())))
    }
}
