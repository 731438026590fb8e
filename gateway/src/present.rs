//! The last step of a view: its parts put together. Pure.

use microblog_domain::UserId;
use microblog_proto::{
    gateway::{Author, ListedUser, RootState, ViewedComment, ViewedPost},
    post::{Comment, Post},
    relation::{Relation, RelationState},
};

use crate::{hydrate::Scene, mentions::Mentioned, people::People, skeleton::Entry};

/// Returns an entry of a list of accounts with its profile and its relation to the viewer, NONE
/// where no relation is known; `None` without a profile: the account is gone.
pub(crate) fn listed(entry: Entry, people: &mut People) -> Option<ListedUser> {
    let user = people.take_user(entry.user_id)?;
    let standing = people.standing(entry.user_id).copied().unwrap_or_default();
    Some(ListedUser {
        user: Some(user),
        relation: people.relation(entry.user_id).into(),
        since: entry.since,
        blocking: standing.blocking,
        blocked_by: standing.blocked_by,
        muting: standing.muting,
    })
}

/// Returns a comment with its author; `None` where its author is gone.
pub(crate) fn comment(
    mut comment: Comment,
    people: &People,
    mentioned: &Mentioned,
) -> Option<ViewedComment> {
    let author = author(comment.author_id, people)?;
    mentioned.fill(&mut comment);
    Some(ViewedComment { comment: Some(comment), author: Some(author) })
}

/// Returns a post with its author and its root; `None` where its author is gone.
pub(crate) fn post(mut post: Post, scene: &Scene) -> Option<ViewedPost> {
    let author = author(post.author_id, &scene.people)?;
    let (root_state, root) = match post.root.take() {
        Some(root) => self::root(*root, scene),
        None if post.root_deleted => (RootState::Deleted, None),
        None if post.root_id != 0 => (RootState::Omitted, None),
        None => (RootState::None, None),
    };
    post.root_deleted = root_state == RootState::Deleted;
    post.liked = scene.liked.contains(&post.id);
    scene.mentioned.fill(&mut post);
    Some(ViewedPost {
        post: Some(post),
        author: Some(author),
        root_state: root_state.into(),
        root: root.map(Box::new),
    })
}

/// Returns what becomes of a root: its author may be gone, or apart from the viewer.
fn root(root: Post, scene: &Scene) -> (RootState, Option<ViewedPost>) {
    if scene.people.user(root.author_id).is_none() {
        return (RootState::Deleted, None);
    }
    if scene.people.is_hidden(root.author_id) {
        return (RootState::Hidden, None);
    }
    (RootState::Shown, post(root, scene))
}

fn author(id: u64, people: &People) -> Option<Author> {
    let user = people.user(id)?.clone();
    Some(Author { user: Some(user), relation: people.relation(id).into() })
}

/// Returns how an account stands to somebody who has nothing to do with it.
pub(crate) fn stranger(user: UserId) -> Relation {
    Relation {
        user_id: user.get(),
        state: RelationState::None.into(),
        blocking: false,
        blocked_by: false,
        muting: false,
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use microblog_proto::user::User;

    use super::*;

    fn user(id: u64) -> User {
        User { id, name: format!("n{id}"), ..User::default() }
    }

    fn relation(user_id: u64, state: RelationState) -> Relation {
        Relation { user_id, state: state.into(), ..Relation::default() }
    }

    fn entry(user_id: u64) -> Entry {
        Entry { user_id, since: Some(Timestamp { seconds: user_id as i64, nanos: 0 }) }
    }

    /// A repost by 1 of a post by 2.
    fn repost() -> Post {
        let root = Post { id: 20, author_id: 2, text: "root".to_owned(), ..Post::default() };
        let root_id = root.id;
        Post { id: 10, author_id: 1, root_id, root: Some(Box::new(root)), ..Post::default() }
    }

    fn scene(users: &[u64], relations: Vec<Relation>) -> Scene {
        let people = People::new(users.iter().copied().map(user).collect(), relations);
        Scene { people, mentioned: Mentioned::default(), liked: [20].into_iter().collect() }
    }

    #[test]
    fn an_entry_has_the_parts_that_are_its_own() {
        let relations = vec![relation(1, RelationState::Mutual)];
        let mut people = People::new(vec![user(1), user(2)], relations);
        let first = listed(entry(1), &mut people).unwrap();
        assert_eq!(first.user.as_ref().unwrap().name, "n1");
        assert_eq!((first.relation(), first.since.unwrap().seconds), (RelationState::Mutual, 1));
        assert_eq!(listed(entry(2), &mut people).unwrap().relation(), RelationState::None);
        assert!(listed(entry(3), &mut people).is_none(), "the account is gone");
        assert_eq!(stranger(UserId::new(1).unwrap()).state(), RelationState::None);
    }

    #[test]
    fn a_root_is_shown_beside_its_repost() {
        let shown = post(repost(), &scene(&[1, 2], Vec::new())).unwrap();
        assert_eq!(shown.root_state(), RootState::Shown);
        let own = shown.post.unwrap();
        assert!(own.root.is_none() && !own.root_deleted && !own.liked);
        let root = shown.root.unwrap();
        assert_eq!(root.root_state(), RootState::None);
        assert_eq!(root.author.unwrap().user.unwrap().name, "n2");
        assert!(root.post.unwrap().liked);
    }

    #[test]
    fn a_root_that_is_not_shown_says_why() {
        let muting = Relation { muting: true, ..relation(2, RelationState::Following) };
        let deleted = Post { root: None, root_deleted: true, ..repost() };
        let omitted = Post { root: None, ..repost() };
        for (repost, scene, state) in [
            (repost(), scene(&[1, 2], vec![muting]), RootState::Hidden),
            (repost(), scene(&[1], vec![muting]), RootState::Deleted),
            (deleted, scene(&[1], Vec::new()), RootState::Deleted),
            (omitted, scene(&[1], Vec::new()), RootState::Omitted),
        ] {
            let shown = post(repost, &scene).unwrap();
            assert_eq!((shown.root_state(), shown.root), (state, None));
            let post = shown.post.unwrap();
            assert_eq!((post.root, post.root_deleted), (None, state == RootState::Deleted));
        }
    }

    #[test]
    fn nothing_is_shown_of_an_author_who_is_gone() {
        assert!(post(repost(), &scene(&[2], Vec::new())).is_none());
        let orphan = Comment { author_id: 3, ..Comment::default() };
        assert!(comment(orphan, &People::default(), &Mentioned::default()).is_none());
    }
}
