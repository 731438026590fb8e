//! Guarantee 3: when Publish answers, the post is in its author's user timeline and home timeline,
//! however many publish and though Redis stands still for a moment.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use microblog_proto::gateway;
use microblog_testkit::redis::cmd;

use crate::{
    acts::request_id,
    system::{Member, System},
    timeline_acts::post_ids,
};

/// For how long at most a post's delivery is waited for.
const DELIVERED_WITHIN: Duration = Duration::from_secs(1);

const AUTHORS: usize = 20;
const POSTS: usize = 600;

/// How many calls are under way at a time: fewer in later rounds, so that one is quick on a machine
/// that is busy; and always more than callers may wait for a timeline service that does not answer.
const UNDER_WAY: [usize; 12] = [400, 300, 200, 150, 100, 100, 100, 100, 100, 100, 100, 100];

/// Has authors publish, so many of them at a time. Returns the posts of each author, if all were
/// answered sooner than a delivery is given up: where one was not, the guarantee leaves it and
/// those after it to the sweeper.
async fn publish(
    system: &System,
    authors: &[Member],
    under_way: usize,
) -> Option<Vec<(usize, u64)>> {
    let publish = |n: usize| async move {
        let author = n % authors.len();
        let text = format!("post {n}");
        let request = gateway::PublishRequest { request_id: request_id(), text };
        let began = Instant::now();
        let post = system.gateway().publish(authors[author].asks(request)).await.unwrap();
        let id = post.into_inner().post.unwrap().id;
        (began.elapsed() < DELIVERED_WITHIN).then_some((author, id))
    };
    let made = stream::iter((0..POSTS).map(publish)).buffer_unordered(under_way);
    made.collect::<Vec<_>>().await.into_iter().collect()
}

/// Returns how many of some posts are not in their authors' own timelines, of which there are two.
async fn missing(system: &System, authors: &[Member], made: &[(usize, u64)]) -> usize {
    let mut missing = 0;
    for (number, author) in authors.iter().enumerate() {
        let own = system.user_timeline(None, author, 200, "").await.posts;
        let home = system.home(author, 200, "", "").await.posts;
        for posts in [own, home] {
            let shown: HashSet<u64> = post_ids(&posts).into_iter().collect();
            let made = made.iter().filter(|(author, _)| *author == number);
            missing += made.filter(|(_, post)| !shown.contains(post)).count();
        }
    }
    missing
}

async fn authors(system: &System, round: usize) -> Vec<Member> {
    let mut authors = Vec::new();
    for n in 0..AUTHORS {
        authors.push(system.join(&format!("author{round}_{n}")).await);
    }
    authors
}

#[tokio::test]
async fn a_post_that_is_answered_is_in_its_authors_timeline_however_many_publish() {
    let system = System::start().await;
    for (round, under_way) in UNDER_WAY.into_iter().enumerate() {
        let authors = authors(&system, round).await;
        if let Some(made) = publish(&system, &authors, under_way).await {
            assert_eq!(missing(&system, &authors, &made).await, 0, "{under_way} at a time");
            return;
        }
    }
    panic!("in each round a call took longer than a second");
}

#[tokio::test]
async fn a_post_that_is_answered_is_there_though_redis_stood_still_for_a_moment() {
    let system = System::start().await;
    for (round, under_way) in UNDER_WAY.into_iter().enumerate() {
        let authors = authors(&system, round).await;
        let mut admin = system.store.nodes()[0].admin().await;
        let pause = async {
            cmd("CLIENT").arg("PAUSE").arg(250).exec_async(&mut admin).await.unwrap();
        };
        let (made, ()) = tokio::join!(publish(&system, &authors, under_way), pause);
        if let Some(made) = made {
            assert_eq!(missing(&system, &authors, &made).await, 0, "{under_way} at a time");
            return;
        }
    }
    panic!("in each round a call took longer than a second");
}
