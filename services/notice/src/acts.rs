//! What changes of the change feed mean for the notices of accounts.

use std::collections::{HashMap, HashSet};

use microblog_domain::{CommentId, IdMap, IdSet, PostId, Stamp, UserId, mention};
use microblog_proto::{
    common::{self, ChangeKind},
    notice::NoticeKind,
    post::{CommentKey, Entity, entity::Target},
};
use tonic::Status;

use crate::{
    notice::{MENTIONS_PER_TEXT, Subject},
    peers::Peers,
};

/// A change of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its number in the feed.
    pub(crate) number: u64,
    pub(crate) what: What,
    /// The id of the act within its notice.
    pub(crate) id: u64,
    /// The account whose act it is.
    pub(crate) actor: u64,
    pub(crate) version: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An act.
    Begin(Subject),
    /// The end of an act.
    Undo(Subject),
    /// A follow. It belongs to the notice of its day that has it already, mutual or not.
    Follow(Subject),
    /// The end of a follow, likewise. Callers check whether a follow of an earlier day has ended.
    Unfollow(Subject),
    /// A post with a mention, which is also a mention of its own.
    Mention(Subject, PostId),
    /// The end of the account itself.
    Delete,
}

/// A change of an account's notices.
pub(crate) type AccountChange = (UserId, Change);

/// The number and the version of a change.
#[derive(Clone, Copy)]
struct At {
    number: u64,
    version: Stamp,
}

/// Collects the changes of accounts, in their order.
#[derive(Default)]
struct Collected {
    changes: Vec<AccountChange>,
}

impl Collected {
    /// Adds a change of an account's notices, unless it is by the account itself.
    fn add(&mut self, to: u64, what: What, id: u64, actor: u64, At { number, version }: At) {
        let Some(user) = UserId::new(to).filter(|_| to != actor && actor != 0) else { return };
        self.changes.push((user, Change { number, what, id, actor, version }));
    }
}

/// What is needed of a text.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    author_id: u64,
    /// The first names that it mentions, normalized.
    names: Vec<String>,
}

impl Text {
    pub(crate) fn new(author_id: u64, entities: &[Entity]) -> Self {
        let mut names: Vec<String> = Vec::new();
        for entity in entities {
            if let Some(Target::Mention(mention)) = &entity.target {
                let name = mention.name.to_ascii_lowercase();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            if names.len() == MENTIONS_PER_TEXT {
                break;
            }
        }
        Self { author_id, names }
    }
}

/// What is needed of a comment.
#[derive(Clone, Debug)]
pub(crate) struct Comment {
    pub(crate) id: u64,
    pub(crate) post_id: u64,
    /// The author of the comment that it replies to; 0 for none.
    pub(crate) replies_to: u64,
    pub(crate) text: Text,
}

impl Comment {
    fn key(&self) -> (u64, u64) {
        (self.post_id, self.id)
    }
}

/// What is read for changes.
#[derive(Default)]
struct Context {
    posts: IdMap<u64, Text>,
    /// By their posts and ids: comments on different posts may have the same id.
    comments: IdMap<(u64, u64), Comment>,
    /// The accounts of mentioned names.
    named: HashMap<String, u64>,
    /// The follows that are answers: pairs of the follower and the account that followed first.
    answers: HashSet<(u64, u64)>,
}

/// Returns what changes mean, which have these numbers, in their order. Reads the posts and comments that they are
/// about, the accounts that texts mention, and whether follows are answers.
pub(crate) async fn effects(
    peers: &Peers,
    changes: &[common::Change],
    numbers: &[u64],
) -> Result<Vec<AccountChange>, Status> {
    let context = read(peers, changes).await?;
    let mut collected = Collected::default();
    for (change, &number) in changes.iter().zip(numbers) {
        // A change without a valid version is none that a service sends.
        if let Some(version) = Stamp::new(change.version) {
            add(&mut collected, &context, change, At { number, version });
        }
    }
    Ok(collected.changes)
}

async fn read(peers: &Peers, changes: &[common::Change]) -> Result<Context, Status> {
    let (mut post_ids, mut comment_keys, mut follows) = (IdSet::default(), Vec::new(), Vec::new());
    for change in changes {
        let common::Change { post_id, repost_id, comment_id, user_id, target_id, .. } = *change;
        match (change.kind(), change.ended) {
            _ if change.imported => {}
            (ChangeKind::Post, false) | (ChangeKind::Like, _) | (ChangeKind::Repost, true) => {
                post_ids.insert(post_id);
            }
            (ChangeKind::Repost, false) => post_ids.extend([post_id, repost_id]),
            (ChangeKind::Comment, false) => {
                post_ids.insert(post_id);
                comment_keys.push(CommentKey { post_id, comment_id });
            }
            (ChangeKind::Follow, false) => {
                let version = Stamp::new(change.version);
                follows.extend(version.map(|version| (user_id, target_id, version)));
            }
            _ => {}
        }
    }
    let posts = peers.posts(post_ids.into_iter().collect()).await?;
    let comments = peers.comments(comment_keys).await?;
    let answers = peers.answers(follows).await?;
    let texts = posts.iter().map(|(_, text)| text);
    let texts = texts.chain(comments.iter().map(|comment| &comment.text));
    let names: HashSet<_> = texts.flat_map(|text| text.names.iter().cloned()).collect();
    Ok(Context {
        named: peers.named(names.into_iter().collect()).await?,
        posts: posts.into_iter().collect(),
        comments: comments.into_iter().map(|comment| (comment.key(), comment)).collect(),
        answers,
    })
}

fn add(collected: &mut Collected, context: &Context, change: &common::Change, at: At) {
    let common::Change { user_id, target_id, post_id, repost_id, comment_id, .. } = *change;
    let author = |id: u64| context.posts.get(&id).map(|text| text.author_id);
    match (change.kind(), change.ended) {
        (ChangeKind::Account, true) => {
            // By nobody who has notices.
            collected.add(user_id, What::Delete, user_id, u64::MAX, at);
        }
        (ChangeKind::Follow, ended) => {
            let is_mutual = context.answers.contains(&(user_id, target_id));
            let subject = Subject::follow(at.version, is_mutual);
            let what = if ended { What::Unfollow(subject) } else { What::Follow(subject) };
            collected.add(target_id, what, user_id, user_id, at);
        }
        (ChangeKind::Like, ended) => {
            let subject = PostId::new(post_id).map(Subject::Likes);
            if let Some((author, subject)) = author(post_id).zip(subject) {
                let what = if ended { What::Undo(subject) } else { What::Begin(subject) };
                collected.add(author, what, user_id, user_id, at);
            }
        }
        (ChangeKind::Repost, ended) => {
            let subject = PostId::new(post_id).map(Subject::Reposts);
            if let Some((of, subject)) = author(post_id).zip(subject) {
                if ended {
                    // The account does not matter any more, but is not that of the post.
                    collected.add(of, What::Undo(subject), repost_id, u64::MAX, at);
                } else if let Some(by) = author(repost_id) {
                    collected.add(of, What::Begin(subject), repost_id, by, at);
                }
            }
        }
        (ChangeKind::Post, false) if !change.imported => {
            if let Some((text, id)) = context.posts.get(&post_id).zip(PostId::new(post_id)) {
                for mentioned in mentioned(context, text, post_id) {
                    let what = What::Mention(Subject::Mention(id), id);
                    collected.add(mentioned, what, post_id, text.author_id, at);
                }
            }
        }
        (ChangeKind::Comment, false) => add_comment(collected, context, (post_id, comment_id), at),
        _ => {}
    }
}

/// Adds the notices of a comment: each account gets one.
fn add_comment(collected: &mut Collected, context: &Context, key: (u64, u64), at: At) {
    let Some(comment) = context.comments.get(&key) else { return };
    let comment_id = comment.id;
    let ids = PostId::new(comment.post_id).zip(CommentId::new(comment_id));
    let post = context.posts.get(&comment.post_id);
    let Some((post, (post_id, id))) = post.zip(ids) else { return };
    let mut notified = IdSet::default();
    let mut add = |to: u64, kind| {
        if to != 0 && notified.insert(to) {
            let what = What::Begin(Subject::Comment(kind, post_id, id));
            collected.add(to, what, comment_id, comment.text.author_id, at);
        }
    };
    add(comment.replies_to, NoticeKind::Reply);
    add(post.author_id, NoticeKind::Comment);
    for mentioned in mentioned(context, &comment.text, comment_id) {
        add(mentioned, NoticeKind::Mention);
    }
}

/// Returns the accounts that a text mentions.
fn mentioned(context: &Context, text: &Text, text_id: u64) -> impl Iterator<Item = u64> {
    let accounts = text.names.iter().filter_map(|name| context.named.get(name).copied());
    accounts.filter(move |&account| mention::is_no_younger(account, text_id))
}

#[cfg(test)]
mod tests {
    use microblog_proto::post::Mention;

    use super::*;

    fn mention_of(name: &str) -> Entity {
        let mention = Mention { name: name.to_owned(), user_id: 0 };
        Entity { target: Some(Target::Mention(mention)), ..Entity::default() }
    }

    fn context() -> Context {
        let entities = vec![mention_of("Eve"), mention_of("bob"), mention_of("eve")];
        let post = |id, author_id, entities: &[Entity]| (id, Text::new(author_id, entities));
        let of_comment = [&entities[..], &[mention_of("ann"), mention_of("cleo")]].concat();
        let comment = Comment {
            id: 50 << 12,
            post_id: 40 << 12,
            replies_to: 4 << 12,
            text: Text::new(3 << 12, &of_comment),
        };
        Context {
            posts: [post(40 << 12, 1 << 12, &entities), post(60 << 12, 2 << 12, &[])]
                .into_iter()
                .collect(),
            comments: [(comment.key(), comment)].into_iter().collect(),
            named: [("ann", 1), ("bob", 2), ("cleo", 4), ("eve", 45)]
                .map(|(name, id)| (name.to_owned(), id << 12))
                .into(),
            answers: [(2 << 12, 1 << 12)].into(),
        }
    }

    fn of(change: common::Change) -> Vec<(u64, What, u64, u64)> {
        let mut collected = Collected::default();
        let at = At { number: 7, version: Stamp::new(9 << 12).unwrap() };
        add(&mut collected, &context(), &change, at);
        let each = |(user, Change { what, id, actor, .. }): AccountChange| {
            (user.get() >> 12, what, id, actor >> 12)
        };
        collected.changes.into_iter().map(each).collect()
    }

    fn change(kind: ChangeKind, user_id: u64, target_id: u64) -> common::Change {
        let [user_id, target_id] = [user_id, target_id].map(|id| id << 12);
        common::Change { kind: kind.into(), user_id, target_id, ..Default::default() }
    }

    fn post(kind: ChangeKind, user_id: u64, post_id: u64) -> common::Change {
        common::Change { post_id: post_id << 12, ..change(kind, user_id, 0) }
    }

    #[test]
    fn a_follow_is_a_notice_of_the_followed_account() {
        let follow = |user, target, is_mutual| {
            let subject = Subject::Follows { day: 0, is_mutual };
            let expected = [(target, What::Follow(subject), user << 12, user)];
            assert_eq!(of(change(ChangeKind::Follow, user, target)), expected);
        };
        follow(3, 1, false);
        follow(2, 1, true);
        let ended = common::Change { ended: true, ..change(ChangeKind::Follow, 3, 1) };
        let subject = Subject::Follows { day: 0, is_mutual: false };
        assert_eq!(of(ended), [(1, What::Unfollow(subject), 3 << 12, 3)]);
    }

    #[test]
    fn own_acts_and_acts_on_unknown_posts_are_no_notices() {
        let likes = Subject::Likes(PostId::new(40 << 12).unwrap());
        let like = |user, id| of(post(ChangeKind::Like, user, id));
        assert_eq!(like(3, 40), [(1, What::Begin(likes), 3 << 12, 3)]);
        assert_eq!([like(1, 40), like(3, 41)], [vec![], vec![]]);
        let ended = common::Change { ended: true, ..post(ChangeKind::Like, 3, 40) };
        assert_eq!(of(ended), [(1, What::Undo(likes), 3 << 12, 3)]);
    }

    #[test]
    fn a_mentioned_account_is_no_younger_than_the_text() {
        let id = PostId::new(40 << 12).unwrap();
        let expected = [(2, What::Mention(Subject::Mention(id), id), 40 << 12, 1)];
        assert_eq!(of(post(ChangeKind::Post, 1, 40)), expected);
    }

    #[test]
    fn a_comment_is_one_notice_of_each_account() {
        let comment = common::Change { comment_id: 50 << 12, ..post(ChangeKind::Comment, 3, 40) };
        let (post_id, comment_id) =
            (PostId::new(40 << 12).unwrap(), CommentId::new(50 << 12).unwrap());
        let expected = [
            (4, NoticeKind::Reply),
            (1, NoticeKind::Comment),
            (45, NoticeKind::Mention),
            (2, NoticeKind::Mention),
        ];
        let expected = expected.map(|(to, kind)| {
            (to, What::Begin(Subject::Comment(kind, post_id, comment_id)), 50 << 12, 3)
        });
        assert_eq!(of(comment), expected);
    }

    #[test]
    fn a_repost_is_a_notice_of_the_author_of_each_post_that_it_repeats() {
        let subject = Subject::Reposts(PostId::new(40 << 12).unwrap());
        let repost = common::Change { repost_id: 60 << 12, ..post(ChangeKind::Repost, 0, 40) };
        assert_eq!(of(repost), [(1, What::Begin(subject), 60 << 12, 2)]);
        let [(to, what, id, _)] = of(common::Change { ended: true, ..repost })[..] else {
            unreachable!("one change")
        };
        assert_eq!((to, what, id), (1, What::Undo(subject), 60 << 12));
    }
}
