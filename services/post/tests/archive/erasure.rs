//! Erasure of deleted accounts in either tier, also during outages of the archive and crashes of
//! the job. Reposts by others stay, and show that their root is deleted.

use std::time::Duration;

use futures::TryStreamExt as _;
use microblog_post::{Eraser, forget_marked};
use microblog_proto::{common::ErrorReason, post as pb};
use tonic::Code;

use crate::{
    aging::{Aging, on_both},
    support::{
        self,
        archives::{ArchiveServer, Kind, connect},
        assert_rejected, id,
        lists::List,
        user,
    },
};

on_both! {
    likes_and_comments_are_erased_in_either_tier_and_in_between
    a_late_restore_or_eviction_does_not_bring_erased_entries_back
    posts_of_a_deleted_account_are_deleted_in_either_tier
    deletion_of_an_account_resumes_after_repeated_cancellation
}

const GONE: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

/// An account to delete, and its relations to others.
struct World {
    /// Its posts: evictable, evicted, restored, hot; and old and new reposts of another account's
    /// post.
    own: Vec<u64>,
    /// Reposts of its posts.
    reposts: Vec<u64>,
    /// A post of another account, on which it commented, and which it reposted.
    others: u64,
}

async fn world(aging: &Aging) -> World {
    let system = &aging.system;
    let others = system.create(OTHER, "stays").await.unwrap().id;
    system.comment(GONE, others, "secret comment", 0).await.unwrap();
    system.like(GONE, others).await.unwrap();
    let mut own = vec![system.quote(GONE, others, "secret").await.unwrap().id];
    for n in 0..7 {
        own.push(system.create(GONE, &format!("secret {n}")).await.unwrap().id);
    }
    let mut reposts = Vec::new();
    for &post in &own[1..4] {
        system.comment(FAN, post, "secret answer", 0).await.unwrap();
        system.like(FAN, post).await.unwrap();
        reposts.push(system.quote(FAN, post, "look").await.unwrap().id);
    }
    reposts.push(system.repost(FAN, own[0]).await.unwrap().id);
    system.create(OTHER, "newer").await.unwrap();
    // All but the newest are evicted, those of the other account as well; one is restored.
    aging.evict(&own[..7]).await;
    system.comment(OTHER, own[2], "secret answer", 0).await.unwrap();
    own.push(system.create(GONE, "secret").await.unwrap().id);
    aging.archive().await;
    let evictable = system.store.make_evictable(user(1), &[support::post(own[7])]).await.unwrap();
    assert_eq!(evictable, 1);
    own.push(system.quote(GONE, others, "secret").await.unwrap().id);
    assert_eq!(system.get(others, 0).await.unwrap().reposts, 3);
    World { own, reposts, others }
}

async fn forget(aging: &Aging) {
    let request = pb::ForgetUserRequest { user_id: GONE };
    aging.system.client.clone().forget_user(request).await.unwrap();
}

/// Erases the likes and comments of deleted accounts.
async fn erase(aging: &Aging) -> bool {
    Eraser::new(aging.tiered(), Duration::ZERO).run_once().await.unwrap()
}

/// Asserts that nothing of the account is left in either tier, and all else is.
async fn account_is_erased(aging: &Aging, World { own, reposts, others }: &World) {
    let system = &aging.system;
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    assert_eq!(List::UserPosts(GONE).whole(&system.client, 2).await, Vec::<u64>::new());
    for &post in own {
        assert_rejected(system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        assert_eq!(support::keys_of(system, post).await, Vec::<String>::new());
    }
    for &repost in &reposts[..3] {
        let repost = system.get(repost, 0).await.unwrap();
        assert!(repost.root_deleted && repost.text == "look");
    }
    // A repost of the other account's post, through a deleted repost.
    let repost = system.get(reposts[3], 0).await.unwrap();
    assert_eq!((repost.root_deleted, repost.root.unwrap().id), (false, *others));
    let others = system.get(*others, GONE).await.unwrap();
    assert_eq!((others.reposts, others.comments, others.likes, others.liked), (1, 0, 0, false));
    aging.is_sound_everywhere().await;
    for table in ["posts", "comments"] {
        let secrets = format!("SELECT COUNT(*) FROM {table} WHERE text LIKE '%secret%'");
        assert_eq!(aging.count(&secrets).await, 0, "{table}");
    }
    // The change feed has each end, also of what only the archive had.
    let others = others.id;
    for end in [format!("unlike {others} {GONE} %"), format!("uncomment {others} %")] {
        let told = format!(
            "SELECT COUNT(*) FROM change_feed WHERE entries LIKE '{end}' OR entries LIKE '%\n{end}'"
        );
        assert!(aging.count(&told).await > 0, "{end}");
    }
    let rows = format!("SELECT COUNT(*) FROM posts WHERE author = {GONE}");
    assert_eq!(aging.count(&rows).await, 0);
}

async fn posts_of_a_deleted_account_are_deleted_in_either_tier(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let world = world(&aging).await;
    let secrets = "SELECT COUNT(*) FROM posts WHERE text LIKE '%secret%'";
    aging.archive().await;
    assert_eq!(aging.count(secrets).await, world.own.len() as i64);
    forget(&aging).await;
    let (tiered, posts) = (aging.tiered(), aging.posts());
    forget_marked(&tiered, &posts).await.unwrap();
    // Reads find nothing; after the tombstones are archived, the archive has nothing either.
    for &post in &world.own {
        assert_rejected(aging.system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    }
    assert_eq!(aging.system.store.forgetting().await.unwrap(), [user(1)]);
    aging.archive().await;
    assert!(!erase(&aging).await, "the account has archived posts");
    forget_marked(&tiered, &posts).await.unwrap();
    assert!(erase(&aging).await);
    account_is_erased(&aging, &world).await;
    let again = aging.system.create(GONE, "I am back").await;
    assert_rejected(again, Code::NotFound, ErrorReason::UserNotFound);
    assert_eq!(aging.age(&[GONE]).await, microblog_post::Evictions::default());
    account_is_erased(&aging, &world).await;
}

async fn deletion_of_an_account_resumes_after_repeated_cancellation(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let world = world(&aging).await;
    forget(&aging).await;
    let mut cut_off = 0;
    for milliseconds in (0..).map(|n| n * n / 4) {
        // Each stands for another process, without state.
        let (tiered, posts) = (aging.tiered(), aging.posts());
        let eraser = Eraser::new(tiered.clone(), Duration::ZERO);
        let attempt = async {
            forget_marked(&tiered, &posts).await?;
            eraser.run_once().await
        };
        let in_time = tokio::time::timeout(Duration::from_millis(milliseconds), attempt).await;
        if milliseconds % 3 == 0 {
            aging.archive().await;
        }
        match in_time {
            Ok(done) => drop(done.unwrap()),
            Err(_) => cut_off += 1,
        }
        if aging.system.store.forgetting().await.unwrap().is_empty() {
            break;
        }
    }
    assert!(cut_off > 3, "it was cut off {cut_off} times");
    // The sweeper completes what is pending.
    let delivery = microblog_post::Delivery::new(aging.system.store.clone(), None);
    let mut sweeper = microblog_post::Sweeper::new(aging.tiered(), delivery);
    sweeper.notify_targets(Duration::ZERO).await.unwrap();
    account_is_erased(&aging, &world).await;
}

/// Returns a post's counts of likes and comments, after comparing them with the lists.
async fn checked_counts(aging: &Aging, post: u64) -> (u64, u64) {
    let client = &aging.system.client;
    let found = aging.system.get(post, GONE).await.unwrap();
    assert!(!found.liked);
    let likers = List::Likers(post).whole(client, 2).await;
    let comments = List::oldest(post).whole(client, 2).await;
    assert_eq!((likers.len() as u64, comments.len() as u64), (found.likes, found.comments));
    (found.likes, found.comments)
}

async fn likes_and_comments_are_erased_in_either_tier_and_in_between(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let system = &aging.system;
    let mut posts = Vec::new();
    for n in 0..12 {
        let post = system.create(OTHER, &format!("number {n}")).await.unwrap().id;
        for account in [GONE, FAN] {
            system.like(account, post).await.unwrap();
            system.comment(account, post, "first", 0).await.unwrap();
        }
        posts.push(post);
    }
    // Four are archived; four were restored and changed; four were never evicted.
    aging.evict(&posts[..8]).await;
    for &post in &posts[4..8] {
        system.comment(GONE, post, "second", 0).await.unwrap();
        system.unlike(FAN, post).await.unwrap();
    }
    forget(&aging).await;
    forget_marked(&aging.tiered(), &aging.posts()).await.unwrap();
    let mut cut_off = 0;
    for milliseconds in (1..).map(|n: u64| n * n) {
        let eraser = Eraser::new(aging.tiered(), Duration::ZERO);
        match tokio::time::timeout(Duration::from_millis(milliseconds), eraser.run_once()).await {
            Ok(done) => {
                assert!(done.unwrap());
                break;
            }
            Err(_) => cut_off += 1,
        }
        if system.store.forgetting().await.unwrap().is_empty() {
            // It was cut off after its last step, or before it deleted the run.
            erase(&aging).await;
            break;
        }
        // All that can be evicted is, and other posts are restored.
        aging.age(&posts).await;
        for &post in &posts[cut_off % 5..][..3] {
            assert!(aging.tiered().restore(support::post(post)).await.unwrap());
        }
    }
    assert!(cut_off > 3, "it was cut off {cut_off} times");
    for _ in 0..2 {
        for (n, &post) in posts.iter().enumerate() {
            let likes = u64::from(!(4..8).contains(&n));
            assert_eq!(checked_counts(&aging, post).await, (likes, 1), "number {n}");
        }
        aging.is_sound().await;
        aging.evict(&posts).await;
    }
    for table in ["comments WHERE author", "likes WHERE ended = 0 AND member"] {
        assert_eq!(aging.count(&format!("SELECT COUNT(*) FROM {table} = {GONE}")).await, 0);
    }
    // The change feed has each end once, also of what both tiers had.
    let mut ends = fed_ends(&aging).await;
    let liked = posts.iter().map(|post| format!("unlike {post} {GONE}"));
    assert!(liked.clone().all(|end| ends.contains(&end)), "{ends:?}");
    ends.sort_unstable();
    let repeated: Vec<_> = ends.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
}

/// Returns the ends of likes and comments in the change feed, without their stamps.
async fn fed_ends(aging: &Aging) -> Vec<String> {
    const ROWS: &str = "SELECT entries FROM change_feed ORDER BY sequence";
    let mut archive = connect(&aging.url).await;
    let rows: Vec<String> = sqlx::query_scalar(ROWS).fetch_all(&mut archive).await.unwrap();
    let entries = rows.iter().flat_map(|entries| entries.lines());
    let ends =
        entries.filter(|entry| entry.starts_with("unlike ") || entry.starts_with("uncomment "));
    ends.filter_map(|entry| Some(entry.rsplit_once(' ')?.0.to_owned())).collect()
}

async fn a_late_restore_or_eviction_does_not_bring_erased_entries_back(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let (system, store) = (&aging.system, &aging.system.store);
    let mut posts = Vec::new();
    for n in 0..2 {
        let post = system.create(OTHER, &format!("number {n}")).await.unwrap().id;
        system.like(GONE, post).await.unwrap();
        system.comment(GONE, post, "secret", 0).await.unwrap();
        posts.push(post);
    }
    // One restore has read the first post from the archive; one eviction has marked the second one.
    let [in_archive, in_redis] = [posts[0], posts[1]].map(support::post);
    aging.archive().await;
    assert_eq!(store.make_evictable(user(2), &[in_archive, in_redis]).await.unwrap(), 2);
    let far = microblog_domain::Stamp::END;
    store.postpone_eviction(&[in_redis], far - 1).await.unwrap();
    aging.evict(&posts[..1]).await;
    assert!(store.begin_restore(in_archive, "late holder").await.unwrap());
    let fence = store.erasure_fence(in_archive.partition()).await.unwrap();
    let archived = aging.archive.read_snapshot(in_archive).await.unwrap().unwrap();
    let mark = store.mark_for_eviction(&[in_redis]).await.unwrap()[0].unwrap();
    aging.archive().await;

    forget(&aging).await;
    assert!(erase(&aging).await);
    let restored = store.restore(&archived, "late holder", 0, &fence).await.unwrap();
    assert_eq!(restored, microblog_post::RestoreOutcome::Retry);
    assert_eq!(store.evict(&[(in_redis, mark)]).await.unwrap(), [false]);
    for &post in &posts {
        assert_eq!(checked_counts(&aging, post).await, (0, 0));
        assert_eq!(system.like(FAN, post).await.unwrap(), 1);
    }
    store.postpone_eviction(&[in_redis], 0).await.unwrap();
    aging.evict(&posts).await;
    for &post in &posts {
        assert_eq!(checked_counts(&aging, post).await, (1, 0));
    }
    aging.is_sound().await;
}

#[tokio::test]
async fn an_account_is_deleted_across_an_outage_of_postgres() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 1).await;
    let world = world(&aging).await;
    archives.postgres().kill();
    forget(&aging).await;
    let (tiered, posts) = (aging.tiered(), aging.posts());
    for _ in 0..2 {
        forget_marked(&tiered, &posts).await.unwrap_err();
    }
    // Hot posts are deleted; archived ones are unavailable until the database is back.
    let system = &aging.system;
    let [.., hot] = world.own[..] else { unreachable!("the account has posts") };
    assert_rejected(system.get(hot, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    assert_eq!(system.get(world.own[4], 0).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(system.store.forgetting().await.unwrap(), [user(1)]);

    archives.postgres().restart().await;
    microblog_testkit::eventually("the account is erased", support::PATIENCE, async || {
        // As the jobs do, each repeatedly.
        let delivery = microblog_post::Delivery::new(system.store.clone(), None);
        let mut sweeper = microblog_post::Sweeper::new(tiered.clone(), delivery);
        let _ = sweeper.notify_targets(Duration::ZERO).await;
        let _ = forget_marked(&tiered, &posts).await;
        let _ = Eraser::new(tiered.clone(), Duration::ZERO).run_once().await;
        aging.archive().await;
        system.store.forgetting().await.unwrap().is_empty()
    })
    .await;
    // The circuit breaker closes after a moment.
    microblog_testkit::eventually("the service retries", support::PATIENCE, async || {
        // Redis has the tombstones of deleted posts: only a check reads the archive.
        let request = pb::VerifyRequest::default();
        let reports = system.client.clone().verify(request).await.unwrap().into_inner();
        reports.try_collect::<Vec<_>>().await.is_ok()
    })
    .await;
    account_is_erased(&aging, &world).await;
}
