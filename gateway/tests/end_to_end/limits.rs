//! Rate limits for each viewer.

use std::{fmt::Debug, time::Duration};

use microblog_chassis::{Peer, Worker, status};
use microblog_gateway::Limits;
use microblog_proto::{
    common::ErrorReason,
    gateway::{self, gateway_service_client::GatewayServiceClient},
};
use microblog_testkit::Topology;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use crate::{
    actions::request_id,
    system::{
        Flags, Jobs, Member, PASSWORD, System, by_id, config, configured, email, gateway_service,
    },
};

type Gateway = GatewayServiceClient<Peer>;

pub(crate) async fn without_jobs() -> System {
    System::start_on(Topology::Single, Jobs::Rest, Flags::default()).await
}

/// Returns another gateway for a system's services, with rate limits.
fn limited(system: &System, flags: &[&str]) -> Gateway {
    let config = configured(flags);
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    GatewayServiceClient::new(Peer::local(&service, &config.chassis))
}

/// Returns the retry delay of a rate-limited call; `None` for any other result.
pub(crate) fn wait<T: Debug>(answer: Result<Response<T>, Status>) -> Option<Duration> {
    let status = answer.err()?;
    if status::reason_of(&status) != Some(ErrorReason::RateLimited) {
        return None;
    }
    assert_eq!(status.code(), Code::ResourceExhausted);
    Some(status.get_details_retry_info().unwrap().retry_delay.unwrap())
}

fn follow(viewer: &Member, target: &Member) -> Request<gateway::FollowRequest> {
    viewer.request(gateway::FollowRequest { user: by_id(target.id) })
}

fn publish(author: &Member) -> Request<gateway::PublishRequest> {
    author.request(gateway::PublishRequest { request_id: request_id(), text: "hello".to_owned() })
}

fn log_in(name: &str) -> gateway::LoginRequest {
    gateway::LoginRequest { login: email(name), password: PASSWORD.to_owned() }
}

#[tokio::test]
async fn rate_limited_calls_of_a_viewer_cost_only_authentication() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let mut posts = [0; 3];
    for post in &mut posts {
        *post = system.publish(&bob, "hello").await.id;
    }
    let flags = ["follows", "likes", "post-calls", "comment-calls"];
    let flags = flags.map(|flag| format!("--{flag}-per-minute=2"));
    let mut gateway = limited(&system, &flags.each_ref().map(String::as_str));

    macro_rules! check {
        ($what:literal, $method:ident, $request:expr) => {
            for place in 0..3 {
                system.recorder.calls();
                let delay = wait(gateway.$method(ann.request($request(place))).await);
                assert_eq!(delay.is_some(), place == 2, "{}", $what);
                let calls = system.recorder.calls();
                assert_eq!(calls == ["user.Authenticate"], place == 2, "{}: {calls:?}", $what);
                if let Some(delay) = delay {
                    let bounds = Duration::from_secs(5)..=Duration::from_secs(30);
                    assert!(bounds.contains(&delay), "{}: {delay:?}", $what);
                }
            }
        };
    }
    check!("follow", follow, |_| gateway::FollowRequest { user: by_id(bob.id) });
    check!("like", like, |place: usize| gateway::LikeRequest { post_id: posts[place] });
    check!("comment", comment, |place: usize| gateway::CommentRequest {
        request_id: request_id(),
        post_id: posts[place],
        text: "well said".to_owned(),
        in_reply_to_id: 0,
    });
    check!("publish", publish, |_| publish(&ann).into_inner());
    // Posts and reposts share a limit.
    let (post_id, text) = (posts[0], String::new());
    let request = gateway::RepostRequest { request_id: request_id(), post_id, text };
    assert!(wait(gateway.repost(ann.request(request)).await).is_some());

    let view = async |post: u64| system.view(None, post).await.post.unwrap();
    for (post, expected) in posts.into_iter().zip([1, 1, 0]) {
        let post = view(post).await;
        assert_eq!((post.likes, post.comments, post.reposts), (expected, expected, 0));
    }
    // The limit of likes is not that of their ends.
    for _ in 0..3 {
        let request = ann.request(gateway::UnlikeRequest { post_id: posts[0] });
        gateway.unlike(request).await.unwrap();
    }
}

#[tokio::test]
async fn calls_that_undo_or_protect_share_a_limit() {
    let system = without_jobs().await;
    let bob = system.join("bob").await;
    let post_id = system.publish(&bob, "hello").await.id;
    let mut gateway = limited(&system, &["--change-calls-per-minute=1"]);

    macro_rules! check {
        ($method:ident, $beside:expr, $request:expr) => {
            let viewer = system.join(stringify!($method)).await;
            // Changes nothing, and counts.
            gateway.unlike(viewer.request(gateway::UnlikeRequest { post_id })).await.unwrap();
            system.recorder.calls();
            let delay = wait(gateway.$method(viewer.request($request)).await);
            assert!(delay.is_some(), stringify!($method));
            let calls = system.recorder.calls();
            let mut calls: Vec<_> = calls.iter().map(AsRef::<str>::as_ref).collect();
            calls.sort_unstable();
            let beside: &[&str] = &$beside;
            assert_eq!(calls, [&["user.Authenticate"], beside].concat(), stringify!($method));
        };
    }
    let user = by_id(bob.id);
    check!(unfollow, [], gateway::UnfollowRequest { user: user.clone() });
    check!(remove_follower, [], gateway::RemoveFollowerRequest { user: user.clone() });
    check!(block, ["user.GetUser"], gateway::BlockRequest { user: user.clone() });
    check!(unblock, [], gateway::UnblockRequest { user: user.clone() });
    check!(mute, ["user.GetUser"], gateway::MuteRequest { user: user.clone() });
    check!(unmute, [], gateway::UnmuteRequest { user: user.clone() });
    check!(unlike, [], gateway::UnlikeRequest { post_id });
    check!(update_profile, [], gateway::UpdateProfileRequest::default());
}

#[tokio::test]
async fn password_calls_share_a_limit() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let mut gateway = limited(&system, &["--password-calls-per-minute=1"]);
    let wrong = || "not the password".to_owned();
    let change =
        gateway::ChangePasswordRequest { current_password: wrong(), new_password: wrong() };
    let error = gateway.change_password(ann.request(change)).await.unwrap_err();
    assert_eq!(status::reason_of(&error), Some(ErrorReason::BadCredentials));
    system.recorder.calls();
    let deletion = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
    assert!(wait(gateway.delete_account(ann.request(deletion)).await).is_some());
    assert_eq!(system.recorder.calls(), ["user.Authenticate"]);
    assert!(gateway.login(log_in("ann")).await.is_ok(), "the account is still there");
}

#[tokio::test]
async fn a_call_after_the_retry_delay_is_admitted() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let mut gateway = limited(&system, &["--follows-per-minute=60"]);
    let mut delay = None;
    for _ in 0..1_000 {
        delay = wait(gateway.follow(follow(&ann, &bob)).await);
        if delay.is_some() {
            break;
        }
    }
    let delay = delay.expect("never rejected");
    assert!(delay <= Duration::from_secs(1), "{delay:?}");
    tokio::time::sleep(delay).await;
    gateway.follow(follow(&ann, &bob)).await.unwrap();
}

#[tokio::test]
async fn each_viewer_has_its_own_limit_across_sessions() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let mut gateway = limited(&system, &["--post-calls-per-minute=1"]);
    gateway.publish(publish(&ann)).await.unwrap();
    assert!(wait(gateway.publish(publish(&ann)).await).is_some());
    gateway.publish(publish(&bob)).await.unwrap();
    let token = gateway.login(log_in("ann")).await.unwrap().into_inner().token;
    let again = Member { id: ann.id, token };
    assert!(wait(gateway.publish(publish(&again)).await).is_some());
    // An unknown token is rejected as such, and not counted.
    let unknown = Member { id: 0, token: "unknown's".to_owned() };
    for _ in 0..3 {
        let error = gateway.publish(publish(&unknown)).await.unwrap_err();
        assert_eq!(status::reason_of(&error), Some(ErrorReason::TokenInvalid));
    }
}

#[tokio::test]
async fn a_limit_of_0_disables_a_viewer_limit() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let mut gateway = limited(&system, &[]);
    for _ in 0..500 {
        gateway.follow(follow(&ann, &bob)).await.unwrap();
    }
}

#[tokio::test]
async fn workers_of_a_process_share_the_limits_of_a_viewer() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let bob = system.join("bob").await;
    let limited = configured(&["--follows-per-minute=3"]);
    let limits = Limits::new(&limited.limits);
    let mut jobs = Vec::new();
    let mut workers = [0, 1].map(|index| {
        let worker = Worker { index, count: 2 };
        let peers = system.peers.clone();
        let service = microblog_gateway::service(&limited, limits.clone(), peers, worker);
        jobs.push(service.background.len());
        GatewayServiceClient::new(Peer::local(&service, &limited.chassis))
    });
    for place in 0..6 {
        let delay = wait(workers[place % 2].follow(follow(&ann, &bob)).await);
        assert_eq!(delay.is_some(), place >= 3);
    }
    // One worker also runs the job that evicts idle keys.
    assert_eq!(jobs, [2, 0]);
    let unlimited = gateway_service(&config(), system.peers, Worker::ONLY);
    assert_eq!(unlimited.background.len(), 1);
}
