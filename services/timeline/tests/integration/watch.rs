//! `WatchHomeTimeline`: each post comes soon and once, also for slow or reconnecting callers, and
//! hidden posts do not come.

use std::time::Duration;

use microblog_domain::UserId;
use microblog_proto::{relation, timeline as pb};
use microblog_testkit::{self as testkit, Process, Topology::Single};
use microblog_timeline::FanoutState;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, Streaming};

use crate::support::{
    self, Client, PATIENCE, System, client, delivery, id,
    pages::{Timeline, deliver_all, is_newest_first},
    post_id, posts,
    posts::start_posts,
    relations::import,
    start_relation,
};

/// From delivery to message: about a second, longer on a busy machine.
const SOON: Duration = Duration::from_secs(20);

type Stream = Streaming<pb::WatchHomeTimelineResponse>;

async fn watch(client: &Client, user_id: u64, since_token: &str) -> Stream {
    let since_token = since_token.to_owned();
    let request = pb::WatchHomeTimelineRequest { user_id, since_token };
    client.clone().watch_home_timeline(request).await.unwrap().into_inner()
}

/// Returns the next message: posts and a token.
async fn next(stream: &mut Stream) -> (Vec<u64>, String) {
    let message = timeout(PATIENCE, stream.message()).await.expect("a message");
    let message = message.unwrap().expect("the stream continues");
    let posts = posts(&message.entries);
    assert!(is_newest_first(&posts) && posts.len() <= 200);
    (posts, message.since_token)
}

/// Reads messages until they have so many posts. Returns the posts and the last token.
async fn come(stream: &mut Stream, count: usize) -> (Vec<u64>, String) {
    let (mut all, mut token) = (Vec::new(), String::new());
    while all.len() < count {
        let (posts, since) = next(stream).await;
        assert!(!posts.is_empty(), "an empty message");
        all.extend(posts);
        token = since;
    }
    all.sort_unstable();
    (all, token)
}

/// Delivers many posts of an author, and returns them.
async fn post_many(client: &Client, author: u64, count: usize) -> Vec<u64> {
    let deliveries: Vec<_> = (0..count).map(|_| delivery(post_id(author), author, 0)).collect();
    deliver_all(client, &deliveries).await;
    deliveries.iter().map(|delivery| delivery.post_id).collect()
}

#[tokio::test]
async fn a_watch_gets_posts_of_each_fanout_mode() {
    let (alice, bob) = (id(1), id(2));
    for (mode, state) in [
        ("hybrid", FanoutState::OnWrite),
        ("hybrid", FanoutState::OnRead),
        ("push", FanoutState::OnWrite),
        ("pull", FanoutState::OnWrite),
    ] {
        let flags = ["--mode", mode, "--pull-threshold", "3"];
        let system = System::start_with(Single, &flags).await;
        system.follow(bob, alice).await;
        let early = system.post(alice).await;
        system.home_becomes(bob, &[early]).await;
        if state == FanoutState::OnRead {
            import(&system.relation, (100..110).map(id), alice).await;
            let author = UserId::new(alice).unwrap();
            testkit::eventually("alice is pulled from", PATIENCE, async || {
                system.post(alice).await;
                system.store.fanout_states(&[author]).await.unwrap() == [state]
            })
            .await;
        }
        let mut stream = watch(&system.client, bob, "").await;
        assert_eq!(next(&mut stream).await.0, [0; 0], "existing posts are not new");
        for _ in 0..3 {
            let began = Instant::now();
            let post = system.post(alice).await;
            assert_eq!(next(&mut stream).await.0, [post], "{mode}, {state:?}");
            assert!(began.elapsed() < SOON, "after {:?}: {mode}, {state:?}", began.elapsed());
        }
        let own = system.post(bob).await;
        assert_eq!(next(&mut stream).await.0, [own]);
    }
}

#[tokio::test]
async fn a_watch_resumes_from_its_last_token() {
    for mode in ["hybrid", "pull"] {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        system.post(alice).await;
        let mut stream = watch(&system.client, bob, "").await;
        let (_, mut token) = next(&mut stream).await;
        for _ in 0..3 {
            let heard = system.post(alice).await;
            assert_eq!(next(&mut stream).await.0, [heard]);
            drop(stream);
            // With an earlier token, that post comes again, once.
            let missed = [system.post(alice).await, system.post(alice).await];
            stream = watch(&system.client, bob, &token).await;
            let (posts, _) = come_at_first(&mut stream, 3).await;
            assert_eq!(posts, [heard, missed[0], missed[1]], "{mode}");
            let last = system.post(alice).await;
            let (posts, since) = next(&mut stream).await;
            assert_eq!(posts, [last]);
            token = since;
        }
        drop(stream);
        // A token of `GetTimeline` works too.
        let (_, _, since) = system.home_page(bob, 20, "", "").await.unwrap();
        let mut stream = watch(&system.client, bob, &since).await;
        assert_eq!(next(&mut stream).await.0, [0; 0]);
        let post = system.post(alice).await;
        assert_eq!(next(&mut stream).await.0, [post]);
    }
}

/// Like [`come`] for a new watch, whose first message may be empty.
async fn come_at_first(stream: &mut Stream, count: usize) -> (Vec<u64>, String) {
    let (mut posts, mut token) = next(stream).await;
    if posts.len() < count {
        let (others, since) = come(stream, count - posts.len()).await;
        posts.extend(others);
        token = since;
    }
    posts.sort_unstable();
    (posts, token)
}

#[tokio::test]
async fn a_watch_splits_many_posts_into_messages() {
    for mode in ["hybrid", "pull"] {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        let mut stream = watch(&system.client, bob, "").await;
        let (_, token) = next(&mut stream).await;
        drop(stream);
        let missed = post_many(&system.client, alice, 450).await;
        testkit::eventually("all are there", PATIENCE, async || {
            Timeline::Home.whole(&system.client, bob, 200, "").await.len() == missed.len()
        })
        .await;
        let mut stream = watch(&system.client, bob, &token).await;
        let mut sizes = Vec::new();
        let mut all = Vec::new();
        while all.len() < missed.len() {
            let (posts, _) = next(&mut stream).await;
            sizes.push(posts.len());
            all.extend(posts);
        }
        assert_eq!(sizes, [200, 200, 50], "{mode}");
        all.reverse();
        assert_eq!(all, missed);
        let post = system.post(alice).await;
        assert_eq!(next(&mut stream).await.0, [post]);
    }
}

#[tokio::test]
async fn a_slow_watch_gets_each_post_once() {
    for mode in ["hybrid", "pull"] {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        let mut stream = watch(&system.client, bob, "").await;
        next(&mut stream).await;
        let mut expected = Vec::new();
        for n in 1..=30 {
            expected.extend(post_many(&system.client, alice, 10).await);
            testkit::eventually("they are there", PATIENCE, async || {
                Timeline::Home.whole(&system.client, bob, 200, "").await.len() == 10 * n
            })
            .await;
        }
        let (all, _) = come(&mut stream, expected.len()).await;
        assert_eq!(all, expected, "{mode}");
        let post = system.post(alice).await;
        assert_eq!(next(&mut stream).await.0, [post]);
    }
}

#[tokio::test]
async fn a_watch_hides_unfollowed_blocked_and_muted_authors() {
    let system = System::start(Single).await;
    let [alice, bob, carol, dave, erin] = [1, 2, 3, 4, 5].map(id);
    for author in [alice, carol, dave, erin] {
        system.follow(bob, author).await;
    }
    let mut stream = watch(&system.client, bob, "").await;
    next(&mut stream).await;
    let mut early: Vec<_> = Vec::new();
    for author in [alice, carol, dave, erin] {
        early.push(system.post(author).await);
    }
    assert_eq!(come(&mut stream, 4).await.0, early);
    system.unfollow(bob, carol).await;
    let mut relation = system.relation.clone();
    relation.mute(relation::MuteRequest { user_id: bob, target_id: dave }).await.unwrap();
    relation.block(relation::BlockRequest { user_id: erin, target_id: bob }).await.unwrap();
    let entry = |author| support::entry(post_id(author), author);
    for _ in 0..3 {
        for author in [carol, dave, erin] {
            // And a late one.
            let late = entry(author);
            system.store.push(&late, &[UserId::new(bob).unwrap()]).await.unwrap();
            system.post(author).await;
        }
        let post = system.post(alice).await;
        assert_eq!(next(&mut stream).await.0, [post], "and nothing else");
    }
    // After a new follow, the posts show again.
    system.follow(bob, carol).await;
    let post = system.post(carol).await;
    testkit::eventually("carol's come", PATIENCE, async || {
        next(&mut stream).await.0.contains(&post)
    })
    .await;
}

#[tokio::test]
async fn a_watch_ends_at_shutdown() {
    let redis = testkit::Store::start(Single).await;
    let relation_url = start_relation(&redis).await;
    let url = redis.url("timeline");
    let post_url = start_posts(&redis).await;
    let services = ["--relation-url", &relation_url, "--post-url", &post_url];
    let args = [&["--redis-url", &url, "--threads", "1"], &services[..]].concat();
    let process = Process::start(env!("CARGO_BIN_EXE_microblog-timeline"), &args).await;
    let client = client(&process.address());
    let mut streams = Vec::new();
    for n in 1..=20 {
        let mut stream = watch(&client, id(n), "").await;
        next(&mut stream).await;
        streams.push(stream);
    }
    process.terminate();
    for mut stream in streams {
        let end: Result<_, Status> = timeout(PATIENCE, stream.message()).await.expect("an end");
        assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    }
    assert!(process.ended(PATIENCE).await.success());
}
