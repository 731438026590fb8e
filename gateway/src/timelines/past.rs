//! How a view goes on behind the end of what the timeline service holds, back to the first post: with
//! older posts of the same authors, and tokens of the gateway's own.

use microblog_domain::Scope;
use tonic::Status;

use super::fill::{Filling, SLICE_MAX};
use crate::{
    people::Visit,
    rpc::Gateway,
    skeleton::{Timeline, Whose},
};

/// How often older posts are asked for at most for a page: more than it takes to fill one of long
/// texts up to the bytes of an answer. Of what is there, hardly anything is left out.
const ROUNDS_MAX: usize = 8;

/// A place in the past of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Past {
    /// Behind this post.
    pub(super) before_id: u64,
    /// What the viewer has seen of the timeline on the way here, to ask what is new.
    pub(super) since_token: String,
}

impl Past {
    /// Returns the token that stands for it.
    pub(super) fn token(&self, scope: Scope) -> String {
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte));
        let words = self.since_token.as_bytes().chunks(8).map(word);
        scope.token_of(&std::iter::once(self.before_id).chain(words).collect::<Vec<_>>())
    }

    /// Reads a token; `None` for what is none of these. That may be one of the timeline service's:
    /// it refuses what is not.
    pub(super) fn from_token(scope: Scope, token: &str) -> Option<Self> {
        let numbers = scope.read_all(token).ok().flatten()?;
        let (&before_id, words) = numbers.split_first()?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Some(Self { before_id, since_token: String::from_utf8(bytes).ok()? })
    }
}

/// Returns the scope of tokens of a timeline's past. What is new has none: a token of the past with a
/// since token is one of another timeline.
pub(super) fn scope(timeline: &Timeline) -> Scope {
    let (view, user) = match timeline.whose {
        Whose::Home(user) => ("ViewHome", user),
        Whose::Friends(user) => ("ViewFriends", user),
        Whose::User(user) => ("ViewUserTimeline", user),
    };
    Scope::new(view).with(user.get()).with_text(&timeline.since_token)
}

impl Gateway {
    /// Fills a page up with older posts than one, until it is full or there are none, and notes
    /// behind which to go on; 0 for none. The calls of [`Timeline::authors`], then, up to 8 times,
    /// those of [`Gateway::older_posts`] and for every 50 posts those of [`Gateway::scene`].
    pub(super) async fn fill_past(
        &self,
        timeline: &Timeline,
        visit: Visit<'_>,
        before_id: &mut u64,
        filling: &mut Filling,
    ) -> Result<(), Status> {
        let authors = timeline.authors(self).await?;
        let mut size = filling.missing();
        for _ in 0..ROUNDS_MAX {
            let era = self.older_posts(&authors, *before_id, size).await?;
            let mut posts = era.posts;
            // Once also where there are none: whether a host keeps the viewer out.
            loop {
                let rest = posts.split_off(posts.len().min(SLICE_MAX));
                let ids: Vec<u64> = posts.iter().map(|post| post.id).collect();
                let mut found = self.hydrate_past(visit, posts).await?;
                let fitting = filling.fitting(&found);
                found.truncate(fitting);
                size = filling.take(found);
                *before_id = ids[..fitting].last().copied().unwrap_or(*before_id);
                if fitting < ids.len() || (filling.is_full() && !rest.is_empty()) {
                    return Ok(());
                }
                if rest.is_empty() {
                    break;
                }
                posts = rest;
            }
            *before_id = era.before_id;
            if *before_id == 0 || filling.is_full() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::UserId;

    use super::*;

    fn timeline(whose: fn(UserId) -> Whose, user: u64, since_token: &str) -> Timeline {
        let since_token = since_token.to_owned();
        Timeline { whose: whose(UserId::new(user).unwrap()), since_token }
    }

    #[test]
    fn a_token_keeps_its_place_for_its_timeline_alone() {
        let scope_of = |whose, user, since| scope(&timeline(whose, user, since));
        let home = scope_of(Whose::Home, 1, "");
        for since in ["", "a", "abcdefgh", "abcdefghi-_"] {
            let past = Past { before_id: 7, since_token: since.to_owned() };
            let token = past.token(home);
            assert_eq!(Past::from_token(home, &token), Some(past));
            for other in [
                scope_of(Whose::Home, 2, ""),
                scope_of(Whose::User, 1, ""),
                scope_of(Whose::Friends, 1, ""),
                scope_of(Whose::Home, 1, "since"),
            ] {
                assert_eq!(Past::from_token(other, &token), None);
            }
        }
        assert_eq!(Past::from_token(home, ""), None);
        assert_eq!(Past::from_token(home, "?"), None);
    }
}
