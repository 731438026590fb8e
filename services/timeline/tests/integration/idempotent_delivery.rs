//! Delivery is idempotent: a post is at once in its author's timelines, and once in all timelines.

use futures::future::join_all;
use microblog_domain::UserId;
use microblog_proto::timeline as pb;
use microblog_testkit::{
    self as testkit,
    Topology::{Cluster, Single},
};
use microblog_timeline::{Job, Kind};

use crate::support::{
    self, PATIENCE, System, client, delivery, entry, id,
    pages::{Timeline, deliver_all},
    post_id,
    queue::{drained, published, stored},
};

#[tokio::test]
async fn own_posts_show_at_once() {
    for mode in ["hybrid", "push", "pull"] {
        let system = System::start_with(Single, &["--mode", mode]).await;
        let alice = id(1);
        let mut all = Vec::new();
        for _ in 0..60 {
            all.insert(0, system.post(alice).await);
            assert_eq!(system.home(alice).await, all, "{mode}");
            assert_eq!(published(&system.store, alice).await, all, "{mode}");
        }
    }
}

#[tokio::test]
async fn repeated_deliveries_show_a_post_once() {
    for topology in [Single, Cluster] {
        let system = System::start(topology).await;
        let (alice, bob) = (id(1), id(2));
        system.follow(bob, alice).await;
        assert_eq!(system.home(bob).await, [0; 0]);
        let mut all = Vec::new();
        for _ in 0..10 {
            // Twice per call, by eight concurrent callers.
            let post = delivery(post_id(alice), alice, 0);
            let callers: Vec<_> = (0..8).map(|_| client(&system.address)).collect();
            let twice = [post, post];
            join_all(callers.iter().map(|client| deliver_all(client, &twice))).await;
            all.insert(0, post.post_id);
        }
        system.home_becomes(bob, &all).await;
        drained(&system).await;
        let before = stored(&system.store, bob).await.len();
        // After their steps are done.
        for &post in &all {
            system.deliver(delivery(post, alice, 0)).await;
        }
        drained(&system).await;
        for user in [alice, bob] {
            assert_eq!(Timeline::Home.whole(&system.client, user, 3, "").await, all);
        }
        // A duplicate that overtakes the original is stored twice; a later one is not. A build leaves out
        // the first one, too.
        let after = stored(&system.store, bob).await.len();
        assert!(after == before || after == all.len(), "{after} posts, {before} before");
        assert_eq!(stored(&system.store, alice).await.len(), all.len());
        assert_eq!(published(&system.store, alice).await, all);
    }
}

/// A cluster client may resend a command whose response is lost. The stream then has the job twice,
/// without a repeat flag.
#[tokio::test]
async fn duplicate_jobs_show_a_post_once() {
    let system = System::start(Single).await;
    let (alice, bob) = (id(1), id(2));
    system.follow(bob, alice).await;
    let first = system.post(alice).await;
    system.home_becomes(bob, &[first]).await;
    let (_, _, since) = system.home_page(bob, 20, "", "").await.unwrap();
    let mut all = vec![first];
    for _ in 0..5 {
        let post = entry(post_id(alice), alice);
        let published = system.store.publish(&[post]).await.unwrap();
        assert!(published[0].is_new);
        let job = Job::of_post(Kind::Push, &post);
        system.store.enqueue(&[job.clone(), job]).await.unwrap();
        all.insert(0, post.post.get());
    }
    drained(&system).await;
    system.home_becomes(bob, &all).await;
    assert_eq!(Timeline::Home.whole(&system.client, bob, 2, "").await, all);
    let request = pb::CountNewRequest { user_id: bob, since_token: since.clone() };
    let count = system.client.clone().count_new(request).await.unwrap().into_inner().count;
    assert_eq!(count, 5);
    let (new, _, _) = system.home_page(bob, 20, "", &since).await.unwrap();
    assert_eq!(support::posts(&new), all[..5]);
}

#[tokio::test]
async fn one_call_delivers_five_hundred_posts() {
    let system = System::start(Single).await;
    let (authors, bob): (Vec<_>, _) = ((1..=50).map(id).collect(), id(100));
    for &author in &authors {
        system.follow(bob, author).await;
    }
    assert_eq!(system.home(bob).await, [0; 0]);
    let deliveries: Vec<_> = authors.iter().cycle().take(500).collect();
    let deliveries: Vec<_> =
        deliveries.into_iter().map(|&author| delivery(post_id(author), author, 0)).collect();
    deliver_all(&system.client, &deliveries).await;
    let newest_first = |of: &dyn Fn(&&pb::Delivery) -> bool| -> Vec<u64> {
        deliveries.iter().rev().filter(of).map(|delivery| delivery.post_id).collect()
    };
    for &author in &authors {
        let own = newest_first(&|delivery| delivery.author_id == author);
        assert_eq!(system.home(author).await, own);
        assert_eq!(published(&system.store, author).await, own);
    }
    let all = newest_first(&|_| true);
    testkit::eventually("all are there", PATIENCE, async || {
        Timeline::Home.whole(&system.client, bob, 200, "").await == all
    })
    .await;
}

#[tokio::test]
async fn user_timelines_keep_1000_posts_and_home_timelines_800() {
    let system = System::start(Single).await;
    let alice = id(1);
    let mut all = Vec::new();
    for _ in 0..14 {
        let some: Vec<_> = (0..100).map(|_| delivery(post_id(alice), alice, 0)).collect();
        deliver_all(&system.client, &some).await;
        all.extend(some.iter().map(|delivery| delivery.post_id));
    }
    all.reverse();
    let own = published(&system.store, alice).await;
    assert!(own.len() >= 1_000 && own == all[..own.len()], "{}", own.len());
    assert_eq!(Timeline::Home.whole(&system.client, alice, 200, "").await, all[..800]);
    // The ring has wrapped around, and is read from its oldest record.
    let home = system.store.home(UserId::new(alice).unwrap()).await.unwrap().unwrap();
    let posts: Vec<u64> = home.entries.iter().map(|entry| entry.post.get()).collect();
    assert_eq!(posts.len(), 800);
    assert!(posts.is_sorted());
}

#[tokio::test]
async fn late_posts_hide_no_other_posts_of_their_author() {
    let system = System::start_with(Single, &["--mode", "pull"]).await;
    let (author, reader) = (id(1), id(2));
    system.follow(reader, author).await;
    let posts: Vec<_> = (0..150).map(|_| post_id(author)).collect();
    // Two of the first come after a hundred others; forty-eight come after them.
    let (early, later) = posts.split_at(102);
    let late = [early[4], early[6]];
    let in_time = early.iter().filter(|post| !late.contains(post));
    for &post in in_time.chain(&late).chain(later) {
        system.deliver(delivery(post, author, 0)).await;
    }
    let newest: Vec<_> = posts.iter().rev().copied().collect();
    assert_eq!(system.home(reader).await, newest);
    let (mut seen, mut token) = (Vec::new(), String::new());
    while seen.len() < newest.len() {
        let (page, next, _) = system.home_page(reader, 1, &token, "").await.unwrap();
        seen.extend(support::posts(&page));
        token = next;
    }
    assert_eq!(seen, newest);
}
