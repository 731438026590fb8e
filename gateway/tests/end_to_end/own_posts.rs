//! Guarantee 3: when Publish returns, the post is in its author's user and home timelines, also with
//! many concurrent calls and while Redis stops briefly.

use std::{
    collections::HashSet,
    iter,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use microblog_proto::gateway;
use microblog_testkit::{PATIENCE, redis::cmd};

use crate::{
    actions::request_id,
    system::{Member, System},
    timeline_actions::post_ids,
};

/// How long Publish waits for the delivery.
const DELIVERED_WITHIN: Duration = Duration::from_secs(1);

const AUTHORS: usize = 20;
const POSTS: usize = 600;

/// Concurrent calls: fewer in later rounds, so that one is fast even on a busy machine; and always
/// more than may wait for an unresponsive timeline service.
const UNDER_WAY: [usize; 12] = [400, 300, 200, 150, 100, 100, 100, 100, 100, 100, 100, 100];

/// The time in which more rounds like the last one begin.
const ROUNDS_WITHIN: Duration = PATIENCE.saturating_mul(3);

/// Returns the number of each round, and its concurrent calls.
fn rounds() -> impl Iterator<Item = (usize, usize)> {
    let began = Instant::now();
    let more = iter::repeat(100).take_while(move |_| began.elapsed() < ROUNDS_WITHIN);
    UNDER_WAY.into_iter().chain(more).enumerate()
}

/// Publishes with this many concurrent calls. Returns the posts of each author, if all calls
/// returned before the delivery timeout: otherwise, the guarantee leaves them to the job.
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
        let post = system.gateway().publish(authors[author].request(request)).await.unwrap();
        let id = post.into_inner().post.unwrap().id;
        (began.elapsed() < DELIVERED_WITHIN).then_some((author, id))
    };
    let made = stream::iter((0..POSTS).map(publish)).buffer_unordered(under_way);
    made.collect::<Vec<_>>().await.into_iter().collect()
}

/// Returns the number of posts that are missing from their authors' user and home timelines.
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
async fn an_acknowledged_post_is_in_its_authors_timeline_under_load() {
    let system = System::start().await;
    for (round, under_way) in rounds() {
        let authors = authors(&system, round).await;
        if let Some(made) = publish(&system, &authors, under_way).await {
            assert_eq!(missing(&system, &authors, &made).await, 0, "{under_way} at a time");
            return;
        }
    }
    panic!("in each round a call took longer than a second");
}

#[tokio::test]
async fn an_acknowledged_post_is_in_its_authors_timeline_after_redis_stops_briefly() {
    let system = System::start().await;
    for (round, under_way) in rounds() {
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
