//! What a reader has seen of a timeline, as small as a token: by it, a later read knows what is new.
//! Pure.
//!
//! A place in the order of ids would not do: a post may come into a timeline after younger ones, as
//! when its fan-out takes longer than theirs, and who has seen those would never be told of it. So
//! the newest posts seen are remembered one by one.

use microblog_domain::{PostId, Scope, TokenError};

/// How many posts are remembered: how far down something may come late and still be new.
const POSTS_MAX: usize = 40;

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

/// Where the next page of a timeline begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Behind this post, which need not be there any more.
    pub(crate) after: PostId,
    /// What was seen on the pages before.
    pub(crate) seen: Seen,
}

impl Place {
    /// Returns the token that stands for it.
    pub(crate) fn token(&self, scope: Scope) -> String {
        let numbers: Vec<_> =
            std::iter::once(self.after.get()).chain(self.seen.numbers()).collect();
        scope.token_of(&numbers)
    }

    /// Reads a token; `None` for an empty one.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let Some(numbers) = scope.read_all(token)? else { return Ok(None) };
        let (&after, seen) = numbers.split_first().ok_or(TokenError::Invalid)?;
        let after = PostId::new(after).ok_or(TokenError::Invalid)?;
        Ok(Some(Self { after, seen: Seen::from_numbers(seen)? }))
    }
}

#[cfg(test)]
mod tests {
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
            let place = Place { after: id(7), seen };
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
    }
}
