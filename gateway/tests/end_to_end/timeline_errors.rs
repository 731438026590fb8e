//! Errors of timeline calls, and timelines while a service is unavailable.

use std::time::Duration;

use microblog_chassis::{Peer, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{Database, Topology, eventually, free_port};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    errors::{
        BLOCKED_BY_TARGET, Expected, TOKEN_INVALID, TOKEN_MISSING, USER_NOT_FOUND, assert_error,
        invalid,
    },
    outages::{gateway_to, peer_at},
    system::{Flags, Jobs, Member, System, by_id, config, post_service, with_token},
    timeline_actions::{SOON, without_jobs},
};

pub(crate) const DAMAGED: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["page_token"]);
pub(crate) const DAMAGED_SINCE: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["since_token"]);
pub(crate) const FOREIGN: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["page_token"]);
const FOREIGN_SINCE: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["since_token"]);

/// Checks the error of each timeline call with this page size, page token and since token. The
/// first argument is the account of the user timeline.
macro_rules! check_pages {
    ($system:expr, $viewer:expr, $of:expr, $page:expr, $expected:expr) => {{
        let (page_size, page_token, since_token): (i32, &str, &str) = $page;
        let (page_token, since_token) = (page_token.to_owned(), since_token.to_owned());
        let mut gateway = $system.gateway();
        let request = gateway::ViewHomeRequest {
            page_size,
            page_token: page_token.clone(),
            since_token: since_token.clone(),
        };
        assert_error("home", gateway.view_home($viewer(request)).await, $expected);
        let request = gateway::ViewFriendsRequest {
            page_size,
            page_token: page_token.clone(),
            since_token: since_token.clone(),
        };
        assert_error("friends", gateway.view_friends($viewer(request)).await, $expected);
        let user = by_id($of);
        let request = gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token };
        assert_error("user", gateway.view_user_timeline($viewer(request)).await, $expected);
    }};
}

#[tokio::test]
async fn home_timelines_require_a_token() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let mut gateway = system.gateway();
    let home = gateway::ViewHomeRequest::default();
    assert_error("home", gateway.view_home(home).await, TOKEN_MISSING);
    let friends = gateway::ViewFriendsRequest::default();
    assert_error("friends", gateway.view_friends(friends).await, TOKEN_MISSING);
    let count = gateway::CountNewRequest::default();
    assert_error("count", gateway.count_new(count.clone()).await, TOKEN_MISSING);
    let count = with_token("not one", count);
    assert_error("count", gateway.count_new(count).await, TOKEN_INVALID);
    // It precedes errors of page tokens and accounts.
    macro_rules! stranger {
        ($request:expr) => {
            with_token("not one", $request)
        };
    }
    check_pages!(system, |request| stranger!(request), ann.id, (0, "?", "?"), TOKEN_INVALID);
}

#[tokio::test]
async fn errors_name_the_fields_of_the_public_api() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follows([(ann.id, bob.id), (bob.id, ann.id)]).await;
    system.publish_many(&bob, vec!["one".into(), "two".into()]).await;
    macro_rules! check {
        ($page:expr, $expected:expr) => {
            check_pages!(system, |request| ann.request(request), bob.id, $page, $expected);
        };
    }
    check!((-1, "", ""), invalid(&["page_size"]));
    check!((0, "?", ""), DAMAGED);
    check!((0, "", "?"), DAMAGED_SINCE);
    let gateway = || system.gateway();
    let count = ann.request(gateway::CountNewRequest { since_token: "?".to_owned() });
    assert_error("count", gateway().count_new(count).await, DAMAGED_SINCE);
    // Tokens of another timeline or of another kind of page.
    let bobs = system.home(&bob, 1, "", "").await;
    check!((0, &bobs.next_page_token, ""), FOREIGN);
    check!((0, "", &bobs.since_token), FOREIGN_SINCE);
    let own = system.home(&ann, 1, "", "").await;
    let request = gateway::ViewHomeRequest {
        page_size: 1,
        page_token: own.next_page_token,
        since_token: own.since_token,
    };
    assert_error("since", gateway().view_home(ann.request(request)).await, FOREIGN);

    let request = gateway::ViewUserTimelineRequest { page_size: -1, ..Default::default() };
    let answer = gateway().view_user_timeline(request).await;
    assert_error("all at once", answer, invalid(&["user", "page_size"]));
    for (page_token, expected) in [("?", DAMAGED), ("", USER_NOT_FOUND)] {
        let (user, page_token) = (by_id(1 << 40), page_token.to_owned());
        let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
        assert_error("unknown", gateway().view_user_timeline(request).await, expected);
    }
}

#[tokio::test]
async fn an_invalid_page_token_precedes_a_block() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.block(&ann, &bob).await;
    let view = async |page_token: &str| {
        let (user, page_token) = (by_id(ann.id), page_token.to_owned());
        let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
        system.gateway().view_user_timeline(bob.request(request)).await
    };
    assert_error("wrong", view("?").await, DAMAGED);
    assert_error("none", view("").await, BLOCKED_BY_TARGET);
}

/// Returns the timeline calls that succeed; the others must be UNAVAILABLE with a reason.
async fn answered(
    mut gateway: GatewayServiceClient<Peer>,
    viewer: &Member,
    of: &Member,
) -> Vec<&'static str> {
    let mut answered = Vec::new();
    macro_rules! check {
        ($what:literal, $method:ident, $request:expr) => {
            match gateway.$method($request).await {
                Ok(_) => answered.push($what),
                Err(failure) => {
                    let found = (failure.code(), status::reason_of(&failure));
                    assert_eq!(found, (Code::Unavailable, Some(ErrorReason::PeerUnavailable)));
                }
            }
        };
    }
    check!("home", view_home, viewer.request(gateway::ViewHomeRequest::default()));
    check!("friends", view_friends, viewer.request(gateway::ViewFriendsRequest::default()));
    let user = by_id(of.id);
    let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
    check!("user", view_user_timeline, viewer.request(request.clone()));
    check!("anonymous", view_user_timeline, request);
    check!("count", count_new, viewer.request(gateway::CountNewRequest::default()));
    check!("watch", watch_home, viewer.request(gateway::WatchHomeRequest::default()));
    answered
}

fn unavailable_peer() -> Peer {
    peer_at(&format!("http://127.0.0.1:{}", free_port()))
}

#[tokio::test]
async fn calls_work_without_services_that_they_do_not_need() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follows([(ann.id, bob.id), (bob.id, ann.id)]).await;
    system.publish(&bob, "hello").await;
    let peers = || system.peers.clone();
    let all = ["home", "friends", "user", "anonymous", "count", "watch"];
    assert_eq!(answered(system.gateway(), &ann, &bob).await, all);
    for (peers, expected) in [
        (Peers { timeline: unavailable_peer(), ..peers() }, &["user", "anonymous"][..]),
        (Peers { user: unavailable_peer(), ..peers() }, &[]),
        (Peers { post: unavailable_peer(), ..peers() }, &["count", "watch"]),
        // The timeline service still reaches it, and returns the relations of authors.
        (
            Peers { relation: unavailable_peer(), ..peers() },
            &["home", "friends", "anonymous", "count", "watch"],
        ),
    ] {
        assert_eq!(answered(gateway_to(peers), &ann, &bob).await, expected);
    }
}

#[tokio::test]
async fn posts_made_during_an_outage_of_the_timeline_service_arrive_later() {
    let database = Database::sqlite();
    let url = database.url();
    let post = ["--database-url", &url, "--posts-per-minute", "0", "--comments-per-minute", "0"];
    let flags = Flags { post: &post, ..Flags::default() };
    let system = System::start_on(Topology::Single, Jobs::Run, flags).await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let service = post_service(&system.store.url("post"), &post, Some(unavailable_peer())).await;
    let post = Peer::local(&service, &config().chassis);
    let mut gateway =
        gateway_to(Peers { post, timeline: unavailable_peer(), ..system.peers.clone() });
    let (request_id, text) = (crate::actions::request_id(), "hello".to_owned());
    let request = bob.request(gateway::PublishRequest { request_id, text });
    let post = gateway.publish(request).await.unwrap().into_inner().post.unwrap();
    let request = ann.request(gateway::ViewPostRequest { post_id: post.id });
    gateway.view_post(request).await.unwrap();
    // A replica that reaches the timeline service delivers it.
    eventually("it is delivered", SOON, async || {
        system.home_texts(&ann).await == ["hello".to_owned()]
    })
    .await;
}

#[tokio::test]
async fn a_hanging_timeline_service_does_not_delay_a_call_beyond_its_deadline() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    // Accepts connections in the kernel, and never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let mut gateway = gateway_to(Peers { timeline: peer_at(&silent), ..system.peers.clone() });
    let mut request = ann.request(gateway::ViewHomeRequest::default());
    request.set_timeout(Duration::from_millis(500));
    let begun = Instant::now();
    let failure = gateway.view_home(request).await.unwrap_err();
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure:?}");
    // Not the default deadline of ten seconds.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}
