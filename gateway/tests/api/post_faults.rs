//! What fails after a write.

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway};
use tonic::Code;

use crate::{acts::request_id, system::System};

#[tokio::test]
async fn what_fails_after_a_write_does_not_sound_like_a_refusal() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let post_id = system.publish(&ann, "hello").await.id;
    let overloaded = status::refuse(Code::ResourceExhausted, ErrorReason::Overloaded, "too much");
    system.tap.refuse("user.BatchResolveNames", overloaded);
    macro_rules! check {
        ($method:ident, $request:expr) => {
            let failure = system.gateway().$method(ann.asks($request)).await.unwrap_err();
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

    system.tap.refuse_nothing();
    let publish = || ann.asks(publish.clone());
    let first = system.gateway().publish(publish()).await.unwrap().into_inner();
    let again = system.gateway().publish(publish()).await.unwrap().into_inner();
    assert_eq!(first, again);
}
