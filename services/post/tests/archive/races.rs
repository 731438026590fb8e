//! Rare interleavings: nothing deleted comes back, nothing existing is lost, and every call finds a
//! post that moves between the tiers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::future::{join, join_all, join4};
use microblog_domain::{PostId, Stamp};
use microblog_post::RestoreOutcome;
use microblog_proto::common::ErrorReason;
use microblog_testkit::{eventually, redis};
use tokio::time::timeout;
use tonic::Code;

use crate::{
    aging::{Aging, on_both},
    support::{
        self, PATIENCE,
        archives::{ArchiveServer, Kind, connect, execute},
        assert_rejected, id,
        lists::List,
        user,
    },
};

on_both! {
    a_late_restore_does_not_bring_a_deleted_post_back
    a_late_restore_does_not_bring_back_a_stale_snapshot
    a_comment_added_meanwhile_survives_the_eviction
    a_post_that_changed_since_its_mark_is_not_evicted
    of_two_evictors_the_later_mark_wins
    writes_find_a_post_that_is_evicted_again_and_again
    recorders_an_eraser_and_purges_do_not_deadlock
}

const AUTHOR: u64 = id(1);
const FAN: u64 = id(2);

/// A post that is evictable, archived, and still in Redis.
async fn evictable(aging: &Aging) -> u64 {
    let post = aging.system.create(AUTHOR, "old").await.unwrap().id;
    aging.archive().await;
    let taken_off =
        aging.system.store.make_evictable(user(1), &[support::post(post)]).await.unwrap();
    assert_eq!(taken_off, 1);
    post
}

/// Marks a post, as the evictor does, and records what precedes the mark.
async fn mark(aging: &Aging, post: u64) -> (PostId, u64) {
    let id = support::post(post);
    let mark = aging.system.store.mark_for_eviction(&[id]).await.unwrap()[0].unwrap();
    aging.archive().await;
    (id, mark)
}

/// Evicts a marked post. Returns whether it was evicted.
async fn evict(aging: &Aging, marked: (PostId, u64)) -> bool {
    aging.system.store.evict(&[marked]).await.unwrap() == [true]
}

#[tokio::test]
async fn a_restore_goes_on_after_its_call() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 0).await;
    let post = aging.system.create(AUTHOR, "large").await.unwrap().id;
    aging.system.like(FAN, post).await.unwrap();
    aging.evict(&[post]).await;
    let id = support::post(post);
    let mut other = connect(&aging.url).await;
    for statement in ["BEGIN", "LOCK TABLE likes IN ACCESS EXCLUSIVE MODE"] {
        execute(&mut other, statement).await;
    }
    let tiered = aging.tiered();
    let call = tokio::spawn(async move { tiered.restore(id).await });
    let lease = format!("post:{{{}}}:restoring:{post}", id.partition());
    eventually("it waits for the likes", PATIENCE, async || {
        let exists = redis::cmd("EXISTS").arg(&lease).take();
        let mut admin = aging.system.redis.nodes()[0].admin().await;
        exists.query_async::<bool>(&mut admin).await.unwrap()
    })
    .await;
    call.abort();
    execute(&mut other, "COMMIT").await;
    eventually("the post is restored", PATIENCE, async || {
        aging.system.store.exist(&[id]).await.unwrap() == [true]
    })
    .await;
    assert_eq!(aging.system.get(post, FAN).await.unwrap().likes, 1);
}

async fn a_late_restore_does_not_bring_a_deleted_post_back(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let (system, store) = (&aging.system, &aging.system.store);
    let post = system.create(AUTHOR, "goes").await.unwrap().id;
    system.like(FAN, post).await.unwrap();
    aging.evict(&[post]).await;
    let (id, holder) = (support::post(post), "late holder");
    assert!(store.begin_restore(id, holder).await.unwrap());
    let snapshot = aging.archive.read_snapshot(id).await.unwrap().unwrap();
    // Before the restore ends, the post is deleted, and the deletion recorded.
    system.delete(AUTHOR, post).await.unwrap();
    assert!(!store.renew_restore(id, holder).await.unwrap(), "the lease has ended");
    aging.archive().await;
    assert_ne!(store.restore(&snapshot, holder, 0, "").await.unwrap(), RestoreOutcome::Restored);
    assert_rejected(system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    aging.is_sound().await;
}

async fn a_late_restore_does_not_bring_back_a_stale_snapshot(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let (system, store) = (&aging.system, &aging.system.store);
    let post = system.create(AUTHOR, "discuss").await.unwrap().id;
    aging.evict(&[post]).await;
    // Two calls find it archived. One restores it; then the other one begins.
    assert!(aging.tiered().restore(support::post(post)).await.unwrap());
    let (id, holder) = (support::post(post), "late holder");
    let may_begin = store.begin_restore(id, holder).await.unwrap();
    let snapshot = aging.archive.read_snapshot(id).await.unwrap().unwrap();
    // Meanwhile it changes, and is evicted again.
    let comment = system.comment(FAN, post, "well", 0).await.unwrap().id;
    assert_eq!(system.like(FAN, post).await.unwrap(), 1);
    aging.age(&[post]).await;
    if may_begin {
        store.restore(&snapshot, holder, 0, "").await.unwrap();
    }
    assert_eq!(List::oldest(post).whole(&system.client, 5).await, [comment]);
    assert_eq!(List::Likers(post).whole(&system.client, 5).await, [FAN]);
    assert_eq!(system.get(post, FAN).await.unwrap().comments, 1);
    aging.is_sound().await;
}

#[tokio::test]
async fn a_crashed_restore_blocks_a_post_for_seconds_only() {
    let archives = ArchiveServer::start(Kind::Sqlite).await;
    let aging = Aging::start(&archives, 0).await;
    let (system, store) = (&aging.system, &aging.system.store);
    let post = system.create(AUTHOR, "old").await.unwrap().id;
    aging.evict(&[post]).await;
    let id = support::post(post);
    assert!(store.begin_restore(id, "crashed holder").await.unwrap());
    assert!(store.renew_restore(id, "crashed holder").await.unwrap());
    assert!(!store.begin_restore(id, "another").await.unwrap());
    assert!(!store.renew_restore(id, "another").await.unwrap());
    assert!(system.get(post, 0).await.is_ok(), "it can be read all the while");
    eventually("the like is counted", PATIENCE, async || system.like(FAN, post).await.is_ok())
        .await;
    assert!(!store.renew_restore(id, "crashed holder").await.unwrap());
    aging.is_sound().await;
}

async fn a_comment_added_meanwhile_survives_the_eviction(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = evictable(&aging).await;
    let first = system.comment(FAN, post, "well", 0).await.unwrap().id;
    let marked = mark(&aging, post).await;
    // A comment is added, and another process records it.
    let second = system.comment(FAN, post, "well?", first).await.unwrap().id;
    aging.archive().await;
    assert!(!evict(&aging, marked).await, "the post has changed");
    assert_eq!(List::oldest(post).whole(&system.client, 5).await, [first, second]);

    aging.evict(&[post]).await;
    assert_eq!(List::oldest(post).whole(&system.client, 5).await, [first, second]);
    assert_eq!(system.get(post, 0).await.unwrap().comments, 2);
    aging.is_sound().await;
    system.like(FAN, post).await.unwrap();
    assert_eq!(List::oldest(post).whole(&system.client, 5).await, [first, second]);
    aging.is_sound().await;
}

async fn a_post_that_changed_since_its_mark_is_not_evicted(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = evictable(&aging).await;
    let comment = system.comment(FAN, post, "well", 0).await.unwrap().id;
    let mut repost = 0;
    for change in 0..6 {
        let marked = mark(&aging, post).await;
        match change {
            0 => drop(system.like(FAN, post).await.unwrap()),
            1 => drop(system.unlike(FAN, post).await.unwrap()),
            2 => drop(system.comment(FAN, post, "again", comment).await.unwrap()),
            3 => system.uncomment(FAN, post, comment).await.unwrap(),
            4 => repost = system.repost(FAN, post).await.unwrap().id,
            _ => system.delete(FAN, repost).await.unwrap(),
        }
        let before = system.get(post, FAN).await.unwrap();
        assert!(!evict(&aging, marked).await, "change {change}");
        assert_eq!(system.get(post, FAN).await.unwrap(), before, "change {change}");
    }
    // A call that changes nothing does not prevent the eviction.
    let other = evictable(&aging).await;
    let marked = mark(&aging, other).await;
    system.unlike(id(9), other).await.unwrap();
    system.delete(id(9), other).await.unwrap_err();
    assert!(evict(&aging, marked).await);
    aging.is_sound().await;
}

async fn of_two_evictors_the_later_mark_wins(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = evictable(&aging).await;
    let early = mark(&aging, post).await;
    system.like(FAN, post).await.unwrap();
    let late = mark(&aging, post).await;
    assert!(!evict(&aging, early).await, "its mark is older");
    assert!(evict(&aging, late).await);
    assert_eq!(List::Likers(post).whole(&system.client, 5).await, [FAN]);
    assert_eq!(system.get(post, FAN).await.unwrap().likes, 1);
    system.unlike(FAN, post).await.unwrap();
    assert!(!evict(&aging, late).await, "the post is restored");
    assert_eq!(system.get(post, FAN).await.unwrap().likes, 0);
    aging.is_sound().await;
}

async fn writes_find_a_post_that_is_evicted_again_and_again(archives: &ArchiveServer) {
    const TIMES: u64 = 12;
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let post = system.create(AUTHOR, "old").await.unwrap().id;
    aging.archive().await;
    let evicted = AtomicU64::new(0);
    let has_left = || evicted.load(Ordering::Relaxed) >= TIMES;
    let moves = async {
        while !has_left() {
            let moved = aging.evictor.partition(user(1).partition()).await.unwrap();
            evicted.fetch_add(moved.evicted, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let writes = join_all((10..13).map(|n| async move {
        let mut comments = Vec::new();
        while comments.is_empty() || !has_left() {
            assert!(system.like(id(n), post).await.unwrap() > 0);
            comments.push(system.comment(id(n), post, "well", 0).await.unwrap().id);
            let gone = system.comment(id(n), post, "nonsense", 0).await.unwrap().id;
            // Under constant changes it would not be evicted.
            tokio::time::sleep(Duration::from_millis(10 * n)).await;
            assert!(system.get(post, id(n)).await.unwrap().liked);
            assert!(List::Likers(post).whole(&system.client, 3).await.contains(&id(n)));
            let newest = List::newest(post).page(&system.client, 50, "").await.unwrap().0;
            let of_both = [comments.last().unwrap(), &gone];
            assert!(of_both.into_iter().all(|comment| newest.contains(comment)), "{newest:?}");
            system.uncomment(id(n), post, gone).await.unwrap();
        }
        comments
    }));
    let give_up = tokio::time::sleep(PATIENCE);
    let made = tokio::select! {
        ((), made) = join(moves, writes) => made,
        () = give_up => panic!("evicted {evicted:?} times"),
    };
    let mut made: Vec<_> = made.into_iter().flatten().collect();
    made.sort_unstable();
    assert_eq!(List::oldest(post).whole(&system.client, 50).await, made);
    assert_eq!(system.get(post, 0).await.unwrap().likes, 3);
    aging.is_sound().await;
}

async fn recorders_an_eraser_and_purges_do_not_deadlock(archives: &ArchiveServer) {
    const TIMES: u64 = 10;
    const POSTS: u64 = 40;
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let changes = async {
        for time in 0..TIMES {
            let made = join_all((1..=POSTS).map(|n| system.create(id(n), "goes"))).await;
            for (n, post) in made.into_iter().enumerate() {
                let (author, post) = (id(n as u64 + 1), post.unwrap().id);
                system.like(id(100 + time), post).await.unwrap();
                system.unlike(id(100 + time), post).await.unwrap();
                system.delete(author, post).await.unwrap();
            }
        }
    };
    let is_done = AtomicU64::new(0);
    let others = async {
        while is_done.load(Ordering::Relaxed) == 0 {
            let erased = aging.archive.erase_likes(user(100), 500);
            let purged = aging.archive.purge_before(Stamp::END - 1, 0);
            let (_, _, erased, purged) =
                join4(aging.archive(), aging.archive(), erased, purged).await;
            // On a busy machine, a step may keep its locks for longer than the others wait.
            let done = erased.and(purged);
            assert!(matches!(done, Ok(_) | Err(microblog_record::Error::Locked(_))), "{done:?}");
        }
    };
    join(others, async {
        changes.await;
        is_done.store(1, Ordering::Relaxed);
    })
    .await;
    aging.archive().await;
    while aging.archive.purge_before(Stamp::END - 1, 0).await.unwrap() > 0 {}
    assert_eq!(aging.count("SELECT COUNT(*) FROM posts").await, 0);
    assert_eq!(aging.count("SELECT COUNT(*) FROM likes").await, 0);
}

/// Otherwise the other partitions could not be recorded.
#[tokio::test]
async fn a_purge_does_not_wait_long_for_a_partition_that_is_being_recovered() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 0).await;
    let mut recovery = connect(&aging.url).await;
    for statement in ["BEGIN", "SELECT 1 FROM journal_positions WHERE partition = 1023 FOR UPDATE"]
    {
        execute(&mut recovery, statement).await;
    }
    let purge = timeout(Duration::from_secs(30), aging.archive.purge_before(0, 0)).await;
    let purged = purge.expect("it keeps the locks of the other partitions");
    assert!(purged.is_err_and(|error| !error.is_unavailable()));
    execute(&mut recovery, "ROLLBACK").await;
    aging.archive.purge_before(0, 0).await.unwrap();
}
