//! Service callers: what they may call, for whom, and what they see.

use std::{future::pending, net::TcpListener};

use microblog_chassis::{Peer, Worker, serve, status};
use microblog_proto::{
    common::ErrorReason,
    gateway::{
        self, RootState, change_service_client::ChangeServiceClient,
        gateway_service_client::GatewayServiceClient,
    },
    relation::RelationState,
};
use microblog_testkit::{Authority, Files, PATIENCE, eventually};
use tokio::time::timeout;
use tonic::{Code, Request};

use crate::{
    actions::request_id,
    errors::{Expected, TOKEN_INVALID, TOKEN_MISSING, assert_error},
    notices::{next, token_error, with_notices},
    stages::with_posts,
    system::{Member, System, by_id, configured, gateway_service, with_token},
    timeline_actions::without_jobs,
};

const CALLER_INVALID: Expected = (Code::Unauthenticated, ErrorReason::CallerInvalid, &[]);
const CALLER_NOT_ALLOWED: Expected = (Code::PermissionDenied, ErrorReason::CallerNotAllowed, &[]);
const VIEWER_NOT_FOUND: Expected = (Code::NotFound, ErrorReason::ViewerNotFound, &[]);
const RATE_LIMITED: Expected = (Code::ResourceExhausted, ErrorReason::RateLimited, &[]);

/// A gateway with a file of service callers.
pub(crate) struct Callers {
    files: Files,
    pub(crate) gateway: GatewayServiceClient<Peer>,
    pub(crate) changes: ChangeServiceClient<Peer>,
}

impl Callers {
    /// Starts a gateway of a system with one caller, `search`, that has these rights.
    pub(crate) fn start(system: &System, methods: &[&str], rest: &str) -> Self {
        Self::start_with(system, methods, rest, &[])
    }

    /// Starts the same with further flags.
    pub(crate) fn start_with(
        system: &System,
        methods: &[&str],
        rest: &str,
        flags: &[&str],
    ) -> Self {
        let files = Files::new();
        write(&files, "search", methods, rest);
        let flag = format!("--callers-file={}", files.path("callers.json").display());
        let own = [flag.as_str(), "--max-change-streams-per-caller=8"];
        let config = configured(&[&own, flags].concat());
        let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
        let peer = Peer::local(&service, &config.chassis);
        let gateway = GatewayServiceClient::new(peer.clone());
        Self { files, gateway, changes: ChangeServiceClient::new(peer) }
    }

    /// Replaces the file.
    pub(crate) fn write(&self, name: &str, methods: &[&str], rest: &str) {
        write(&self.files, name, methods, rest);
    }
}

/// Writes the file with one caller, whose secret is `secret`.
fn write(files: &Files, name: &str, methods: &[&str], rest: &str) {
    // printf %s secret | sha256sum
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let content = format!(
        r#"{{"callers": [{{"name": "{name}", "secrets_sha256": ["{hash}"],
            "methods": {methods:?}{rest}}}]}}"#
    );
    files.write("callers.json", content);
}

pub(crate) const ACTING: &str = r#", "acts_for": "anybody""#;

/// Returns a request of the caller, for itself.
pub(crate) fn by_caller<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Caller search:secret".parse().unwrap());
    request
}

/// Returns a request of the caller for an account.
pub(crate) fn acting_for<T>(viewer: u64, message: T) -> Request<T> {
    let mut request = by_caller(message);
    request.metadata_mut().insert("microblog-viewer", viewer.to_string().parse().unwrap());
    request
}

fn view_users(user: &Member) -> gateway::ViewUsersRequest {
    gateway::ViewUsersRequest { users: by_id(user.id).into_iter().collect(), include_counts: false }
}

fn publish() -> gateway::PublishRequest {
    gateway::PublishRequest { request_id: request_id(), text: "by search".to_owned() }
}

#[tokio::test]
async fn a_caller_may_only_call_its_methods() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let mut gateway = Callers::start(&system, &["ViewUsers"], ACTING).gateway;
    let seen = gateway.view_users(acting_for(ann.id, view_users(&ann))).await.unwrap();
    assert_eq!(seen.into_inner().users[0].user.as_ref().unwrap().name, "ann");
    system.recorder.calls();
    let published = gateway.publish(acting_for(ann.id, publish())).await;
    assert_error("Publish", published, CALLER_NOT_ALLOWED);
    let registered = gateway.register(by_caller(crate::system::registration("bob"))).await;
    assert_error("Register", registered, CALLER_NOT_ALLOWED);
    let me = gateway.me(acting_for(ann.id, gateway::MeRequest {})).await;
    assert_error("Me", me, CALLER_NOT_ALLOWED);
    assert_eq!(system.recorder.calls(), Vec::<String>::new());
    assert_eq!(system.user_timeline(None, &ann, 0, "").await.posts, []);
    // People are not affected.
    gateway.publish(ann.request(publish())).await.unwrap();
}

#[tokio::test]
async fn a_caller_acts_for_accounts_as_they_would() {
    let (system, ann, bob, _) = with_posts().await;
    let methods = ["Publish", "Logout", "ViewFollowers", "ViewHome", "ViewUser"];
    let mut gateway = Callers::start(&system, &methods, ACTING).gateway;
    let published = gateway.publish(acting_for(ann.id, publish())).await.unwrap().into_inner();
    assert_eq!(published.post.unwrap().author_id, ann.id);
    let home = gateway.view_home(acting_for(ann.id, gateway::ViewHomeRequest::default()));
    let home = home.await.unwrap().into_inner().posts;
    assert_eq!(home, system.home(&ann, 0, "", "").await.posts);
    assert!(home.iter().any(|viewed| viewed.root_state() == RootState::Shown));
    let request = || gateway::ViewFollowersRequest { user: by_id(bob.id), ..Default::default() };
    let followers = gateway.view_followers(acting_for(ann.id, request())).await.unwrap();
    assert_eq!(followers.into_inner(), system.followers(Some(&ann), bob.id, 0, "").await);
    // Without a viewer, it sees what everybody sees.
    let followers = gateway.view_followers(by_caller(request())).await.unwrap();
    assert_eq!(followers.into_inner(), system.followers(None, bob.id, 0, "").await);
    assert_error("no viewer", gateway.publish(by_caller(publish())).await, TOKEN_MISSING);
    let logout = gateway.logout(acting_for(ann.id, gateway::LogoutRequest {})).await;
    assert_error("no session", logout, CALLER_NOT_ALLOWED);
    // Not another viewer's rules.
    system.block(&bob, &ann).await;
    let user = || gateway::ViewUserRequest { user: by_id(bob.id) };
    let seen = gateway.view_user(acting_for(ann.id, user())).await;
    let as_ann = system.gateway().view_user(ann.request(user())).await;
    assert_eq!(seen.map(drop).map_err(|s| s.code()), as_ann.map(drop).map_err(|s| s.code()));
    let followers = gateway.view_followers(acting_for(ann.id, request())).await;
    assert_error("blocked", followers, crate::errors::BLOCKED_BY_TARGET);
}

#[tokio::test]
async fn a_read_for_an_account_costs_no_more_than_its_own() {
    let (system, ann, bob, _) = with_posts().await;
    let mut gateway = Callers::start(&system, &["ViewHome", "ViewFollowers"], ACTING).gateway;
    for _ in 0..2 {
        // The second time, the home timeline exists.
        system.recorder.calls();
        let home = acting_for(ann.id, gateway::ViewHomeRequest::default());
        gateway.view_home(home).await.unwrap();
    }
    let home = system.recorder.calls();
    assert!(home.len() <= 4, "{home:?}");
    let request = gateway::ViewFollowersRequest { user: by_id(bob.id), ..Default::default() };
    gateway.view_followers(acting_for(ann.id, request)).await.unwrap();
    let followers = system.recorder.calls();
    assert!(followers.len() <= 2, "{followers:?}");
}

#[tokio::test]
async fn a_viewer_that_does_not_exist_is_rejected_by_every_kind_of_call() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let methods = [
        "Publish",
        "ViewUser",
        "ViewUsers",
        "ViewHome",
        "ViewFollowers",
        "CountNew",
        "Me",
        "ViewPosts",
    ];
    let callers = Callers::start(&system, &[&methods[..], &NOTICES].concat(), ACTING);
    let since_token = system.home(&bob, 0, "", "").await.since_token;
    system.delete_account_only(&bob).await;
    for gone in [bob.id, 4096] {
        let mut gateway = callers.gateway.clone();
        let published = gateway.publish(acting_for(gone, publish())).await;
        assert_error("Publish", published, VIEWER_NOT_FOUND);
        let users = gateway.view_users(acting_for(gone, view_users(&ann))).await;
        assert_error("ViewUsers", users, VIEWER_NOT_FOUND);
        let home = gateway.view_home(acting_for(gone, gateway::ViewHomeRequest::default()));
        assert_error("ViewHome", home.await, VIEWER_NOT_FOUND);
        let request = gateway::ViewFollowersRequest { user: by_id(ann.id), ..Default::default() };
        let followers = gateway.view_followers(acting_for(gone, request)).await;
        assert_error("ViewFollowers", followers, VIEWER_NOT_FOUND);
        let me = gateway.me(acting_for(gone, gateway::MeRequest {})).await;
        assert_error("Me", me, VIEWER_NOT_FOUND);
        let user = gateway::ViewUserRequest { user: by_id(ann.id) };
        let user = gateway.view_user(acting_for(gone, user)).await;
        assert_error("ViewUser", user, VIEWER_NOT_FOUND);
        // The other way round, the viewer's profile does not stand for the account's.
        let user = gateway::ViewUserRequest { user: by_id(gone) };
        let user = gateway.view_user(acting_for(ann.id, user)).await;
        assert_error("ViewUser", user, crate::errors::USER_NOT_FOUND);
        let posts = gateway::ViewPostsRequest { post_ids: vec![4096], unasked: false };
        let posts = gateway.view_posts(acting_for(gone, posts)).await;
        assert_error("ViewPosts", posts, VIEWER_NOT_FOUND);
        assert_notices_error(&mut gateway, gone, "", VIEWER_NOT_FOUND).await;
    }
    let count = gateway::CountNewRequest { since_token };
    let count = callers.gateway.clone().count_new(acting_for(bob.id, count)).await;
    assert_error("CountNew", count, VIEWER_NOT_FOUND);
}

#[tokio::test]
async fn unknown_callers_and_those_that_may_not_act_are_rejected() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let nobody = Callers::start(&system, &["ViewUsers"], "");
    let acting = acting_for(ann.id, view_users(&ann));
    assert_error("nobody", nobody.gateway.clone().view_users(acting).await, CALLER_NOT_ALLOWED);
    nobody.gateway.clone().view_users(by_caller(view_users(&ann))).await.unwrap();
    // A gateway without a file has no callers.
    for gateway in [nobody.gateway, system.gateway()] {
        let mut request = by_caller(view_users(&ann));
        request.metadata_mut().insert("authorization", "Caller search:wrong".parse().unwrap());
        assert_error("wrong", gateway.clone().view_users(request).await, CALLER_INVALID);
    }
    let none = system.gateway().view_users(by_caller(view_users(&ann))).await;
    assert_error("no file", none, CALLER_INVALID);
    // A person cannot choose the viewer.
    let mut request = ann.request(view_users(&ann));
    request.metadata_mut().insert("microblog-viewer", "7".parse().unwrap());
    assert_error("a person", system.gateway().view_users(request).await, CALLER_INVALID);
    let invalid = with_token("search:secret", view_users(&ann));
    assert_error("a token", system.gateway().view_users(invalid).await, TOKEN_INVALID);
}

#[tokio::test]
async fn calls_of_a_caller_are_limited_whoever_it_acts_for() {
    let system = without_jobs().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let rest = format!(r#"{ACTING}, "calls_per_minute": 3"#);
    let mut gateway = Callers::start(&system, &["ViewUsers"], &rest).gateway;
    gateway.view_users(acting_for(ann.id, view_users(&ann))).await.unwrap();
    gateway.view_users(acting_for(bob.id, view_users(&ann))).await.unwrap();
    gateway.view_users(by_caller(view_users(&ann))).await.unwrap();
    let more = gateway.view_users(acting_for(bob.id, view_users(&ann))).await;
    assert_error("the fourth", more, RATE_LIMITED);
    gateway.view_users(ann.request(view_users(&ann))).await.unwrap();
}

#[tokio::test]
async fn a_removed_caller_is_rejected_and_its_streams_end() {
    let system = System::start().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.follow(&ann, &bob).await;
    let methods = ["ViewUsers", "WatchHome"];
    let callers = Callers::start(&system, &methods, ACTING);
    let mut gateway = callers.gateway.clone();
    let watch = async |gateway: &mut GatewayServiceClient<Peer>| {
        let request = acting_for(ann.id, gateway::WatchHomeRequest::default());
        let mut watch = gateway.watch_home(request).await.unwrap().into_inner();
        let begun = timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
        assert!(begun.posts.is_empty());
        watch
    };
    let mut idle = watch(&mut gateway).await;
    system.publish(&bob, "hello").await;
    let message = timeout(PATIENCE, idle.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(message.posts.len(), 1);
    // Its own accounts only, of which Ann's is none.
    callers.write("search", &methods, r#", "issuers": ["sso"], "acts_for": "own""#);
    let ended = timeout(PATIENCE, idle.message()).await.unwrap().unwrap_err();
    assert_eq!(status::reason_of(&ended), Some(ErrorReason::CallerNotAllowed));
    callers.write("search", &methods, ACTING);
    eventually("it may watch again", PATIENCE, async || {
        let request = acting_for(ann.id, gateway::WatchHomeRequest::default());
        gateway.clone().watch_home(request).await.is_ok()
    })
    .await;
    let mut idle = watch(&mut gateway).await;
    // May still call, but not watch.
    callers.write("search", &["ViewUsers"], ACTING);
    let ended = timeout(PATIENCE, idle.message()).await.unwrap().unwrap_err();
    assert_eq!(status::reason_of(&ended), Some(ErrorReason::CallerNotAllowed));
    gateway.view_users(acting_for(ann.id, view_users(&ann))).await.unwrap();
    callers.write("search", &methods, ACTING);
    eventually("it may watch again", PATIENCE, async || {
        let request = acting_for(ann.id, gateway::WatchHomeRequest::default());
        gateway.clone().watch_home(request).await.is_ok()
    })
    .await;
    let mut idle = watch(&mut gateway).await;
    callers.write("other", &methods, ACTING);
    let ended = timeout(PATIENCE, idle.message()).await.unwrap().unwrap_err();
    assert_eq!(status::reason_of(&ended), Some(ErrorReason::CallerInvalid));
    let rejected = gateway.view_users(acting_for(ann.id, view_users(&ann))).await;
    assert_error("removed", rejected, CALLER_INVALID);
}

/// The rights of a caller that makes accounts of its own.
const OWN: &str = r#", "issuers": ["sso"], "acts_for": "own""#;

fn ensure(id: &str, name: &str) -> gateway::EnsureUserRequest {
    gateway::EnsureUserRequest {
        issuer: "sso".to_owned(),
        external_id: id.to_owned(),
        name: name.to_owned(),
        display_name: String::new(),
    }
}

#[tokio::test]
async fn a_caller_makes_accounts_and_acts_for_these_only() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let methods = [
        "EnsureUser",
        "BatchResolveExternalIds",
        "Publish",
        "ViewUserTimeline",
        "Follow",
        "Me",
        "DeleteAccount",
    ];
    let callers = Callers::start(&system, &methods, OWN);
    let mut gateway = callers.gateway.clone();
    let calls = (0..50).map(|i| {
        let mut gateway = gateway.clone();
        async move { gateway.ensure_user(by_caller(ensure("1", &format!("bob{i}")))).await }
    });
    let made: Vec<_> = futures::future::join_all(calls).await;
    let made: Vec<_> = made.into_iter().map(|made| made.unwrap().into_inner()).collect();
    assert_eq!(made.iter().filter(|made| made.created).count(), 1);
    let bob = made[0].user.clone().unwrap();
    assert!(made.iter().all(|made| made.user.as_ref() == Some(&bob)));
    let (issuer, external_ids) = ("sso".to_owned(), vec!["2".to_owned(), "1".to_owned()]);
    let request = gateway::BatchResolveExternalIdsRequest { issuer, external_ids };
    let found = gateway.batch_resolve_external_ids(by_caller(request)).await.unwrap();
    let found = found.into_inner().users;
    assert_eq!((found.len(), found[0].user_id), (1, bob.id));

    let published = gateway.publish(acting_for(bob.id, publish())).await.unwrap().into_inner();
    assert_eq!(published.post.unwrap().author_id, bob.id);
    let follow = gateway::FollowRequest { user: by_id(ann.id) };
    gateway.follow(acting_for(bob.id, follow)).await.unwrap();
    let timeline =
        || gateway::ViewUserTimelineRequest { user: by_id(bob.id), ..Default::default() };
    let seen = gateway.view_user_timeline(acting_for(bob.id, timeline())).await.unwrap();
    assert_eq!(seen.into_inner().posts.len(), 1);
    let me = gateway.me(acting_for(bob.id, gateway::MeRequest {})).await.unwrap().into_inner();
    assert_eq!(me.account.unwrap().external.unwrap().external_id, "1");

    // Accounts of others, for writes and for reads.
    let published = gateway.publish(acting_for(ann.id, publish())).await;
    assert_error("Publish", published, CALLER_NOT_ALLOWED);
    let seen = gateway.view_user_timeline(acting_for(ann.id, timeline())).await;
    assert_error("ViewUserTimeline", seen, CALLER_NOT_ALLOWED);
    assert_eq!(system.user_timeline(None, &ann, 0, "").await.posts, []);
    let gone = gateway.publish(acting_for(4096, publish())).await;
    assert_error("nobody", gone, VIEWER_NOT_FOUND);

    // Other issuers, and people.
    let other = gateway::EnsureUserRequest { issuer: "other".to_owned(), ..ensure("1", "eve") };
    let ensured = gateway.ensure_user(by_caller(other)).await;
    assert_error("another issuer", ensured, CALLER_NOT_ALLOWED);
    let ensured = gateway.ensure_user(ann.request(ensure("9", "eve"))).await;
    assert_error("a person", ensured, CALLER_NOT_ALLOWED);
    let ensured = gateway.ensure_user(Request::new(ensure("9", "eve"))).await;
    assert_error("anonymous", ensured, CALLER_NOT_ALLOWED);
    let ensured = gateway.ensure_user(by_caller(ensure(" ", "no name"))).await;
    assert_error("invalid", ensured, crate::errors::invalid(&["external_id", "name"]));
    let external_ids = ["", "1", "a b", "1"].map(str::to_owned).to_vec();
    let request =
        gateway::BatchResolveExternalIdsRequest { issuer: "sso".to_owned(), external_ids };
    let found = gateway.batch_resolve_external_ids(by_caller(request)).await.unwrap();
    let found = found.into_inner().users;
    assert_eq!((found.len(), found[0].user_id), (1, bob.id));
    let external_ids = vec!["1".to_owned(); 501];
    let request =
        gateway::BatchResolveExternalIdsRequest { issuer: "sso".to_owned(), external_ids };
    let many = gateway.batch_resolve_external_ids(by_caller(request)).await;
    assert_error("many", many, crate::errors::invalid(&["external_ids"]));

    // The account releases its id.
    let delete = gateway::DeleteAccountRequest::default();
    gateway.delete_account(acting_for(bob.id, delete)).await.unwrap();
    let again = gateway.ensure_user(by_caller(ensure("1", "bobby"))).await.unwrap().into_inner();
    assert!(again.created && again.user.unwrap().id != bob.id);
    let delete = ann.request(gateway::DeleteAccountRequest::default());
    let without = gateway.delete_account(delete).await;
    assert_error("a password", without, crate::errors::invalid(&["password"]));
}

/// The calls for notices.
const NOTICES: [&str; 5] =
    ["ViewNotices", "CountUnread", "MarkSeen", "WatchNotices", "ViewMentions"];

/// Checks the error of each call for notices of an account.
async fn assert_notices_error(
    gateway: &mut GatewayServiceClient<Peer>,
    viewer: u64,
    seen_token: &str,
    expected: Expected<'_>,
) {
    let notices = acting_for(viewer, gateway::ViewNoticesRequest::default());
    assert_error("ViewNotices", gateway.view_notices(notices).await, expected);
    let count = acting_for(viewer, gateway::CountUnreadRequest::default());
    assert_error("CountUnread", gateway.count_unread(count).await, expected);
    let seen = acting_for(viewer, gateway::MarkSeenRequest { token: seen_token.to_owned() });
    assert_error("MarkSeen", gateway.mark_seen(seen).await, expected);
    let watch = acting_for(viewer, gateway::WatchNoticesRequest::default());
    assert_error("WatchNotices", gateway.watch_notices(watch).await, expected);
    let mentions = acting_for(viewer, gateway::ViewMentionsRequest::default());
    assert_error("ViewMentions", gateway.view_mentions(mentions).await, expected);
}

#[tokio::test]
async fn a_caller_reads_and_marks_notices_of_an_account_as_it_would() {
    let (system, [ann, bob]) = with_notices().await;
    let carl = system.join("carl").await;
    system.mention_ann(&carl, &ann, 1).await;
    system.mute(&ann, &carl).await;
    let (mut gateway, mut people) =
        (Callers::start(&system, &NOTICES, ACTING).gateway, system.gateway());
    let notices = gateway::ViewNoticesRequest::default;
    let viewed = gateway.view_notices(acting_for(ann.id, notices())).await.unwrap().into_inner();
    let own = people.view_notices(ann.request(notices())).await.unwrap().into_inner();
    assert_eq!((viewed.notices.len(), &viewed.notices), (4, &own.notices));
    let mentions = gateway::ViewMentionsRequest::default;
    let viewed_mentions = gateway.view_mentions(acting_for(ann.id, mentions())).await.unwrap();
    let own = people.view_mentions(ann.request(mentions())).await.unwrap().into_inner();
    assert_eq!((own.posts.len(), own), (1, viewed_mentions.into_inner()));
    let count = gateway::CountUnreadRequest::default;
    let counted = gateway.count_unread(acting_for(ann.id, count())).await.unwrap();
    let own = people.count_unread(ann.request(count())).await.unwrap().into_inner();
    assert_eq!((own.counts.len(), own), (4, counted.into_inner()));
    assert_error("no viewer", gateway.view_notices(by_caller(notices())).await, TOKEN_MISSING);

    let seen = gateway::MarkSeenRequest { token: viewed.seen_token };
    assert_error("no viewer", gateway.mark_seen(by_caller(seen.clone())).await, TOKEN_MISSING);
    let marked = gateway.mark_seen(acting_for(bob.id, seen.clone())).await;
    let mismatch = token_error(ErrorReason::PageTokenMismatch, &["token"]);
    assert_error("another account's", marked, mismatch);
    assert_eq!(system.unread(&ann).await.len(), 4);
    gateway.mark_seen(acting_for(ann.id, seen)).await.unwrap();
    assert!(system.unread(&ann).await.is_empty());
}

#[tokio::test]
async fn a_caller_without_rights_reads_no_notices_and_marks_none_as_seen() {
    let (system, [ann, _]) = with_notices().await;
    let before = system.unread(&ann).await;
    let token = system.notices(&ann, &[]).await.seen_token;
    system.recorder.calls();
    for (methods, rest) in [(&["ViewUsers"][..], ACTING), (&NOTICES, "")] {
        let mut gateway = Callers::start(&system, methods, rest).gateway;
        assert_notices_error(&mut gateway, ann.id, &token, CALLER_NOT_ALLOWED).await;
    }
    let mut reader = Callers::start(&system, &["ViewNotices"], ACTING).gateway;
    let marked = reader.mark_seen(acting_for(ann.id, gateway::MarkSeenRequest { token })).await;
    assert_error("it may only read", marked, CALLER_NOT_ALLOWED);
    assert_eq!(system.recorder.calls(), Vec::<String>::new());
    assert_eq!(system.unread(&ann).await, before);
}

#[tokio::test]
async fn a_caller_reads_and_marks_notices_of_its_own_accounts_only() {
    let (system, [ann, bob]) = with_notices().await;
    let methods = [&NOTICES[..], &["EnsureUser"]].concat();
    let mut gateway = Callers::start(&system, &methods, OWN).gateway;
    let eve = gateway.ensure_user(by_caller(ensure("1", "eve"))).await.unwrap().into_inner();
    let eve = eve.user.unwrap().id;
    system.publish(&bob, "hello @eve").await;
    let count = async || {
        let request = acting_for(eve, gateway::CountUnreadRequest::default());
        gateway.clone().count_unread(request).await.unwrap().into_inner().counts.len()
    };
    eventually("the mention arrives", PATIENCE, async || count().await == 1).await;
    let notices = acting_for(eve, gateway::ViewNoticesRequest::default());
    let token = gateway.clone().view_notices(notices).await.unwrap().into_inner().seen_token;
    let seen = acting_for(eve, gateway::MarkSeenRequest { token });
    gateway.clone().mark_seen(seen).await.unwrap();
    assert_eq!(count().await, 0);

    let before = system.unread(&ann).await;
    let token = system.notices(&ann, &[]).await.seen_token;
    assert_notices_error(&mut gateway, ann.id, &token, CALLER_NOT_ALLOWED).await;
    assert_eq!(system.unread(&ann).await, before);
}

#[tokio::test]
async fn a_stream_of_notices_ends_with_the_rights_of_its_caller() {
    let (system, [ann, bob]) = with_notices().await;
    let post = system.publish(&ann, "one more").await.id;
    let mut own = system.watch_notices(&ann, "").await;
    next(&mut own).await;
    let mut watches = Vec::new();
    // Removed, without the method, for no account, and for its own accounts only.
    for change in [
        ("other", &NOTICES[..], ACTING, ErrorReason::CallerInvalid),
        ("search", &["ViewNotices"], ACTING, ErrorReason::CallerNotAllowed),
        ("search", &NOTICES, "", ErrorReason::CallerNotAllowed),
        ("search", &NOTICES, OWN, ErrorReason::CallerNotAllowed),
    ] {
        let callers = Callers::start(&system, &NOTICES, ACTING);
        let request = acting_for(ann.id, gateway::WatchNoticesRequest::default());
        let mut watch = callers.gateway.clone().watch_notices(request).await.unwrap().into_inner();
        assert!(next(&mut watch).await.notices.is_empty());
        watches.push((callers, watch, change));
    }
    system.like(&bob, post).await;
    let expected = next(&mut own).await.notices;
    assert_eq!(expected.len(), 1);
    for (callers, watch, (name, methods, rest, _)) in &mut watches {
        assert_eq!(next(watch).await.notices, expected);
        callers.write(name, methods, rest);
    }
    for (_callers, mut watch, change) in watches {
        let ended = timeout(PATIENCE, watch.message()).await.unwrap().unwrap_err();
        assert_eq!(status::reason_of(&ended), Some(change.3), "{change:?}");
    }
}

#[tokio::test]
async fn a_certificate_takes_the_place_of_a_secret() {
    let system = without_jobs().await;
    let ann = system.join("ann").await;
    let (files, authority) = (Files::new(), Authority::new());
    files.write("ca.crt", authority.pem());
    for (file, name) in [("server", "127.0.0.1"), ("search", "search.test"), ("web", "web.test")] {
        files.certificate(file, &authority.issue(&[name]));
    }
    let content = r#"{"callers": [{"name": "search", "certificate_names": ["search.test"],
        "methods": ["ViewUsers"], "acts_for": "anybody"}]}"#;
    files.write("callers.json", content);
    let flag = |flag: &str, file: &str| format!("--{flag}={}", files.path(file).display());
    let flags = [
        flag("tls-cert-file", "server.crt"),
        flag("tls-key-file", "server.key"),
        flag("tls-client-ca-file", "ca.crt"),
        flag("callers-file", "callers.json"),
    ];
    let config = configured(&flags.each_ref().map(String::as_str));
    let service = gateway_service(&config, system.peers.clone(), Worker::ONLY);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { serve(listener, service, &config.chassis, pending()).await });
    let connect = |name: &str| {
        let flags = [
            flag("peer-ca-file", "ca.crt"),
            flag("peer-cert-file", &format!("{name}.crt")),
            flag("peer-key-file", &format!("{name}.key")),
        ];
        let config = configured(&flags.each_ref().map(String::as_str));
        GatewayServiceClient::new(Peer::remote(&url, &config.chassis).unwrap())
    };
    let acting = |viewer: u64| {
        let mut request = Request::new(view_users(&ann));
        request.metadata_mut().insert("microblog-viewer", viewer.to_string().parse().unwrap());
        request
    };
    let mut search = connect("search");
    let seen = search.view_users(acting(ann.id)).await.unwrap().into_inner();
    assert_eq!(seen.users[0].relation(), RelationState::Self_);
    assert_error("gone", search.view_users(acting(4096)).await, VIEWER_NOT_FOUND);
    assert_error("Publish", search.publish(Request::new(publish())).await, CALLER_NOT_ALLOWED);
    // A person whose calls it forwards.
    search.publish(ann.request(publish())).await.unwrap();
    // Another certificate shows nothing.
    let mut web = connect("web");
    assert_error("not listed", web.view_users(acting(ann.id)).await, CALLER_INVALID);
    let seen = web.view_users(Request::new(view_users(&ann))).await.unwrap().into_inner();
    assert_eq!(seen.users[0].relation(), RelationState::None);
}
