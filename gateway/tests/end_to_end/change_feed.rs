//! The change feed: its changes, its cursors, and who may see it.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join_all, select};
use microblog_chassis::{Peer, status};
use microblog_proto::{
    common::{Change, ChangeKind, ErrorReason},
    gateway::{self, WatchRequest, WatchResponse, change_service_client::ChangeServiceClient},
    post,
    relation::{self, EdgeList},
    user::{self, ProfileChanges},
};
use microblog_testkit::{PATIENCE, eventually};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    actions::request_id,
    errors::{Expected, assert_error, invalid},
    service_callers::{ACTING, Callers, acting_for, by_caller},
    system::{Member, PASSWORD, System, by_id, registration, with_token},
};

const CALLER_INVALID: Expected = (Code::Unauthenticated, ErrorReason::CallerInvalid, &[]);
const CALLER_NOT_ALLOWED: Expected = (Code::PermissionDenied, ErrorReason::CallerNotAllowed, &[]);
const CURSOR_INVALID: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenInvalid, &["cursor"]);
const CURSOR_MISMATCH: Expected =
    (Code::InvalidArgument, ErrorReason::PageTokenMismatch, &["cursor"]);
const WATCH_LIMIT: Expected = (Code::ResourceExhausted, ErrorReason::WatchLimit, &[]);

const METHODS: [&str; 2] = ["ChangeService.Watch", "ChangeService.Snapshot"];
/// The services of which a new stream has a first message each.
const SERVICES: usize = 3;

const PRIVATE: &str = r#", "private_changes": true"#;

const ALL: [ChangeKind; 8] = [
    ChangeKind::Account,
    ChangeKind::Follow,
    ChangeKind::Block,
    ChangeKind::Mute,
    ChangeKind::Post,
    ChangeKind::Repost,
    ChangeKind::Comment,
    ChangeKind::Like,
];

/// A reader of the feed with the rights to all kinds.
struct Reader {
    client: ChangeServiceClient<Peer>,
    cursor: String,
    state: State,
}

/// What changes lead to, by their keys: the version of what exists. The deletion of a post ends what
/// belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State(BTreeMap<Key, u64>);

/// The kind and its ids.
type Key = (i32, u64, u64, u64);

fn key(change: &Change) -> Key {
    let &Change { kind, user_id, target_id, post_id, repost_id, comment_id, .. } = change;
    match change.kind() {
        // Ends of posts and comments name no author.
        ChangeKind::Post => (kind, post_id, 0, 0),
        ChangeKind::Comment => (kind, post_id, comment_id, 0),
        ChangeKind::Repost => (kind, post_id, repost_id, 0),
        ChangeKind::Like => (kind, post_id, user_id, 0),
        _ => (kind, user_id, target_id, 0),
    }
}

impl State {
    fn apply(&mut self, change: &Change) {
        let key = key(change);
        if !change.ended {
            self.0.insert(key, change.version);
            return;
        }
        self.0.remove(&key);
        let parts = [ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like].map(i32::from);
        match change.kind() {
            ChangeKind::Post => {
                self.0.retain(|key, _| !(parts.contains(&key.0) && key.1 == change.post_id));
            }
            ChangeKind::Mute if change.target_id == 0 => {
                self.0.retain(|key, _| !(key.0 == change.kind && key.1 == change.user_id));
            }
            _ => {}
        }
    }

    /// Returns the ids of a kind: the pairs behind it.
    fn of(&self, kind: ChangeKind) -> BTreeSet<(u64, u64)> {
        let of_kind = self.0.keys().filter(|key| key.0 == i32::from(kind));
        of_kind.map(|key| (key.1, key.2)).collect()
    }
}

impl Reader {
    fn new(callers: &Callers) -> Self {
        Self { client: callers.changes.clone(), cursor: String::new(), state: State::default() }
    }

    async fn open(&self) -> Result<Streaming<WatchResponse>, Status> {
        let request = WatchRequest { kinds: Vec::new(), cursor: self.cursor.clone() };
        Ok(self.client.clone().watch(by_caller(request)).await?.into_inner())
    }

    /// Starts at the end of the feed, once there is one.
    async fn begin(&mut self) {
        eventually("the databases are filled", PATIENCE, async || self.open().await.is_ok()).await;
        let first = message(&mut self.open().await.unwrap()).await;
        assert!(first.changes.is_empty() && !first.cursor.is_empty());
        self.cursor = first.cursor;
    }

    async fn snapshot(&mut self) {
        let request = by_caller(gateway::SnapshotRequest::default());
        let mut messages = self.client.clone().snapshot(request).await.unwrap().into_inner();
        self.state = State::default();
        while let Some(message) = timeout(PATIENCE, messages.message()).await.unwrap().unwrap() {
            for change in &message.changes {
                assert!(!change.ended && !change.updated);
                self.state.apply(change);
            }
            self.cursor = message.cursor;
        }
        assert!(!self.cursor.is_empty(), "the last message has the cursor");
    }

    /// Reads some messages of a new stream. Returns their changes.
    async fn read(&mut self, messages: usize) -> Vec<Change> {
        let (mut stream, mut changes) = (self.open().await.unwrap(), Vec::new());
        for _ in 0..messages {
            let message = message(&mut stream).await;
            message.changes.iter().for_each(|change| self.state.apply(change));
            (self.cursor, changes) = (message.cursor, [changes, message.changes].concat());
        }
        changes
    }
}

async fn message(stream: &mut Streaming<WatchResponse>) -> WatchResponse {
    timeout(PATIENCE, stream.message()).await.unwrap().unwrap().expect("it has no end")
}

#[tokio::test]
async fn every_change_reaches_a_reader_in_order() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, PRIVATE);
    let mut reader = Reader::new(&callers);
    reader.begin().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    let update = gateway::UpdateProfileRequest {
        changes: Some(ProfileChanges { bio: Some("new".into()), ..Default::default() }),
    };
    system.gateway().update_profile(ann.request(update)).await.unwrap();
    system.follow(&ann, &bob).await;
    system.unfollow(&ann, &bob).await;
    system.follow(&bob, &ann).await;
    system.mute(&bob, &ann).await;
    let post = system.publish(&ann, "hello").await;
    let comment = system.comment(&bob, post.id, "hi").await;
    system.like(&bob, post.id).await;
    let repost = system.repost(&bob, post.id, "").await;
    system.unlike(&bob, post.id).await;
    system.block(&ann, &bob).await;
    system.delete_post(&ann, post.id).await;
    let delete = gateway::DeleteAccountRequest { password: PASSWORD.into() };
    system.gateway().delete_account(bob.request(delete)).await.unwrap();

    // Changes of different services and partitions have no order among each other.
    let mut changes: Vec<Change> = Vec::new();
    let ended_of = |changes: &[Change], is_of: &dyn Fn(&Change) -> bool| -> Vec<bool> {
        changes.iter().filter(|change| is_of(change)).map(|change| change.ended).collect()
    };
    let of_account =
        |id| move |change: &Change| change.kind() == ChangeKind::Account && change.user_id == id;
    let last = [ChangeKind::Block, ChangeKind::Mute, ChangeKind::Like, ChangeKind::Post];
    while !last.iter().all(|kind| ended_of(&changes, &|c| c.kind() == *kind).contains(&true))
        || [ann.id, bob.id].iter().any(|&id| ended_of(&changes, &of_account(id)).len() < 2)
        || !reader.state.0.keys().all(|key| key.1 == ann.id)
    {
        changes.extend(reader.read(SERVICES).await);
    }
    let ended = |kind: ChangeKind| ended_of(&changes, &|change| change.kind() == kind);
    let account = |id: u64| ended_of(&changes, &of_account(id));
    for id in [ann.id, bob.id] {
        let is_follow = |c: &Change| c.kind() == ChangeKind::Follow && c.user_id == id;
        assert_eq!(ended_of(&changes, &is_follow), [false, true], "{changes:?}");
    }
    assert_eq!(ended(ChangeKind::Block), [false, true]);
    assert_eq!(ended(ChangeKind::Like), [false, true]);
    assert!(!ended(ChangeKind::Comment)[0] && !ended(ChangeKind::Repost)[0]);
    let of = |kind: ChangeKind| changes.iter().find(|change| change.kind() == kind).unwrap();
    let begun = of(ChangeKind::Comment);
    assert_eq!([begun.post_id, begun.comment_id, begun.user_id], [post.id, comment.id, bob.id]);
    let begun = of(ChangeKind::Repost);
    assert_eq!([begun.post_id, begun.repost_id], [post.id, repost.id]);
    assert_eq!(account(ann.id), [false, false]);
    let of_ann = changes.iter().filter(|change| of_account(ann.id)(change));
    let updated: Vec<_> = of_ann.map(|change| change.updated).collect();
    assert_eq!(updated, [false, true], "registered and updated");
    assert_eq!(account(bob.id), [false, true]);
    assert!(changes.iter().all(|change| !change.updated || of_account(ann.id)(change)));
    // Versions of a key grow.
    let mut versions: BTreeMap<Key, u64> = BTreeMap::new();
    for change in &changes {
        let newest = versions.entry(key(change)).or_default();
        assert!(*newest <= change.version, "{change:?}");
        *newest = change.version;
    }
    // A snapshot shows the same.
    let state = reader.state.clone();
    reader.snapshot().await;
    let keys = |state: &State| state.0.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(&reader.state), keys(&state));
}

impl Reader {
    /// Returns the changes up to now, but those of one account. It makes some in each service, which
    /// each service records after all earlier changes: the second ones also after those of partitions
    /// that it had read just before the first ones.
    async fn until_now(&mut self, system: &System, marker: &Member) -> Vec<Change> {
        let mut changes = Vec::new();
        for round in 0..2 {
            update_bio(system, marker, &request_id()).await;
            system.publish(marker, "hello").await;
            let user = by_id(system.crowd("followed", 1).await[0]);
            let request = gateway::FollowRequest { user: user.clone() };
            match round {
                0 => _ = system.gateway().follow(marker.request(request)).await.unwrap(),
                _ => {
                    let request = gateway::UnfollowRequest { user };
                    system.gateway().unfollow(marker.request(request)).await.unwrap();
                }
            }
            let mut waiting =
                BTreeSet::from([ChangeKind::Account, ChangeKind::Post, ChangeKind::Follow]);
            while !waiting.is_empty() {
                for change in self.read(SERVICES).await {
                    match change.user_id == marker.id {
                        true => _ = waiting.remove(&change.kind()),
                        false => changes.push(change),
                    }
                }
            }
        }
        changes
    }
}

async fn update_bio(system: &System, member: &Member, bio: &str) {
    let changes = Some(ProfileChanges { bio: Some(bio.to_owned()), ..Default::default() });
    let request = gateway::UpdateProfileRequest { changes };
    system.gateway().update_profile(member.request(request)).await.unwrap();
}

/// Calls that change something once, and nothing when they are repeated.
struct Repeated {
    registration: gateway::RegisterRequest,
    ensure: user::EnsureUserRequest,
    import: user::ImportUsersRequest,
    publish: gateway::PublishRequest,
    members: [Member; 4],
}

impl Repeated {
    async fn new(system: &System) -> Self {
        Self {
            registration: registration("eve"),
            ensure: user::EnsureUserRequest {
                issuer: "sso".to_owned(),
                external_id: "1".to_owned(),
                name: "external".to_owned(),
                display_name: String::new(),
            },
            import: user::ImportUsersRequest {
                names: vec!["imported".to_owned()],
                email_domain: "example.org".to_owned(),
                password: String::new(),
            },
            publish: gateway::PublishRequest { request_id: request_id(), text: "hello".to_owned() },
            members: [
                system.join("ann").await,
                system.join("bob").await,
                system.join("cleo").await,
                system.join("dan").await,
            ],
        }
    }

    /// Makes the calls. Returns the post.
    async fn call(&self, system: &System) -> u64 {
        let [ann, bob, cleo, dan] = &self.members;
        let mut gateway = system.gateway();
        gateway.register(self.registration.clone()).await.unwrap();
        system.user().ensure_user(self.ensure.clone()).await.unwrap();
        let imported = system.user().import_users(self.import.clone()).await.unwrap().into_inner();
        let follow = relation::Follow { follower_id: imported.user_ids[0], target_id: ann.id };
        let follows = relation::ImportFollowsRequest { follows: vec![follow] };
        system.relation().import_follows(follows).await.unwrap();
        update_bio(system, ann, "new").await;
        system.follow(ann, bob).await;
        system.mute(ann, bob).await;
        system.block(cleo, dan).await;
        let published = gateway.publish(ann.request(self.publish.clone())).await.unwrap();
        let post_id = published.into_inner().post.unwrap().id;
        system.like(bob, post_id).await;
        let request_id = self.publish.request_id.clone();
        let repost = gateway::RepostRequest { request_id, post_id, text: "look".to_owned() };
        let repost = gateway.repost(bob.request(repost)).await.unwrap().into_inner();
        system.like(cleo, repost.post.unwrap().id).await;
        let comment = gateway::CommentRequest {
            request_id: self.publish.request_id.clone(),
            post_id,
            text: "hi".to_owned(),
            in_reply_to_id: 0,
        };
        gateway.comment(bob.request(comment)).await.unwrap();
        post_id
    }

    /// Ends what does not exist. `gone` are a post, a repost, and a comment on another post.
    async fn end_nothing(&self, system: &System, post: u64, gone: [u64; 3]) {
        let [ann, bob, cleo, _] = &self.members;
        let mut gateway = system.gateway();
        let other = || by_id(cleo.id);
        for _ in 0..2 {
            system.unfollow(ann, cleo).await;
            system.unfollow(cleo, ann).await;
            let request = gateway::RemoveFollowerRequest { user: other() };
            gateway.remove_follower(ann.request(request)).await.unwrap();
            let request = gateway::UnblockRequest { user: other() };
            gateway.unblock(ann.request(request)).await.unwrap();
            let request = gateway::UnmuteRequest { user: other() };
            gateway.unmute(ann.request(request)).await.unwrap();
            system.unlike(cleo, post).await;
            system.unlike(bob, gone[0]).await;
            system.delete_post(ann, gone[0]).await;
            system.delete_post(bob, gone[1]).await;
            let request = gateway::DeleteCommentRequest { post_id: post, comment_id: gone[2] };
            gateway.delete_comment(bob.request(request)).await.unwrap();
        }
    }

    /// Makes calls that are no changes of the feed's kinds, and rejected ones.
    async fn change_other_things(&self, system: &System) {
        let [ann, _, cleo, dan] = &self.members;
        let mut gateway = system.gateway();
        let empty = gateway::UpdateProfileRequest { changes: Some(ProfileChanges::default()) };
        gateway.update_profile(ann.request(empty)).await.unwrap();
        let cleared = ProfileChanges { location: Some(String::new()), ..Default::default() };
        let cleared = gateway::UpdateProfileRequest { changes: Some(cleared) };
        gateway.update_profile(ann.request(cleared)).await.unwrap();
        let follow = gateway::FollowRequest { user: by_id(cleo.id) };
        gateway.follow(dan.request(follow)).await.expect_err("it is blocked");
        let notices = gateway::ViewNoticesRequest::default();
        let notices = gateway.view_notices(ann.request(notices)).await.unwrap().into_inner();
        let seen = gateway::MarkSeenRequest { token: notices.seen_token };
        gateway.mark_seen(ann.request(seen)).await.unwrap();
        let login = gateway::LoginRequest { login: "ann".into(), password: PASSWORD.into() };
        let session = gateway.login(login).await.unwrap().into_inner();
        let logout = gateway::LogoutRequest::default();
        gateway.logout(with_token(&session.token, logout)).await.unwrap();
        let password = gateway::ChangePasswordRequest {
            current_password: PASSWORD.to_owned(),
            new_password: "another password".to_owned(),
        };
        gateway.change_password(ann.request(password)).await.unwrap();
    }
}

#[tokio::test]
async fn what_changes_nothing_is_no_change() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, PRIVATE);
    let mut reader = Reader::new(&callers);
    reader.begin().await;
    let marker = system.join("marker").await;
    let repeated = Repeated::new(&system).await;
    let post = repeated.call(&system).await;
    let [ann, bob, cleo, _] = &repeated.members;
    system.follow(cleo, ann).await;
    system.unfollow(cleo, ann).await;
    let gone = system.publish(ann, "gone").await.id;
    system.delete_post(ann, gone).await;
    let repost = system.repost(bob, post, "").await.id;
    system.delete_post(bob, repost).await;
    let comment = system.comment(bob, post, "gone").await.id;
    let request = gateway::DeleteCommentRequest { post_id: post, comment_id: comment };
    system.gateway().delete_comment(bob.request(request)).await.unwrap();
    assert!(!reader.until_now(&system, &marker).await.is_empty());

    repeated.call(&system).await;
    repeated.end_nothing(&system, post, [gone, repost, comment]).await;
    repeated.change_other_things(&system).await;
    assert_eq!(reader.until_now(&system, &marker).await, []);
}

#[tokio::test]
async fn an_account_ends_once() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, PRIVATE);
    let mut reader = Reader::new(&callers);
    reader.begin().await;
    let marker = system.join("marker").await;
    let [ann, dan, fay] =
        [system.join("ann").await, system.join("dan").await, system.join("fay").await];
    system.follow(&ann, &dan).await;
    system.mute(&fay, &ann).await;
    reader.until_now(&system, &marker).await;

    let mut changes = Vec::new();
    for member in [&dan, &fay] {
        let delete = gateway::DeleteAccountRequest { password: PASSWORD.to_owned() };
        system.gateway().delete_account(member.request(delete)).await.unwrap();
    }
    // Their data are deleted by jobs.
    while !changes.iter().any(|change: &Change| change.kind() == ChangeKind::Mute) {
        changes.extend(reader.read(SERVICES).await);
    }
    for user_id in [dan.id, fay.id] {
        let confirm = user::ConfirmDeletionRequest { user_id };
        system.user().confirm_deletion(confirm).await.unwrap();
        let forget = relation::ForgetUserRequest { user_id };
        system.relation().forget_user(forget).await.unwrap();
        let forget = post::ForgetUserRequest { user_id };
        system.post().forget_user(forget).await.unwrap();
    }
    changes.extend(reader.until_now(&system, &marker).await);
    let mut found: Vec<_> =
        changes.iter().map(|it| (it.kind(), it.ended, it.user_id, it.target_id)).collect();
    found.sort_unstable();
    // The account without mutes ends none.
    let expected = [
        (ChangeKind::Account, true, dan.id, 0),
        (ChangeKind::Account, true, fay.id, 0),
        (ChangeKind::Follow, true, ann.id, dan.id),
        (ChangeKind::Mute, true, fay.id, ann.id),
    ];
    assert_eq!(found, expected, "{changes:?}");
}

#[tokio::test]
async fn a_viewer_is_rejected_where_there_is_none() {
    let system = crate::timeline_actions::without_jobs().await;
    let methods = [&METHODS[..], &["EnsureUser", "BatchResolveExternalIds"]].concat();
    let methods = [&methods[..], &["Register", "Login", "CheckAvailability"]].concat();
    let callers = Callers::start(&system, &methods, ACTING);
    let (mut changes, mut gateway) = (callers.changes.clone(), callers.gateway.clone());
    let rejected = invalid(&["microblog-viewer"]);
    let viewer = system.join("ann").await.id;
    let watch = changes.watch(acting_for(viewer, WatchRequest::default())).await;
    assert_error("Watch", watch, rejected);
    let snapshot = changes.snapshot(acting_for(viewer, Default::default())).await;
    assert_error("Snapshot", snapshot, rejected);
    let ensure = gateway.ensure_user(acting_for(viewer, Default::default())).await;
    assert_error("EnsureUser", ensure, rejected);
    let resolve = gateway.batch_resolve_external_ids(acting_for(viewer, Default::default())).await;
    assert_error("BatchResolveExternalIds", resolve, rejected);
    let register = gateway.register(acting_for(viewer, registration("bob"))).await;
    assert_error("Register", register, rejected);
    let login = gateway.login(acting_for(viewer, Default::default())).await;
    assert_error("Login", login, rejected);
    let available = gateway.check_availability(acting_for(viewer, Default::default())).await;
    assert_error("CheckAvailability", available, rejected);
    // Also one that is not valid, and one without a service caller.
    let mut request = Request::new(WatchRequest::default());
    request.metadata_mut().insert("microblog-viewer", "ann".parse().unwrap());
    request.metadata_mut().insert("authorization", "Caller search:secret".parse().unwrap());
    assert_error("a name", changes.watch(request).await, rejected);
    let mut request = Request::new(registration("bob"));
    request.metadata_mut().insert("microblog-viewer", "7".parse().unwrap());
    assert_error("anybody", gateway.register(request).await, rejected);
    // Who may not call the method learns that first.
    callers.write("search", &[], ACTING);
    eventually("the caller loses its rights", PATIENCE, async || {
        let watch = changes.clone().watch(acting_for(viewer, WatchRequest::default())).await;
        watch.is_err_and(|status| status::reason_of(&status) == Some(ErrorReason::CallerNotAllowed))
    })
    .await;
}

/// Random changes of some accounts.
async fn change_at_random(system: &System, members: &[Member], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut posts: Vec<(usize, u64)> = Vec::new();
    for _ in 0..60 {
        let i = random.random_range(0..members.len());
        let (me, other) = (&members[i], members.choose(&mut random).unwrap());
        let post = posts.choose(&mut random).copied();
        match (random.random_range(0..10), post) {
            (0 | 1, _) if me.id != other.id => {
                let request = gateway::FollowRequest { user: by_id(other.id) };
                let _ = system.gateway().follow(me.request(request)).await;
            }
            (2, _) if me.id != other.id => {
                let request = gateway::UnfollowRequest { user: by_id(other.id) };
                let _ = system.gateway().unfollow(me.request(request)).await;
            }
            (3, _) if me.id != other.id => {
                let request = gateway::MuteRequest { user: by_id(other.id) };
                let _ = system.gateway().mute(me.request(request)).await;
            }
            (4, Some((_, id))) => {
                let request = gateway::LikeRequest { post_id: id };
                let _ = system.gateway().like(me.request(request)).await;
            }
            (5, Some((_, id))) => {
                let request = gateway::UnlikeRequest { post_id: id };
                let _ = system.gateway().unlike(me.request(request)).await;
            }
            (6, Some((_, id))) => {
                let request_id = request_id();
                let request = gateway::CommentRequest {
                    request_id,
                    post_id: id,
                    text: "hi".into(),
                    ..Default::default()
                };
                let _ = system.gateway().comment(me.request(request)).await;
            }
            (7, Some((author, id))) => {
                let request = gateway::DeletePostRequest { post_id: id };
                let _ = system.gateway().delete_post(members[author].request(request)).await;
                posts.retain(|post| post.1 != id);
            }
            _ => posts.push((i, system.publish(me, "hello").await.id)),
        }
    }
}

/// Returns what the services have of the accounts: follows, mutes, posts with likes and comments.
async fn existing(system: &System, members: &[Member]) -> [BTreeSet<(u64, u64)>; 3] {
    let (mut follows, mut mutes, mut posts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for member in members {
        for (list, edges) in [(EdgeList::Following, &mut follows), (EdgeList::Mutes, &mut mutes)] {
            let request = relation::ListEdgesRequest {
                user_id: member.id,
                list: list.into(),
                viewer_id: member.id,
                page_size: 200,
                ..Default::default()
            };
            let page = system.relation().list_edges(request).await.unwrap().into_inner();
            edges.extend(page.edges.iter().map(|edge| (member.id, edge.user_id)));
        }
        let request = post::ListUserPostsRequest {
            author_id: member.id,
            page_size: 200,
            ..Default::default()
        };
        let page = system.post().list_user_posts(request).await.unwrap().into_inner();
        posts.extend(page.posts.iter().map(|post| (post.id, 0)));
    }
    [follows, mutes, posts]
}

#[tokio::test]
async fn a_snapshot_and_the_changes_after_it_lead_to_what_exists() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, PRIVATE);
    let (mut from_begin, mut from_snapshot) = (Reader::new(&callers), Reader::new(&callers));
    from_begin.begin().await;
    let members = join_all(["ann", "bob", "cleo", "dan"].map(|name| system.join(name))).await;
    let change = |seeds: std::ops::Range<u64>| {
        join_all(seeds.map(|seed| change_at_random(&system, &members, seed)))
    };
    let read = async {
        from_begin.read(SERVICES).await;
        // In the middle of the changes.
        from_snapshot.snapshot().await;
    };
    tokio::join!(change(0..4), read);
    let read = async {
        loop {
            from_begin.read(SERVICES).await;
            from_snapshot.read(SERVICES + 1).await;
        }
    };
    // The readers are interrupted at any moment.
    select(Box::pin(change(4..8)), Box::pin(read)).await;
    let expected = existing(&system, &members).await;
    let kinds = [ChangeKind::Follow, ChangeKind::Mute, ChangeKind::Post];
    let mut latest = Reader::new(&callers);
    eventually("the readers and a snapshot have all changes", PATIENCE, async || {
        from_begin.read(SERVICES).await;
        from_snapshot.read(SERVICES).await;
        latest.snapshot().await;
        let is_latest = |reader: &Reader| {
            ALL.iter().all(|&kind| reader.state.of(kind) == latest.state.of(kind))
        };
        kinds.map(|kind| latest.state.of(kind)) == expected
            && is_latest(&from_begin)
            && is_latest(&from_snapshot)
    })
    .await;
    for reader in [from_begin, from_snapshot] {
        for kind in ALL {
            assert_eq!(reader.state.of(kind), latest.state.of(kind), "{kind:?}");
        }
    }
    assert!(
        latest.state.of(ChangeKind::Like).len() + latest.state.of(ChangeKind::Comment).len() > 0
    );
}

#[tokio::test]
async fn only_callers_with_the_right_see_changes_and_private_ones() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, "");
    let mut reader = Reader::new(&callers);
    reader.begin().await;
    let [ann, bob] = [system.join("ann").await, system.join("bob").await];
    system.block(&ann, &bob).await;
    system.mute(&ann, &bob).await;
    let post = system.publish(&ann, "hello").await;
    while reader.state.of(ChangeKind::Post).is_empty() {
        reader.read(SERVICES).await;
    }
    reader.snapshot().await;
    assert_eq!(reader.state.of(ChangeKind::Post), [(post.id, 0)].into());
    assert!(reader.state.of(ChangeKind::Block).is_empty(), "blocks are private");
    assert!(reader.state.of(ChangeKind::Mute).is_empty(), "mutes are private");

    let mut client = callers.changes.clone();
    let watch = |kinds: &[ChangeKind], cursor: &str| WatchRequest {
        kinds: kinds.iter().map(|&kind| kind.into()).collect(),
        cursor: cursor.to_owned(),
    };
    for private in [ChangeKind::Block, ChangeKind::Mute] {
        let request = watch(&[ChangeKind::Follow, private], "");
        assert_error("Watch", client.watch(by_caller(request)).await, CALLER_NOT_ALLOWED);
        let kinds = vec![private.into()];
        let snapshot = client.snapshot(by_caller(gateway::SnapshotRequest { kinds })).await;
        assert_error("Snapshot", snapshot, CALLER_NOT_ALLOWED);
    }
    let unknown = WatchRequest { kinds: vec![ChangeKind::Like.into(), 99], cursor: String::new() };
    assert_error("unknown", client.watch(by_caller(unknown)).await, invalid(&["kinds[1]"]));
    let unset = WatchRequest { kinds: vec![0], cursor: String::new() };
    assert_error("unset", client.watch(by_caller(unset)).await, invalid(&["kinds[0]"]));
    let other = client.watch(by_caller(watch(&[ChangeKind::Follow], &reader.cursor))).await;
    assert_error("other kinds", other, CURSOR_MISMATCH);
    let garbage = client.watch(by_caller(watch(&[], "garbage"))).await;
    assert_error("garbage", garbage, CURSOR_INVALID);

    let person = client.watch(ann.request(WatchRequest::default())).await;
    assert_error("a person", person, CALLER_NOT_ALLOWED);
    let anybody = client.watch(Request::new(WatchRequest::default())).await;
    assert_error("anybody", anybody, CALLER_NOT_ALLOWED);
    let mut wrong = with_token("x", WatchRequest::default());
    wrong.metadata_mut().insert("authorization", "Caller search:wrong".parse().unwrap());
    assert_error("wrong", client.watch(wrong).await, CALLER_INVALID);
    let other = Callers::start(&system, &["ViewUsers", "ChangeService.Snapshot"], PRIVATE);
    let rejected = other.changes.clone().watch(by_caller(WatchRequest::default())).await;
    assert_error("another method", rejected, CALLER_NOT_ALLOWED);
}

#[tokio::test]
async fn streams_end_with_the_right_and_are_limited() {
    let system = System::of_services().await;
    let callers = Callers::start(&system, &METHODS, PRIVATE);
    let mut reader = Reader::new(&callers);
    reader.begin().await;
    let open: Vec<_> = join_all((0..8).map(|_| reader.open())).await;
    let mut open: Vec<_> = open.into_iter().map(Result::unwrap).collect();
    assert_error("the ninth", reader.open().await.map(Response::new), WATCH_LIMIT);
    open.truncate(1);
    eventually("closed streams do not count", PATIENCE, async || reader.open().await.is_ok()).await;

    // Without the right to blocks and mutes, a stream of all kinds ends.
    callers.write("search", &METHODS, "");
    let ended = async |stream: &mut Streaming<WatchResponse>| {
        timeout(PATIENCE, async {
            loop {
                if let Err(status) = stream.message().await {
                    return status::reason_of(&status);
                }
            }
        })
        .await
        .unwrap()
    };
    assert_eq!(ended(&mut open[0]).await, Some(ErrorReason::CallerNotAllowed));
    let mut public = Reader::new(&callers).open().await.unwrap();
    message(&mut public).await;
    callers.write("other", &METHODS, "");
    assert_eq!(ended(&mut public).await, Some(ErrorReason::CallerInvalid));
}
