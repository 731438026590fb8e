//! How many service calls each view makes, and how many of them one after the other.

use microblog_proto::{gateway, notice::NoticeKind};
use microblog_testkit::Topology;

use crate::{
    actions::request_as,
    notices::with_notices,
    system::{Flags, Jobs, Member, System, by_id, by_name},
};

/// Checks the calls and stages of a view whose session was verified shortly before.
async fn assert_cost(
    system: &System,
    what: &str,
    (calls_max, stages_max): (usize, usize),
    view: impl AsyncFn(),
) {
    view().await;
    system.recorder.calls();
    system.recorder.measure_stages(true);
    view().await;
    let stages = system.recorder.stages();
    system.recorder.measure_stages(false);
    let calls = system.recorder.calls();
    assert!(calls.len() <= calls_max, "{what}: {calls:?}");
    assert_eq!(stages, stages_max, "{what}: {calls:?}");
}

/// Ann and her friend Bob, who reposts a post of Carl's, a stranger to her. All posts have likes and
/// mentions.
pub(crate) async fn with_posts() -> (System, Member, Member, u64) {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let carl = system.join("carl").await;
    system.follow(&ann, &bob).await;
    system.follow(&carl, &bob).await;
    system.follow(&bob, &ann).await;
    let root = system.publish(&carl, "the root, @ann").await.id;
    let post_id = system.repost(&bob, root, "look, @carl").await.id;
    for post_id in [root, post_id] {
        system.like(&ann, post_id).await;
        system.comment(&carl, post_id, "so says @ann").await;
        system.repost(&carl, post_id, "so says @ann").await;
    }
    (system, ann, bob, post_id)
}

#[tokio::test]
async fn views_take_few_calls_in_few_stages() {
    let (system, ann, bob, post_id) = with_posts().await;
    let viewer = Some(&ann);
    assert_cost(&system, "home", (4, 3), async || {
        let page = system.home(&ann, 0, "", "").await;
        let shown = page.posts[0].root.as_ref().unwrap().post.as_ref().unwrap();
        assert!(shown.liked && !shown.entities.is_empty());
    })
    .await;
    assert_cost(&system, "followers", (2, 2), async || {
        assert_eq!(system.followers(viewer, bob.id, 0, "").await.users.len(), 2);
    })
    .await;
    assert_cost(&system, "user timeline", (3, 2), async || {
        assert!(!system.user_timeline(viewer, &bob, 0, "").await.posts.is_empty());
    })
    .await;
    assert_cost(&system, "post", (3, 2), async || {
        assert!(system.view(viewer, post_id).await.post.unwrap().liked);
    })
    .await;
    assert_cost(&system, "comments", (4, 2), async || {
        assert!(!system.comments(viewer, post_id, 0, "").await.comments.is_empty());
    })
    .await;
    assert_cost(&system, "reposts", (4, 2), async || {
        assert!(!system.reposts(viewer, post_id, 0, "").await.posts.is_empty());
    })
    .await;
    assert_cost(&system, "likers", (4, 2), async || {
        assert!(!system.likers(viewer, post_id, 0, "").await.users.is_empty());
    })
    .await;
    for (user, include_counts, cost) in [
        (by_id(bob.id), false, (2, 1)),
        (by_name("bob"), false, (3, 2)),
        (by_id(bob.id), true, (4, 1)),
        (by_name("bob"), true, (5, 2)),
    ] {
        assert_cost(&system, "named accounts", cost, async || {
            let users = vec![user.clone().unwrap()];
            let request = gateway::ViewUsersRequest { users, include_counts };
            let response = system.gateway().view_users(request_as(viewer, request)).await;
            assert_eq!(response.unwrap().into_inner().users.len(), 1);
        })
        .await;
    }
    assert_cost(&system, "named posts", (3, 2), async || {
        let request = gateway::ViewPostsRequest { post_ids: vec![post_id; 200], unasked: true };
        let response = system.gateway().view_posts(request_as(viewer, request)).await;
        assert!(response.unwrap().into_inner().posts[0].root.is_some());
    })
    .await;
    assert_cost(&system, "an empty page", (2, 2), async || {
        let request = gateway::ViewMutesRequest::default();
        system.gateway().view_mutes(ann.request(request)).await.unwrap();
    })
    .await;
    assert_cost(&system, "count", (2, 1), async || {
        system.count_new(&ann, "").await;
    })
    .await;
    assert_cost(&system, "me", (4, 1), async || {
        system.gateway().me(ann.request(gateway::MeRequest {})).await.unwrap();
    })
    .await;
    for (user, cost) in [(by_id(bob.id), (6, 1)), (by_name("bob"), (7, 2))] {
        assert_cost(&system, "user", cost, async || {
            let request = gateway::ViewUserRequest { user: user.clone() };
            system.gateway().view_user(request_as(viewer, request)).await.unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn views_of_notices_take_few_calls_in_few_stages() {
    let (system, [ann, _]) = with_notices().await;
    for (kinds, cost) in [
        (&[][..], (5, 3)),
        (&[NoticeKind::Mention, NoticeKind::Like], (4, 3)),
        (&[NoticeKind::Follow], (3, 2)),
    ] {
        assert_cost(&system, "notices", cost, async || {
            let page = system.notices(&ann, kinds).await;
            assert_eq!(page.notices.len(), if kinds.is_empty() { 4 } else { kinds.len() });
        })
        .await;
    }
    assert_cost(&system, "unread", (5, 3), async || {
        assert_eq!(system.unread(&ann).await.len(), 4);
    })
    .await;
    assert_cost(&system, "mentions", (4, 3), async || {
        let request = ann.request(gateway::ViewMentionsRequest::default());
        let response = system.gateway().view_mentions(request).await.unwrap();
        assert_eq!(response.into_inner().posts.len(), 1);
    })
    .await;
}
