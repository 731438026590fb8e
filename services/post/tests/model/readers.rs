//! Readers, who must always find acknowledged posts that are not deleted.

use microblog_domain::{PostId, UserId};
use microblog_keyspace::Order;
use microblog_post::{Error, List, TieredStore};
use tokio::task::JoinSet;

use crate::{
    case::{Case, patiently},
    certain::{Certain, CertainPosts},
    evictors::any_below,
};

/// Starts to read.
pub(crate) fn spawn(case: &Case, background: &mut JoinSet<()>) {
    let Some(archived) = &case.archived else { return };
    for archive in &archived.jobs {
        // Their client-side caches differ from the callers'.
        let window = archived.config.warm_window;
        let tiered = TieredStore::new(case.store.clone(), Some(archive.clone()), window);
        let reader = Reader { case: case.clone(), tiered };
        background.spawn(async move { reader.read_for_ever().await.unwrap() });
    }
}

struct Reader {
    case: Case,
    tiered: TieredStore,
}

impl Reader {
    async fn read_for_ever(&self) -> Result<(), Error> {
        loop {
            tokio::task::yield_now().await;
            let user = self.case.users[any_below(4) as usize];
            self.scroll_author(user).await?;
            self.scroll_authors().await?;
            let ids: Vec<_> = self.case.model().posts.keys().copied().collect();
            for &id in &ids {
                self.post(id, user).await?;
            }
            if !ids.is_empty() {
                let id = ids[any_below(ids.len() as u64) as usize];
                for list in LISTS {
                    self.scroll_list(list, id).await?;
                }
                self.comments(id).await?;
            }
        }
    }

    async fn post(&self, id: PostId, viewer: UserId) -> Result<(), Error> {
        let (before, was_gone) = (self.case.certain(id), self.case.model().posts[&id].ended);
        let is_here = self.case.store.exist(&[id]).await? == [true];
        let post = self.tiered.post(id, Some(viewer)).await?;
        let liked = self.tiered.liked(viewer, &[id]).await? == [true];
        assert!(!was_gone || post.is_none() && !liked, "{id} was deleted, and is read");
        let Some(certain) = Certain::both(before, self.case.certain(id)) else { return Ok(()) };
        self.case.watch.see(id, is_here);
        self.case.watch.count().archived_read += u64::from(!is_here);
        let post = post.unwrap_or_else(|| panic!("{id} is not found"));
        assert_eq!(post.content, self.case.model().posts[&id].it);
        let at_least = [certain.likers.len(), certain.comments.len(), certain.reposts.len()];
        let counts = [post.counts.likes, post.counts.comments, post.counts.reposts];
        let are_more = counts.iter().zip(at_least).all(|(count, least)| *count >= least as u64);
        assert!(are_more, "{post:?} {certain:?}");
        if certain.likers.contains_key(&viewer) {
            assert!(post.liked && liked, "{viewer} likes {post:?}: {liked} {certain:?}");
        }
        Ok(())
    }

    async fn scroll_author(&self, author: UserId) -> Result<(), Error> {
        let before = self.case.certain_posts(&[author]);
        let here = self.case.store.posts_of(author, None, 100).await?;
        let oldest_here = here.entries.iter().map(|entry| entry.member).filter(|id| *id > 0).min();
        let count = 1 + any_below(4) as usize;
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = self.tiered.posts_of(author, after, count).await?;
            assert!(page.entries.len() <= count);
            assert!(!page.more || !page.entries.is_empty());
            found.extend(page.entries.iter().map(|entry| entry.member));
            after = page.entries.last().copied();
            if !page.more {
                break;
            }
        }
        let is_there = found.last().is_some_and(|id| Some(*id) < oldest_here);
        self.case.watch.count().archived_scrolled += u64::from(is_there);
        self.are_all(&before, &[author], &found).await
    }

    async fn scroll_authors(&self) -> Result<(), Error> {
        let users = self.case.users;
        let before = self.case.certain_posts(&users);
        let count = 1 + any_below(6) as usize;
        let (mut below, mut found) = (None, Vec::new());
        loop {
            let newest = self.tiered.newest_of(&users, below, None, count).await?;
            assert!(newest.ids.len() <= count);
            assert!(below.is_none() || newest.next < below, "{below:?} {newest:?}");
            found.extend(newest.ids.iter().map(|id| id.get()));
            below = newest.next;
            if below.is_none() {
                break;
            }
        }
        self.are_all(&before, &users, &found).await
    }

    // Asserts that a list, read in pages, has every post that existed throughout, and none that was
    // deleted before.
    async fn are_all(
        &self,
        before: &CertainPosts,
        authors: &[UserId],
        found: &[u64],
    ) -> Result<(), Error> {
        assert!(found.is_sorted_by(|a, b| a > b), "{found:?}");
        let after = self.case.certain_posts(authors);
        for id in before.there.intersection(&after.there) {
            assert!(found.contains(&id.get()), "{id} is not listed: {found:?}");
        }
        for id in before.gone.iter().filter(|id| found.contains(&id.get())) {
            // A read during the deletion may find it; a later one must not.
            let newest = self.tiered.newest_of(authors, None, None, 100).await?;
            assert!(!newest.ids.contains(id), "{id} was deleted, and is listed");
        }
        Ok(())
    }

    async fn scroll_list(&self, list: List, id: PostId) -> Result<(), Error> {
        let before = self.case.certain(id);
        let found = self.case.scroll(&self.tiered, list, id, 1 + any_below(3) as usize).await?;
        let Some(certain) = Certain::both(before, self.case.certain(id)) else { return Ok(()) };
        let found = found.unwrap_or_else(|| panic!("{id} is not found"));
        let certain: Vec<u64> = match list {
            List::Likers => certain.likers.keys().map(|user| user.get()).collect(),
            List::Reposts => certain.reposts.iter().map(|id| id.get()).collect(),
            List::Comments(_) => certain.comments.iter().map(|id| id.get()).collect(),
        };
        let are_there = certain.iter().all(|member| found.contains(member));
        assert!(are_there, "{list:?} of {id}: {certain:?}, and not {found:?}");
        match list {
            // An account may like it again.
            List::Likers => {}
            List::Comments(Order::Oldest) => assert!(found.is_sorted_by(|a, b| a < b)),
            List::Comments(Order::Newest) | List::Reposts => {
                assert!(found.is_sorted_by(|a, b| a > b));
            }
        }
        Ok(())
    }

    async fn comments(&self, id: PostId) -> Result<(), Error> {
        let Some(before) = self.case.certain(id) else { return Ok(()) };
        let ids: Vec<_> = before.comments.iter().copied().collect();
        let found = self.tiered.comments(id, &ids).await?;
        let Some(certain) = Certain::both(Some(before), self.case.certain(id)) else {
            return Ok(());
        };
        for comment in certain.comments {
            let expected = &self.case.model().comments[&comment].it;
            assert!(found.contains(expected), "{expected:?} is not found: {found:?}");
        }
        Ok(())
    }
}

/// All lists of a post.
pub(crate) const LISTS: [List; 4] =
    [List::Likers, List::Reposts, List::Comments(Order::Oldest), List::Comments(Order::Newest)];

impl Case {
    /// Returns a list of a post, read in pages of a size; `None` if there is no such post.
    pub(crate) async fn scroll(
        &self,
        tiered: &TieredStore,
        list: List,
        id: PostId,
        count: usize,
    ) -> Result<Option<Vec<u64>>, Error> {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = match patiently(|| tiered.list(list, id, after, count)).await {
                Ok(page) => page,
                Err(Error::PostNotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            assert!(page.entries.len() <= count);
            found.extend(page.entries.iter().map(|entry| entry.member));
            after = page.entries.last().copied().or(after);
            if !page.more {
                return Ok(Some(found));
            }
        }
    }
}
