//! What is certain at a moment: acknowledged writes whose deletion has not begun.

use std::collections::{BTreeMap, BTreeSet};

use microblog_domain::{CommentId, PostId, UserId};

use crate::case::Case;

/// What is certain about a post.
#[derive(Clone, Debug)]
pub(crate) struct Certain {
    pub(crate) likers: BTreeMap<UserId, u64>,
    pub(crate) comments: BTreeSet<CommentId>,
    pub(crate) reposts: BTreeSet<PostId>,
}

/// What is certain about lists of posts.
pub(crate) struct CertainPosts {
    pub(crate) there: BTreeSet<PostId>,
    pub(crate) gone: BTreeSet<PostId>,
}

impl Certain {
    /// Returns what was certain throughout the time between two moments.
    pub(crate) fn both(before: Option<Self>, after: Option<Self>) -> Option<Self> {
        let (mut before, after) = before.zip(after)?;
        // A like that was removed and added again has another stamp.
        before.likers.retain(|user, since| after.likers.get(user) == Some(since));
        before.comments.retain(|id| after.comments.contains(id));
        before.reposts.retain(|id| after.reposts.contains(id));
        Some(before)
    }
}

impl Case {
    /// Returns what is certain about a post; `None` if its deletion may have begun.
    pub(crate) fn certain(&self, id: PostId) -> Option<Certain> {
        let model = self.model();
        if model.posts.get(&id).is_none_or(|made| made.ends) {
            return None;
        }
        let likes = model.likes.iter().filter(|((of, _), _)| *of == id);
        let likers = likes.map(|((_, user), since)| (*user, *since)).collect();
        let comments = model.comments.iter();
        let comments = comments.filter(|(_, made)| made.it.post == id && !made.ends);
        let comments = comments.map(|(comment, _)| *comment).collect();
        let reposts = model.listed.iter().filter(|(_, target)| *target == id);
        let reposts = reposts.filter(|(repost, _)| !model.posts[repost].ends);
        let reposts = reposts.map(|(repost, _)| *repost).collect();
        Some(Certain { likers, comments, reposts })
    }

    /// Returns what is certain about the posts of some authors.
    pub(crate) fn certain_posts(&self, authors: &[UserId]) -> CertainPosts {
        let model = self.model();
        let own = model.posts.iter().filter(|(_, made)| authors.contains(&made.it.author));
        let own: Vec<_> = own.map(|(id, made)| (*id, made.ends, made.ended)).collect();
        let there = own.iter().filter(|(_, ends, _)| !ends).map(|(id, ..)| *id).collect();
        let gone = own.iter().filter(|(.., ended)| *ended).map(|(id, ..)| *id).collect();
        CertainPosts { there, gone }
    }
}
