//! Delivery to timelines: at once, or after an outage. No call fails because a delivery does.

use std::{
    collections::HashSet,
    time::{Duration, Instant, SystemTime},
};

use futures::{StreamExt as _, future::join_all};
use microblog_chassis::{Peer, Worker};
use microblog_proto::{
    post::{CreatePostRequest, RedeliverPostsRequest},
    timeline::Delivery,
};
use microblog_testkit::{
    self as testkit, Database, Store,
    Topology::{self, Cluster, Single},
    eventually,
};

use crate::support::{
    self, PATIENCE, System, client, config, id, settles,
    timelines::{Mode, Timelines},
    violations,
};

/// The limit of a call that publishes, whatever timelines do: the delivery timeout of one second,
/// and slack for a busy machine.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_delivery_describes_the_post() {
    let system = System::start(Single).await;
    let root = system.create(id(1), "root").await.unwrap().id;
    let first = system.repost(id(2), root).await.unwrap().id;
    let second = system.repost(id(3), first).await.unwrap().id;
    let quote = system.quote(id(4), root, "quote").await.unwrap().id;
    let expected = [
        (root, id(1), 0, true),
        (first, id(2), root, false),
        (second, id(3), root, false),
        (quote, id(4), root, true),
    ]
    .map(|(post_id, author_id, root_id, has_text)| Delivery {
        post_id,
        author_id,
        root_id,
        has_text,
    });
    assert_eq!(system.timelines.deliveries(), expected);
    system.settles().await;
}

#[tokio::test]
async fn missed_posts_are_delivered_after_an_outage() {
    let places = [
        (Single, Mode::Unavailable),
        (Single, Mode::Hanging),
        (Single, Mode::Failing),
        (Cluster, Mode::Unavailable),
    ];
    join_all(places.map(|(topology, mood)| missed(topology, mood))).await;
}

/// A replica that cannot reach the timelines does not keep the others from delivering.
#[tokio::test]
async fn a_replica_that_reaches_the_timelines_delivers_for_another() {
    let system = System::start(Cluster).await;
    system.timelines.answer(Mode::Unavailable);
    let made = system.create(id(1), "published").await.unwrap().id;
    eventually("the first one has the lease", PATIENCE, async || {
        !system.numbers("SELECT 1 FROM leases WHERE name = 'delivery'").await.is_empty()
    })
    .await;
    let reached = Timelines::default();
    system.replica(&reached).await;
    eventually("the other one delivers it", PATIENCE, async || reached.times(made) > 0).await;
    system.settles().await;
}

async fn missed(topology: Topology, mood: Mode) {
    let system = System::start(topology).await;
    system.timelines.answer(mood);
    let began = Instant::now();
    let made = join_all((1..4).map(|n| system.create(id(n), "published"))).await;
    let took = began.elapsed();
    assert!(took < PUBLISHED_WITHIN, "{mood:?}: {took:?}");
    let made: Vec<_> = made.into_iter().map(|post| post.unwrap().id).collect();
    for &post in &made {
        system.get(post, 0).await.unwrap();
    }
    assert!(!violations(&system.client).await.is_empty(), "{mood:?}: posts are pending");

    let before = system.timelines.deliveries().len();
    system.timelines.answer(Mode::Ok);
    system.settles().await;
    let heard = system.timelines.deliveries();
    let later: Vec<_> = heard[before..].iter().map(|heard| heard.post_id).collect();
    assert!(made.iter().all(|post| later.contains(post)), "{mood:?}: {later:?}");
}

#[tokio::test]
async fn a_post_deleted_before_its_delivery_is_not_delivered() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        system.timelines.answer(Mode::Unavailable);
        let root = system.create(id(1), "root").await.unwrap().id;
        let deleted = system.create(id(1), "deleted").await.unwrap().id;
        let repost = system.repost(id(2), deleted).await.unwrap().id;
        let deleted_repost = system.repost(id(3), root).await.unwrap().id;
        system.delete(id(1), deleted).await.unwrap();
        system.delete(id(3), deleted_repost).await.unwrap();
        system.timelines.answer(Mode::Ok);
        system.settles().await;
        let delivered =
            [root, deleted, repost, deleted_repost].map(|post| system.timelines.times(post) > 0);
        assert_eq!(delivered, [true, false, true, false]);
    }
}

#[tokio::test]
async fn posts_are_delivered_again_since_a_time() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let early = system.create(id(1), "early").await.unwrap().id;
        system.settles().await;
        let began = SystemTime::now();
        // The clocks of the database and of this process are the same.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let late: Vec<_> = join_all((1..4).map(|n| system.create(id(n), "late"))).await;
        let [kept, also_kept, deleted] = [0, 1, 2].map(|n| late[n].as_ref().unwrap().id);
        system.settles().await;
        system.delete(id(3), deleted).await.unwrap();
        let all = [early, kept, also_kept, deleted];
        // Returns the posts that were delivered since, once or more often.
        let delivered_again = async |since: Option<SystemTime>| {
            let before = all.map(|post| system.timelines.times(post));
            let since = since.map(Into::into);
            let request = RedeliverPostsRequest { since };
            system.client.clone().redeliver_posts(request).await.unwrap();
            system.settles().await;
            let after = all.map(|post| system.timelines.times(post));
            let again = before.iter().zip(&after).map(|(before, after)| after > before);
            again.collect::<Vec<_>>()
        };
        let [none, late] = [[false; 4], [false, true, true, false]];
        // What was not late was made up to a minute before.
        let minute = Duration::from_secs(60);
        let later = Some(SystemTime::now() + minute);
        assert_eq!(delivered_again(later).await, none);
        assert_eq!(delivered_again(Some(began + minute)).await, late);
        let all = [true, true, true, false];
        assert_eq!(delivered_again(Some(began)).await, all);
        assert_eq!(delivered_again(None).await, all);
    }
}

#[tokio::test]
async fn many_posts_are_delivered_again() {
    let system = System::start(Single).await;
    // More than one batch.
    let made = join_all((0..600).map(|_| system.create(id(1), "text"))).await;
    let made: Vec<_> = made.into_iter().map(|post| post.unwrap().id).collect();
    system.settles().await;
    let before: Vec<_> = made.iter().map(|&post| system.timelines.times(post)).collect();
    let request = RedeliverPostsRequest { since: None };
    system.client.clone().redeliver_posts(request).await.unwrap();
    system.settles().await;
    for (post, before) in made.into_iter().zip(before) {
        assert!(system.timelines.times(post) > before, "{post}");
    }
}

#[tokio::test]
async fn undelivered_posts_are_delivered_in_batches() {
    let system = System::start(Single).await;
    system.timelines.answer(Mode::Unavailable);
    // One author has more than one page of the job.
    let authors = (0..650).map(|n| id(1 + n % 65)).chain(std::iter::repeat_n(id(99), 150));
    let made = join_all(authors.map(|author| system.create(author, "waits"))).await;
    let made: Vec<_> = made.into_iter().map(|post| post.unwrap().id).collect();
    assert_eq!(system.timelines.deliveries(), []);

    system.timelines.answer(Mode::Ok);
    system.settles().await;
    let heard = system.timelines.deliveries();
    for post in made {
        assert!(heard.iter().any(|heard| heard.post_id == post), "{post} is not delivered");
    }
    let largest = system.timelines.largest();
    assert!((50..=100).contains(&largest), "up to 100 fit into a call: {largest}");
}

#[tokio::test]
async fn undelivered_posts_do_not_delay_new_ones() {
    let system = System::start(Single).await;
    system.timelines.answer(Mode::Unavailable);
    let old = system.create(id(1), "old").await.unwrap().id;
    system.timelines.answer(Mode::Ok);
    let new = system.create(id(1), "new").await.unwrap().id;
    assert_eq!(system.timelines.times(new), 1, "delivered before the call answers");
    system.settles().await;
    assert!(system.timelines.times(old) >= 1);
    assert_eq!(system.timelines.times(new), 1);
}

#[tokio::test]
async fn an_undeliverable_post_does_not_delay_others() {
    let system = System::start(Single).await;
    system.timelines.answer(Mode::Unavailable);
    let made = join_all((1..=6).map(|n| system.create(id(n), "waits"))).await;
    let made: Vec<_> = made.into_iter().map(|post| post.unwrap().id).collect();
    let &[refused, ref others @ ..] = &*made else { panic!("six posts") };
    system.timelines.reject(Some(refused));
    system.timelines.answer(Mode::Ok);
    eventually("the others are delivered", PATIENCE, async || {
        others.iter().all(|&post| system.timelines.times(post) > 0)
    })
    .await;
    assert_eq!(system.timelines.times(refused), 0);
    eventually("the others are noted", PATIENCE, async || {
        violations(&system.client).await.len() == 1
    })
    .await;
    let found = violations(&system.client).await.join("\n");
    assert_eq!(found, format!("{refused}: the post is not delivered"));

    system.timelines.reject(None);
    eventually("also delivered", PATIENCE, async || system.timelines.times(refused) > 0).await;
}

#[tokio::test]
async fn a_hanging_timeline_service_delays_a_limited_number_of_callers() {
    let system = System::start(Single).await;
    let publish = async || {
        let began = Instant::now();
        let made = join_all((1..=600).map(|n| system.create(id(n), "published"))).await;
        let made: Vec<_> = made.into_iter().map(|post| post.unwrap().id).collect();
        (made, began.elapsed())
    };
    let (_, usual) = publish().await;
    system.timelines.answer(Mode::Hanging);
    let (made, took) = publish().await;
    // If each waited for a second, 100 at a time on one connection, it would take six.
    let within = Duration::from_secs(5).max(usual * 2);
    assert!(took < within, "{took:?}, and {usual:?} without a wait");
    system.get(made[0], 0).await.unwrap();

    let before = system.timelines.deliveries().len();
    system.timelines.answer(Mode::Ok);
    system.settles().await;
    let heard = system.timelines.deliveries();
    let heard: HashSet<_> = heard[before..].iter().map(|heard| heard.post_id).collect();
    assert!(made.iter().all(|post| heard.contains(post)));
}

/// Publishes many posts at once. Returns what was answered within the delivery timeout.
async fn publish_at_once(system: &System, posts: u64) -> Vec<u64> {
    // A connection has at most 100 calls in flight.
    let clients: Vec<_> = (0..4).map(|_| client(&system.address)).collect();
    let create = |n: u64| {
        let mut client = clients[n as usize % clients.len()].clone();
        let (author_id, request_id) = (id(1 + n % 50), support::request_id());
        async move {
            let text = "published".to_owned();
            let request = CreatePostRequest { author_id, request_id, text };
            let began = Instant::now();
            let post = client.create_post(request).await.unwrap().into_inner().post.unwrap();
            (began.elapsed() < Duration::from_secs(1)).then_some(post.id)
        }
    };
    let made = futures::stream::iter((0..posts).map(create)).buffer_unordered(400);
    made.filter_map(async |made| made).collect().await
}

#[tokio::test]
async fn all_posts_are_delivered_when_their_calls_answer() {
    let system = System::start(Single).await;
    let made = publish_at_once(&system, 1_200).await;
    let heard: HashSet<_> =
        system.timelines.deliveries().iter().map(|heard| heard.post_id).collect();
    let missing = made.iter().filter(|post| !heard.contains(post)).count();
    assert_eq!(missing, 0, "of {}", made.len());
    assert!(system.timelines.largest() > 1, "they share calls");
}

#[tokio::test]
async fn a_rejected_post_does_not_block_the_others_of_its_call() {
    let system = System::start(Single).await;
    // A repeated call publishes its earlier post, so the id is known.
    system.timelines.answer(Mode::Unavailable);
    let request_id = support::request_id();
    let request = |author| CreatePostRequest {
        author_id: id(author),
        request_id: request_id.clone(),
        text: "published".to_owned(),
    };
    let create = async |author| {
        let post = system.client.clone().create_post(request(author)).await.unwrap();
        post.into_inner().post.unwrap().id
    };
    let posts = join_all((1..=60).map(create)).await;
    system.timelines.reject(Some(posts[30]));
    system.timelines.answer(Mode::Ok);
    join_all((1..=60).map(create)).await;
    let delivered = posts.iter().map(|&post| system.timelines.times(post) > 0);
    let delivered: Vec<_> = delivered.collect();
    assert!(!delivered[30]);
    assert_eq!(delivered.iter().filter(|&&delivered| delivered).count(), 59);
    assert!(system.timelines.largest() > 1, "they share calls");
}

#[tokio::test]
async fn without_a_timeline_service_nothing_waits() {
    let (redis, database) = (Store::start(Single).await, Database::sqlite());
    let config = config(&redis.url("post"), &database.url(), &[]);
    let service = microblog_post::service(&config, None, Worker::ONLY).await.unwrap();
    let address = support::run(service, &config);
    let posts = (1..50).map(|n| {
        let mut client = client(&address);
        async move {
            let (request_id, text) = (support::request_id(), "nothing is delivered".to_owned());
            let request = CreatePostRequest { author_id: id(n), request_id, text };
            client.create_post(request).await.unwrap();
        }
    });
    join_all(posts).await;
    settles(&client(&address)).await;
}

#[tokio::test]
async fn a_timeline_service_that_starts_later_gets_all_posts() {
    let (redis, database) = (Store::start(Single).await, Database::sqlite());
    let config = config(&redis.url("post"), &database.url(), &[]);
    let port = testkit::free_port();
    let peer = Peer::remote(&format!("http://127.0.0.1:{port}"), &config.chassis).unwrap();
    let service = microblog_post::service(&config, Some(peer), Worker::ONLY).await.unwrap();
    let client = client(&support::run(service, &config));
    let mut made = Vec::new();
    for n in 1..=5 {
        let (request_id, text) = (support::request_id(), "early".to_owned());
        let request = CreatePostRequest { author_id: id(n), request_id, text };
        let began = Instant::now();
        let post = client.clone().create_post(request).await.unwrap().into_inner().post.unwrap();
        assert!(began.elapsed() < PUBLISHED_WITHIN, "{:?}", began.elapsed());
        made.push(post.id);
    }
    let timelines = Timelines::default();
    timelines.listen_on(testkit::listen_again(([127, 0, 0, 1], port).into()), &config);
    eventually("all are delivered", PATIENCE, async || {
        made.iter().all(|&post| timelines.times(post) > 0)
    })
    .await;
    settles(&client).await;
}

/// A post that was delivered long after it was made is delivered again by the time of its delivery.
#[tokio::test]
async fn late_deliveries_are_delivered_again() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        system.timelines.answer(Mode::Unavailable);
        let late = system.create(id(1), "late").await.unwrap().id;
        // As if it had been made ten minutes ago.
        let ago = |id: u64| id - (600_000 << 12);
        for (table, column) in [("posts", "id"), ("texts", "id"), ("undelivered", "id")] {
            let set =
                format!("UPDATE {table} SET {column} = {} WHERE {column} = {late}", ago(late));
            system.execute(&set).await;
        }
        let late = ago(late);
        system.timelines.answer(Mode::Ok);
        system.settles().await;
        assert_eq!(system.rows("late_deliveries").await, 1);
        let times = system.timelines.times(late);
        let since = Some((SystemTime::now() - Duration::from_secs(30)).into());
        let request = RedeliverPostsRequest { since };
        system.client.clone().redeliver_posts(request).await.unwrap();
        system.settles().await;
        assert!(system.timelines.times(late) > times);
    }
}
