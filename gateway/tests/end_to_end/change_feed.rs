//! The change feed: its changes, its cursors, and who may see it.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join_all, select};
use microblog_chassis::{Peer, status};
use microblog_proto::{
    common::{Change, ChangeKind, ErrorReason},
    gateway::{self, WatchRequest, WatchResponse, change_service_client::ChangeServiceClient},
    post,
    relation::{self, EdgeList},
    user::ProfileChanges,
};
use microblog_testkit::{PATIENCE, eventually};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    errors::{Expected, assert_error, invalid},
    service_callers::{Callers, acting_for, by_caller},
    system::{Member, System, by_id, recorded, with_token},
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

/// What changes lead to, by their subjects: the kind and its ids. The deletion of a post ends what
/// belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State(BTreeMap<Subject, u64>);

type Subject = (i32, u64, u64, u64);

fn subject(change: &Change) -> Subject {
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
        let subject = subject(change);
        if !change.ended {
            self.0.insert(subject, change.version);
            return;
        }
        self.0.remove(&subject);
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
                assert!(!change.ended);
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
    let (system, _files) = recorded().await;
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
    let delete = gateway::DeleteAccountRequest { password: crate::system::PASSWORD.into() };
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
    assert_eq!(account(ann.id), [false, false], "registered and updated");
    assert_eq!(account(bob.id)[..2], [false, true]);
    // Versions of a subject grow.
    let mut versions: BTreeMap<Subject, u64> = BTreeMap::new();
    for change in &changes {
        let newest = versions.entry(subject(change)).or_default();
        assert!(*newest <= change.version, "{change:?}");
        *newest = change.version;
    }
    // A snapshot shows the same.
    let state = reader.state.clone();
    reader.snapshot().await;
    let subjects = |state: &State| state.0.keys().copied().collect::<Vec<_>>();
    assert_eq!(subjects(&reader.state), subjects(&state));
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
                let request_id = crate::actions::request_id();
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
    let (system, _files) = recorded().await;
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
    let (system, _files) = recorded().await;
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
    let viewer = other.changes.clone().snapshot(acting_for(ann.id, Default::default())).await;
    viewer.expect("a viewer has no meaning and is ignored");
}

#[tokio::test]
async fn streams_end_with_the_right_and_are_limited() {
    let (system, _files) = recorded().await;
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

#[tokio::test]
async fn without_a_database_there_is_no_feed() {
    let system = crate::timeline_actions::without_jobs().await;
    let callers = Callers::start(&system, &METHODS, "");
    let expected = (Code::FailedPrecondition, ErrorReason::NoDatabase, [].as_slice());
    let watch = callers.changes.clone().watch(by_caller(WatchRequest::default())).await;
    assert_error("Watch", watch, expected);
    let snapshot = callers.changes.clone().snapshot(by_caller(Default::default())).await;
    assert_error("Snapshot", snapshot, expected);
}
