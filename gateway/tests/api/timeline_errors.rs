//! What is refused on timelines, and what goes on while a service is away.

use std::time::Duration;

use microblog_chassis::{Peer, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{eventually, free_port};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    outages::{gateway_to, peer_at},
    refused::{
        BLOCKED_BY_TARGET, Refusal, TOKEN_INVALID, TOKEN_MISSING, USER_NOT_FOUND, assert_refused,
        invalid,
    },
    system::{Member, System, by_id, config, post_service, with_token},
    timeline_acts::{SOON, at_rest},
};

pub(crate) const DAMAGED: Refusal =
    (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["page_token"]);
const DAMAGED_SINCE: Refusal =
    (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["since_token"]);
pub(crate) const FOREIGN: Refusal =
    (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["page_token"]);
const FOREIGN_SINCE: Refusal =
    (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["since_token"]);

/// Checks what is wrong with a request for a page of each timeline, of a given size, page and since
/// token; the user timeline is of the first argument.
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
        assert_refused("home", gateway.view_home($viewer(request)).await, $expected);
        let request = gateway::ViewFriendsRequest {
            page_size,
            page_token: page_token.clone(),
            since_token: since_token.clone(),
        };
        assert_refused("friends", gateway.view_friends($viewer(request)).await, $expected);
        let user = by_id($of);
        let request = gateway::ViewUserTimelineRequest { user, page_size, page_token, since_token };
        assert_refused("user", gateway.view_user_timeline($viewer(request)).await, $expected);
    }};
}

#[tokio::test]
async fn who_calls_must_say_who_they_are() {
    let system = at_rest().await;
    let ann = system.join("ann").await;
    let mut gateway = system.gateway();
    let home = gateway::ViewHomeRequest::default();
    assert_refused("home", gateway.view_home(home).await, TOKEN_MISSING);
    let friends = gateway::ViewFriendsRequest::default();
    assert_refused("friends", gateway.view_friends(friends).await, TOKEN_MISSING);
    let count = gateway::CountNewRequest::default();
    assert_refused("count", gateway.count_new(count.clone()).await, TOKEN_MISSING);
    let count = with_token("not one", count);
    assert_refused("count", gateway.count_new(count).await, TOKEN_INVALID);
    // It is told before anything about tokens of pages and accounts.
    macro_rules! stranger {
        ($request:expr) => {
            with_token("not one", $request)
        };
    }
    check_pages!(system, |request| stranger!(request), ann.id, (0, "?", "?"), TOKEN_INVALID);
}

#[tokio::test]
async fn what_is_wrong_is_named_as_the_caller_knows_it() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follows([(ann.id, bob.id), (bob.id, ann.id)]).await;
    system.publish_many(&bob, vec!["one".into(), "two".into()]).await;
    macro_rules! check {
        ($page:expr, $expected:expr) => {
            check_pages!(system, |request| ann.asks(request), bob.id, $page, $expected);
        };
    }
    check!((-1, "", ""), invalid(&["page_size"]));
    check!((0, "?", ""), DAMAGED);
    check!((0, "", "?"), DAMAGED_SINCE);
    let gateway = || system.gateway();
    let count = ann.asks(gateway::CountNewRequest { since_token: "?".to_owned() });
    assert_refused("count", gateway().count_new(count).await, DAMAGED_SINCE);
    // Tokens of another timeline, or of another place.
    let bobs = system.home(&bob, 1, "", "").await;
    check!((0, &bobs.next_page_token, ""), FOREIGN);
    check!((0, "", &bobs.since_token), FOREIGN_SINCE);
    let own = system.home(&ann, 1, "", "").await;
    let request = gateway::ViewHomeRequest {
        page_size: 1,
        page_token: own.next_page_token,
        since_token: own.since_token,
    };
    assert_refused("since", gateway().view_home(ann.asks(request)).await, FOREIGN);

    let request = gateway::ViewUserTimelineRequest { page_size: -1, ..Default::default() };
    let answer = gateway().view_user_timeline(request).await;
    assert_refused("all at once", answer, invalid(&["user", "page_size"]));
    let (user, page_token) = (by_id(1 << 40), "?".to_owned());
    let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
    assert_refused("nobody", gateway().view_user_timeline(request).await, USER_NOT_FOUND);
}

#[tokio::test]
async fn of_a_timeline_the_page_token_is_told_before_a_block() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.block(&ann, &bob).await;
    let view = async |page_token: &str| {
        let (user, page_token) = (by_id(ann.id), page_token.to_owned());
        let request = gateway::ViewUserTimelineRequest { user, page_token, ..Default::default() };
        system.gateway().view_user_timeline(bob.asks(request)).await
    };
    assert_refused("wrong", view("?").await, DAMAGED);
    assert_refused("none", view("").await, BLOCKED_BY_TARGET);
}

/// Returns which of the calls on timelines are answered; the others are UNAVAILABLE, and say why.
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
    check!("home", view_home, viewer.asks(gateway::ViewHomeRequest::default()));
    check!("friends", view_friends, viewer.asks(gateway::ViewFriendsRequest::default()));
    let user = by_id(of.id);
    let request = gateway::ViewUserTimelineRequest { user, ..Default::default() };
    check!("user", view_user_timeline, viewer.asks(request.clone()));
    check!("anonymous", view_user_timeline, request);
    check!("count", count_new, viewer.asks(gateway::CountNewRequest::default()));
    check!("watch", watch_home, viewer.asks(gateway::WatchHomeRequest::default()));
    answered
}

fn nowhere() -> Peer {
    peer_at(&format!("http://127.0.0.1:{}", free_port()))
}

#[tokio::test]
async fn what_does_not_need_a_service_goes_on_without_it() {
    let system = at_rest().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follows([(ann.id, bob.id), (bob.id, ann.id)]).await;
    system.publish(&bob, "hello").await;
    let peers = || system.peers.clone();
    let all = ["home", "friends", "user", "anonymous", "count", "watch"];
    assert_eq!(answered(system.gateway(), &ann, &bob).await, all);
    for (peers, expected) in [
        (Peers { timeline: nowhere(), ..peers() }, &["user", "anonymous"][..]),
        (Peers { user: nowhere(), ..peers() }, &[]),
        (Peers { post: nowhere(), ..peers() }, &["count", "watch"]),
        // The timeline service still reaches it, and tells of those whose posts it names.
        (
            Peers { relation: nowhere(), ..peers() },
            &["home", "friends", "anonymous", "count", "watch"],
        ),
    ] {
        assert_eq!(answered(gateway_to(peers), &ann, &bob).await, expected);
    }
}

#[tokio::test]
async fn what_is_posted_while_the_timeline_service_is_away_comes_when_it_is_back() {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let service = post_service(&system.store.url("post"), &[], Some(nowhere())).await;
    let post = Peer::local(&service, &config().chassis);
    let mut gateway = gateway_to(Peers { post, timeline: nowhere(), ..system.peers.clone() });
    let (request_id, text) = (crate::acts::request_id(), "hello".to_owned());
    let request = bob.asks(gateway::PublishRequest { request_id, text });
    let post = gateway.publish(request).await.unwrap().into_inner().post.unwrap();
    let request = ann.asks(gateway::ViewPostRequest { post_id: post.id });
    gateway.view_post(request).await.unwrap();
    // A replica that reaches the timeline service delivers it.
    eventually("it is delivered", SOON, async || {
        system.home_texts(&ann).await == ["hello".to_owned()]
    })
    .await;
}

#[tokio::test]
async fn a_timeline_service_that_hangs_holds_no_call_beyond_its_deadline() {
    let system = at_rest().await;
    let ann = system.join("ann").await;
    // Accepts connections, in the kernel, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let mut gateway = gateway_to(Peers { timeline: peer_at(&silent), ..system.peers.clone() });
    let mut request = ann.asks(gateway::ViewHomeRequest::default());
    request.set_timeout(Duration::from_millis(500));
    let begun = Instant::now();
    let failure = gateway.view_home(request).await.unwrap_err();
    assert!(matches!(failure.code(), Code::DeadlineExceeded | Code::Unavailable), "{failure:?}");
    // And not the ten seconds that a call has without one.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}
