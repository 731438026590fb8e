//! A deleted account's posts go wherever they are, also if the archive is away or the job that
//! deletes them dies again and again; what others made of them stays, and says so.

use std::time::Duration;

use microblog_post::forget_marked;
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
    system.comment(GONE, others, "stays as well", 0).await.unwrap();
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
    let retired = system.store.retire(user(1), &[support::post(own[7])]).await.unwrap();
    assert_eq!(retired, 1);
    own.push(system.quote(GONE, others, "secret").await.unwrap().id);
    assert_eq!(system.get(others, 0).await.unwrap().reposts, 3);
    World { own, reposts, others }
}

async fn forget(aging: &Aging) {
    let request = pb::ForgetUserRequest { user_id: GONE };
    aging.system.client.clone().forget_user(request).await.unwrap();
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
    assert_eq!((others.reposts, others.comments, others.likes, others.liked), (1, 1, 1, true));
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
    let (tiers, posts) = (aging.tiers(), aging.posts());
    forget_marked(&tiers, &posts).await.unwrap();
    // All of it is gone for those who read; the archive is told, and looked through once more.
    for &post in &world.own {
        refused(aging.system.get(post, 0).await, Code::NotFound, ErrorReason::PostNotFound);
    }
    assert_eq!(aging.system.store.forgetting().await.unwrap(), [user(1)]);
    aging.archive().await;
    forget_marked(&tiers, &posts).await.unwrap();
    is_forgotten(&aging, &world).await;
    let again = aging.system.create(GONE, "I am back").await;
    refused(again, Code::NotFound, ErrorReason::UserNotFound);
    assert_eq!(aging.age(&[GONE]).await, microblog_post::Moved::default());
    is_forgotten(&aging, &world).await;
}

async fn forgetting_goes_on_after_it_was_cut_off_again_and_again(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 1).await;
    let world = world(&aging).await;
    forget(&aging).await;
    let mut cut_off = 0;
    for milliseconds in (0..).map(|n| n * n / 4) {
        // Each is another process, which remembers nothing.
        let (tiers, posts) = (aging.tiers(), aging.posts());
        let attempt = forget_marked(&tiers, &posts);
        let in_time = tokio::time::timeout(Duration::from_millis(milliseconds), attempt).await;
        if milliseconds % 3 == 0 {
            aging.archive().await;
        }
        match in_time {
            Ok(done) => done.unwrap(),
            Err(_) => cut_off += 1,
        }
        if aging.system.store.forgetting().await.unwrap().is_empty() {
            break;
        }
    }
    assert!(cut_off > 3, "it was cut off {cut_off} times");
    // What others were not told, a sweeper tells.
    let delivery = microblog_post::Delivery::new(aging.system.store.clone(), None);
    let mut sweeper = microblog_post::Sweeper::new(aging.tiers(), delivery);
    sweeper.tell(Duration::ZERO).await.unwrap();
    is_forgotten(&aging, &world).await;
}

#[tokio::test]
async fn an_account_is_forgotten_although_postgres_is_away_meanwhile() {
    let archives = ArchiveServer::start(Kind::Postgres).await;
    let aging = Aging::start(&archives, 1).await;
    let world = world(&aging).await;
    archives.postgres().kill();
    forget(&aging).await;
    let (tiers, posts) = (aging.tiers(), aging.posts());
    for _ in 0..2 {
        forget_marked(&tiers, &posts).await.unwrap_err();
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
        let mut sweeper = microblog_post::Sweeper::new(tiers.clone(), delivery);
        let _ = sweeper.tell(Duration::ZERO).await;
        let _ = forget_marked(&tiers, &posts).await;
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
