//! Post calls while the relation or the user service is unavailable, and calls that the caller
//! cancels.

use std::time::Duration;

use microblog_chassis::{Peer, status};
use microblog_gateway::Peers;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::{Topology, free_port};
use tonic::{Code, Response, Status};

use crate::{
    actions::{comment_texts, request_as, request_id},
    outages::{gateway_to, peer_at},
    system::{Flags, Jobs, Member, System},
};

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// UNAVAILABLE, with PEER_UNAVAILABLE.
    Unavailable,
}

fn outcome<T>(answer: Result<Response<T>, Status>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Answered,
        Err(status) => {
            let found = (status.code(), status::reason_of(&status));
            assert_eq!(found, (Code::Unavailable, Some(ErrorReason::PeerUnavailable)));
            assert!(!format!("{status:?}").contains("hello"), "a text in an error");
            Outcome::Unavailable
        }
    }
}

/// A viewer, a post and a gateway.
struct Calls<'a> {
    gateway: GatewayServiceClient<Peer>,
    viewer: Option<&'a Member>,
    post_id: u64,
}

impl Calls<'_> {
    /// Makes every call that shows a post or its lists.
    async fn view_all(&self) -> Vec<(&'static str, Outcome)> {
        let (post_id, mut outcomes) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:ident) => {
                let request = gateway::$request { post_id, ..Default::default() };
                let answer = self.gateway.clone().$method(request_as(self.viewer, request)).await;
                outcomes.push((stringify!($method), outcome(answer)));
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            check!(view_post, ViewPostRequest);
            check!(view_likers, ViewLikersRequest);
            check!(view_comments, ViewCommentsRequest);
            check!(view_reposts, ViewRepostsRequest);
        }
        let request = gateway::ViewPostsRequest { post_ids: vec![post_id], unasked: false };
        let answer = self.gateway.clone().view_posts(request_as(self.viewer, request)).await;
        outcomes.push(("view_posts", outcome(answer)));
        outcomes
    }

    /// Makes every call that acts on a post of any author.
    async fn act_on_all(&self) -> Vec<(&'static str, Outcome)> {
        let (post_id, mut outcomes) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:expr) => {
                let answer = self.gateway.clone().$method(request_as(self.viewer, $request)).await;
                outcomes.push((stringify!($method), outcome(answer)));
            };
        }
        let text = || "hello to you".to_owned();
        check!(like, gateway::LikeRequest { post_id });
        check!(repost, gateway::RepostRequest { request_id: request_id(), post_id, text: text() });
        let (request_id, text) = (request_id(), text());
        check!(comment, gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 });
        outcomes
    }

    /// Makes every other call that writes.
    async fn write_all(&self) -> Vec<(&'static str, Outcome)> {
        let (post_id, mut outcomes) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:expr) => {
                let answer = self.gateway.clone().$method(request_as(self.viewer, $request)).await;
                outcomes.push((stringify!($method), outcome(answer)));
            };
        }
        let (request_id, text) = (request_id(), "hello, @ann".to_owned());
        check!(publish, gateway::PublishRequest { request_id, text });
        check!(unlike, gateway::UnlikeRequest { post_id });
        check!(delete_comment, gateway::DeleteCommentRequest { post_id, comment_id: 12 });
        check!(delete_post, gateway::DeletePostRequest { post_id: (1 << 40) | 8 });
        outcomes
    }
}

#[track_caller]
fn assert_all(outcomes: Vec<(&str, Outcome)>, expected: Outcome) {
    let others: Vec<_> = outcomes.into_iter().filter(|(_, outcome)| *outcome != expected).collect();
    assert_eq!(others, [], "not {expected:?}");
}

fn unavailable_peer() -> Peer {
    peer_at(&format!("http://127.0.0.1:{}", free_port()))
}

async fn without_jobs() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

#[tokio::test]
async fn without_the_relation_service_only_calls_without_block_checks_succeed() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let stranger = system.join("stranger").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.block(&ann, &bob).await;
    let gateway = gateway_to(Peers { relation: unavailable_peer(), ..system.peers.clone() });
    for viewer in [&bob, &stranger] {
        let calls = Calls { gateway: gateway.clone(), viewer: Some(viewer), post_id };
        assert_all(calls.view_all().await, Outcome::Unavailable);
        assert_all(calls.act_on_all().await, Outcome::Unavailable);
        assert_all(calls.write_all().await, Outcome::Answered);
    }
    let anonymous = Calls { gateway: gateway.clone(), viewer: None, post_id };
    assert_all(anonymous.view_all().await, Outcome::Answered);
    let own = Calls { gateway, viewer: Some(&ann), post_id };
    assert_all(own.act_on_all().await, Outcome::Answered);
    let post = system.view(None, post_id).await.post.unwrap();
    assert_eq!((post.likes, post.reposts, post.comments), (1, 1, 1), "her own");
}

#[tokio::test]
async fn without_the_user_service_every_call_fails() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let gateway = gateway_to(Peers { user: unavailable_peer(), ..system.peers.clone() });
    let anonymous = Calls { gateway: gateway.clone(), viewer: None, post_id };
    assert_all(anonymous.view_all().await, Outcome::Unavailable);
    let calls = Calls { gateway, viewer: Some(&ann), post_id };
    assert_all(calls.view_all().await, Outcome::Unavailable);
    assert_all(calls.act_on_all().await, Outcome::Unavailable);
    assert_all(calls.write_all().await, Outcome::Unavailable);
    let post = system.view(None, post_id).await.post.unwrap();
    assert_eq!((post.likes, post.reposts, post.comments), (0, 0, 0));
}

#[tokio::test]
async fn a_cancelled_comment_is_stored_completely_or_not_at_all() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let waits_ms = [0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 5_000];
    let request = |i: usize| {
        let (request_id, text) = (request_id(), format!("comment {}, @ann", i + 10));
        gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 }
    };
    let requests: Vec<_> = (0..waits_ms.len()).map(request).collect();
    for (request, wait_ms) in requests.iter().zip(waits_ms) {
        let mut gateway = system.gateway();
        let call = gateway.comment(bob.request(request.clone()));
        let _ = tokio::time::timeout(Duration::from_millis(wait_ms), call).await;
    }
    // Each retry creates a missing comment, and returns an existing one.
    for request in &requests {
        system.gateway().comment(bob.request(request.clone())).await.unwrap();
    }
    let page = system.comments(None, post_id, 200, "").await;
    let mut texts = comment_texts(&page);
    texts.sort_unstable();
    let expected: Vec<_> = requests.iter().map(|request| request.text.as_str()).collect();
    assert_eq!(texts, expected, "each once");
    let count = system.view(None, post_id).await.post.unwrap().comments;
    assert_eq!(count as usize, requests.len());
}
