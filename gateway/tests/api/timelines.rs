//! Timelines, and how they look through their viewers' eyes.

use microblog_proto::{
    gateway::{self, RootState, ViewedPost},
    post::entity::Target,
    relation::RelationState,
};
use microblog_testkit::Topology;

use crate::{
    refused::{BLOCKED_BY_TARGET, USER_NOT_FOUND, assert_refused},
    system::{Flags, Jobs, Member, System, by_id, by_name},
    timeline_acts::{at_rest, post_ids, texts},
};

/// Returns who wrote a post, and how they stand to the viewer.
fn author(viewed: &ViewedPost) -> (&str, RelationState) {
    let author = viewed.author.as_ref().unwrap();
    (author.user.as_ref().unwrap().name.as_str(), author.relation())
}

/// Ann follows Bob, who follows her, and Carl. Dora is Carl's friend.
async fn a_feed_has_all_that_belongs_to_its_posts(topology: Topology) {
    let system = System::start_on(topology, Jobs::Run, Flags::default()).await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let [carl, dora] = [system.join("carl").await, system.join("dora").await];
    let follows = [(&ann, &bob), (&bob, &ann), (&ann, &carl), (&dora, &ann)];
    system.follows(follows.map(|(a, b)| (a.id, b.id))).await;

    let hello = system.publish(&bob, "hello @ann and @nobody").await.id;
    let root = system.publish(&dora, "the root").await.id;
    let repost = system.repost(&carl, root, "look, @dora").await.id;
    let own = system.publish(&ann, "my own").await.id;
    system.publish(&dora, "not for ann").await;
    system.like(&ann, hello).await;
    system.like(&dora, hello).await;
    system.comment(&carl, root, "yes").await;
    system.like(&ann, root).await;

    system.until_new(&ann, "", 3).await;
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(
        (post_ids(&page.posts), page.next_page_token.as_str()),
        (vec![own, repost, hello], "")
    );
    let [own, repost, hello] = &page.posts[..] else { panic!("three posts") };
    assert_eq!(author(own), ("ann", RelationState::Self_));
    assert_eq!(author(repost), ("carl", RelationState::Following));
    assert_eq!(author(hello), ("bob", RelationState::Mutual));
    assert_eq!((own.root_state(), hello.root_state()), (RootState::None, RootState::None));
    let root = repost.root.as_ref().unwrap();
    assert_eq!(
        (repost.root_state(), author(root)),
        (RootState::Shown, ("dora", RelationState::Follower))
    );
    let counts = |viewed: &ViewedPost| {
        let post = viewed.post.as_ref().unwrap();
        (post.likes, post.comments, post.reposts, post.liked)
    };
    assert_eq!(counts(root), (1, 1, 1, true));
    assert_eq!((counts(hello), counts(repost)), ((2, 0, 0, true), (0, 0, 0, false)));
    let mentioned =
        hello.post.as_ref().unwrap().entities.iter().map(|entity| match &entity.target {
            Some(Target::Mention(mention)) => mention.user_id,
            _ => panic!("a mention"),
        });
    assert_eq!(mentioned.collect::<Vec<_>>(), [ann.id, 0]);

    let friends = system.friends(&ann).await;
    assert_eq!(friends.posts, std::slice::from_ref(hello));
    let carls = system.user_timeline(Some(&ann), &carl, 0, "").await;
    assert_eq!(carls.posts, std::slice::from_ref(repost));
}

#[tokio::test]
async fn a_feed_has_what_belongs_to_its_posts() {
    a_feed_has_all_that_belongs_to_its_posts(Topology::Single).await;
}

#[tokio::test]
async fn a_feed_has_what_belongs_to_its_posts_on_a_cluster() {
    a_feed_has_all_that_belongs_to_its_posts(Topology::Cluster).await;
}

#[tokio::test]
async fn a_follow_a_mute_and_a_block_count_at_once() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let [muted, blocked] = [system.join("muted").await, system.join("blocked").await];
    let [blocker, left] = [system.join("blocker").await, system.join("left").await];
    let gone = system.join("gone").await;
    let others = [&muted, &blocked, &blocker, &left, &gone];
    for other in others {
        system.publish(other, &format!("by {}", other.id)).await;
    }
    let shows = async |authors: &[&Member]| {
        let mut expected: Vec<_> =
            authors.iter().map(|author| format!("by {}", author.id)).collect();
        expected.reverse();
        assert_eq!(system.home_texts(&ann).await, expected);
    };
    shows(&[]).await;
    for (i, other) in others.into_iter().enumerate() {
        system.follow(&ann, other).await;
        shows(&others[..=i]).await;
    }
    system.mute(&ann, &muted).await;
    shows(&[&blocked, &blocker, &left, &gone]).await;
    system.block(&ann, &blocked).await;
    shows(&[&blocker, &left, &gone]).await;
    system.block(&blocker, &ann).await;
    shows(&[&left, &gone]).await;
    let request = gateway::UnfollowRequest { user: by_id(left.id) };
    system.gateway().unfollow(ann.asks(request)).await.unwrap();
    shows(&[&gone]).await;
    system.leave(&gone).await;
    shows(&[]).await;
}

#[tokio::test]
async fn how_an_author_stands_is_told_anew_with_each_page() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let carl = system.join("carl").await;
    system.follow(&ann, &bob).await;
    let root = system.publish(&carl, "the root").await.id;
    for text in ["first", "second", "third"] {
        system.repost(&bob, root, text).await;
    }
    let unfollow = async |viewer: &Member, target: &Member| {
        let request = gateway::UnfollowRequest { user: by_id(target.id) };
        system.gateway().unfollow(viewer.asks(request)).await.unwrap();
    };
    let mut token = String::new();
    let mut shows = async |text: &str, bobs: RelationState, carls: RelationState| {
        let page = system.home(&ann, 1, &token, "").await;
        assert_eq!(texts(&page.posts), [text]);
        let [post] = &page.posts[..] else { panic!("one post") };
        assert_eq!(author(post), ("bob", bobs));
        assert_eq!(author(post.root.as_ref().unwrap()), ("carl", carls));
        token = page.next_page_token;
    };
    shows("third", RelationState::Following, RelationState::None).await;
    system.follow(&bob, &ann).await;
    system.follow(&carl, &ann).await;
    shows("second", RelationState::Mutual, RelationState::Follower).await;
    assert_eq!(system.friends(&ann).await.posts.len(), 3);
    unfollow(&bob, &ann).await;
    system.follow(&ann, &carl).await;
    shows("first", RelationState::Following, RelationState::Mutual).await;
    system.mute(&ann, &carl).await;
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(texts(&page.posts), ["third", "second", "first"]);
    assert!(page.posts.iter().all(|post| post.root_state() == RootState::Hidden));
    unfollow(&ann, &bob).await;
    assert_eq!(system.home_texts(&ann).await, [""; 0]);
}

#[tokio::test]
async fn a_root_that_is_not_for_the_viewer_is_not_shown_in_a_feed() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let [muted, left] = [system.join("muted").await, system.join("left").await];
    let deleted = system.join("deleted").await;
    for author in [&muted, &left, &deleted] {
        let root = system.publish(author, "the root").await.id;
        system.repost(&bob, root, "look").await;
        if author.id == deleted.id {
            system.delete_post(author, root).await;
        }
    }
    system.follow(&ann, &bob).await;
    system.mute(&ann, &muted).await;
    system.leave(&left).await;
    let expected = [RootState::Deleted, RootState::Deleted, RootState::Hidden];
    let home = system.home(&ann, 0, "", "").await.posts;
    let bobs = system.user_timeline(Some(&ann), &bob, 0, "").await.posts;
    assert_eq!(home, bobs);
    assert_eq!(home.iter().map(ViewedPost::root_state).collect::<Vec<_>>(), expected);
    assert!(home.iter().all(|viewed| viewed.root.is_none()));
}

#[tokio::test]
async fn a_repost_stands_in_for_one_that_is_gone() {
    let system = at_rest().await;
    let ann = system.join("ann").await;
    let author = system.join("author").await;
    let root = system.publish(&author, "the root").await.id;
    let mut reposts = Vec::new();
    for name in ["first", "second", "third", "fourth"] {
        let reposter = system.join(name).await;
        system.follow(&ann, &reposter).await;
        let post_id = system.repost(&reposter, root, "").await.id;
        reposts.push((reposter, post_id));
    }
    let shown = async || post_ids(&system.home(&ann, 0, "", "").await.posts);
    assert_eq!(shown().await, [reposts[0].1], "once, although four repost it");
    // Deleted, its author gone, its author muted: whatever the reason.
    system.delete_post(&reposts[0].0, reposts[0].1).await;
    assert_eq!(shown().await, [reposts[1].1]);
    system.leave(&reposts[1].0).await;
    assert_eq!(shown().await, [reposts[2].1]);
    system.delete_post(&reposts[2].0, reposts[2].1).await;
    assert_eq!(shown().await, [reposts[3].1]);
    let page = system.home(&ann, 0, "", "").await;
    assert_eq!(page.posts[0].root_state(), RootState::Shown);
    system.delete_post(&reposts[3].0, reposts[3].1).await;
    assert_eq!(shown().await, [0; 0]);
    // Of the root itself its reposts are left out, and it shows itself.
    system.follow(&ann, &author).await;
    assert_eq!(shown().await, [root]);
}

#[tokio::test]
async fn an_accounts_timeline_is_for_all_but_whom_it_blocks() {
    let system = at_rest().await;
    let [ann, stranger] = [system.join("ann").await, system.join("stranger").await];
    let [muter, blocker] = [system.join("muter").await, system.join("blocker").await];
    let [blocked, other] = [system.join("blocked").await, system.join("other").await];
    system.publish(&ann, "first").await;
    let root = system.publish(&other, "the root").await.id;
    system.repost(&ann, root, "second").await;
    system.mute(&muter, &ann).await;
    system.block(&blocker, &ann).await;
    system.block(&ann, &blocked).await;
    for viewer in [Some(&ann), Some(&stranger), Some(&muter), Some(&blocker), None] {
        let page = system.user_timeline(viewer, &ann, 0, "").await;
        assert_eq!(texts(&page.posts), ["second", "first"]);
        assert_eq!(page.posts[0].root_state(), RootState::Shown);
        let request =
            gateway::ViewUserTimelineRequest { user: by_name("ANN"), ..Default::default() };
        let request = crate::acts::asks(viewer, request);
        let by_name = system.gateway().view_user_timeline(request).await.unwrap().into_inner();
        assert_eq!(by_name, page);
    }
    let ask = async |viewer: &Member, user| {
        let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
        system.gateway().view_user_timeline(viewer.asks(request)).await
    };
    assert_refused("by id", ask(&blocked, by_id(ann.id)).await, BLOCKED_BY_TARGET);
    assert_refused("by name", ask(&blocked, by_name("ann")).await, BLOCKED_BY_TARGET);
    // Nothing is left in it, and nobody learns that.
    system.delete_many(&ann, &post_ids(&system.user_timeline(None, &ann, 0, "").await.posts)).await;
    assert_refused("empty", ask(&blocked, by_id(ann.id)).await, BLOCKED_BY_TARGET);
    assert!(system.user_timeline(Some(&stranger), &ann, 0, "").await.posts.is_empty());
    system.leave(&ann).await;
    assert_refused("gone", ask(&stranger, by_id(ann.id)).await, USER_NOT_FOUND);
    assert_refused("gone", ask(&stranger, by_name("ann")).await, USER_NOT_FOUND);
}
