//! What a deleted account wrote goes wherever it is, also if the archive is away or the job that
//! deletes them dies again and again; what others made of them stays, and says so.

use std::time::Duration;

use microblog_post::{Eraser, forget_marked};
use microblog_proto::{common::ErrorReason, post as pb};
use tonic::Code;

use crate::{
    aging::{Aging, on_both},
    support::{
        self,
        archives::{ArchiveServer, Kind},
        id,
        lists::List,
        refused, user,
    },
};

on_both! {
    likes_and_comments_go_in_either_store_and_on_the_way
    nobody_who_is_late_brings_back_what_was_erased
    posts_of_a_forgotten_account_go_wherever_they_are
    forgetting_goes_on_after_it_was_cut_off_again_and_again
}

const GONE: u64 = id(1);
const OTHER: u64 = id(2);
const FAN: u64 = id(3);

/// An account that is to be forgotten, and what others have to do with it.
struct World {
    /// Its posts: retired, evicted, brought back, hot; and reposts of the other one's, old and new.
    own: Vec<u64>,
    /// Reposts of its posts.
    reposts: Vec<u64>,
    /// A post of somebody else, on which it commented, and which it reposted.
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
    // All but the newest leave, the other one's as well; one comes back.
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

/// Erases what deleted accounts wrote on the posts of others.
async fn erase(aging: &Aging) -> bool {
    Eraser::new(aging.tiered(), Duration::ZERO).run_once().await.unwrap()
}

/// Asserts that nothing of the account is left anywhere, and all else is.
async fn is_forgotten(aging: &Aging, World { own, reposts, others }: &World) {
    let system = &aging.system;
    assert_eq!(system.store.forgetting().await.unwrap(), []);
    assert_eq!(List::UserPosts(GONE).whole(&system.client, 2).await, Vec::<u64>::new());
    for &post in own {
        refused(system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
        assert_eq!(support::keys_of(system, post).await, Vec::<String>::new());
    }
    for &repost in &reposts[..3] {
        let repost = system.get(repost, 0).await.unwrap();
        assert!(repost.root_deleted && repost.text == "look");
    }
    // This one is of the other one's, by way of one that is gone.
    let repost = system.get(reposts[3], 0).await.unwrap();
    assert_eq!((repost.root_deleted, repost.root.unwrap().id), (false, *others));
    let others = system.get(*others, GONE).await.unwrap();
    assert_eq!((others.reposts, others.comments, others.likes, others.liked), (1, 0, 0, false));
    aging.is_sound_everywhere().await;
    for table in ["posts", "comments"] {
        let secrets = format!("SELECT COUNT(*) FROM {table} WHERE text LIKE '%secret%'");
        assert_eq!(aging.count(&secrets).await, 0, "{table}");
    }
    let rows = format!("SELECT COUNT(*) FROM posts WHERE author = {GONE}");
    assert_eq!(aging.count(&rows).await, 0);
}

async fn posts_of_a_forgotten_account_go_wherever_they_are(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let world = world(&aging).await;
    let secrets = "SELECT COUNT(*) FROM posts WHERE text LIKE '%secret%'";
    aging.archive().await;
    assert_eq!(aging.count(secrets).await, world.own.len() as i64);
    forget(&aging).await;
    let (tiered, posts) = (aging.tiered(), aging.posts());
    forget_marked(&tiered, &posts).await.unwrap();
    // All of it is gone for those who read; the archive is told, and looked through once more.
    for &post in &world.own {
        refused(aging.system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    }
    assert_eq!(aging.system.store.forgetting().await.unwrap(), [user(1)]);
    aging.archive().await;
    assert!(!erase(&aging).await, "it has posts in the archive");
    forget_marked(&tiered, &posts).await.unwrap();
    assert!(erase(&aging).await);
    is_forgotten(&aging, &world).await;
    let again = aging.system.create(GONE, "I am back").await;
    refused(again, Code::NotFound, ErrorReason::UserNotFound);
    assert_eq!(aging.age(&[GONE]).await, microblog_post::Evictions::default());
    is_forgotten(&aging, &world).await;
}

async fn forgetting_goes_on_after_it_was_cut_off_again_and_again(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let world = world(&aging).await;
    forget(&aging).await;
    let mut cut_off = 0;
    for milliseconds in (0..).map(|n| n * n / 4) {
        // Each is another process, which remembers nothing.
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
    // What others were not told, a sweeper tells.
    let delivery = microblog_post::Delivery::new(aging.system.store.clone(), None);
    let mut sweeper = microblog_post::Sweeper::new(aging.tiered(), delivery);
    sweeper.notify_targets(Duration::ZERO).await.unwrap();
    is_forgotten(&aging, &world).await;
}

/// Returns how many like a post and comment on it, once that is as the lists say.
async fn gathered(aging: &Aging, post: u64) -> (u64, u64) {
    let client = &aging.system.client;
    let found = aging.system.get(post, GONE).await.unwrap();
    assert!(!found.liked);
    let likers = List::Likers(post).whole(client, 2).await;
    let comments = List::oldest(post).whole(client, 2).await;
    assert_eq!((likers.len() as u64, comments.len() as u64), (found.likes, found.comments));
    (found.likes, found.comments)
}

async fn likes_and_comments_go_in_either_store_and_on_the_way(archives: &ArchiveServer) {
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
    // Four in the archive; four that came back from there, and were changed; four that never left.
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
        // Whatever can leave leaves, and others come back.
        aging.age(&posts).await;
        for &post in &posts[cut_off % 5..][..3] {
            assert!(aging.tiered().restore(support::post(post)).await.unwrap());
        }
    }
    assert!(cut_off > 3, "it was cut off {cut_off} times");
    for _ in 0..2 {
        for (n, &post) in posts.iter().enumerate() {
            let likes = u64::from(!(4..8).contains(&n));
            assert_eq!(gathered(&aging, post).await, (likes, 1), "number {n}");
        }
        aging.is_sound().await;
        aging.evict(&posts).await;
    }
    for table in ["comments WHERE author", "likes WHERE account"] {
        assert_eq!(aging.count(&format!("SELECT COUNT(*) FROM {table} = {GONE}")).await, 0);
    }
}

async fn nobody_who_is_late_brings_back_what_was_erased(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let (system, store) = (&aging.system, &aging.system.store);
    let mut posts = Vec::new();
    for n in 0..2 {
        let post = system.create(OTHER, &format!("number {n}")).await.unwrap().id;
        system.like(GONE, post).await.unwrap();
        system.comment(GONE, post, "secret", 0).await.unwrap();
        posts.push(post);
    }
    // Somebody has read the first one in the archive to bring it back, and somebody else the second
    // one in Redis, to take it there.
    let [away, here] = [posts[0], posts[1]].map(support::post);
    aging.archive().await;
    assert_eq!(store.make_evictable(user(2), &[away, here]).await.unwrap(), 2);
    let far = microblog_domain::Stamp::END;
    store.postpone_eviction(&[here], far - 1).await.unwrap();
    aging.evict(&posts[..1]).await;
    assert!(store.begin_restore(away, "somebody who is late").await.unwrap());
    let erasing = store.erasing(away.partition()).await.unwrap();
    let archived = aging.archive.read_snapshot(away).await.unwrap().unwrap();
    let mark = store.mark_for_eviction(&[here]).await.unwrap()[0].unwrap();
    let found = store.post(here, None).await.unwrap().unwrap();
    let hot = store.read_snapshot(found, mark).await.unwrap();

    forget(&aging).await;
    assert!(erase(&aging).await);
    let restored = store.restore(&archived, "somebody who is late", 0, &erasing).await.unwrap();
    assert_eq!(restored, microblog_post::RestoreOutcome::Retry);
    aging.archive.write_snapshots(std::slice::from_ref(&hot)).await.unwrap();
    assert_eq!(store.evict(&[(here, mark)]).await.unwrap(), [false]);
    for &post in &posts {
        assert_eq!(gathered(&aging, post).await, (0, 0));
        assert_eq!(system.like(FAN, post).await.unwrap(), 1);
    }
    store.postpone_eviction(&[here], 0).await.unwrap();
    aging.evict(&posts).await;
    for &post in &posts {
        assert_eq!(gathered(&aging, post).await, (1, 0));
    }
    aging.is_sound().await;
}

#[tokio::test]
async fn an_account_is_forgotten_although_postgres_is_away_meanwhile() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 1).await;
    let world = world(&aging).await;
    archives.postgres().kill();
    forget(&aging).await;
    let (tiered, posts) = (aging.tiered(), aging.posts());
    for _ in 0..2 {
        forget_marked(&tiered, &posts).await.unwrap_err();
    }
    // What is hot is gone; of what is old nobody knows until the database is back.
    let system = &aging.system;
    let [.., hot] = world.own[..] else { unreachable!("it has posts") };
    refused(system.get(hot, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    assert_eq!(system.get(world.own[4], 0).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(system.store.forgetting().await.unwrap(), [user(1)]);

    archives.postgres().restart().await;
    microblog_testkit::eventually("it is forgotten", support::PATIENCE, async || {
        // As the jobs do, each again and again.
        let delivery = microblog_post::Delivery::new(system.store.clone(), None);
        let mut sweeper = microblog_post::Sweeper::new(tiered.clone(), delivery);
        let _ = sweeper.notify_targets(Duration::ZERO).await;
        let _ = forget_marked(&tiered, &posts).await;
        let _ = Eraser::new(tiered.clone(), Duration::ZERO).run_once().await;
        aging.archive().await;
        system.store.forgetting().await.unwrap().is_empty()
    })
    .await;
    // Callers are let through again after a moment.
    microblog_testkit::eventually("the service asks again", support::PATIENCE, async || {
        system.get(world.own[4], 0).await.unwrap_err().code() == Code::NotFound
    })
    .await;
    is_forgotten(&aging, &world).await;
}
