//! The change feed: each committed change once, in order, and what exists.

use microblog_proto::{
    common::{Change, ChangeKind, ErrorReason, FeedPage, FeedPosition, FeedQuery},
    relation as pb,
};
use microblog_testkit::Topology::{Cluster, Single};
use tonic::Code;

use crate::support::{System, assert_rejected, id};

const KINDS: [ChangeKind; 3] = [ChangeKind::Follow, ChangeKind::Block, ChangeKind::Mute];

fn query(after: Option<FeedPosition>) -> FeedQuery {
    FeedQuery { kinds: KINDS.map(i32::from).to_vec(), after, ..FeedQuery::default() }
}

async fn pages(system: &System, query: FeedQuery) -> tonic::Streaming<pb::StreamChangesResponse> {
    let request = pb::StreamChangesRequest { query: Some(query) };
    system.client.clone().stream_changes(request).await.unwrap().into_inner()
}

/// Reads pages until there are so many changes.
async fn read(system: &System, query: FeedQuery, count: usize) -> (Vec<Change>, FeedPage) {
    let mut pages = pages(system, query).await;
    let (mut changes, mut last) = (Vec::new(), FeedPage::default());
    while changes.len() < count {
        last = pages.message().await.unwrap().unwrap().page.unwrap();
        changes.append(&mut last.changes);
    }
    (changes, last)
}

fn summary(changes: &[Change]) -> Vec<(ChangeKind, bool, u64, u64)> {
    changes.iter().map(|one| (one.kind(), one.ended, one.user_id, one.target_id)).collect()
}

#[tokio::test]
async fn the_feed_has_each_change_once_in_order() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        let mut empty = pages(&system, query(None)).await;
        let first = empty.message().await.unwrap().unwrap().page.unwrap();
        assert_eq!(first.changes, []);
        let start = first.position;

        system.follow(alice, bob).await.unwrap();
        system.follow(alice, bob).await.unwrap();
        system.follow(bob, alice).await.unwrap();
        let mute = pb::MuteRequest { user_id: bob, target_id: alice };
        system.client.clone().mute(mute).await.unwrap();
        system.block(alice, bob).await.unwrap();
        let unblock = pb::UnblockRequest { user_id: alice, target_id: bob };
        system.client.clone().unblock(unblock).await.unwrap();
        system.unfollow(alice, bob).await.unwrap();

        let (changes, last) = read(&system, query(start), 7).await;
        let [follow, block, mute] = KINDS;
        assert_eq!(
            summary(&changes),
            [
                (follow, false, alice, bob),
                (follow, false, bob, alice),
                (mute, false, bob, alice),
                (follow, true, alice, bob),
                (follow, true, bob, alice),
                (block, false, alice, bob),
                (block, true, alice, bob),
            ]
        );
        assert!(changes.is_sorted_by_key(|change| change.version), "{changes:?}");
        // Those that are open see the same, and a reader continues anywhere.
        let mut seen = Vec::new();
        while seen.len() < 7 {
            seen.extend(empty.message().await.unwrap().unwrap().page.unwrap().changes);
        }
        assert_eq!(seen, changes);
        system.follow(alice, bob).await.unwrap();
        let (newer, _) = read(&system, query(last.position), 1).await;
        assert_eq!(summary(&newer), [(follow, false, alice, bob)]);
        let from_start = FeedQuery { from_start: true, ..query(None) };
        assert_eq!(read(&system, from_start, 8).await.0[..7], changes);

        let position = last.position.unwrap();
        for ended in [
            FeedPosition { token: position.token ^ 1, ..position },
            FeedPosition { sequence: position.sequence + 100, ..position },
        ] {
            let expired = pages(&system, query(Some(ended))).await.message().await;
            assert_rejected(expired, Code::OutOfRange, ErrorReason::CursorExpired);
        }
    }
}

#[tokio::test]
async fn a_snapshot_has_what_exists() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let follows: Vec<_> = (2..2_500).map(|n| (id(n), id(1))).collect();
        system.import(&follows).await;
        system.block(id(1), id(2)).await.unwrap();
        let snapshot = FeedQuery { snapshot: true, ..query(None) };
        let mut pages = pages(&system, snapshot).await;
        let (mut existing, mut is_end) = (Vec::new(), false);
        while let Some(page) = pages.message().await.unwrap() {
            let page = page.page.unwrap();
            existing.extend(page.changes);
            is_end = page.is_end;
        }
        assert!(is_end);
        let of = |kind| existing.iter().filter(|change| change.kind() == kind).count();
        assert_eq!(KINDS.map(of), [2_497, 1, 0]);
        assert!(existing.iter().all(|change| !change.ended && change.version > 0));
    }
}
