//! Services check the identity of direct calls and reject unauthorized callers.

use microblog_chassis::{identity::Identity, status};
use microblog_gateway::Peers;
use microblog_proto::{
    ACCESS, Access,
    common::ErrorReason,
    gateway,
    notice::{self, NoticeServicePeer},
    post::{self, PostServicePeer},
    relation::{self, EdgeList, RelationServicePeer},
    timeline::{self, TimelineServicePeer},
    user::{self, UserServicePeer},
};
use tonic::{Code, Request, Response, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::servers::{As, Calls, Member, PASSWORD, Servers};

type Answer<T> = Result<Response<T>, Status>;

fn reason<T>(answer: Answer<T>) -> (Code, Option<ErrorReason>) {
    answer.err().map_or((Code::Ok, None), |status| (status.code(), status::reason_of(&status)))
}

const INVALID: (Code, Option<ErrorReason>) =
    (Code::Unauthenticated, Some(ErrorReason::IdentityInvalid));
const MISMATCH: (Code, Option<ErrorReason>) =
    (Code::PermissionDenied, Some(ErrorReason::IdentityMismatch));

/// Calls a method with an empty request: every id is 0.
async fn call(service: As, path: &'static str) -> (Code, Option<ErrorReason>) {
    let mut client = Grpc::new(service);
    client.ready().await.unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let path = PathAndQuery::from_static(path);
    match client.server_streaming(Request::new(()), path, codec).await {
        Ok(mut answer) => reason(answer.get_mut().message().await.map(Response::new)),
        Err(status) => reason::<()>(Err(status)),
    }
}

#[tokio::test]
async fn every_method_of_every_service_is_checked() {
    let servers = Servers::start(Calls::Remote).await;
    let ann = servers.join("ann").await;
    for &(path, access) in ACCESS {
        let service = match path.split('.').nth(1).unwrap() {
            "user" => &servers.user,
            "relation" => &servers.relation,
            "post" => &servers.post,
            "timeline" => &servers.timeline,
            "notice" => &servers.notice,
            other => panic!("no server is known for {other}"),
        };
        assert_eq!(call(Servers::unsigned(service), path).await, INVALID, "{path}");
        let is_kept_out = matches!(access, Access::Actor(_) | Access::System);
        for identity in [Identity::Anonymous, ann.identity()] {
            let rejected = call(servers.signed(service, identity), path).await == MISMATCH;
            assert_eq!(rejected, is_kept_out, "{path} for {identity:?}");
        }
    }
}

/// Calls with an identity: a follow and a post as Ann, and reads of her data.
async fn as_ann(
    servers: &Servers,
    identity: Identity,
    ann: &Member,
) -> Vec<(Code, Option<ErrorReason>)> {
    let follow = relation::FollowRequest { follower_id: ann.id, target_id: 1 };
    let create = post::CreatePostRequest {
        author_id: ann.id,
        request_id: uuid::Uuid::new_v4().to_string(),
        text: "by ann".to_owned(),
    };
    let changes = user::ProfileChanges { bio: Some("by ann".to_owned()), ..Default::default() };
    let update = user::UpdateProfileRequest { user_id: ann.id, changes: Some(changes) };
    let kind = timeline::TimelineKind::Home.into();
    let home = timeline::GetTimelineRequest { user_id: ann.id, kind, ..Default::default() };
    let authors = timeline::ListAuthorsRequest { user_id: ann.id, kind };
    vec![
        reason(servers.relation(identity).follow(follow).await),
        reason(servers.post(identity).create_post(create).await),
        reason(servers.user(identity).update_profile(update).await),
        reason(servers.timeline(identity).get_timeline(home).await),
        reason(servers.timeline(identity).list_authors(authors).await),
    ]
}

#[tokio::test]
async fn acting_for_another_account_is_rejected() {
    for calls in [Calls::Remote, Calls::Inside] {
        let servers = Servers::start(calls).await;
        let [ann, eve] = [servers.join("ann").await, servers.join("eve").await];
        for identity in [eve.identity(), Identity::Anonymous] {
            assert_eq!(as_ann(&servers, identity, &ann).await, [MISMATCH; 5]);
        }
        assert!(traces(&servers, &ann).await.is_empty());
        for identity in [ann.identity(), Identity::System] {
            assert_eq!(as_ann(&servers, identity, &ann).await, [(Code::Ok, None); 5]);
        }
        assert_eq!(traces(&servers, &ann).await, ["a follow", "posts", "a bio"]);
    }
}

/// Lists accounts of Ann as an identity, for a viewer.
async fn lists_of_ann(
    servers: &Servers,
    identity: Identity,
    ann: &Member,
    viewer_id: u64,
) -> Vec<(Code, Option<ErrorReason>)> {
    let mut answers = Vec::new();
    for list in [EdgeList::Blocks, EdgeList::Mutes, EdgeList::FollowersIFollow] {
        let request = relation::ListEdgesRequest {
            user_id: ann.id,
            list: list.into(),
            viewer_id,
            ..Default::default()
        };
        answers.push(reason(servers.relation(identity).list_edges(request).await));
    }
    answers
}

#[tokio::test]
async fn private_lists_are_read_by_their_user_only() {
    const OK: (Code, Option<ErrorReason>) = (Code::Ok, None);
    const INVALID_FIELD: (Code, Option<ErrorReason>) =
        (Code::InvalidArgument, Some(ErrorReason::InvalidField));
    for calls in [Calls::Remote, Calls::Inside] {
        let servers = Servers::start(calls).await;
        let [ann, eve] = [servers.join("ann").await, servers.join("eve").await];
        for identity in [ann.identity(), Identity::System] {
            assert_eq!(lists_of_ann(&servers, identity, &ann, ann.id).await, [OK; 3]);
        }
        for identity in [eve.identity(), Identity::Anonymous] {
            assert_eq!(lists_of_ann(&servers, identity, &ann, ann.id).await, [MISMATCH; 3]);
        }
        // For herself, Eve reads only the list that is not private.
        for identity in [eve.identity(), Identity::System] {
            let answers = lists_of_ann(&servers, identity, &ann, eve.id).await;
            assert_eq!(answers, [MISMATCH, MISMATCH, OK]);
        }
        for identity in [ann.identity(), eve.identity(), Identity::Anonymous, Identity::System] {
            assert_eq!(lists_of_ann(&servers, identity, &ann, 0).await, [INVALID_FIELD; 3]);
        }
    }
}

#[tokio::test]
async fn handlers_called_in_process_are_guarded() {
    let servers = Servers::start(Calls::Inside).await;
    let Peers { user, relation, post, timeline, notice } = servers.peers.clone();
    // A call outside of any other call has no identity.
    let account = user::GetAccountRequest { user_id: 1 };
    assert_eq!(reason(UserServicePeer::new(user).get_account(account).await), MISMATCH);
    let follow = relation::FollowRequest { follower_id: 1, target_id: 2 };
    assert_eq!(reason(RelationServicePeer::new(relation).follow(follow).await), MISMATCH);
    let forget = post::ForgetUserRequest { user_id: 1 };
    assert_eq!(reason(PostServicePeer::new(post).forget_user(forget).await), MISMATCH);
    let forget = timeline::ForgetUserRequest { user_id: 1 };
    assert_eq!(reason(TimelineServicePeer::new(timeline).forget_user(forget).await), MISMATCH);
    let seen = notice::MarkSeenRequest { user_id: 1, token: String::new() };
    assert_eq!(reason(NoticeServicePeer::new(notice).mark_seen(seen).await), MISMATCH);
}

/// Returns which of Ann's actions the services have stored.
async fn traces(servers: &Servers, ann: &Member) -> Vec<&'static str> {
    let following = relation::ListEdgesRequest {
        user_id: ann.id,
        list: EdgeList::Following.into(),
        ..Default::default()
    };
    let following = servers.relation(Identity::Anonymous).list_edges(following).await.unwrap();
    let posts = post::ListUserPostsRequest { author_id: ann.id, ..Default::default() };
    let posts = servers.post(Identity::Anonymous).list_user_posts(posts).await.unwrap();
    let profile = user::GetUserRequest { user_id: ann.id };
    let profile = servers.user(Identity::Anonymous).get_user(profile).await.unwrap();
    let found = [
        (!following.into_inner().edges.is_empty()).then_some("a follow"),
        (!posts.into_inner().posts.is_empty()).then_some("posts"),
        (!profile.into_inner().user.unwrap().bio.is_empty()).then_some("a bio"),
    ];
    found.into_iter().flatten().collect()
}

#[tokio::test]
async fn the_gateway_ignores_identities_of_external_callers() {
    let servers = Servers::start(Calls::Remote).await;
    let [ann, eve] = [servers.join("ann").await, servers.join("eve").await];
    for identity in [ann.identity(), Identity::System] {
        let gateway = servers.signed(&servers.gateway, identity);
        let mut gateway = gateway::gateway_service_client::GatewayServiceClient::new(gateway);
        // Without a token, the call is anonymous; with a token, its owner acts.
        let me = gateway.me(gateway::MeRequest {}).await;
        assert_eq!(reason(me).1, Some(ErrorReason::TokenMissing));
        let me = gateway.me(eve.request(gateway::MeRequest {})).await.unwrap().into_inner();
        assert_eq!(me.account.unwrap().user.unwrap().id, eve.id);
        let wrong = gateway::DeleteAccountRequest { password: format!("not {PASSWORD}") };
        let wrong = gateway.delete_account(eve.request(wrong)).await;
        assert_eq!(reason(wrong).1, Some(ErrorReason::BadCredentials));
    }
}
