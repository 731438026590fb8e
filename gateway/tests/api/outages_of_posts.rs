//! What becomes of posts while the relation or the user service is away, and of a call whose caller
//! hangs up.

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
    acts::{asks, comment_texts, request_id},
    outages::{gateway_to, peer_at},
    system::{Flags, Jobs, Member, System},
};

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    /// UNAVAILABLE, with PEER_UNAVAILABLE.
    Unavailable,
}

fn fate<T>(answer: Result<Response<T>, Status>) -> Fate {
    match answer {
        Ok(_) => Fate::Answered,
        Err(status) => {
            let found = (status.code(), status::reason_of(&status));
            assert_eq!(found, (Code::Unavailable, Some(ErrorReason::PeerUnavailable)));
            assert!(!format!("{status:?}").contains("hello"), "a text in an error");
            Fate::Unavailable
        }
    }
}

/// Who calls which post by which gateway.
struct Calls<'a> {
    gateway: GatewayServiceClient<Peer>,
    viewer: Option<&'a Member>,
    post_id: u64,
}

impl Calls<'_> {
    /// Makes every call that shows a post or what belongs to it.
    async fn look(&self) -> Vec<(&'static str, Fate)> {
        let (post_id, mut fates) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:ident) => {
                let request = gateway::$request { post_id, ..Default::default() };
                let answer = self.gateway.clone().$method(asks(self.viewer, request)).await;
                fates.push((stringify!($method), fate(answer)));
            };
        }
        #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
        {
            check!(view_post, ViewPostRequest);
            check!(view_likers, ViewLikersRequest);
            check!(view_comments, ViewCommentsRequest);
            check!(view_reposts, ViewRepostsRequest);
        }
        fates
    }

    /// Makes every call that acts on a post that may be another's.
    async fn act(&self) -> Vec<(&'static str, Fate)> {
        let (post_id, mut fates) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:expr) => {
                let answer = self.gateway.clone().$method(asks(self.viewer, $request)).await;
                fates.push((stringify!($method), fate(answer)));
            };
        }
        let text = || "hello to you".to_owned();
        check!(like, gateway::LikeRequest { post_id });
        check!(repost, gateway::RepostRequest { request_id: request_id(), post_id, text: text() });
        let (request_id, text) = (request_id(), text());
        check!(comment, gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 });
        fates
    }

    /// Makes every other call that writes.
    async fn go_on(&self) -> Vec<(&'static str, Fate)> {
        let (post_id, mut fates) = (self.post_id, Vec::new());
        macro_rules! check {
            ($method:ident, $request:expr) => {
                let answer = self.gateway.clone().$method(asks(self.viewer, $request)).await;
                fates.push((stringify!($method), fate(answer)));
            };
        }
        let (request_id, text) = (request_id(), "hello, @ann".to_owned());
        check!(publish, gateway::PublishRequest { request_id, text });
        check!(unlike, gateway::UnlikeRequest { post_id });
        check!(delete_comment, gateway::DeleteCommentRequest { post_id, comment_id: 12 });
        check!(delete_post, gateway::DeletePostRequest { post_id: (1 << 40) | 8 });
        fates
    }
}

#[track_caller]
fn assert_all(fates: Vec<(&str, Fate)>, expected: Fate) {
    let others: Vec<_> = fates.into_iter().filter(|(_, fate)| *fate != expected).collect();
    assert_eq!(others, [], "not {expected:?}");
}

fn nowhere() -> Peer {
    peer_at(&format!("http://127.0.0.1:{}", free_port()))
}

async fn at_rest() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

#[tokio::test]
async fn without_the_relation_service_nobody_gets_past_a_block_and_the_rest_goes_on() {
    let system = at_rest().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let stranger = system.join("stranger").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.block(&ann, &bob).await;
    let gateway = gateway_to(Peers { relation: nowhere(), ..system.peers.clone() });
    for viewer in [&bob, &stranger] {
        let calls = Calls { gateway: gateway.clone(), viewer: Some(viewer), post_id };
        assert_all(calls.look().await, Fate::Unavailable);
        assert_all(calls.act().await, Fate::Unavailable);
        assert_all(calls.go_on().await, Fate::Answered);
    }
    let anonymous = Calls { gateway: gateway.clone(), viewer: None, post_id };
    assert_all(anonymous.look().await, Fate::Answered);
    let own = Calls { gateway, viewer: Some(&ann), post_id };
    assert_all(own.act().await, Fate::Answered);
    let post = system.view(None, post_id).await.post.unwrap();
    assert_eq!((post.likes, post.reposts, post.comments), (1, 1, 1), "her own");
}

#[tokio::test]
async fn without_the_user_service_nothing_is_shown_and_nothing_happens() {
    let system = at_rest().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let gateway = gateway_to(Peers { user: nowhere(), ..system.peers.clone() });
    let anonymous = Calls { gateway: gateway.clone(), viewer: None, post_id };
    assert_all(anonymous.look().await, Fate::Unavailable);
    let calls = Calls { gateway, viewer: Some(&ann), post_id };
    assert_all(calls.look().await, Fate::Unavailable);
    assert_all(calls.act().await, Fate::Unavailable);
    assert_all(calls.go_on().await, Fate::Unavailable);
    let post = system.view(None, post_id).await.post.unwrap();
    assert_eq!((post.likes, post.reposts, post.comments), (0, 0, 0));
}

#[tokio::test]
async fn a_comment_whose_caller_hangs_up_is_there_wholly_or_not_at_all() {
    let system = at_rest().await;
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
        let call = gateway.comment(bob.asks(request.clone()));
        let _ = tokio::time::timeout(Duration::from_millis(wait_ms), call).await;
    }
    // Each repeated request makes what is not there, and finds what is.
    for request in &requests {
        system.gateway().comment(bob.asks(request.clone())).await.unwrap();
    }
    let page = system.comments(None, post_id, 200, "").await;
    let mut texts = comment_texts(&page);
    texts.sort_unstable();
    let expected: Vec<_> = requests.iter().map(|request| request.text.as_str()).collect();
    assert_eq!(texts, expected, "each once");
    let count = system.view(None, post_id).await.post.unwrap().comments;
    assert_eq!(count as usize, requests.len());
}
