//! Page cursors and seen sets of a timeline, encoded as `page_token` and `since_token`. Pure.
//!
//! A position in the order of ids is not enough for `since_token`. A post may enter a timeline
//! after newer posts if its fan-out is slower, and would never count as new. So the token lists the
//! newest seen posts one by one.

use microblog_domain::{PostId, Scope, TokenError};

use crate::entry::Entry;

/// The most posts that a seen set lists. A post that enters later than this many newer ones is not
/// new.
const SEEN_MAX: usize = 40;

/// The most entries of earlier pages that a cursor lists. Equals the window in which reposts are
/// suppressed.
const RETURNED_MAX: usize = 40;

/// The set of posts that a reader has seen of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenPosts {
    /// Posts up to this id are not new.
    floor: u64,
    /// Seen posts above the floor, newest first.
    posts: Vec<PostId>,
}

impl SeenPosts {
    /// Returns whether the reader has not seen a post.
    pub(crate) fn is_new(&self, post: PostId) -> bool {
        post.get() > self.floor && self.place(post).is_err()
    }

    /// Returns whether some post up to this one may be new.
    pub(crate) fn reaches_below(&self, post: PostId) -> bool {
        self.floor < post.get()
    }

    /// Adds a post. If the set is full, its oldest post becomes the floor.
    pub(crate) fn insert(&mut self, post: PostId) {
        if let (true, Err(place)) = (post.get() > self.floor, self.place(post)) {
            self.posts.insert(place, post);
        }
        if self.posts.len() > SEEN_MAX {
            self.floor = self.posts.pop().map_or(self.floor, PostId::get);
        }
    }

    /// Adds all posts from the newest down to this one.
    pub(crate) fn insert_down_to(&mut self, post: PostId) {
        self.floor = self.floor.max(post.get());
        self.posts.retain(|seen| seen.get() > self.floor);
    }

    fn place(&self, post: PostId) -> Result<usize, usize> {
        self.posts.binary_search_by(|seen| post.cmp(seen))
    }

    /// Encodes the set as a token.
    pub(crate) fn token(&self, scope: Scope) -> String {
        scope.token_of(&self.numbers())
    }

    /// Decodes a token. Returns `None` for an empty one.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        scope.read_all(token)?.map(|numbers| Self::from_numbers(&numbers)).transpose()
    }

    fn numbers(&self) -> Vec<u64> {
        std::iter::once(self.floor).chain(self.posts.iter().map(|post| post.get())).collect()
    }

    fn from_numbers(numbers: &[u64]) -> Result<Self, TokenError> {
        let (&floor, posts) = numbers.split_first().ok_or(TokenError::Invalid)?;
        let posts: Option<Vec<_>> = posts.iter().map(|&post| PostId::new(post)).collect();
        let is_one = |posts: &Vec<_>| posts.len() <= SEEN_MAX && posts.is_sorted_by(|a, b| a > b);
        let posts = posts.filter(is_one).ok_or(TokenError::Invalid)?;
        Ok(Self { floor, posts })
    }
}

/// The entries that earlier pages of a scroll have returned. They decide which suppressed reposts a
/// later page must not list.
///
/// Invariant: a scroll returns each post at most once, as an entry or as a suppressed repost
/// (`stand_in_ids`). The gateway shows an entry or, if it is deleted, one of its suppressed
/// reposts. This service does not store deletions.
///
/// Pages go down, so an entry is not returned by an earlier page. A suppressed repost is newer than
/// its entry. It may be above the page, and an earlier page may have returned it if follows, blocks
/// or mutes changed in between. A returned post was an entry or a suppressed repost of one. In both
/// cases that entry displays the same post and is not newer. So it is enough to store these
/// entries. Entries that are not plain reposts and have no suppressed reposts need not be stored.
///
/// The oldest 40 such entries are stored. All posts from the next newer one up count as returned.
/// None of those is suppressed by an entry of a later page, since at least 40 entries are in
/// between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReturnedEntries {
    /// Posts from this id up count as returned; 0 if none do.
    from: u64,
    /// Stored entries with the post that each displays, newest first.
    entries: Vec<(PostId, PostId)>,
}

impl ReturnedEntries {
    /// Adds an entry that is a plain repost or has suppressed reposts. It must be older than the
    /// entries before.
    pub(crate) fn insert(&mut self, entry: &Entry) {
        self.entries.push((entry.post, entry.displayed_post()));
        if self.entries.len() > RETURNED_MAX {
            self.from = self.entries.remove(0).0.get();
        }
    }

    /// Returns whether an earlier page may have returned a post.
    pub(crate) fn contains(&self, entry: &Entry) -> bool {
        let names = |&(post, displayed): &(PostId, PostId)| {
            post <= entry.post && displayed == entry.displayed_post()
        };
        let is_above = self.from != 0 && entry.post.get() >= self.from;
        is_above || self.entries.iter().any(names)
    }

    /// Encodes the set; empty if nothing was returned.
    fn numbers(&self) -> Vec<u64> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        let entries =
            self.entries.iter().flat_map(|(post, displayed)| [post.get(), displayed.get()]);
        std::iter::once(self.from).chain(entries).collect()
    }

    fn from_numbers(numbers: &[u64]) -> Result<Self, TokenError> {
        let Some((&from, entries)) = numbers.split_first() else { return Ok(Self::default()) };
        let (entries, rest) = entries.as_chunks::<2>();
        let entry = |&[post, displayed]: &[u64; 2]| PostId::new(post).zip(PostId::new(displayed));
        let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
        let is_one = |entries: &Vec<(PostId, PostId)>| {
            let is_in_order = entries.is_sorted_by(|(a, _), (b, _)| a > b);
            rest.is_empty() && (1..=RETURNED_MAX).contains(&entries.len()) && is_in_order
        };
        let entries = entries.filter(is_one).ok_or(TokenError::Invalid)?;
        Ok(Self { from, entries })
    }
}

/// The cursor of a scroll: the position of the next page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageCursor {
    /// The next page starts below this post, which need not exist any more.
    pub(crate) after: PostId,
    /// Posts seen on earlier pages.
    pub(crate) seen: SeenPosts,
    /// Entries returned on earlier pages, whose reposts must not be listed again.
    pub(crate) returned: ReturnedEntries,
}

impl PageCursor {
    /// Encodes the cursor as a token.
    pub(crate) fn token(&self, scope: Scope) -> String {
        let mut numbers = vec![self.after.get()];
        numbers.extend(self.seen.numbers());
        let returned = self.returned.numbers();
        // No post has the id 0: it separates the two sets.
        if !returned.is_empty() {
            numbers.push(0);
            numbers.extend(returned);
        }
        scope.token_of(&numbers)
    }

    /// Decodes a token. Returns `None` for an empty one.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let Some(numbers) = scope.read_all(token)? else { return Ok(None) };
        let (&after, numbers) = numbers.split_first().ok_or(TokenError::Invalid)?;
        let after = PostId::new(after).ok_or(TokenError::Invalid)?;
        // The first number is the floor of the seen set, which may be 0.
        let divider = numbers.iter().skip(1).position(|&number| number == 0).map(|place| place + 1);
        let (seen, returned) = match divider {
            Some(divider) => {
                (&numbers[..divider], ReturnedEntries::from_numbers(&numbers[divider + 1..])?)
            }
            None => (numbers, ReturnedEntries::default()),
        };
        Ok(Some(Self { after, seen: SeenPosts::from_numbers(seen)?, returned }))
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::UserId;
    use proptest::prelude::*;

    use super::*;

    fn id(number: u64) -> PostId {
        PostId::new(number).unwrap()
    }

    fn scope() -> Scope {
        Scope::new("test")
    }

    #[test]
    fn late_posts_are_new() {
        let mut seen = SeenPosts::default();
        for post in [10, 30, 20] {
            seen.insert(id(post));
        }
        assert!(seen.is_new(id(25)) && seen.is_new(id(5)));
        seen.insert_down_to(id(10));
        let new: Vec<_> = (1..40).filter(|&post| seen.is_new(id(post))).collect();
        let expected = (11..40).filter(|post| ![20, 30].contains(post));
        assert!(new.into_iter().eq(expected));
    }

    #[test]
    fn the_oldest_post_beyond_the_limit_becomes_the_floor() {
        let mut seen = SeenPosts::default();
        for post in 1..=SEEN_MAX as u64 + 2 {
            seen.insert(id(2 * post));
        }
        assert!(!seen.is_new(id(3)) && seen.is_new(id(5)) && !seen.is_new(id(6)));
    }

    proptest! {
        #[test]
        fn inserted_posts_are_not_new(posts in proptest::collection::vec(1u64..1000, 0..100)) {
            let mut seen = SeenPosts::default();
            for &post in &posts {
                seen.insert(id(post));
            }
            prop_assert!(posts.iter().all(|&post| !seen.is_new(id(post))));
            prop_assert!(seen.posts.is_sorted_by(|a, b| a > b));
            prop_assert_eq!(SeenPosts::from_token(scope(), &seen.token(scope())), Ok(Some(seen.clone())));
            let place = PageCursor { after: id(7), seen, returned: ReturnedEntries::default() };
            prop_assert_eq!(PageCursor::from_token(scope(), &place.token(scope())), Ok(Some(place)));
        }
    }

    fn repost(post: u64, root: u64) -> Entry {
        let author = UserId::new(4).unwrap();
        Entry { post: id(post), author, root: PostId::new(root), has_text: false }
    }

    proptest! {
        #[test]
        fn returned_entries_are_not_returned_again(
            posts in proptest::collection::btree_map(2u64..1_000, 1u64..50, 0..100),
            seen in proptest::collection::vec(1u64..1_000, 0..3),
        ) {
            let (mut returned, mut seen_posts) = (ReturnedEntries::default(), SeenPosts::default());
            let entries: Vec<_> = posts.iter().rev().map(|(&post, &root)| repost(post, root)).collect();
            entries.iter().for_each(|entry| returned.insert(entry));
            seen.iter().for_each(|&post| seen_posts.insert(id(post)));
            for entry in &entries {
                prop_assert!(returned.contains(entry));
                prop_assert!(returned.contains(&repost(entry.post.get() + 1, entry.displayed_post().get())));
            }
            // An older repost of the same root, and any repost of another root, may still be
            // listed.
            for entry in entries.iter().rev().take(RETURNED_MAX) {
                let older = repost(entry.post.get() - 1, entry.displayed_post().get());
                let oldest = entries.iter().rev().find(|other| other.displayed_post() == entry.displayed_post());
                prop_assert_eq!(returned.contains(&older), oldest.is_some_and(|oldest| oldest != entry));
                prop_assert!(!returned.contains(&repost(entry.post.get(), 1_000)));
            }
            let place = PageCursor { after: id(7), seen: seen_posts, returned };
            prop_assert_eq!(PageCursor::from_token(scope(), &place.token(scope())), Ok(Some(place)));
        }
    }

    #[test]
    fn malformed_tokens_are_rejected() {
        assert_eq!(SeenPosts::from_token(scope(), ""), Ok(None));
        assert_eq!(
            SeenPosts::from_token(scope(), &scope().token_of(&[])),
            Err(TokenError::Invalid)
        );
        assert_eq!(
            SeenPosts::from_token(scope(), &scope().token([1, 0])),
            Err(TokenError::Invalid)
        );
        assert_eq!(
            SeenPosts::from_token(scope(), &scope().token([1, 5, 6])),
            Err(TokenError::Invalid)
        );
        let long: Vec<_> = (0..=SEEN_MAX as u64 + 1).map(|n| 1_000 - n).collect();
        assert_eq!(
            SeenPosts::from_token(scope(), &scope().token_of(&long)),
            Err(TokenError::Invalid)
        );
        assert_eq!(PageCursor::from_token(scope(), &scope().token([7])), Err(TokenError::Invalid));
        assert_eq!(
            PageCursor::from_token(scope(), &scope().token([0, 7])),
            Err(TokenError::Invalid)
        );
        let place = |numbers: &[u64]| PageCursor::from_token(scope(), &scope().token_of(numbers));
        assert!(place(&[7, 0, 9, 0, 0, 8, 2]).is_ok_and(|place| place.is_some()));
        for numbers in [
            &[7, 0, 9, 0, 0][..],
            &[7, 0, 9, 0, 0, 8],
            &[7, 0, 9, 0, 0, 8, 0],
            &[7, 0, 9, 0, 0, 8, 2, 9, 2],
        ] {
            assert_eq!(place(numbers), Err(TokenError::Invalid), "{numbers:?}");
        }
        let many = (0..=RETURNED_MAX as u64).flat_map(|n| [1_000 - n, 1]);
        let many: Vec<_> = [7, 0, 0, 0].into_iter().chain(many).collect();
        assert_eq!(place(&many), Err(TokenError::Invalid));
        assert!(place(&many[..many.len() - 2]).is_ok());
    }

    #[test]
    fn fuzz_cursors() {
        let scope = Scope::new("GetHomeTimeline").with(4);
        bolero::check!().with_type::<Vec<u64>>().for_each(|numbers| {
            if let Ok(seen) = SeenPosts::from_numbers(numbers) {
                let token = seen.token(scope);
                assert_eq!(SeenPosts::from_token(scope, &token), Ok(Some(seen)));
            }
            if let Ok(Some(cursor)) = PageCursor::from_token(scope, &scope.token_of(numbers)) {
                let token = cursor.token(scope);
                assert_eq!(PageCursor::from_token(scope, &token), Ok(Some(cursor)));
            }
        });
    }
}
