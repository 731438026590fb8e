//! The change feed: each committed change of a profile once, in order, and what exists.

use std::time::Instant;

use microblog_proto::{
    common::{Change, ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery},
    user as pb,
};

use crate::support::{
    PASSWORD, PATIENCE, System, Topology, assert_rejected, change_password, confirm_deletion,
    delete, login, logout, on_each_store, register, retried, set_bio,
};

on_each_store! {
    the_feed_has_each_change_once_in_order
    a_snapshot_has_what_exists
}

/// A change: whether it is an update or the end of the account.
type Summary = (bool, bool, u64);

fn query(after: Option<FeedPosition>) -> FeedQuery {
    FeedQuery { kinds: vec![ChangeKind::Account.into()], after, ..FeedQuery::default() }
}

async fn pages(system: &System, query: FeedQuery) -> tonic::Streaming<pb::StreamChangesResponse> {
    let request = pb::StreamChangesRequest { query: Some(query) };
    system.client.clone().stream_changes(request).await.unwrap().into_inner()
}

/// Returns the next page, with or without changes.
async fn next(pages: &mut tonic::Streaming<pb::StreamChangesResponse>) -> FeedPage {
    pages.message().await.unwrap().unwrap().page.unwrap()
}

/// Reads pages until there are so many changes.
async fn read(system: &System, query: FeedQuery, count: usize) -> (Vec<Change>, FeedPage) {
    let mut pages = pages(system, query).await;
    let (mut changes, mut last) = (Vec::new(), FeedPage::default());
    let deadline = Instant::now() + PATIENCE;
    while changes.len() < count {
        assert!(Instant::now() < deadline, "only {changes:?}");
        last = next(&mut pages).await;
        changes.append(&mut last.changes);
    }
    (changes, last)
}

fn summary(changes: &[Change]) -> Vec<Summary> {
    assert!(changes.iter().all(|one| one.kind() == ChangeKind::Account && one.target_id == 0));
    changes.iter().map(|one| (one.updated, one.ended, one.user_id)).collect()
}

async fn the_feed_has_each_change_once_in_order(topology: Topology) {
    let system = System::start(topology).await;
    let client = &system.client;
    let mut empty = pages(&system, query(None)).await;
    let first = next(&mut empty).await;
    assert_eq!(first.changes, []);
    let start = first.position;

    let ann = register(client, "ann").await.id;
    let bob = register(client, "bob").await.id;
    // Sessions and passwords are no changes, nor is what changes nothing.
    let token = login(client, "ann", PASSWORD).await.unwrap();
    logout(client, &token).await;
    set_bio(client, ann, "one").await.unwrap();
    set_bio(client, ann, "one").await.unwrap();
    change_password(client, bob, PASSWORD, "battery staple").await;
    set_bio(client, bob, "two").await.unwrap();
    set_bio(client, ann, "three").await.unwrap();
    delete(client, ann, PASSWORD).await.unwrap();
    confirm_deletion(client, ann).await;

    let (changes, last) = read(&system, query(start), 6).await;
    assert_eq!(
        summary(&changes),
        [
            (false, false, ann),
            (false, false, bob),
            (true, false, ann),
            (true, false, bob),
            (true, false, ann),
            (false, true, ann),
        ]
    );
    for id in [ann, bob] {
        let of_account = changes.iter().filter(|change| change.user_id == id);
        let versions: Vec<u64> = of_account.map(|change| change.version).collect();
        assert_eq!(versions[0], id, "the version of a new account is its id");
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    }
    // Those that are open see the same, and a reader continues anywhere.
    let mut seen = Vec::new();
    while seen.len() < 6 {
        seen.extend(next(&mut empty).await.changes);
    }
    assert_eq!(seen, changes);
    let carl = register(client, "carl").await.id;
    let (newer, _) = read(&system, query(last.position), 1).await;
    assert_eq!(summary(&newer), [(false, false, carl)]);
    let from_start = FeedQuery { from_start: true, ..query(None) };
    assert_eq!(read(&system, from_start, 7).await.0[..6], changes);

    let position = last.position.unwrap();
    for ended in [
        FeedPosition { token: position.token ^ 1, ..position },
        FeedPosition { sequence: position.sequence + 100, ..position },
    ] {
        let expired = pages(&system, query(Some(ended))).await.message().await;
        assert_rejected(expired, ErrorReason::CursorExpired);
    }
}

async fn a_snapshot_has_what_exists(topology: Topology) {
    const NAMES: usize = 2_300;
    let system = System::start_with(topology, &["--write-budget-ms", "60000"]).await;
    let client = &system.client;
    let request = pb::ImportUsersRequest {
        names: (0..NAMES).map(|i| format!("user{i}")).collect(),
        email_domain: "example.org".to_owned(),
        password: String::new(),
    };
    let imported = retried!(client, import_users, request).unwrap();
    let (ann, bob) = (register(client, "ann").await.id, register(client, "bob").await.id);
    set_bio(client, ann, "here").await.unwrap();
    delete(client, bob, PASSWORD).await.unwrap();

    let snapshot = FeedQuery { snapshot: true, ..query(None) };
    let mut pages = pages(&system, snapshot).await;
    let (mut existing, mut is_end, mut position) = (Vec::new(), false, None);
    while let Some(page) = pages.message().await.unwrap() {
        let page = page.page.unwrap();
        existing.extend(page.changes);
        is_end = page.is_end;
        // The first message has it.
        position = position.or(page.position);
    }
    assert!(is_end);
    let ids: Vec<u64> = existing.iter().map(|change| change.user_id).collect();
    let mut expected: Vec<u64> = imported.user_ids.into_iter().chain([ann]).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected, "each account once");
    assert!(existing.iter().all(|change| !change.ended && change.version >= change.user_id));
    let of_ann = existing.iter().find(|change| change.user_id == ann).unwrap();
    assert!(of_ann.version > ann, "it has changed since");
    // What comes later continues the snapshot.
    set_bio(client, ann, "there").await.unwrap();
    let (newer, _) = read(&system, query(position), 1).await;
    assert_eq!(summary(&newer), [(true, false, ann)]);
}
