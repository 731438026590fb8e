//! Readers: who comes back after a long time finds a whole timeline, which is built once however many
//! ask, and is kept as long as it is read.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures::future::join_all;
use microblog_chassis::Worker;
use microblog_domain::UserId;
use microblog_testkit::{
    self as testkit, RedisServer,
    Topology::Single,
    redis::{aio::MultiplexedConnection, cmd},
};
use microblog_timeline::Begun;
use support::{
    PATIENCE, System, client, delivery, id,
    pages::{Timeline, deliver_all},
    post_id, posts,
    relations::Relation,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Two services on stores of their own, so that what the timeline service asks its own can be
/// counted. Nothing else goes on.
struct Apart {
    system: System,
    _of_relation: RedisServer,
    _relation: Relation,
}

impl Apart {
    async fn start() -> Self {
        let of_relation = RedisServer::start().await;
        let relation = Relation::start(of_relation.url("relation")).await;
        let redis = Arc::new(testkit::Store::start(Single).await);
        let no_jobs = Worker { index: 999, count: 1_000 };
        let system = System::on(no_jobs, redis, relation.url(), &[]).await;
        Self { system, _of_relation: of_relation, _relation: relation }
    }

    async fn admin(&self) -> MultiplexedConnection {
        self.system.redis.nodes()[0].admin().await
    }

    /// Forgets what was counted.
    async fn count_from_here(&self) {
        self.system.redis.nodes()[0].reset_commandstats().await;
    }

    /// Returns how often somebody began to build a home timeline that was not there, how often
    /// somebody began to build one anew, and how often one was replaced.
    async fn builds(&self) -> Builds {
        let commands = self.system.redis.nodes()[0].commandstats().await;
        let calls = |name: &str| commands.get(name).copied().unwrap_or(0);
        // A replacement sets the timeline and drops its pulls. Who begins sets a timeline that was
        // not there, and otherwise writes three things into its head.
        let replaced = calls("del");
        Builds { begun: calls("set") - replaced, begun_anew: calls("setrange") / 3, replaced }
    }

    /// Has readers follow some authors, who have 900 posts. Returns the newest 800.
    async fn with_followers(&self, readers: &[u64]) -> Vec<u64> {
        let authors: Vec<_> = (1..=9).map(id).collect();
        for &reader in readers {
            join_all(authors.iter().map(|&author| self.system.follow(reader, author))).await;
        }
        let mut all = Vec::new();
        for _ in 0..9 {
            let authors = authors.iter().cycle().take(100);
            let some: Vec<_> =
                authors.map(|&author| delivery(post_id(author), author, 0)).collect();
            deliver_all(&self.system.client, &some).await;
            all.extend(some.into_iter().map(|delivery| delivery.post_id));
        }
        all.reverse();
        all.truncate(800);
        all
    }
}

/// How home timelines were built.
#[derive(Debug, PartialEq, Eq)]
struct Builds {
    begun: u64,
    begun_anew: u64,
    replaced: u64,
}

/// So many timelines were built, and nothing was done in vain.
fn once(timelines: u64) -> Builds {
    Builds { begun: timelines, begun_anew: 0, replaced: timelines }
}

fn home_key(reader: u64) -> String {
    let reader = UserId::new(reader).unwrap();
    format!("tl:{{{}}}:home:{reader}", reader.partition())
}

/// Returns how long a home timeline is still kept.
async fn kept(admin: &mut MultiplexedConnection, reader: u64) -> Duration {
    let ms: i64 = cmd("PTTL").arg(home_key(reader)).query_async(admin).await.unwrap();
    Duration::from_millis(u64::try_from(ms).expect("a key with a deadline"))
}

/// Lets so much time go by for a home timeline.
async fn let_pass(admin: &mut MultiplexedConnection, reader: u64, time: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let deadline = now + kept(admin, reader).await - time;
    let mut expire = cmd("PEXPIREAT");
    expire.arg(home_key(reader)).arg(deadline.as_millis() as u64);
    expire.exec_async(admin).await.unwrap();
}

#[tokio::test]
async fn a_reader_who_is_back_after_15_days_finds_everything_on_the_first_read() {
    let apart = Apart::start().await;
    let (system, bob) = (&apart.system, id(50));
    let mut all = apart.with_followers(&[bob]).await;
    assert_eq!(system.home(bob).await, all[..200]);
    let mut admin = apart.admin().await;
    let kept = kept(&mut admin, bob).await;
    assert!(kept <= 14 * DAY && kept > 13 * DAY, "{kept:?}");
    let_pass(&mut admin, bob, 15 * DAY).await;
    let bob_in_store = UserId::new(bob).unwrap();
    assert!(system.store.home(bob_in_store).await.unwrap().is_none());
    // Not pushed to one who is away.
    let missed = system.post(id(1)).await;
    all.insert(0, missed);
    all.truncate(800);
    apart.count_from_here().await;
    let (page, next, _) = Timeline::Home.page(&system.client, bob, 200, "", "").await.unwrap();
    assert_eq!(posts(&page), all[..200]);
    assert!(!next.is_empty());
    assert_eq!(apart.builds().await, once(1));
    assert_eq!(Timeline::Home.whole(&system.client, bob, 200, "").await, all);
    assert_eq!(apart.builds().await, once(1), "it is kept again");
}

#[tokio::test]
async fn a_hundred_reads_at_once_of_one_who_is_back_build_once() {
    let apart = Apart::start().await;
    let all = apart.with_followers(&[id(50)]).await;
    apart.count_from_here().await;
    let clients: Vec<_> = (0..10).map(|_| client(&apart.system.address)).collect();
    let reads = clients.iter().cycle().take(100);
    let reads = reads.map(|client| Timeline::Home.page(client, id(50), 200, "", ""));
    for page in join_all(reads).await {
        assert_eq!(posts(&page.unwrap().0), all[..200]);
    }
    assert_eq!(apart.builds().await, once(1));
}

#[tokio::test]
async fn a_hundred_readers_who_are_back_at_once_build_once_each() {
    let apart = Apart::start().await;
    let readers: Vec<_> = (50..150).map(id).collect();
    let all = apart.with_followers(&readers).await;
    apart.count_from_here().await;
    let clients: Vec<_> = (0..10).map(|_| client(&apart.system.address)).collect();
    let twice = readers.iter().chain(&readers).zip(clients.iter().cycle());
    let reads = twice.map(|(&reader, client)| Timeline::Home.whole(client, reader, 200, ""));
    let began = Instant::now();
    for posts in join_all(reads).await {
        assert_eq!(posts, all);
    }
    let builds = apart.builds().await;
    // On a machine that is so slow, a builder may have counted as dead.
    let is_slow = began.elapsed() > Duration::from_secs(3);
    assert!(builds == once(100) || (is_slow && builds.replaced == 100), "{builds:?}");
}

#[tokio::test]
async fn a_builder_who_died_keeps_nobody_waiting_for_long() {
    let apart = Apart::start().await;
    let (system, bob) = (&apart.system, id(50));
    let mut all = apart.with_followers(&[bob]).await;
    let bob_in_store = UserId::new(bob).unwrap();
    let Begun::Edition(abandoned) = system.store.begin(bob_in_store, None).await.unwrap() else {
        panic!("nobody else builds")
    };
    // What comes in between comes into what is there.
    let post = support::entry(post_id(id(1)), id(1));
    system.store.publish(&[post]).await.unwrap();
    assert_eq!(system.store.push(&post, &[bob_in_store], false).await.unwrap(), 1);
    all.insert(0, post.post.get());
    all.truncate(800);
    apart.count_from_here().await;
    let began = Instant::now();
    let mut client = system.client.clone();
    let request = microblog_proto::timeline::GetHomeTimelineRequest {
        user_id: bob,
        page_size: 200,
        ..Default::default()
    };
    let page = client.get_home_timeline(request).await.unwrap().into_inner();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(posts(&page.entries), all[..200]);
    assert_eq!(apart.builds().await, Builds { begun: 0, begun_anew: 1, replaced: 1 });
    // Should it come back, it changes nothing.
    assert!(!system.store.replace(bob_in_store, abandoned, 1, &[], &[]).await.unwrap());
    assert_eq!(Timeline::Home.whole(&system.client, bob, 200, "").await, all);
}

/// Where in a home timeline it says when it was last known to be read, in hours since 1970.
const READ_AT: (usize, usize) = (10, 13);

async fn read_at_hour(admin: &mut MultiplexedConnection, reader: u64) -> u32 {
    let mut get = cmd("GETRANGE");
    get.arg(home_key(reader)).arg(READ_AT.0).arg(READ_AT.1);
    let hour: Vec<u8> = get.query_async(admin).await.unwrap();
    u32::from_le_bytes(hour.try_into().unwrap())
}

#[tokio::test]
async fn a_home_timeline_lives_as_long_as_it_is_read() {
    let apart = Apart::start().await;
    let (system, bob) = (&apart.system, id(50));
    let all = apart.with_followers(&[bob]).await;
    let mut admin = apart.admin().await;
    assert_eq!(system.home(bob).await, all[..200]);
    let hour = read_at_hour(&mut admin, bob).await;
    // Once a day it is noted that it is read, and no more often.
    for (hours_ago, is_touched) in [(1, false), (23, false), (25, true), (13 * 24, true)] {
        let mut set = cmd("SETRANGE");
        set.arg(home_key(bob)).arg(READ_AT.0).arg(&(hour - hours_ago).to_le_bytes()[..]);
        set.exec_async(&mut admin).await.unwrap();
        let ago = Duration::from_secs(u64::from(hours_ago) * 60 * 60);
        let_pass(&mut admin, bob, ago).await;
        let before = kept(&mut admin, bob).await;
        assert_eq!(system.home(bob).await, all[..200]);
        testkit::eventually("what is read is kept", PATIENCE, async || {
            let is_kept = kept(&mut admin, bob).await > before;
            let is_noted = read_at_hour(&mut admin, bob).await >= hour;
            (is_kept, is_noted) == (is_touched, is_touched)
        })
        .await;
        let restored = 14 * DAY - ago;
        let kept = kept(&mut admin, bob).await;
        if is_touched {
            assert!(kept > 14 * DAY - Duration::from_secs(60), "{kept:?}");
        } else {
            assert!(kept <= restored, "{kept:?}");
            // As if just built.
            system.store.touch(UserId::new(bob).unwrap()).await.unwrap();
        }
    }
    assert_eq!(system.home(bob).await, all[..200]);
}
