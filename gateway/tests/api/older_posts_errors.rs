//! What the past of timelines costs, what is refused of it, and what goes on while it is away.

use std::time::Duration;

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway};
use tokio::time::sleep;
use tonic::{Code, Response, Status};

use crate::{
    refused::{BLOCKED_BY_TARGET, Refusal, assert_refused},
    system::{Member, System, by_id},
    timeline_acts::{at_rest, post_ids},
    timeline_faults::{DAMAGED, FOREIGN},
    timeline_pages::tags,
};

/// What is refused while the archive is away.
const AWAY: Refusal = (Code::Unavailable, ErrorReason::StoreUnavailable, &[]);

fn away() -> Status {
    let text = "the archive does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text)
}

/// How many posts are in the past.
const PAST: usize = 60;

/// Ann, who follows Bob. What the timeline service holds of his posts ends above most of them.
struct Scene {
    system: System,
    ann: Member,
    bob: Member,
    /// Newest first.
    posts: Vec<u64>,
}

impl Scene {
    async fn set() -> Self {
        let system = at_rest().await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        system.follow(&ann, &bob).await;
        let mut posts = system.publish_many(&bob, vec!["@ann".to_owned(); PAST + 10]).await;
        posts.reverse();
        system.deliver(&bob, (1..=990).map(|i| posts[0] + (i << 12))).await;
        // Until what is posted next is newer than those, of each of which the id tells its time.
        sleep(Duration::from_millis(1_000)).await;
        Self { system, ann, bob, posts }
    }

    /// Returns the token of a page of the past of Ann's home timeline, and of Bob's timeline; and
    /// how many posts are before it.
    async fn tokens(&self) -> [(String, usize); 2] {
        let home = self.system.home(&self.ann, 5, "", "").await;
        let user = self.system.user_timeline(None, &self.bob, 30, "").await;
        assert_eq!(post_ids(&home.posts), self.posts[..5]);
        assert_eq!(post_ids(&user.posts), self.posts[..30]);
        [(home.next_page_token, 5), (user.next_page_token, 30)]
    }

    async fn view(&self, viewer: &Member, page: (&str, &str)) -> Answer<gateway::ViewHomeResponse> {
        let (page_token, since_token) = (page.0.to_owned(), page.1.to_owned());
        let request = gateway::ViewHomeRequest { page_size: 5, page_token, since_token };
        self.system.gateway().view_home(viewer.asks(request)).await
    }

    async fn view_user(
        &self,
        viewer: &Member,
        of: &Member,
        page: (&str, &str),
    ) -> Answer<gateway::ViewUserTimelineResponse> {
        let (page_token, since_token) = (page.0.to_owned(), page.1.to_owned());
        let user = by_id(of.id);
        let request =
            gateway::ViewUserTimelineRequest { user, page_size: 5, page_token, since_token };
        self.system.gateway().view_user_timeline(viewer.asks(request)).await
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tokio::test]
async fn tokens_of_another_place_are_refused() {
    let scene = Scene::set().await;
    let Scene { system, ann, bob, .. } = &scene;
    let [(home, _), (user, _)] = scene.tokens().await;
    let since = system.home(ann, 5, &home, "").await.since_token;
    let since_of_user = system.user_timeline(None, bob, 5, &user).await.since_token;
    let mut damaged = home.clone();
    damaged.replace_range(9..10, if &home[9..10] == "A" { "B" } else { "A" });
    for (what, answer, expected) in [
        ("damaged", scene.view(ann, (&damaged, "")).await, DAMAGED),
        ("of another viewer", scene.view(bob, (&home, "")).await, FOREIGN),
        ("of another timeline", scene.view(ann, (&user, "")).await, FOREIGN),
        ("of what is not new", scene.view(ann, (&home, &since)).await, FOREIGN),
    ] {
        assert_refused(what, answer, expected);
    }
    for (what, answer, expected) in [
        ("damaged", scene.view_user(ann, bob, (&damaged, "")).await, DAMAGED),
        ("of another author", scene.view_user(bob, ann, (&user, "")).await, FOREIGN),
        ("of another timeline", scene.view_user(ann, bob, (&home, "")).await, FOREIGN),
        ("of what is not new", scene.view_user(ann, bob, (&user, &since_of_user)).await, FOREIGN),
    ] {
        assert_refused(what, answer, expected);
    }
    let request = gateway::ViewFriendsRequest { page_token: home, ..Default::default() };
    let answer = system.gateway().view_friends(ann.asks(request)).await;
    assert_refused("friends", answer, FOREIGN);
}

#[tokio::test]
async fn whom_an_account_blocks_sees_nothing_of_its_past() {
    let scene = Scene::set().await;
    let Scene { system, ann, bob, .. } = &scene;
    let [_, (user, _)] = scene.tokens().await;
    scene.view_user(ann, bob, (&user, "")).await.unwrap();
    system.block(bob, ann).await;
    let view = async || scene.view_user(ann, bob, (&user, "")).await;
    assert_refused("blocked", view().await, BLOCKED_BY_TARGET);
    system.delete_many(bob, &scene.posts).await;
    assert_refused("nothing is left", view().await, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn a_page_of_the_past_costs_a_fixed_number_of_calls() {
    let scene = Scene::set().await;
    let Scene { system, ann, bob, .. } = &scene;
    let [(home, _), (user, _)] = scene.tokens().await;
    // More than are asked about together.
    let crowd = system.crowd("c", 550).await;
    system.follows(crowd.iter().map(|&id| (ann.id, id))).await;
    let slice = ["post.ListAuthorsPosts"; 2];
    let scene_calls =
        ["user.BatchGetUsers", "relation.BatchGetRelations", "user.BatchResolveNames"];
    let assert_called = |what: &str, expected: &[&[&str]]| {
        let mut expected = expected.concat();
        expected.sort_unstable();
        assert_eq!(system.tap.calls(), expected, "{what}");
    };
    // As many as are looked at together, and the rest.
    for page_size in [1, 50, 200] {
        let scene_calls = scene_calls.repeat(if page_size > 50 { 2 } else { 1 });
        system.tap.calls();
        let page = system.home(ann, page_size, &home, "").await;
        assert_eq!(page.posts.len(), (page_size as usize).min(PAST + 5));
        let calls = ["user.Authenticate", "timeline.ListAuthors"];
        assert_called("home", &[&calls, &slice, &scene_calls]);
    }
    let page = system.friends_page(ann, 20, "").await;
    assert!(page.posts.is_empty());
    let calls = ["user.Authenticate", "timeline.GetTimeline"];
    assert_called("friends", &[&calls]);
    system.user_timeline(Some(ann), bob, 20, &user).await;
    let calls = ["user.Authenticate", "user.GetUser", "post.ListAuthorsPosts"];
    assert_called("user", &[&calls, &scene_calls]);
}

#[tokio::test]
async fn newer_pages_are_there_while_the_past_is_away() {
    let scene = Scene::set().await;
    let Scene { system, ann, posts, .. } = &scene;
    let [(token, _), _] = scene.tokens().await;
    let mut of_home = system.publish_many(ann, vec!["new".to_owned(); 10]).await;
    of_home.reverse();
    for method in ["post.ListAuthorsPosts", "timeline.ListAuthors"] {
        system.tap.refuse(method, away());
        // The page on which the newer ones end is shown, and goes on.
        let home = system.home(ann, 20, "", "").await;
        assert_eq!(post_ids(&home.posts), of_home);
        for token in [&home.next_page_token, &token] {
            assert_refused("the past", scene.view(ann, (token, "")).await, AWAY);
        }
        system.tap.refuse_nothing();
        let rest = system.home(ann, 200, &home.next_page_token, "").await;
        assert_eq!((post_ids(&rest.posts), rest.next_page_token.as_str()), (posts.clone(), ""));
    }
}

#[tokio::test]
async fn a_page_of_an_account_ends_where_older_posts_are_away() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    // More than fit into one answer of the post service.
    let mut posts = system.publish_many(&bob, (0..60).map(tags).collect()).await;
    posts.reverse();
    system.tap.refuse_after(1, "post.ListAuthorsPosts", away());
    let page = system.user_timeline(Some(&ann), &bob, 50, "").await;
    let shown = page.posts.len();
    assert!((1..50).contains(&shown), "{shown}");
    let (user, page_token) = (by_id(bob.id), page.next_page_token.clone());
    let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
    let answer = system.gateway().view_user_timeline(ann.asks(request)).await;
    assert_refused("what is older", answer, AWAY);
    system.tap.refuse_nothing();
    let mut seen = post_ids(&page.posts);
    let mut token = page.next_page_token;
    while !token.is_empty() {
        let page = system.user_timeline(Some(&ann), &bob, 50, &token).await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
    }
    assert_eq!(seen, posts);
}
