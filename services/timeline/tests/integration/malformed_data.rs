//! Malformed data in Redis: it is rebuilt or left in place, and does not affect other users.

use microblog_domain::{PostId, UserId};
use microblog_testkit::{
    self as testkit,
    Topology::Single,
    redis::{aio::MultiplexedConnection, cmd},
};
use microblog_timeline::{Entry, Job, Kind};
use prost::Message as _;

use crate::support::{PATIENCE, System, id, pages::Timeline, post_id, queue::depth};

fn key(kind: &str, user: u64) -> String {
    let user = UserId::new(user).unwrap();
    format!("tl:{{{}}}:{kind}:{user}", user.partition())
}

async fn set(admin: &mut MultiplexedConnection, key: &str, value: &[u8]) {
    cmd("SET").arg(key).arg(value).exec_async(admin).await.unwrap();
}

#[tokio::test]
async fn a_malformed_home_timeline_is_rebuilt() {
    let system = System::start(Single).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    // In one partition, so that one call pushes to both.
    let (alice, bob, carol) = (id(1), id(100), id(1_124));
    let mut all = Vec::new();
    for reader in [bob, carol] {
        system.follow(reader, alice).await;
        assert_eq!(system.home(reader).await, [0; 0]);
    }
    let other_format = [&[1][..], &[0; 16_047]].concat();
    let malformed: [&[u8]; 7] =
        [b"", b"x", b"rubbish", &[2; 47], &[0; 48], &other_format, &[0xff; 100_000]];
    for malformed in malformed {
        // Before a push, and before a read.
        set(&mut admin, &key("home", bob), malformed).await;
        all.insert(0, system.post(alice).await);
        system.home_becomes(carol, &all).await;
        system.home_becomes(bob, &all).await;
        set(&mut admin, &key("home", bob), malformed).await;
        assert_eq!(Timeline::Home.whole(&system.client, bob, 1, "").await, all);
        assert_eq!(system.home(carol).await, all);
        // Also in the author's own home timeline; deliveries still succeed.
        set(&mut admin, &key("home", alice), malformed).await;
        all.insert(0, system.post(alice).await);
        assert_eq!(system.home(alice).await, all);
        system.home_becomes(bob, &all).await;
        system.home_becomes(carol, &all).await;
    }
}

#[tokio::test]
async fn malformed_pulled_authors_are_ignored() {
    let system = System::start(Single).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let (alice, bob) = (id(1), id(100));
    system.follow(bob, alice).await;
    let post = system.post(alice).await;
    system.home_becomes(bob, &[post]).await;
    for malformed in [&b"x"[..], b"rubbish!", &[0xff; 100], &[0; 24]] {
        set(&mut admin, &key("pulls", bob), malformed).await;
        assert_eq!(system.home(bob).await, [post]);
    }
}

#[tokio::test]
async fn unsupported_jobs_do_not_block_others() {
    let system = System::start(Single).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    let (alice, bob) = (id(1), id(100));
    system.follow(bob, alice).await;
    assert_eq!(system.home(bob).await, [0; 0]);
    let of_another_kind = Job { kind: 99, author_id: alice, ..Job::default() }.encode_to_vec();
    let without_author = Job { kind: 1, ..Job::default() }.encode_to_vec();
    // More than one read returns, in the author's stream.
    let malformed: [(&str, &[u8]); 4] =
        [("job", b"\xff\xff"), ("job", &of_another_kind), ("job", &without_author), ("what", b"x")];
    for (field, value) in malformed.iter().cycle().take(40) {
        let mut add = cmd("XADD");
        add.arg("tl:{1}:fanout").arg("*").arg(field).arg(*value);
        add.exec_async(&mut admin).await.unwrap();
    }
    let mut all = Vec::new();
    for _ in 0..5 {
        all.insert(0, system.post(alice).await);
        system.home_becomes(bob, &all).await;
    }
    // They stay for a version that supports them.
    testkit::eventually("the others are done", PATIENCE, async || depth(&system.redis).await == 40)
        .await;
}

#[tokio::test]
async fn jobs_with_malformed_traceparents_are_done() {
    let system = System::start(Single).await;
    let (alice, bob) = (id(1), id(100));
    system.follow(bob, alice).await;
    assert_eq!(system.home(bob).await, [0; 0]);
    let mut all = Vec::new();
    let sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for traceparent in ["", "rubbish", &sampled.replace("-01", "-00"), sampled] {
        let post = post_id(alice);
        let entry = Entry {
            post: PostId::new(post).unwrap(),
            author: UserId::new(alice).unwrap(),
            root: None,
            has_text: true,
        };
        let job = Job::of_post(Kind::Push, &entry);
        let job = Job { traceparent: traceparent.to_owned(), ..job };
        system.store.enqueue(&[job]).await.unwrap();
        all.insert(0, post);
        system.home_becomes(bob, &all).await;
    }
}
