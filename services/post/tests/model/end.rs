//! The expected state at the end of a case, in either tier.

use std::collections::BTreeSet;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::Order;
use microblog_post::{Comment, Content, Counts, Error, List, ListLengths, Post, verify_partition};

use crate::{
    case::{Case, Made, Model},
    readers::LISTS,
};

/// Larger and smaller than any list of a case; the latter reads pages from both tiers.
const PAGES: [usize; 2] = [200, 2];

impl Case {
    pub(crate) async fn is_as_the_model(&self) -> Result<(), Error> {
        let posts = self.model().posts.clone();
        for (&id, made) in &posts {
            if made.ended {
                self.is_gone(id).await?;
            } else {
                self.is_there(id).await?;
            }
        }
        for user in self.users {
            let expected = self.model().posts_of(&[user]);
            assert_eq!(self.scroll_author(user).await?, expected);
            let report = verify_partition(&self.tiered, user.partition()).await?;
            assert_eq!(report.violations.into_vec(), Vec::<String>::new());
            assert_eq!(report.pending.into_vec(), Vec::<String>::new());
            assert_eq!(report.unarchived, 0);
        }
        let expected = self.model().posts_of(&self.users);
        assert_eq!(self.scroll_authors().await?, expected);
        self.archive_is_as_the_model().await;
        Ok(())
    }

    async fn is_gone(&self, id: PostId) -> Result<(), Error> {
        assert_eq!(self.tiered.post(id, None).await?, None);
        assert_eq!(self.tiered.exist(&[id]).await?, [false]);
        assert_eq!(self.store.list_lengths(&[id]).await?, [ListLengths::default()]);
        let comments: Vec<_> = self.model().comments.keys().copied().collect();
        assert_eq!(self.tiered.comments(id, &comments).await?, []);
        for list in LISTS {
            assert_eq!(self.scroll(&self.tiered, list, id, 2).await?, None, "{list:?}");
        }
        for user in self.users {
            assert_eq!(self.tiered.liked(user, &[id]).await?, [false]);
        }
        Ok(())
    }

    async fn is_there(&self, id: PostId) -> Result<(), Error> {
        let (content, comments, likers, reposts) = {
            let model = self.model();
            let content = model.posts[&id].it.clone();
            (content, model.comments_on(id), model.likers_of(id), model.reposts_of(id))
        };
        let length = |length: usize| u64::try_from(length).unwrap();
        let counts = Counts {
            likes: length(likers.len()),
            comments: length(comments.len()),
            reposts: length(reposts.len()),
        };
        assert_eq!(self.tiered.exist(&[id]).await?, [true]);
        for user in self.users {
            let liked = likers.contains(&user.get());
            let expected = Post { id, content: content.clone(), counts, liked };
            assert_eq!(self.tiered.post(id, Some(user)).await?, Some(expected));
            assert_eq!(self.tiered.liked(user, &[id]).await?, [liked]);
        }
        let ids: Vec<_> = comments.iter().map(|comment| comment.id).collect();
        let oldest: Vec<_> = ids.iter().map(|id| id.get()).collect();
        let newest: Vec<_> = oldest.iter().rev().copied().collect();
        for count in PAGES {
            for (list, expected) in [
                (List::Likers, &likers),
                (List::Reposts, &reposts),
                (List::Comments(Order::Oldest), &oldest),
                (List::Comments(Order::Newest), &newest),
            ] {
                let found = self.scroll(&self.tiered, list, id, count).await?;
                assert_eq!(found.as_ref(), Some(expected), "{list:?} of {id}");
            }
        }
        assert_eq!(self.tiered.comments(id, &ids).await?, comments);
        assert!(self.timelines.times(id.get()) > 0, "{id} was never delivered");
        Ok(())
    }

    // An author's posts, read in pages.
    async fn scroll_author(&self, author: UserId) -> Result<Vec<u64>, Error> {
        let mut scrolls = BTreeSet::new();
        for count in PAGES {
            let (mut after, mut found) = (None, Vec::new());
            loop {
                let page = self.tiered.posts_of(author, after, count).await?;
                found.extend(page.entries.iter().map(|entry| entry.member));
                after = page.entries.last().copied();
                if !page.more {
                    break;
                }
            }
            scrolls.insert(found);
        }
        assert_eq!(scrolls.len(), 1, "{scrolls:?}");
        Ok(scrolls.pop_first().unwrap())
    }

    // All posts, read in pages.
    async fn scroll_authors(&self) -> Result<Vec<u64>, Error> {
        let (mut below, mut found) = (None, Vec::new());
        loop {
            let newest = self.tiered.newest_of(&self.users, below, None, 3).await?;
            assert!(newest.ids.len() == 3 || newest.next.is_none(), "{newest:?}");
            found.extend(newest.ids.iter().map(|id| id.get()));
            below = newest.next;
            if below.is_none() {
                return Ok(found);
            }
        }
    }
}

// The expected lists, all newest first except the comments.
impl Model {
    fn comments_on(&self, post: PostId) -> Vec<Comment> {
        let is_there = |made: &&Made<Comment>| made.it.post == post && !made.ended;
        self.comments.values().filter(is_there).map(|made| made.it.clone()).collect()
    }

    fn likers_of(&self, post: PostId) -> Vec<u64> {
        let likes = self.likes.iter().filter(|((liked, _), _)| *liked == post);
        // Equal stamps are ordered as in Redis.
        let mut likes: Vec<_> =
            likes.map(|((_, user), since)| (*since, user.to_string(), user.get())).collect();
        likes.sort_unstable();
        likes.into_iter().rev().map(|(_, _, user)| user).collect()
    }

    fn reposts_of(&self, post: PostId) -> Vec<u64> {
        let repeats =
            |made: &Made<Content>| !made.ended && made.it.counted_by().any(|target| target == post);
        let reposts = self.posts.iter().rev().filter(|(_, made)| repeats(made));
        reposts.map(|(id, _)| id.get()).collect()
    }

    fn posts_of(&self, authors: &[UserId]) -> Vec<u64> {
        let is_own = |made: &Made<Content>| authors.contains(&made.it.author) && !made.ended;
        let own = self.posts.iter().rev().filter(|(_, made)| is_own(made));
        own.map(|(id, _)| id.get()).collect()
    }
}
