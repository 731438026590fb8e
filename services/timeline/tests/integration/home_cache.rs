//! Readers who return after a long time get a complete timeline. Concurrent reads build it once,
//! and reads keep it.

use std::{
    future::ready,
    time::{Duration, SystemTime},
};

use futures::{StreamExt as _, future::join_all};
use microblog_domain::UserId;
use microblog_testkit::{
    self as testkit,
    Topology::Single,
    redis::{
        self,
        aio::{Monitor, MultiplexedConnection},
        cmd,
    },
};
use microblog_timeline::BuildLease;

use crate::support::{
    self, PATIENCE, System, client, delivery, id,
    pages::{Timeline, deliver_all},
    post_id, posts,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A monitor of the commands on the store.
struct Watched {
    monitor: Monitor,
    admin: MultiplexedConnection,
}

impl Watched {
    async fn new(system: &System) -> Self {
        let redis = &system.redis.nodes()[0];
        let client = redis::Client::open(redis.admin_url()).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        Self { monitor, admin: redis.admin().await }
    }

    /// Returns the number of builds since the last call, failed ones included.
    async fn builds(&mut self) -> usize {
        const MARK: &str = "so far";
        cmd("ECHO").arg(MARK).exec_async(&mut self.admin).await.unwrap();
        let commands = self.monitor.on_message::<String>();
        let commands = commands.take_while(|command| ready(!command.contains(MARK)));
        commands.filter(|command| ready(command.contains("tl_replace"))).count().await
    }
}

/// Makes readers follow authors who have 900 posts. Returns the newest 800.
async fn with_followers(system: &System, readers: &[u64]) -> Vec<u64> {
    let authors: Vec<_> = (1..=9).map(id).collect();
    for &reader in readers {
        join_all(authors.iter().map(|&author| system.follow(reader, author))).await;
    }
    let mut all = Vec::new();
    for _ in 0..9 {
        let authors = authors.iter().cycle().take(100);
        let some: Vec<_> = authors.map(|&author| delivery(post_id(author), author, 0)).collect();
        deliver_all(&system.client, &some).await;
        all.extend(some.into_iter().map(|delivery| delivery.post_id));
    }
    all.reverse();
    all.truncate(800);
    all
}

fn home_key(reader: u64) -> String {
    let reader = UserId::new(reader).unwrap();
    format!("tl:{{{}}}:home:{reader}", reader.partition())
}

/// Returns the remaining lifetime of a home timeline.
async fn kept(admin: &mut MultiplexedConnection, reader: u64) -> Duration {
    let ms: i64 = cmd("PTTL").arg(home_key(reader)).query_async(admin).await.unwrap();
    Duration::from_millis(u64::try_from(ms).expect("a key with a deadline"))
}

/// Moves a home timeline back in time.
async fn let_pass(admin: &mut MultiplexedConnection, reader: u64, time: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let deadline = now + kept(admin, reader).await - time;
    let mut expire = cmd("PEXPIREAT");
    expire.arg(home_key(reader)).arg(deadline.as_millis() as u64);
    expire.exec_async(admin).await.unwrap();
}

#[tokio::test]
async fn the_first_read_after_15_days_is_complete() {
    let (system, bob) = (System::start_without_jobs(Single).await, id(50));
    let mut all = with_followers(&system, &[bob]).await;
    assert_eq!(system.home(bob).await, all[..200]);
    let mut admin = system.redis.nodes()[0].admin().await;
    let kept = kept(&mut admin, bob).await;
    assert!(kept <= 14 * DAY && kept > 13 * DAY, "{kept:?}");
    let_pass(&mut admin, bob, 15 * DAY).await;
    let bob_in_store = UserId::new(bob).unwrap();
    assert!(system.store.home(bob_in_store).await.unwrap().is_none());
    // Not pushed, since the reader has no cache.
    let missed = system.post(id(1)).await;
    all.insert(0, missed);
    all.truncate(800);
    let mut watched = Watched::new(&system).await;
    let (page, next, _) = Timeline::Home.page(&system.client, bob, 200, "", "").await.unwrap();
    assert_eq!(posts(&page), all[..200]);
    assert!(!next.is_empty());
    assert_eq!(watched.builds().await, 1);
    assert_eq!(Timeline::Home.whole(&system.client, bob, 200, "").await, all);
    assert_eq!(watched.builds().await, 0, "it is kept again");
}

#[tokio::test]
async fn a_hundred_concurrent_reads_build_once() {
    let system = System::start_without_jobs(Single).await;
    let all = with_followers(&system, &[id(50)]).await;
    let mut watched = Watched::new(&system).await;
    let clients: Vec<_> = (0..10).map(|_| client(&system.address)).collect();
    let reads = clients.iter().cycle().take(100);
    let reads = reads.map(|client| Timeline::Home.page(client, id(50), 200, "", ""));
    for page in join_all(reads).await {
        assert_eq!(posts(&page.unwrap().0), all[..200]);
    }
    assert_eq!(watched.builds().await, 1);
}

#[tokio::test]
async fn a_hundred_concurrent_readers_build_once_each() {
    let system = System::start_without_jobs(Single).await;
    let readers: Vec<_> = (50..150).map(id).collect();
    let all = with_followers(&system, &readers).await;
    let mut watched = Watched::new(&system).await;
    let clients: Vec<_> = (0..10).map(|_| client(&system.address)).collect();
    let twice = readers.iter().chain(&readers).zip(clients.iter().cycle());
    let reads = twice.map(|(&reader, client)| Timeline::Home.whole(client, reader, 200, ""));
    for posts in join_all(reads).await {
        assert_eq!(posts, all);
    }
    assert_eq!(watched.builds().await, 100);
}

#[tokio::test]
async fn the_build_lease_of_a_dead_builder_expires() {
    let (system, bob) = (System::start_without_jobs(Single).await, id(50));
    let mut all = with_followers(&system, &[bob]).await;
    let bob_in_store = UserId::new(bob).unwrap();
    let begun = system.store.begin_build(bob_in_store, None).await.unwrap();
    assert!(matches!(begun, BuildLease::Acquired(_)), "no other builder");
    // Pushed while the build lease is held.
    let post = support::entry(post_id(id(1)), id(1));
    system.store.publish(&[post]).await.unwrap();
    assert_eq!(system.store.push(&post, &[bob_in_store]).await.unwrap(), 1);
    all.insert(0, post.post.get());
    all.truncate(800);
    let mut watched = Watched::new(&system).await;
    let mut client = system.client.clone();
    let mut request = tonic::Request::new(Timeline::Home.request(bob, 200, "", ""));
    request.set_timeout(PATIENCE);
    let page = client.get_timeline(request).await.unwrap().into_inner();
    assert_eq!(posts(&page.entries), all[..200]);
    assert_eq!(watched.builds().await, 1);
    assert_eq!(Timeline::Home.whole(&system.client, bob, 200, "").await, all);
}

/// The position of the time of the last recorded read in a home timeline, in hours since 1970.
const READ_AT: (usize, usize) = (18, 21);

async fn read_at_hour(admin: &mut MultiplexedConnection, reader: u64) -> u32 {
    let mut get = cmd("GETRANGE");
    get.arg(home_key(reader)).arg(READ_AT.0).arg(READ_AT.1);
    let hour: Vec<u8> = get.query_async(admin).await.unwrap();
    u32::from_le_bytes(hour.try_into().unwrap())
}

async fn is_being_built(admin: &mut MultiplexedConnection, user: u64) -> bool {
    let mut get = cmd("GETRANGE");
    let since: Vec<u8> = get.arg(home_key(user)).arg(40).arg(43).query_async(admin).await.unwrap();
    since != [0; 4]
}

#[tokio::test]
async fn reads_extend_the_lifetime_of_a_home_timeline() {
    let (system, bob) = (System::start_without_jobs(Single).await, id(50));
    let all = with_followers(&system, &[bob]).await;
    let mut admin = system.redis.nodes()[0].admin().await;
    assert_eq!(system.home(bob).await, all[..200]);
    let hour = read_at_hour(&mut admin, bob).await;
    // A read is recorded once a day.
    for (hours_ago, is_touched) in [(1, false), (23, false), (25, true), (13 * 24, true)] {
        let mut set = cmd("SETRANGE");
        set.arg(home_key(bob)).arg(READ_AT.0).arg(&(hour - hours_ago).to_le_bytes()[..]);
        set.exec_async(&mut admin).await.unwrap();
        let ago = Duration::from_secs(u64::from(hours_ago) * 60 * 60);
        let_pass(&mut admin, bob, ago).await;
        let before = kept(&mut admin, bob).await;
        let edition = system.store.head(UserId::new(bob).unwrap()).await.unwrap().unwrap().edition;
        assert_eq!(system.home(bob).await, all[..200]);
        testkit::eventually("a read extends the lifetime", PATIENCE, async || {
            let is_kept = kept(&mut admin, bob).await > before;
            let is_noted = read_at_hour(&mut admin, bob).await >= hour;
            (is_kept, is_noted) == (is_touched, is_touched)
        })
        .await;
        let restored = 14 * DAY - ago;
        let kept = kept(&mut admin, bob).await;
        if is_touched {
            // It is also rebuilt in the background.
            testkit::eventually("it is built again", PATIENCE, async || {
                let user = UserId::new(bob).unwrap();
                let head = system.store.head(user).await.unwrap().unwrap();
                head.edition != edition && !is_being_built(&mut admin, bob).await
            })
            .await;
            assert!(kept > 14 * DAY - Duration::from_secs(60), "{kept:?}");
        } else {
            assert!(kept <= restored, "{kept:?}");
            // As if it were just built.
            system.store.touch_home(UserId::new(bob).unwrap()).await.unwrap();
        }
    }
    assert_eq!(system.home(bob).await, all[..200]);
}

#[tokio::test]
async fn what_a_clock_recorded_that_was_ahead_makes_home_timelines_stale_for_a_minute() {
    const MINUTE_MS: u64 = 60_000;
    let (system, bob) = (System::start_without_jobs(Single).await, id(50));
    system.follow(bob, id(1)).await;
    let post = system.post(id(1)).await;
    assert_eq!(system.home(bob).await, [post]);
    let key = format!("tl:{{{}}}:unpushed", UserId::new(bob).unwrap().partition());
    let mut admin = system.redis.nodes()[0].admin().await;
    let mut watched = Watched::new(&system).await;
    for is_recorded_again in [false, true] {
        let ahead = now_ms() + 60 * MINUTE_MS;
        cmd("SET").arg(&key).arg(ahead).exec_async(&mut admin).await.unwrap();
        if is_recorded_again {
            system.store.record_unpushed(Duration::ZERO).await.unwrap();
        } else {
            assert_eq!(system.home(bob).await, [post]);
            assert_eq!(watched.builds().await, 1, "posts may be missing");
        }
        let until: u64 = cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
        assert!(until <= now_ms() + MINUTE_MS, "{until}");
        // As if more than the minute were over.
        let past = until - 2 * MINUTE_MS;
        cmd("SET").arg(&key).arg(past).exec_async(&mut admin).await.unwrap();
        assert_eq!(system.home(bob).await, [post]);
        assert_eq!(watched.builds().await, 0, "the home timeline is newer");
    }
}

/// Returns the time in milliseconds since 2006, as Redis counts it.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_millis() as u64 - microblog_domain::Stamp::EPOCH_MS
}
