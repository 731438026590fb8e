//! Which changes make which notices.

use microblog_proto::{notice::NoticeKind, user};
use microblog_testkit::Topology;

use crate::support::{Shown, System, id};

fn likes(actors: &[u64], post: u64) -> Shown {
    (NoticeKind::Like, actors.to_vec(), 0, post, 0)
}

fn follows(kind: NoticeKind, actors: &[u64]) -> Shown {
    (kind, actors.to_vec(), 0, 0, 0)
}

/// Returns a token that stands for the newest act of all notices.
async fn position(system: &System, user: u64) -> String {
    system.page(user, &[], false).await.seen_token
}

#[tokio::test]
async fn likes_of_a_post_are_one_notice() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let (first, second) = (system.publish(ann, "1").await, system.publish(ann, "2").await);
    system.like(ann, first).await;
    system.like(bob, first).await;
    system.has(ann, &[likes(&[bob], first)]).await;
    system.like(bob, second).await;
    system.like(cleo, first).await;
    // A new like brings its notice to the top.
    system.has(ann, &[likes(&[cleo, bob], first), likes(&[bob], second)]).await;
    system.mark_seen(ann, &position(&system, ann).await).await;
    system.unlike(cleo, first).await;
    system.has(ann, &[likes(&[bob], second), likes(&[bob], first)]).await;
    system.unlike(bob, second).await;
    system.has(ann, &[likes(&[bob], first)]).await;
    // The same again on the same day is not new: it was seen.
    let before = position(&system, ann).await;
    system.like(cleo, first).await;
    system.has(ann, &[likes(&[cleo, bob], first)]).await;
    assert_eq!(position(&system, ann).await, before);
    let dan = id(4);
    system.like(dan, first).await;
    system.has(ann, &[likes(&[dan, cleo, bob], first)]).await;
    system.unlike(dan, first).await;
    system.has(ann, &[likes(&[cleo, bob], first)]).await;
    let before = position(&system, ann).await;
    system.mark_seen(ann, &before).await;
    system.like(dan, first).await;
    system.has(ann, &[likes(&[dan, cleo, bob], first)]).await;
    assert_ne!(position(&system, ann).await, before, "it was undone before it was seen");
    assert!(system.notices(bob).await.is_empty() && system.notices(cleo).await.is_empty());
}

#[tokio::test]
async fn an_end_without_a_beginning_changes_nothing() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let post = system.publish(ann, "post").await;
    system.like(cleo, post).await;
    system.has(ann, &[likes(&[cleo], post)]).await;
    system.unlike(bob, post).await;
    system.unfollow(bob, ann).await;
    system.settle(&[ann, bob]).await;
    let before = position(&system, ann).await;
    system.like(bob, post).await;
    system.has(ann, &[likes(&[bob, cleo], post)]).await;
    assert_ne!(position(&system, ann).await, before, "it is new");
}

#[tokio::test]
async fn a_follow_of_a_follower_is_mutual() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    system.follow(bob, ann).await;
    system.has(ann, &[follows(NoticeKind::Follow, &[bob])]).await;
    system.follow(ann, bob).await;
    system.has(bob, &[follows(NoticeKind::Mutual, &[ann])]).await;
    system.follow(cleo, ann).await;
    system.has(ann, &[follows(NoticeKind::Follow, &[cleo, bob])]).await;
    // A follow again on the same day keeps its kind and its place, if it was seen.
    let before = position(&system, ann).await;
    system.mark_seen(ann, &before).await;
    system.unfollow(bob, ann).await;
    system.follow(bob, ann).await;
    system.settle(&[bob]).await;
    assert_eq!(system.shown(ann).await, [follows(NoticeKind::Follow, &[cleo, bob])]);
    assert_eq!(position(&system, ann).await, before);
}

#[tokio::test]
async fn reposts_are_notices_of_each_repeated_post() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, cleo] = [1, 2, 3].map(id);
    let root = system.publish(ann, "root").await;
    let first = system.repost(bob, root).await;
    let of_repost = system.repost(cleo, first).await;
    let shown = |actors: &[u64], post| (NoticeKind::Repost, actors.to_vec(), 0, post, 0);
    system.has(ann, &[shown(&[cleo, bob], root)]).await;
    system.has(bob, &[shown(&[cleo], first)]).await;
    system.delete_post(cleo, of_repost).await;
    system.has(ann, &[shown(&[bob], root)]).await;
    system.has(bob, &[]).await;
}

#[tokio::test]
async fn a_comment_is_one_notice_of_each_account() {
    let system = System::start(Topology::Single).await;
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| system.register(name));
    let (ann, bob, eve) = (ann.await, bob.await, eve.await);
    let post = system.publish(ann, "of @Bob, @nobody, @bob and @ann").await;
    let mention = (NoticeKind::Mention, vec![ann], 0, post, 0);
    system.has(bob, std::slice::from_ref(&mention)).await;
    let comment = system.comment(bob, post, 0, "@ann @eve").await;
    let shown = |kind, by, comment| (kind, vec![by], 0, post, comment);
    system.has(ann, &[shown(NoticeKind::Comment, bob, comment)]).await;
    system.has(eve, &[shown(NoticeKind::Mention, bob, comment)]).await;
    let reply = system.comment(eve, post, comment, "@bob").await;
    system.has(bob, &[shown(NoticeKind::Reply, eve, reply), mention]).await;
    let own = system.comment(ann, post, comment, "@ann").await;
    system.settle(&[ann]).await;
    let kinds: Vec<_> = system.shown(ann).await.into_iter().map(|notice| notice.0).collect();
    assert_eq!(kinds, [NoticeKind::Comment; 2]);
    assert_eq!(system.shown(bob).await[0], shown(NoticeKind::Reply, ann, own));
    // Posts alone are a timeline of mentions.
    let request =
        microblog_proto::notice::ListMentionsRequest { user_id: eve, ..Default::default() };
    let mentions = system.client.clone().list_mentions(request.clone()).await.unwrap().into_inner();
    assert!(mentions.post_ids.is_empty() && mentions.next_page_token.is_empty());
    let request = microblog_proto::notice::ListMentionsRequest { user_id: bob, ..request };
    let mentions = system.client.clone().list_mentions(request).await.unwrap().into_inner();
    assert_eq!(mentions.post_ids, [post]);
}

#[tokio::test]
async fn a_later_owner_of_a_name_is_not_mentioned() {
    let system = System::start(Topology::Single).await;
    let ann = system.register("ann").await;
    let post = system.publish(ann, "@bob").await;
    let bob = system.register("bob").await;
    system.settle(&[ann]).await;
    let comment = system.comment(ann, post, 0, "@bob").await;
    system.has(bob, &[(NoticeKind::Mention, vec![ann], 0, post, comment)]).await;
}

#[tokio::test]
async fn a_deleted_account_has_no_notices() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let ann = system.register("ann").await;
        let post = system.publish(ann, "post").await;
        system.like(id(2), post).await;
        system.has(ann, &[likes(&[id(2)], post)]).await;
        let request =
            user::DeleteUserRequest { user_id: ann, password: "correct horse".to_owned() };
        system.followed.user.clone().delete_user(request).await.unwrap();
        system.has(ann, &[]).await;
        let of_ann = |what: &str| format!("SELECT {what} FROM accounts WHERE id = {ann}");
        assert!(system.numbers(&of_ann("deleted")).await[0] > 0);
        // Also not of what comes later.
        system.like(id(3), post).await;
        system.follow(id(3), ann).await;
        system.settle(&[ann, id(3)]).await;
        assert!(system.notices(ann).await.is_empty());
        let count = format!("SELECT count(*) FROM notices WHERE account = {ann}");
        assert_eq!(system.numbers(&count).await, [0]);
        assert_eq!(system.numbers(&of_ann("notices")).await, [0]);
    }
}
