//! Posts beyond the stored timelines: cost, errors, and outages.

use std::time::Duration;

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway};
use tokio::time::sleep;
use tonic::{Code, Response, Status};

use crate::{
    errors::{BLOCKED_BY_TARGET, Expected, assert_error},
    system::{Member, System, by_id},
    timeline_actions::{post_ids, without_jobs},
    timeline_errors::{DAMAGED, FOREIGN},
    timeline_pages::tags,
};

/// The error while the database of post does not answer.
const UNAVAILABLE: Expected = (Code::Unavailable, ErrorReason::StoreUnavailable, &[]);

fn unavailable() -> Status {
    let text = "the database does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, text)
}

/// Number of posts beyond the stored timeline.
const PAST: usize = 60;

/// Ann follows Bob. The stored timeline ends above most of his posts.
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
    // More accounts than one batch has.
    let crowd = system.crowd("c", 550).await;
    system.follows(crowd.iter().map(|&id| (ann.id, id))).await;
    let slice = ["post.ListAuthorsPosts"; 2];
    let hydration_calls = ["user.BatchGetUsers", "relation.BatchGetRelations"];
    let assert_called = |what: &str, expected: &[&[&str]]| {
        let mut expected = expected.concat();
        expected.sort_unstable();
        assert_eq!(system.recorder.calls(), expected, "{what}");
    };
    // One full batch, and the rest.
    for page_size in [1, 50, 200] {
        let hydration_calls = hydration_calls.repeat(if page_size > 50 { 2 } else { 1 });
        system.recorder.calls();
        let page = system.home(ann, page_size, &home, "").await;
        assert_eq!(page.posts.len(), (page_size as usize).min(PAST + 5));
        let calls = ["timeline.ListAuthors"];
        assert_called("home", &[&calls, &slice, &hydration_calls]);
    }
    let page = system.friends_page(ann, 20, "").await;
    assert!(page.posts.is_empty());
    let calls = ["user.Authenticate", "timeline.GetTimeline"];
    assert_called("friends", &[&calls]);
    system.user_timeline(Some(ann), bob, 20, &user).await;
    let calls = ["post.ListAuthorsPosts"];
    assert_called("user", &[&calls, &hydration_calls]);
}

#[tokio::test]
async fn newer_pages_are_shown_while_older_posts_are_unavailable() {
    let fixture = Fixture::set().await;
    let Fixture { system, ann, posts, .. } = &fixture;
    let [(token, _), _] = fixture.tokens().await;
    let mut of_home = system.publish_many(ann, vec!["new".to_owned(); 10]).await;
    of_home.reverse();
    for method in ["post.ListAuthorsPosts", "timeline.ListAuthors"] {
        system.recorder.reject(method, unavailable());
        // The page with the last newer posts is shown, and has a next page token.
        let home = system.home(ann, 20, "", "").await;
        assert_eq!(post_ids(&home.posts), of_home);
        for token in [&home.next_page_token, &token] {
            assert_error("older posts", fixture.view(ann, (token, "")).await, UNAVAILABLE);
        }
        system.recorder.reject_none();
        let rest = system.home(ann, 200, &home.next_page_token, "").await;
        assert_eq!((post_ids(&rest.posts), rest.next_page_token.as_str()), (posts.clone(), ""));
    }
}

#[tokio::test]
async fn a_page_of_an_account_ends_where_older_posts_are_unavailable() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    // More than fit into one answer of the post service.
    let mut posts = system.publish_many(&bob, (0..60).map(tags).collect()).await;
    posts.reverse();
    system.recorder.reject_after(1, "post.ListAuthorsPosts", unavailable());
    let page = system.user_timeline(Some(&ann), &bob, 50, "").await;
    let shown = page.posts.len();
    assert!((1..50).contains(&shown), "{shown}");
    let (user, page_token) = (by_id(bob.id), page.next_page_token.clone());
    let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
    let answer = system.gateway().view_user_timeline(ann.request(request)).await;
    assert_error("older posts", answer, UNAVAILABLE);
    system.recorder.reject_none();
    let mut seen = post_ids(&page.posts);
    let mut token = page.next_page_token;
    while !token.is_empty() {
        let page = system.user_timeline(Some(&ann), &bob, 50, &token).await;
        seen.extend(post_ids(&page.posts));
        token = page.next_page_token;
    }
    assert_eq!(seen, posts);
}
