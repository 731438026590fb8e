//! What a reader has seen of a timeline, as small as a token: by it, a later read knows what is new.
//! Pure.
//!
//! A place in the order of ids would not do: a post may come into a timeline after younger ones, as
//! when its fan-out takes longer than theirs, and who has seen those would never be told of it. So
//! the newest posts seen are remembered one by one.

use microblog_domain::{PostId, Scope, TokenError};

use crate::entry::Entry;

/// How many posts are remembered: how far down something may come late and still be new.
const POSTS_MAX: usize = 40;

/// How many entries with stand-ins are remembered of the pages before: as many as there may be between
/// an entry and what stands in for it.
const NAMED_MAX: usize = 40;

/// What a reader has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Nothing up to here is new.
    floor: u64,
    /// What was seen above it, newest first.
    posts: Vec<PostId>,
}

impl Seen {
    /// Returns whether a post is new.
    pub(crate) fn is_new(&self, post: PostId) -> bool {
        post.get() > self.floor && self.place(post).is_err()
    }

    /// Returns whether anything up to this post may be new.
    pub(crate) fn reaches_below(&self, post: PostId) -> bool {
        self.floor < post.get()
    }

    /// Takes note that a post was seen.
    pub(crate) fn note(&mut self, post: PostId) {
        if let (true, Err(place)) = (post.get() > self.floor, self.place(post)) {
            self.posts.insert(place, post);
        }
        if self.posts.len() > POSTS_MAX {
            self.floor = self.posts.pop().map_or(self.floor, PostId::get);
        }
    }

    /// Takes note that a timeline was seen down to this post, from its beginning.
    pub(crate) fn note_down_to(&mut self, post: PostId) {
        self.floor = self.floor.max(post.get());
        self.posts.retain(|seen| seen.get() > self.floor);
    }

    fn place(&self, post: PostId) -> Result<usize, usize> {
        self.posts.binary_search_by(|seen| post.cmp(seen))
    }

    /// Returns the token that stands for it.
    pub(crate) fn token(&self, scope: Scope) -> String {
        scope.token_of(&self.numbers())
    }

    /// Reads a token; `None` for an empty one.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        scope.read_all(token)?.map(|numbers| Self::from_numbers(&numbers)).transpose()
    }

    fn numbers(&self) -> Vec<u64> {
        std::iter::once(self.floor).chain(self.posts.iter().map(|post| post.get())).collect()
    }

    fn from_numbers(numbers: &[u64]) -> Result<Self, TokenError> {
        let (&floor, posts) = numbers.split_first().ok_or(TokenError::Invalid)?;
        let posts: Option<Vec<_>> = posts.iter().map(|&post| PostId::new(post)).collect();
        let is_one = |posts: &Vec<_>| posts.len() <= POSTS_MAX && posts.is_sorted_by(|a, b| a > b);
        let posts = posts.filter(is_one).ok_or(TokenError::Invalid)?;
        Ok(Self { floor, posts })
    }
}

/// Which posts may not stand in for an entry of a later page of a scroll, since they were shown on a
/// page before, or may have been.
///
/// What must hold: a scroll names each post at most once, as an entry or as a stand-in. The gateway
/// shows one of an entry and its stand-ins, depending on deletions, which this service does not know.
///
/// Pages go down, so an entry is not named on an earlier page. A stand-in is newer than its entry: it
/// may lie above the page, and may have been named there, if follows, blocks or mutes changed in
/// between. A post that was named was an entry or a stand-in of one. In both cases that entry shows
/// the same as the post and is not newer than it. So it is enough to remember these entries; those that
/// are no plain repost and have no stand-ins named nothing that can stand in later.
///
/// The oldest 40 of them are remembered. From the next one on up, everything counts as named: nothing
/// there is left out for an entry of a later page, since at least 40 entries are in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// From here on up, everything counts as named; 0 for nothing.
    from: u64,
    /// Below that, entries that have stand-ins, or may be one, each with what it shows, newest first.
    entries: Vec<(PostId, PostId)>,
}

impl Named {
    /// Takes note of an entry that has stand-ins, or may be one. It is older than those before it.
    pub(crate) fn note(&mut self, entry: &Entry) {
        self.entries.push((entry.post, entry.shows()));
        if self.entries.len() > NAMED_MAX {
            self.from = self.entries.remove(0).0.get();
        }
    }

    /// Returns whether a post may have been named.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        let names =
            |&(post, shows): &(PostId, PostId)| post <= entry.post && shows == entry.shows();
        let is_above = self.from != 0 && entry.post.get() >= self.from;
        is_above || self.entries.iter().any(names)
    }

    /// Returns the numbers that stand for it: none where nothing was named.
    fn numbers(&self) -> Vec<u64> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        let entries = self.entries.iter().flat_map(|(post, shows)| [post.get(), shows.get()]);
        std::iter::once(self.from).chain(entries).collect()
    }

    fn from_numbers(numbers: &[u64]) -> Result<Self, TokenError> {
        let Some((&from, entries)) = numbers.split_first() else { return Ok(Self::default()) };
        let (entries, rest) = entries.as_chunks::<2>();
        let entry = |&[post, shows]: &[u64; 2]| PostId::new(post).zip(PostId::new(shows));
        let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
        let is_one = |entries: &Vec<(PostId, PostId)>| {
            let is_in_order = entries.is_sorted_by(|(a, _), (b, _)| a > b);
            rest.is_empty() && (1..=NAMED_MAX).contains(&entries.len()) && is_in_order
        };
        let entries = entries.filter(is_one).ok_or(TokenError::Invalid)?;
        Ok(Self { from, entries })
    }
}

/// Where the next page of a timeline begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Behind this post, which need not be there any more.
    pub(crate) after: PostId,
    /// What was seen on the pages before.
    pub(crate) seen: Seen,
    /// What was named on the pages before and may not stand in any more.
    pub(crate) named: Named,
}

impl Place {
    /// Returns the token that stands for it.
    pub(crate) fn token(&self, scope: Scope) -> String {
        let mut numbers = vec![self.after.get()];
        numbers.extend(self.seen.numbers());
        let named = self.named.numbers();
        // No post has the id 0, which divides what was seen from what was named.
        if !named.is_empty() {
            numbers.push(0);
            numbers.extend(named);
        }
        scope.token_of(&numbers)
    }

    /// Reads a token; `None` for an empty one.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let Some(numbers) = scope.read_all(token)? else { return Ok(None) };
        let (&after, numbers) = numbers.split_first().ok_or(TokenError::Invalid)?;
        let after = PostId::new(after).ok_or(TokenError::Invalid)?;
        // Of what was seen, the first may be 0.
        let divider = numbers.iter().skip(1).position(|&number| number == 0).map(|place| place + 1);
        let (seen, named) = match divider {
            Some(divider) => (&numbers[..divider], Named::from_numbers(&numbers[divider + 1..])?),
            None => (numbers, Named::default()),
        };
        Ok(Some(Self { after, seen: Seen::from_numbers(seen)?, named }))
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
    fn what_comes_late_is_new() {
        let mut seen = Seen::default();
        for post in [10, 30, 20] {
            seen.note(id(post));
        }
        assert!(seen.is_new(id(25)) && seen.is_new(id(5)));
        seen.note_down_to(id(10));
        let new: Vec<_> = (1..40).filter(|&post| seen.is_new(id(post))).collect();
        let expected = (11..40).filter(|post| ![20, 30].contains(post));
        assert!(new.into_iter().eq(expected));
    }

    #[test]
    fn what_does_not_fit_makes_all_below_it_old() {
        let mut seen = Seen::default();
        for post in 1..=POSTS_MAX as u64 + 2 {
            seen.note(id(2 * post));
        }
        assert!(!seen.is_new(id(3)) && seen.is_new(id(5)) && !seen.is_new(id(6)));
    }

    proptest! {
        #[test]
        fn nothing_that_was_noted_is_new(posts in proptest::collection::vec(1u64..1000, 0..100)) {
            let mut seen = Seen::default();
            for &post in &posts {
                seen.note(id(post));
            }
            prop_assert!(posts.iter().all(|&post| !seen.is_new(id(post))));
            prop_assert!(seen.posts.is_sorted_by(|a, b| a > b));
            prop_assert_eq!(Seen::from_token(scope(), &seen.token(scope())), Ok(Some(seen.clone())));
            let place = Place { after: id(7), seen, named: Named::default() };
            prop_assert_eq!(Place::from_token(scope(), &place.token(scope())), Ok(Some(place)));
        }
    }

    fn repost(post: u64, root: u64) -> Entry {
        let author = UserId::new(4).unwrap();
        Entry { post: id(post), author, root: PostId::new(root), has_text: false }
    }

    proptest! {
        #[test]
        fn nothing_that_was_named_may_be_named_again(
            posts in proptest::collection::btree_map(2u64..1_000, 1u64..50, 0..100),
            seen in proptest::collection::vec(1u64..1_000, 0..3),
        ) {
            let (mut named, mut told) = (Named::default(), Seen::default());
            let entries: Vec<_> = posts.iter().rev().map(|(&post, &root)| repost(post, root)).collect();
            entries.iter().for_each(|entry| named.note(entry));
            seen.iter().for_each(|&post| told.note(id(post)));
            for entry in &entries {
                prop_assert!(named.has(entry));
                prop_assert!(named.has(&repost(entry.post.get() + 1, entry.shows().get())));
            }
            // What is older than all of one root may stand in for it, as what shows something else.
            for entry in entries.iter().rev().take(NAMED_MAX) {
                let older = repost(entry.post.get() - 1, entry.shows().get());
                let oldest = entries.iter().rev().find(|other| other.shows() == entry.shows());
                prop_assert_eq!(named.has(&older), oldest.is_some_and(|oldest| oldest != entry));
                prop_assert!(!named.has(&repost(entry.post.get(), 1_000)));
            }
            let place = Place { after: id(7), seen: told, named };
            prop_assert_eq!(Place::from_token(scope(), &place.token(scope())), Ok(Some(place)));
        }
    }

    #[test]
    fn other_tokens_are_refused() {
        assert_eq!(Seen::from_token(scope(), ""), Ok(None));
        assert_eq!(Seen::from_token(scope(), &scope().token_of(&[])), Err(TokenError::Invalid));
        assert_eq!(Seen::from_token(scope(), &scope().token([1, 0])), Err(TokenError::Invalid));
        assert_eq!(Seen::from_token(scope(), &scope().token([1, 5, 6])), Err(TokenError::Invalid));
        let long: Vec<_> = (0..=POSTS_MAX as u64 + 1).map(|n| 1_000 - n).collect();
        assert_eq!(Seen::from_token(scope(), &scope().token_of(&long)), Err(TokenError::Invalid));
        assert_eq!(Place::from_token(scope(), &scope().token([7])), Err(TokenError::Invalid));
        assert_eq!(Place::from_token(scope(), &scope().token([0, 7])), Err(TokenError::Invalid));
        let place = |numbers: &[u64]| Place::from_token(scope(), &scope().token_of(numbers));
        assert!(place(&[7, 0, 9, 0, 0, 8, 2]).is_ok_and(|place| place.is_some()));
        for numbers in [
            &[7, 0, 9, 0, 0][..],
            &[7, 0, 9, 0, 0, 8],
            &[7, 0, 9, 0, 0, 8, 0],
            &[7, 0, 9, 0, 0, 8, 2, 9, 2],
        ] {
            assert_eq!(place(numbers), Err(TokenError::Invalid), "{numbers:?}");
        }
        let many = (0..=NAMED_MAX as u64).flat_map(|n| [1_000 - n, 1]);
        let many: Vec<_> = [7, 0, 0, 0].into_iter().chain(many).collect();
        assert_eq!(place(&many), Err(TokenError::Invalid));
        assert!(place(&many[..many.len() - 2]).is_ok());
    }
}
