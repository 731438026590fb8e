//! Hydration of notices: their accounts, posts and comments, and which notices the viewer sees.
//!
//! A notice is hidden if nothing of it is left to show: no account of its newest 20 acts is visible, or its
//! post or comment is not. An account is not visible if it is deleted, blocked in either direction or muted,
//! or if the notice is about follows and it does not follow the viewer any more; a post or a comment, if it
//! is deleted or its author is not visible. Only acts of visible accounts make a notice unread.

use microblog_domain::{BATCH_MAX, IdMap, IdSet, UserId};
use microblog_proto::{
    gateway::{ListedUser, ViewedNotice},
    notice::{Act, Notice, NoticeKind},
    post::{self, Comment, CommentKey, Post},
};
use tonic::Status;

use super::{
    accounts::{HydratedAccounts, hydrate_authors},
    mentions::mentioned_names,
    posts::{ENTRY_BYTES_MAX, HydratedPosts, TEXT_BYTES_MAX, get_all_posts},
};
use crate::{
    context::ViewContext,
    errors,
    paging::{PAGE_BYTES_MAX, PROFILE_BYTES_MAX},
    state::Gateway,
};

/// How many accounts of a notice are shown.
const ACTORS_SHOWN: usize = 3;

/// How many accounts the notice service returns with a notice.
const ACTORS_MAX: usize = 20;

/// The authors of a notice: of its post, the root of that, and its comment.
const AUTHORS_MAX: usize = 3;

/// The largest notice as it is shown: a post with its root, a comment and accounts.
pub(crate) const NOTICE_BYTES_MAX: usize =
    ENTRY_BYTES_MAX + TEXT_BYTES_MAX + ACTORS_SHOWN * PROFILE_BYTES_MAX;

/// How many of the largest notices fit into one message.
pub(crate) const NOTICES_PER_MESSAGE: usize = 7;
const _: () = assert!(NOTICES_PER_MESSAGE * NOTICE_BYTES_MAX < PAGE_BYTES_MAX);

/// How many notices [`viewed_notices`] takes at most: their accounts, and a service caller's viewer, fit
/// into one call.
pub(crate) const NOTICES_PER_BATCH: usize = 20;
const _: () = assert!(NOTICES_PER_BATCH * (ACTORS_MAX + AUTHORS_MAX) < BATCH_MAX);

/// How many notices [`are_unread`] takes at most: their posts are in memory at once.
pub(crate) const NOTICES_PER_COUNT: usize = 50;
const _: () = assert!(NOTICES_PER_COUNT * (ACTORS_SHOWN + AUTHORS_MAX) < BATCH_MAX);

/// Returns up to [`NOTICES_PER_BATCH`] notices as the viewer sees them, in order; `None` for a hidden one.
///
/// The calls of [`Texts::read`], then user.BatchGetUsers ∥ relation.BatchGetRelations. None without
/// notices.
pub(crate) async fn viewed_notices(
    gateway: &Gateway,
    context: ViewContext<'_>,
    notices: &[Notice],
) -> Result<Vec<Option<ViewedNotice>>, Status> {
    let texts = Texts::read(gateway, context.viewer, notices).await?;
    let (ids, names) = (texts.account_ids(notices, ACTORS_MAX), texts.names());
    let authors = hydrate_authors(gateway, context, ids, names).await?;
    let hydrated = HydratedNotices { posts: HydratedPosts { authors }, texts };
    Ok(notices.iter().map(|notice| hydrated.view(notice)).collect())
}

/// Returns of up to [`NOTICES_PER_COUNT`] notices whether [`viewed_notices`] shows them as unread.
///
/// The calls of [`viewed_notices`], but without names, and with the newest accounts of a notice only. The
/// last two once more for every 20 notices of whose newest accounts none is visible.
pub(crate) async fn are_unread(
    gateway: &Gateway,
    context: ViewContext<'_>,
    notices: &[Notice],
) -> Result<Vec<bool>, Status> {
    let texts = Texts::read(gateway, context.viewer, notices).await?;
    let ids = texts.account_ids(notices, ACTORS_SHOWN);
    let authors = hydrate_authors(gateway, context, ids, Vec::new()).await?;
    let hydrated = HydratedNotices { posts: HydratedPosts { authors }, texts };
    // The newest acts are the new ones.
    let mut unread: Vec<bool> = notices.iter().map(|notice| hydrated.is_unread(notice)).collect();
    let has_more =
        |notice: &Notice| new_acts(notice).count() > ACTORS_SHOWN && hydrated.shows_texts(notice);
    let open: Vec<usize> =
        (0..notices.len()).filter(|&i| !unread[i] && has_more(&notices[i])).collect();
    for open in open.chunks(NOTICES_PER_BATCH) {
        let ids = open.iter().flat_map(|&i| new_acts(&notices[i])).map(|act| act.actor_id);
        let actors = hydrate_authors(gateway, context, ids.collect(), Vec::new()).await?;
        for &i in open {
            unread[i] = new_acts(&notices[i]).any(|act| is_visible(&actors, &notices[i], act));
        }
    }
    Ok(unread)
}

/// Returns whether the viewer sees an act of a notice.
fn is_visible(accounts: &HydratedAccounts, notice: &Notice, act: &Act) -> bool {
    let is_follow = matches!(notice.kind(), NoticeKind::Follow | NoticeKind::Mutual);
    accounts.is_visible(act.actor_id) && (!is_follow || accounts.follows_viewer(act.actor_id))
}

/// Returns the acts of a notice that are not marked as seen.
fn new_acts(notice: &Notice) -> impl Iterator<Item = &Act> {
    notice.acts.iter().filter(|act| act.is_new)
}

/// The posts and comments of notices.
#[derive(Default)]
struct Texts {
    posts: IdMap<u64, Post>,
    /// By their posts and ids: comments on different posts may have the same id.
    comments: IdMap<(u64, u64), Comment>,
}

impl Texts {
    /// Returns the posts and comments that exist, each once. All at once: post.BatchGetPosts for every 25 posts, post.BatchGetComments; again
    /// for what does not fit.
    async fn read(
        gateway: &Gateway,
        viewer: Option<UserId>,
        notices: &[Notice],
    ) -> Result<Self, Status> {
        let mut seen = IdSet::default();
        let post_ids = notices.iter().map(|notice| notice.post_id).filter(|id| *id != 0);
        let post_ids: Vec<u64> = post_ids.filter(|id| seen.insert(*id)).collect();
        let key = |&Notice { post_id, comment_id, .. }: &Notice| CommentKey { post_id, comment_id };
        let comments = notices.iter().map(key).filter(|key| key.comment_id != 0).collect();
        let (posts, comments) = tokio::try_join!(
            get_all_posts(gateway, viewer, &post_ids),
            get_available_comments(gateway, comments),
        )?;
        Ok(Self { posts: posts.into_iter().map(|post| (post.id, post)).collect(), comments })
    }

    /// Returns the accounts that decide whether the viewer sees notices: authors, and the first `max` behind
    /// each notice.
    fn account_ids(&self, notices: &[Notice], max: usize) -> Vec<u64> {
        let acts = notices.iter().flat_map(|notice| notice.acts.iter().take(max));
        let actors = acts.map(|act| act.actor_id);
        let posts = self.posts.values();
        let authors = posts.flat_map(|post| [Some(post), post.root.as_deref()]).flatten();
        let authors = authors.map(|post| post.author_id);
        let commenters = self.comments.values().map(|comment| comment.author_id);
        actors.chain(authors).chain(commenters).collect()
    }

    /// Returns the comment of a notice.
    fn comment(&self, notice: &Notice) -> Option<&Comment> {
        self.comments.get(&(notice.post_id, notice.comment_id))
    }

    /// Returns the names that the texts mention.
    fn names(&self) -> Vec<String> {
        let posts = self.posts.values();
        let posts = posts.flat_map(|post| [Some(post), post.root.as_deref()]).flatten();
        let comments = self.comments.values().map(|comment| &comment.entities[..]);
        mentioned_names(posts.map(|post| &post.entities[..]).chain(comments))
    }
}

/// Returns the comments that can be read, by id. post.BatchGetComments once, and again for those that do
/// not fit; none without comments.
async fn get_available_comments(
    gateway: &Gateway,
    mut comments: Vec<CommentKey>,
) -> Result<IdMap<(u64, u64), Comment>, Status> {
    let mut found = IdMap::default();
    while !comments.is_empty() {
        let request = post::BatchGetCommentsRequest { comments, allow_partial: true };
        let response = gateway.peers.post().batch_get_comments(request).await;
        let response = errors::reply(response, &[])?;
        let key = |comment: &Comment| (comment.post_id, comment.id);
        found.extend(response.comments.into_iter().map(|comment| (key(&comment), comment)));
        comments = response.remaining;
    }
    Ok(found)
}

/// Hydration state of notices.
struct HydratedNotices {
    posts: HydratedPosts,
    texts: Texts,
}

impl HydratedNotices {
    fn accounts(&self) -> &HydratedAccounts {
        &self.posts.authors
    }

    /// Returns whether the viewer sees a notice.
    fn shows(&self, notice: &Notice) -> bool {
        self.visible_acts(notice).next().is_some() && self.shows_texts(notice)
    }

    /// Returns whether the viewer sees a notice, and a new act of it.
    fn is_unread(&self, notice: &Notice) -> bool {
        self.visible_acts(notice).any(|act| act.is_new) && self.shows_texts(notice)
    }

    /// Returns whether the viewer sees the post and the comment of a notice, if it has them.
    fn shows_texts(&self, notice: &Notice) -> bool {
        let is_shown = |id: u64, author_id: Option<u64>| {
            id == 0 || author_id.is_some_and(|author_id| self.accounts().is_visible(author_id))
        };
        let post = self.texts.posts.get(&notice.post_id).map(|post| post.author_id);
        let comment = self.texts.comment(notice).map(|comment| comment.author_id);
        is_shown(notice.post_id, post) && is_shown(notice.comment_id, comment)
    }

    /// Returns the acts of a notice by accounts that the viewer sees, newest first.
    fn visible_acts<'a>(&'a self, notice: &'a Notice) -> impl Iterator<Item = &'a Act> {
        notice.acts.iter().filter(|act| is_visible(self.accounts(), notice, act))
    }

    /// Returns a notice as the viewer sees it; `None` if it is hidden.
    fn view(&self, notice: &Notice) -> Option<ViewedNotice> {
        if !self.shows(notice) {
            return None;
        }
        let post = self.texts.posts.get(&notice.post_id).cloned();
        let comment = self.texts.comment(notice).cloned();
        Some(ViewedNotice {
            kind: notice.kind,
            actors: self.shown_actors(notice),
            count: self.count(notice),
            post: post.and_then(|post| self.posts.view(post)),
            comment: comment.and_then(|comment| self.accounts().view_comment(comment)),
            since: self.visible_acts(notice).next().and_then(|act| act.since),
            unread: self.is_unread(notice),
        })
    }

    /// Returns how many acts a notice stands for. Of earlier ones, it does not know which have ended: there
    /// are not more than the post counts.
    fn count(&self, notice: &Notice) -> u64 {
        let visible = self.visible_acts(notice).count() as u64;
        let post = self.texts.posts.get(&notice.post_id);
        let all = match (notice.kind(), post) {
            (NoticeKind::Like, Some(post)) => post.likes,
            (NoticeKind::Repost, Some(post)) => post.reposts,
            _ => u64::MAX,
        };
        (visible + notice.earlier).min(all).max(visible)
    }

    /// Returns the newest distinct accounts of a notice as lists show them.
    fn shown_actors(&self, notice: &Notice) -> Vec<ListedUser> {
        let mut seen = IdSet::default();
        let actors = self.visible_acts(notice).map(|act| act.actor_id);
        let distinct = actors.filter(|&id| seen.insert(id));
        distinct.take(ACTORS_SHOWN).filter_map(|id| self.accounts().listed(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use microblog_proto::{
        relation::{Relation, RelationState},
        user::User,
    };

    use super::*;

    /// The viewer is 1. Accounts 2 to 6 are visible, 7 is muted, 8 is blocked, 9 is deleted.
    fn hydrated(posts: &[(u64, u64)], comments: &[(u64, u64, u64)]) -> HydratedNotices {
        let user = |id| User { id, name: format!("n{id}"), ..User::default() };
        let relation = |user_id: u64| Relation {
            user_id,
            state: if user_id == 5 { RelationState::None } else { RelationState::Follower }.into(),
            muting: user_id == 7,
            blocked_by: user_id == 8,
            ..Relation::default()
        };
        let authors =
            HydratedAccounts::new((1..9).map(user).collect(), (1..10).map(relation).collect());
        let post = |&(id, author_id): &(u64, u64)| {
            (id, Post { id, author_id, reposts: 12, ..Post::default() })
        };
        let comment = |&(post_id, id, author_id): &(u64, u64, u64)| {
            ((post_id, id), Comment { id, post_id, author_id, ..Comment::default() })
        };
        let texts = Texts {
            posts: posts.iter().map(post).collect(),
            comments: comments.iter().map(comment).collect(),
        };
        HydratedNotices { posts: HydratedPosts { authors }, texts }
    }

    fn notice(kind: NoticeKind, actor_ids: &[u64], post_id: u64, comment_id: u64) -> Notice {
        let at = |n: usize| Some(prost_types::Timestamp { seconds: -(n as i64), nanos: 0 });
        let act = |(n, &actor_id): (usize, &u64)| Act { actor_id, since: at(n), is_new: n < 1 };
        let acts = actor_ids.iter().enumerate().map(act).collect();
        Notice { kind: kind.into(), acts, post_id, comment_id, ..Notice::default() }
    }

    fn names(viewed: &ViewedNotice) -> Vec<&str> {
        viewed.actors.iter().map(|listed| listed.user.as_ref().unwrap().name.as_str()).collect()
    }

    #[test]
    fn a_notice_shows_its_newest_visible_accounts_once_and_counts_acts() {
        let hydrated = hydrated(&[(50, 1)], &[]);
        let reposts = notice(NoticeKind::Repost, &[7, 2, 2, 8, 3, 9, 4, 5], 50, 0);
        let viewed = hydrated.view(&Notice { earlier: 10, ..reposts }).unwrap();
        assert_eq!((names(&viewed), viewed.count), (vec!["n2", "n3", "n4"], 12));
        // The newest act, which is new, is not visible.
        assert_eq!((viewed.since.unwrap().seconds, viewed.unread), (-1, false));
        assert_eq!((viewed.kind(), viewed.comment.is_none()), (NoticeKind::Repost, true));
        assert_eq!(viewed.post.unwrap().author.unwrap().user.unwrap().id, 1);
    }

    #[test]
    fn a_notice_without_a_visible_account_is_hidden() {
        let hydrated = hydrated(&[(50, 1)], &[]);
        for actors in [&[7][..], &[8, 9], &[]] {
            let likes = notice(NoticeKind::Like, actors, 50, 0);
            assert!(hydrated.view(&Notice { earlier: 3, ..likes }).is_none());
        }
        let follow = notice(NoticeKind::Follow, &[7, 5, 6], 0, 0);
        let viewed = hydrated.view(&follow).unwrap();
        assert_eq!((names(&viewed), viewed.count, &viewed.post), (vec!["n6"], 1, &None));
        let follow = notice(NoticeKind::Follow, &[6, 7], 0, 0);
        assert!(hydrated.view(&follow).unwrap().unread);
    }

    #[test]
    fn a_notice_is_hidden_with_its_post_or_comment() {
        let posts = [(50, 1), (51, 2), (57, 7), (58, 8), (59, 9)];
        let comments = [(50, 60, 2), (50, 67, 7), (50, 69, 9), (57, 60, 2)];
        let hydrated = hydrated(&posts, &comments);
        for (post, comment, is_shown) in [
            (50, 0, true),
            (51, 0, true),
            (57, 0, false),
            (58, 0, false),
            (59, 0, false),
            (99, 0, false),
            (50, 60, true),
            (50, 67, false),
            (50, 69, false),
            (50, 99, false),
            (57, 60, false),
        ] {
            let mention = notice(NoticeKind::Mention, &[2], post, comment);
            assert_eq!(hydrated.shows(&mention), is_shown, "{mention:?}");
            assert_eq!(hydrated.view(&mention).is_some(), is_shown, "{mention:?}");
        }
    }
}
