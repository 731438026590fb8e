//! Posts beyond the stored timelines: cost, errors, and outages.

use std::time::Duration;

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway};
use tokio::time::sleep;
use tonic::{Code, Response, Status};

use crate::{
    errors::{BLOCKED_BY_TARGET, assert_error},
    system::{Member, System, by_id},
    timeline_actions::{post_ids, without_jobs},
    timeline_errors::{DAMAGED, FOREIGN},
};

/// Number of posts beyond the stored timeline.
const PAST: usize = 60;

/// Ann follows Bob. Of his posts in the timeline service, all but ten are deleted.
struct Fixture {
    system: System,
    ann: Member,
    bob: Member,
    /// Newest first.
    posts: Vec<u64>,
}

impl Fixture {
    async fn set() -> Self {
        let system = without_jobs().await;
        let [ann, bob] = [system.join("ann").await, system.join("bob").await];
        system.follow(&ann, &bob).await;
        let mut posts = system.publish_many(&bob, vec!["@ann".to_owned(); PAST + 10]).await;
        posts.reverse();
        system.deliver(&bob, (1..=990).map(|i| posts[0] + (i << 12))).await;
        // Waits until new ids are newer than these, since an id contains its time.
        sleep(Duration::from_millis(1_000)).await;
        Self { system, ann, bob, posts }
    }

    /// Returns the token of a page of older posts of Ann's home timeline and of Bob's timeline,
    /// with the number of posts before it.
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
        self.system.gateway().view_home(viewer.request(request)).await
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
        self.system.gateway().view_user_timeline(viewer.request(request)).await
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tokio::test]
async fn page_tokens_of_another_timeline_are_rejected() {
    let fixture = Fixture::set().await;
    let Fixture { system, ann, bob, .. } = &fixture;
    let [(home, _), (user, _)] = fixture.tokens().await;
    let since = system.home(ann, 5, &home, "").await.since_token;
    let since_of_user = system.user_timeline(None, bob, 5, &user).await.since_token;
    let mut damaged = home.clone();
    damaged.replace_range(9..10, if &home[9..10] == "A" { "B" } else { "A" });
    for (what, answer, expected) in [
        ("damaged", fixture.view(ann, (&damaged, "")).await, DAMAGED),
        ("of another viewer", fixture.view(bob, (&home, "")).await, FOREIGN),
        ("of another timeline", fixture.view(ann, (&user, "")).await, FOREIGN),
        ("of what is not new", fixture.view(ann, (&home, &since)).await, FOREIGN),
    ] {
        assert_error(what, answer, expected);
    }
    for (what, answer, expected) in [
        ("damaged", fixture.view_user(ann, bob, (&damaged, "")).await, DAMAGED),
        ("of another author", fixture.view_user(bob, ann, (&user, "")).await, FOREIGN),
        ("of another timeline", fixture.view_user(ann, bob, (&home, "")).await, FOREIGN),
        ("of what is not new", fixture.view_user(ann, bob, (&user, &since_of_user)).await, FOREIGN),
    ] {
        assert_error(what, answer, expected);
    }
    let request = gateway::ViewFriendsRequest { page_token: home, ..Default::default() };
    let answer = system.gateway().view_friends(ann.request(request)).await;
    assert_error("friends", answer, FOREIGN);
}

#[tokio::test]
async fn a_blocked_account_sees_no_older_posts() {
    let fixture = Fixture::set().await;
    let Fixture { system, ann, bob, .. } = &fixture;
    let [_, (user, _)] = fixture.tokens().await;
    fixture.view_user(ann, bob, (&user, "")).await.unwrap();
    system.block(bob, ann).await;
    let view = async || fixture.view_user(ann, bob, (&user, "")).await;
    assert_error("blocked", view().await, BLOCKED_BY_TARGET);
    system.delete_many(bob, &fixture.posts).await;
    assert_error("nothing is left", view().await, BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn a_page_of_older_posts_takes_a_fixed_number_of_calls() {
    let fixture = Fixture::set().await;
    let Fixture { system, ann, bob, .. } = &fixture;
    let [(home, _), (user, _)] = fixture.tokens().await;
    // Three batches of followings, at most two concurrently.
    let crowd = system.crowd("c", 550).await;
    system.follows(crowd.iter().map(|&id| (ann.id, id))).await;
    let slice = ["post.ListAuthorsPosts"; 2];
    let scene_calls =
        ["user.BatchGetUsers", "relation.BatchGetRelations", "user.BatchResolveNames"];
    let followings =
        [&["relation.ListFollowing"; 3][..], &["relation.BatchGetRelations"; 2]].concat();
    let assert_called = |what: &str, expected: &[&[&str]]| {
        let mut expected = expected.concat();
        expected.sort_unstable();
        assert_eq!(system.recorder.calls(), expected, "{what}");
    };
    // One full batch, and the rest.
    for page_size in [1, 50, 200] {
        let scene_calls = scene_calls.repeat(if page_size > 50 { 2 } else { 1 });
        system.recorder.calls();
        let page = system.home(ann, page_size, &home, "").await;
        assert_eq!(page.posts.len(), (page_size as usize).min(PAST + 5));
        let calls = [&["user.Authenticate"][..], &followings, &slice, &scene_calls];
        assert_called("home", &calls);
    }
    system.user_timeline(Some(ann), bob, 20, &user).await;
    let calls = ["user.Authenticate", "user.GetUser", "post.ListAuthorsPosts"];
    assert_called("user", &[&calls, &scene_calls]);
}

#[tokio::test]
async fn newer_pages_are_shown_while_older_posts_are_unavailable() {
    let fixture = Fixture::set().await;
    let Fixture { system, ann, bob, posts } = &fixture;
    let tokens = fixture.tokens().await;
    // Ten more in each timeline.
    let [mut of_user, mut of_home] = [Vec::new(), Vec::new()];
    for (author, newest) in [(bob, &mut of_user), (ann, &mut of_home)] {
        newest.extend(system.publish_many(author, vec!["new".to_owned(); 10]).await);
        newest.reverse();
    }
    let unavailable = || {
        let text = "the archive does not answer";
        status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text)
    };
    for method in ["post.ListAuthorsPosts", "relation.ListFollowing"] {
        let is_for_user = method.starts_with("post");
        system.recorder.reject(method, unavailable());
        // The page with the last newer posts is shown, and has a next page token.
        let home = system.home(ann, 20, "", "").await;
        assert_eq!(post_ids(&home.posts), of_home);
        let user = system.user_timeline(None, bob, 20, "").await;
        assert_eq!(post_ids(&user.posts)[..10], of_user);
        assert_eq!(user.posts.len(), if is_for_user { 10 } else { 20 });
        for token in [&home.next_page_token, &tokens[0].0] {
            let status = fixture.view(ann, (token, "")).await.unwrap_err();
            let found = (status.code(), status::reason_of(&status));
            assert_eq!(found, (Code::Unavailable, Some(ErrorReason::StoreUnavailable)));
        }
        let answer = fixture.view_user(ann, bob, (&tokens[1].0, "")).await;
        assert_eq!(answer.is_err(), is_for_user);
        system.recorder.reject_none();
        let rest = system.home(ann, 200, &home.next_page_token, "").await;
        assert_eq!((post_ids(&rest.posts), rest.next_page_token.as_str()), (posts.clone(), ""));
    }
}
