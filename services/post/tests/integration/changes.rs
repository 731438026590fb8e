//! The change feed: each committed change once, in order, and what exists.

use microblog_proto::{
    common::{Change, ChangeKind, FeedPosition, FeedQuery},
    post as pb,
};

use crate::support::{System, Topology, id};

const KINDS: [ChangeKind; 4] =
    [ChangeKind::Post, ChangeKind::Repost, ChangeKind::Comment, ChangeKind::Like];

async fn read(system: &System, query: FeedQuery, count: usize) -> (Vec<Change>, FeedPosition) {
    let kinds = KINDS.map(Into::into).to_vec();
    let query = Some(FeedQuery { kinds, ..query });
    let request = pb::StreamChangesRequest { query };
    let mut pages = system.client.clone().stream_changes(request).await.unwrap().into_inner();
    let (mut changes, mut position) = (Vec::new(), FeedPosition::default());
    while changes.len() < count {
        let Some(page) = pages.message().await.unwrap() else { break };
        let page = page.page.unwrap();
        position = page.position.unwrap_or(position);
        changes.extend(page.changes);
    }
    (changes, position)
}

fn key(change: &Change) -> (ChangeKind, bool, u64, u64) {
    let other = change.comment_id + change.repost_id;
    let other = if change.kind() == ChangeKind::Like { change.user_id } else { other };
    (change.kind(), change.ended, change.post_id, other)
}

#[tokio::test]
async fn every_change_is_in_the_feed_once_and_in_order() {
    use ChangeKind::{Comment, Like, Post, Repost};
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let from_start = FeedQuery { from_start: true, ..FeedQuery::default() };
        let root = system.create(id(1), "root").await.unwrap().id;
        let between = system.repost(id(2), root).await.unwrap().id;
        let repost = system.repost(id(3), between).await.unwrap().id;
        system.like(id(4), root).await.unwrap();
        system.like(id(4), root).await.unwrap();
        system.unlike(id(4), root).await.unwrap();
        system.unlike(id(4), root).await.unwrap();
        let comment = system.comment(id(5), root, "well", 0).await.unwrap().id;
        system.uncomment(id(5), root, comment).await.unwrap();
        system.delete(id(3), repost).await.unwrap();
        system.delete(id(3), repost).await.unwrap();
        let expected = [
            (Post, false, root, 0),
            (Post, false, between, 0),
            (Repost, false, root, between),
            (Post, false, repost, 0),
            (Repost, false, root, repost),
            (Repost, false, between, repost),
            (Like, false, root, id(4)),
            (Like, true, root, id(4)),
            (Comment, false, root, comment),
            (Comment, true, root, comment),
            (Post, true, repost, 0),
            (Repost, true, root, repost),
            (Repost, true, between, repost),
        ];
        let (changes, position) = read(&system, from_start, expected.len()).await;
        assert_eq!(changes.iter().map(key).collect::<Vec<_>>(), expected);
        let likes: Vec<_> = changes.iter().filter(|change| change.kind() == Like).collect();
        assert!(likes[0].version < likes[1].version);

        // A like that begins again is a later one; what follows a position has no more than that.
        system.like(id(4), root).await.unwrap();
        let after = FeedQuery { after: Some(position), ..FeedQuery::default() };
        let (changes, _) = read(&system, after, 1).await;
        assert_eq!(changes.iter().map(key).collect::<Vec<_>>(), [(Like, false, root, id(4))]);
        assert!(changes[0].version > likes[1].version);

        let snapshot = FeedQuery { snapshot: true, ..FeedQuery::default() };
        let (mut existing, _) = read(&system, snapshot, usize::MAX).await;
        existing.sort_unstable_by_key(|change| (change.kind, change.post_id));
        let existing: Vec<_> = existing.iter().map(key).collect();
        let mut expected = vec![
            (Post, false, root, 0),
            (Post, false, between, 0),
            (Repost, false, root, between),
            (Like, false, root, id(4)),
        ];
        expected.sort_unstable_by_key(|(kind, _, post, _)| (*kind as i32, *post));
        assert_eq!(existing, expected);
    }
}

#[tokio::test]
async fn a_snapshot_has_all_pages_and_nothing_of_deleted_posts() {
    let system = System::start(Topology::Cluster).await;
    let post = system.create(id(1), "kept").await.unwrap().id;
    let gone = system.create(id(1), "gone").await.unwrap().id;
    for (of, first) in [(post, 100_000), (gone, 200_000)] {
        system
            .execute(&format!(
                "INSERT INTO likes SELECT n * 4096, {of}, 7 FROM generate_series({first}, {first} + 2499) AS n; \
                 INSERT INTO comments SELECT {of}, n * 4096, 4096, 0, 0, 'well' \
                 FROM generate_series({first}, {first} + 2499) AS n"
            ))
            .await;
    }
    system.execute(&format!("DELETE FROM posts WHERE id = {gone}")).await;
    let snapshot = FeedQuery { snapshot: true, ..FeedQuery::default() };
    let (existing, _) = read(&system, snapshot, usize::MAX).await;
    let count = |kind| existing.iter().filter(|change| change.kind() == kind).count();
    assert_eq!((count(ChangeKind::Like), count(ChangeKind::Comment)), (2_500, 2_500));
    assert!(existing.iter().all(|change| change.post_id == post));
}
