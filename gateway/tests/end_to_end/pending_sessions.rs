//! Reads of sessions that the gateway verified shortly before. They run before the session is
//! verified again, and show nothing if it has ended.

use std::fmt::Debug;

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway};
use microblog_testkit::Topology;
use tonic::{Code, Response, Status};

use crate::{
    errors::{Expected, POST_NOT_FOUND, TOKEN_INVALID, USER_NOT_FOUND, assert_error, invalid},
    notices::with_notices,
    sessions::log_in,
    stages::with_posts,
    system::{Flags, Jobs, Member, PASSWORD, System, by_id, by_name},
    timeline_costs::commands_on,
    timeline_errors::{DAMAGED, DAMAGED_SINCE},
};

/// Checks that a read of an ended session fails with TOKEN_INVALID, whatever its outcome was before,
/// and the calls of that read. The next one costs only user.Authenticate.
async fn assert_refused<T: Debug>(
    system: &System,
    what: &str,
    (before, calls): (Option<Expected<'_>>, &[&str]),
    read: impl AsyncFn(&Member) -> Result<Response<T>, Status>,
) {
    let ann = Member { id: 0, token: log_in(system, "ann", PASSWORD).await.unwrap() };
    match before {
        Some(error) => assert_error(what, read(&ann).await, error),
        None => drop(read(&ann).await.expect(what)),
    }
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    system.recorder.calls();
    assert_error(what, read(&ann).await, TOKEN_INVALID);
    assert_eq!(system.recorder.calls(), calls, "{what}");
    assert_error(what, read(&ann).await, TOKEN_INVALID);
    assert_eq!(system.recorder.calls(), ["user.Authenticate"], "{what}: it is no longer recent");
}

#[tokio::test]
async fn a_read_of_an_ended_session_shows_nothing_and_reports_no_other_error() {
    let (system, _, bob, post_id) = with_posts().await;
    macro_rules! check {
        ($method:ident, $request:expr, $before:expr, $calls:expr) => {
            let read = async |ann: &Member| system.gateway().$method(ann.request($request)).await;
            assert_refused(&system, stringify!($method), ($before, &$calls), read).await;
        };
    }
    let (authenticate, users) = ("user.Authenticate", "user.BatchGetUsers");
    let relations = "relation.BatchGetRelations";

    // With accounts, whose profiles verify the session.
    let (timeline, posts) = ("timeline.GetTimeline", "post.BatchGetPosts");
    let calls = [posts, relations, timeline, authenticate, users];
    check!(view_home, gateway::ViewHomeRequest::default(), None, calls);
    let followers =
        |user| gateway::ViewFollowersRequest { user: by_id(user), ..Default::default() };
    check!(view_followers, followers(bob.id), None, ["relation.ListEdges", authenticate, users]);
    let calls = ["post.GetPost", relations, authenticate, users];
    check!(view_post, gateway::ViewPostRequest { post_id }, None, calls);

    let named = |user| gateway::ViewUsersRequest { users: vec![user], include_counts: true };
    let by_id_with_counts = || named(by_id(bob.id).unwrap());
    let counts = ["post.BatchGetPostCounts", "relation.BatchGetCounts"];
    let calls = [&counts[..], &[relations, authenticate, users]].concat();
    check!(view_users, by_id_with_counts(), None, calls);
    check!(view_users, named(by_name("bob").unwrap()), None, [authenticate, users]);
    let named = |post_ids| gateway::ViewPostsRequest { post_ids, unasked: true };
    let calls = [posts, relations, authenticate, users];
    check!(view_posts, named(vec![post_id]), None, calls);

    // Without accounts.
    check!(view_posts, named(vec![1 << 40]), None, [posts, authenticate]);
    check!(view_users, gateway::ViewUsersRequest::default(), None, [authenticate]);
    let calls = ["relation.ListEdges", authenticate];
    check!(view_mutes, gateway::ViewMutesRequest::default(), None, calls);
    let calls = ["timeline.CountNew", authenticate];
    check!(count_new, gateway::CountNewRequest::default(), None, calls);
    let calls = ["notice.ListNotices", authenticate];
    check!(view_notices, gateway::ViewNoticesRequest::default(), None, calls);
    check!(count_unread, gateway::CountUnreadRequest::default(), None, calls);
    let calls = ["notice.ListMentions", authenticate];
    check!(view_mentions, gateway::ViewMentionsRequest::default(), None, calls);
    let calls = [&counts[..], &[authenticate, "user.GetAccount"]].concat();
    check!(me, gateway::MeRequest {}, None, calls);
    let by_name = || gateway::ViewUserRequest { user: by_name("bob") };
    check!(view_user, by_name(), None, [authenticate, "user.GetUserByName"]);

    // With another error, from each stage.
    let page_token = || "?".to_owned();
    let home = || gateway::ViewHomeRequest { page_token: page_token(), ..Default::default() };
    check!(view_home, home(), Some(DAMAGED), [timeline, authenticate]);
    let count = || gateway::CountNewRequest { since_token: page_token() };
    check!(count_new, count(), Some(DAMAGED_SINCE), ["timeline.CountNew", authenticate]);
    let notices = || gateway::ViewNoticesRequest { page_token: page_token(), ..Default::default() };
    check!(view_notices, notices(), Some(DAMAGED), ["notice.ListNotices", authenticate]);
    let kinds = || gateway::CountUnreadRequest { kinds: vec![0] };
    let expected = Some(invalid(&["kinds[0]"]));
    check!(count_unread, kinds(), expected, ["notice.ListNotices", authenticate]);
    let mentions = || gateway::ViewMentionsRequest { page_token: page_token(), page_size: 0 };
    check!(view_mentions, mentions(), Some(DAMAGED), ["notice.ListMentions", authenticate]);
    let user = by_id(bob.id);
    let posts = || gateway::ViewUserTimelineRequest {
        user: user.clone(),
        page_token: page_token(),
        ..Default::default()
    };
    check!(view_user_timeline, posts(), Some(DAMAGED), [authenticate]);
    let unknown = 1 << 40;
    let request = || gateway::ViewPostRequest { post_id: unknown };
    check!(view_post, request(), Some(POST_NOT_FOUND), ["post.GetPost", authenticate]);
    let calls = ["relation.ListEdges", authenticate, users];
    check!(view_followers, followers(unknown), Some(USER_NOT_FOUND), calls);
    let own = || gateway::ViewFollowersRequest { not_followed_back: true, ..followers(bob.id) };
    check!(view_followers, own(), Some(invalid(&["not_followed_back"])), [authenticate]);
}

#[tokio::test]
async fn a_read_of_notices_of_an_ended_session_shows_nothing() {
    let (system, _) = with_notices().await;
    let accounts = ["relation.BatchGetRelations", "user.Authenticate", "user.BatchGetUsers"];
    let calls = ["notice.ListNotices", "post.BatchGetComments", "post.BatchGetPosts"];
    let calls = [calls, accounts].concat();
    let read = async |ann: &Member| {
        system.gateway().view_notices(ann.request(gateway::ViewNoticesRequest::default())).await
    };
    assert_refused(&system, "ViewNotices", (None, &calls), read).await;
    let read = async |ann: &Member| {
        system.gateway().count_unread(ann.request(gateway::CountUnreadRequest::default())).await
    };
    assert_refused(&system, "CountUnread", (None, &calls), read).await;
    let calls = [&["notice.ListMentions", "post.BatchGetPosts"][..], &accounts].concat();
    let read = async |ann: &Member| {
        system.gateway().view_mentions(ann.request(gateway::ViewMentionsRequest::default())).await
    };
    assert_refused(&system, "ViewMentions", (None, &calls), read).await;
}

#[tokio::test]
async fn a_page_verifies_its_session_once() {
    // Without the client-side cache, so that Redis receives each read.
    let flags = Flags { user: &["--redis-cache-bytes", "0"], ..Flags::default() };
    let system = System::start_on(Topology::Single, Jobs::Rest, flags).await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    system.publish_many(&bob, vec!["hello".to_owned(); 60]).await;
    system.caches(&ann).await;
    system.recorder.calls();
    let commands = commands_on(&system.store.nodes()[0], ":sessions:", async || {
        assert_eq!(system.home(&ann, 200, "", "").await.posts.len(), 60);
    });
    assert_eq!(commands.await.len(), 1);
    let calls = system.recorder.calls();
    let count = |method| calls.iter().filter(|call| *call == method).count();
    assert_eq!([count("user.BatchGetUsers"), count("user.Authenticate")], [2, 0]);
}

#[tokio::test]
async fn profiles_that_cannot_be_read_verify_no_session() {
    let (system, ann, bob, _) = with_posts().await;
    let (code, reason) = (Code::Unavailable, ErrorReason::StoreUnavailable);
    let followers = async || {
        let request = gateway::ViewFollowersRequest { user: by_id(bob.id), ..Default::default() };
        system.gateway().view_followers(ann.request(request)).await
    };
    followers().await.unwrap();
    let rejection = status::with_reason(code, reason, "redis unavailable");
    system.recorder.reject("user.BatchGetUsers", rejection);
    let expected = (code, reason, &[][..]);
    assert_error("a valid session", followers().await, expected);
    system.gateway().logout(ann.request(gateway::LogoutRequest {})).await.unwrap();
    assert_error("an ended session", followers().await, TOKEN_INVALID);
}
