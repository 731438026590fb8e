//! Precedence of errors, and failures after a write.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use microblog_chassis::{Peer, status};
use microblog_gateway::Peers;
use microblog_proto::{common::ErrorReason, gateway, relation::relation_service_server, user};
use microblog_testkit::Topology;
use tonic::{
    Code, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
    service::Routes,
};

use crate::{
    actions::request_id,
    errors::{
        BLOCKED_BY_TARGET, POST_NOT_FOUND, TARGET_BLOCKED, TOKEN_INVALID, assert_error, invalid,
    },
    outages::gateway_to,
    system::{Flags, Jobs, Member, PASSWORD, System, config, with_token},
};

async fn repost(
    system: &System,
    viewer: &Member,
    post_id: u64,
) -> Result<Response<gateway::RepostResponse>, Status> {
    let (request_id, text) = (request_id(), String::new());
    let request = gateway::RepostRequest { request_id, post_id, text };
    system.gateway().repost(viewer.request(request)).await
}

#[tokio::test]
async fn errors_of_the_token_precede_errors_of_the_post() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.delete_post(&ann, post_id).await;
    macro_rules! check {
        ($post_id:expr, $method:ident, $request:ident) => {
            let request = gateway::$request { post_id: $post_id, ..Default::default() };
            let answer = system.gateway().$method(with_token("not one", request)).await;
            assert_error(stringify!($method), answer, TOKEN_INVALID);
        };
    }
    #[allow(clippy::needless_update, reason = "some of the requests have more fields")]
    for post_id in [post_id, 0] {
        check!(post_id, view_post, ViewPostRequest);
        check!(post_id, like, LikeRequest);
        check!(post_id, comment, CommentRequest);
        check!(post_id, repost, RepostRequest);
        check!(post_id, unlike, UnlikeRequest);
    }
    check!(post_id, view_likers, ViewLikersRequest);
    check!(post_id, view_comments, ViewCommentsRequest);
    check!(post_id, view_reposts, ViewRepostsRequest);
    let posts = gateway::ViewPostsRequest { post_ids: vec![post_id], unasked: false };
    let answer = system.gateway().view_posts(with_token("not one", posts)).await;
    assert_error("ViewPosts", answer, TOKEN_INVALID);
    // An invalid request is rejected before authentication.
    let posts = gateway::ViewPostsRequest { post_ids: vec![post_id; 201], unasked: false };
    let answer = system.gateway().view_posts(with_token("not one", posts)).await;
    assert_error("too many", answer, invalid(&["post_ids"]));
    let request = gateway::ViewLikersRequest { post_id: 0, ..Default::default() };
    let answer = system.gateway().view_likers(with_token("not one", request)).await;
    assert_error("no request", answer, invalid(&["post_id"]));
}

#[tokio::test]
async fn errors_of_a_list_precede_a_block_and_a_missing_post_precedes_both() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    system.block(&ann, &bob).await;
    let view = async |page_token: &str| {
        let page_token = page_token.to_owned();
        let request = gateway::ViewCommentsRequest { post_id, page_token, ..Default::default() };
        system.gateway().view_comments(bob.request(request)).await
    };
    let damaged = (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["page_token"][..]);
    assert_error("a wrong token", view("?").await, damaged);
    assert_error("none", view("").await, BLOCKED_BY_TARGET);
    system.delete_post(&ann, post_id).await;
    assert_error("no post", view("?").await, POST_NOT_FOUND);
}

#[tokio::test]
async fn errors_of_a_post_precede_errors_of_its_root() {
    let system = System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await;
    // In either order of their ids, which must not matter.
    for (root_author, reposter) in [("ann", "bob"), ("dora", "carl")] {
        let (first, second) = (system.join(root_author).await, system.join(reposter).await);
        for (ann, bob) in [(&first, &second), (&second, &first)] {
            let viewer = system.join(&format!("viewer{}", bob.id)).await;
            let root = system.publish(ann, "the root").await.id;
            let post_id = system.repost(bob, root, "look").await.id;
            system.block(ann, &viewer).await;
            assert_error("root", repost(&system, &viewer, post_id).await, BLOCKED_BY_TARGET);
            system.block(&viewer, bob).await;
            assert_error("post", repost(&system, &viewer, post_id).await, TARGET_BLOCKED);
            system.block(bob, &viewer).await;
            assert_error("theirs", repost(&system, &viewer, post_id).await, BLOCKED_BY_TARGET);
        }
        let post_id = system.publish(&first, "the root").await.id;
        let viewer = system.join(&format!("blocked_by_{root_author}")).await;
        system.block(&first, &viewer).await;
        let request = user::DeleteUserRequest { user_id: first.id, password: PASSWORD.to_owned() };
        system.user().delete_user(request).await.unwrap();
        assert_error("deleted", repost(&system, &viewer, post_id).await, POST_NOT_FOUND);
    }
}

#[tokio::test]
async fn a_failure_after_a_write_is_not_a_rejection() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let overloaded =
        status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, "too much");
    system.recorder.reject("user.BatchResolveNames", overloaded);
    macro_rules! check {
        ($method:ident, $request:expr) => {
            let failure = system.gateway().$method(ann.request($request)).await.unwrap_err();
            assert_eq!(failure.code(), Code::Unavailable, stringify!($method));
            let reason = status::reason_of(&failure);
            assert_eq!(reason, Some(ErrorReason::PeerUnavailable), stringify!($method));
        };
    }
    let text = || "dear @ann".to_owned();
    let publish = gateway::PublishRequest { request_id: request_id(), text: text() };
    check!(publish, publish.clone());
    check!(repost, gateway::RepostRequest { request_id: request_id(), post_id, text: text() });
    let (request_id, text) = (request_id(), text());
    check!(comment, gateway::CommentRequest { request_id, post_id, text, in_reply_to_id: 0 });
    let post = system.view(None, post_id).await.post.unwrap();
    assert_eq!((post.reposts, post.comments), (1, 1), "they are done");

    system.recorder.reject_none();
    let publish = || ann.request(publish.clone());
    let first = system.gateway().publish(publish()).await.unwrap().into_inner();
    let again = system.gateway().publish(publish()).await.unwrap().into_inner();
    assert_eq!(first, again);
}

/// A relation service that responds to every call with an empty message.
#[derive(Clone)]
struct Forgetful;

impl NamedService for Forgetful {
    const NAME: &'static str = relation_service_server::SERVICE_NAME;
}

impl Service<http::Request<Body>> for Forgetful {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        // An uncompressed, empty gRPC message.
        let answer = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0")
            .body(Body::new("\0".repeat(5)));
        ready(Ok(answer.unwrap()))
    }
}

#[tokio::test]
async fn a_missing_relation_does_not_count_as_no_block() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let forgetful = microblog_chassis::Service {
        name: Forgetful::NAME,
        routes: Routes::new(Forgetful),
        handler: None,
        web: None,
        ready: Arc::new(|| Box::pin(ready(true))),
        background: Vec::new(),
    };
    let relation = Peer::local(&forgetful, &config().chassis);
    let mut gateway = gateway_to(Peers { relation, ..system.peers.clone() });
    macro_rules! check {
        ($method:ident, $request:expr) => {
            let answer = gateway.$method(bob.request($request)).await;
            assert_error(stringify!($method), answer, (Code::Internal, ErrorReason::Internal, &[]));
        };
    }
    check!(view_post, gateway::ViewPostRequest { post_id });
    check!(view_comments, gateway::ViewCommentsRequest { post_id, ..Default::default() });
    check!(like, gateway::LikeRequest { post_id });
    let (request_id, text) = (request_id(), String::new());
    check!(repost, gateway::RepostRequest { request_id, post_id, text });
    gateway.view_post(gateway::ViewPostRequest { post_id }).await.unwrap();
}
