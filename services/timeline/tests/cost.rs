//! The cost of calls in Redis commands and round trips, which does not depend on the amount of
//! data.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::{collections::BTreeMap, sync::Arc};

use microblog_chassis::Worker;
use microblog_domain::UserId;
use microblog_proto::timeline as pb;
use microblog_testkit::{
    self as testkit, RedisServer,
    Topology::Single,
    redis::{aio::MultiplexedConnection, cmd},
};
use microblog_timeline::FanoutState;
use support::{System, delivery, entry, id, pages::deliver_all, post_id, relations::Relation};

/// The repetitions of each call, so that a rare split read does not matter.
const TIMES: u64 = 20;

/// The cost of a call.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// The executions of each command, including those inside functions.
    commands: BTreeMap<String, u64>,
    /// The reads of the server from connections. Commands sent together are read together if
    /// nothing else runs.
    round_trips: u64,
}

fn cost(round_trips: u64, commands: &[(&str, u64)]) -> Cost {
    let commands = commands.iter().map(|&(name, calls)| (name.to_owned(), calls)).collect();
    Cost { commands, round_trips }
}

/// A reader of the server's counters.
struct Counter(MultiplexedConnection);

impl Counter {
    async fn count(&mut self) -> (BTreeMap<String, u64>, u64) {
        let mut question = cmd("INFO");
        question.arg("stats").arg("commandstats");
        let info: String = question.query_async(&mut self.0).await.unwrap();
        let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        let calls = |line: &str| {
            let (name, statistics) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), statistics.split(',').next()?.parse().ok()?))
        };
        (info.lines().filter_map(calls).collect(), reads.unwrap().trim().parse().unwrap())
    }

    /// Makes a call several times. Returns the cost of one.
    async fn cost(&mut self, mut call: impl AsyncFnMut()) -> Cost {
        let (before, reads_before) = self.count().await;
        for _ in 0..TIMES {
            call().await;
        }
        let (mut commands, reads) = self.count().await;
        commands.iter_mut().for_each(|(name, calls)| *calls -= before.get(name).unwrap_or(&0));
        // The counter query itself, and a readiness probe in between: the average is rounded.
        let others =
            1 + commands.remove("ping").unwrap_or(0) + commands.remove("role").unwrap_or(0);
        commands.remove("info");
        commands.values_mut().for_each(|calls| *calls /= TIMES);
        commands.retain(|_, calls| *calls > 0);
        Cost { commands, round_trips: (reads - reads_before - others + TIMES / 2) / TIMES }
    }
}

/// Two services on separate stores, without other load.
struct Isolated {
    system: System,
    of_relation: RedisServer,
    _relation: Relation,
}

impl Isolated {
    async fn start() -> Self {
        let of_relation = RedisServer::start().await;
        let relation = Relation::start(of_relation.url("relation")).await;
        let redis = Arc::new(testkit::Store::start(Single).await);
        let no_jobs = Worker { index: 999, count: 1_000 };
        let system = System::on(no_jobs, redis, relation.url(), &[]).await;
        Self { system, of_relation, _relation: relation }
    }

    async fn counter(&self) -> Counter {
        Counter(self.system.redis.nodes()[0].admin().await)
    }
}

#[tokio::test]
async fn a_home_read_takes_one_round_trip_and_one_more_with_pulled_authors() {
    let apart = Isolated::start().await;
    let (system, mut counter) = (&apart.system, apart.counter().await);
    let authors: Vec<_> = (1..=8).map(id).collect();
    for (bob, posts) in [(id(50), 40), (id(51), 800)] {
        for &author in &authors {
            system.follow(bob, author).await;
        }
        let authors = authors.iter().cycle().take(posts);
        let all: Vec<_> = authors.map(|&author| delivery(post_id(author), author, 0)).collect();
        for some in all.chunks(400) {
            deliver_all(&system.client, some).await;
        }
        system.home(bob).await;
        let (_, next, since) = system.home_page(bob, 20, "", "").await.unwrap();
        for token in ["", &next] {
            let page = async || {
                assert_eq!(system.home_page(bob, 20, token, "").await.unwrap().0.len(), 20);
            };
            assert_eq!(counter.cost(page).await, cost(1, &[("mget", 1)]), "{posts} posts");
        }
        let count = pb::CountNewRequest { user_id: bob, since_token: since };
        let nothing_new = async || {
            let count = system.client.clone().count_new(count.clone()).await.unwrap();
            assert_eq!(count.into_inner().count, 0);
        };
        apart.of_relation.reset_commandstats().await;
        assert_eq!(counter.cost(nothing_new).await, cost(1, &[("mget", 1)]));
        let asked = apart.of_relation.commandstats().await;
        // The command by which the relation service looks up relations.
        assert_eq!(asked.get("smismember"), None, "no call to relation");
    }
    // Three pulled authors: one command more for each, sent together.
    let bob = UserId::new(id(50)).unwrap();
    for &author in &authors[..3] {
        let author = UserId::new(author).unwrap();
        assert_eq!(
            system
                .store
                .switch_fanout(author, FanoutState::OnWrite, FanoutState::OnRead)
                .await
                .unwrap(),
            FanoutState::OnWrite
        );
        assert_eq!(system.store.add_pulled_author(author, &[bob]).await.unwrap(), 1);
    }
    let page = async || {
        assert_eq!(system.home_page(bob.get(), 20, "", "").await.unwrap().0.len(), 20);
    };
    assert_eq!(counter.cost(page).await, cost(2, &[("getrange", 3), ("mget", 1)]));
}

#[tokio::test]
async fn a_delivery_takes_two_round_trips() {
    let apart = Isolated::start().await;
    let (system, mut counter) = (&apart.system, apart.counter().await);
    let alice = id(1);
    system.post(alice).await;
    let deliver = counter
        .cost(async || {
            system.post(alice).await;
        })
        .await;
    let Cost { commands, round_trips } = deliver;
    assert_eq!(round_trips, 2, "the author's timelines, and a job");
    assert_eq!(
        (commands["fcall"], commands["append"], commands["xadd"]),
        (1, 1, 1),
        "{commands:?}"
    );
    // A batch costs no more round trips. The server may read a large one in parts.
    let many = counter.cost(async || {
        let all: Vec<_> = (0..20).map(|_| delivery(post_id(alice), alice, 0)).collect();
        deliver_all(&system.client, &all).await;
    });
    let Cost { commands, round_trips } = many.await;
    assert_eq!((commands["fcall"], commands["xadd"]), (20, 20));
    assert!(round_trips <= 4, "{round_trips}");
}

#[tokio::test]
async fn a_push_takes_one_call_per_fifty_followers() {
    let apart = Isolated::start().await;
    let (system, mut counter) = (&apart.system, apart.counter().await);
    let alice = id(1);
    // Ten in each of ten partitions.
    let followers = (0..10).flat_map(|n| (100..110).map(move |m| id(m + 1_024 * n)));
    let followers: Vec<_> = followers.map(|user| UserId::new(user).unwrap()).collect();
    let mut push = async |written: u64| {
        let push = counter.cost(async || {
            let post = entry(post_id(alice), alice);
            assert_eq!(system.store.push(&post, &followers, false).await.unwrap(), written);
        });
        let Cost { commands, round_trips } = push.await;
        assert_eq!(commands["fcall"], 2, "a single server takes keys of any partitions");
        assert!(round_trips <= 2, "{round_trips}");
        commands
    };
    let away = push(0).await;
    assert_eq!(away["getrange"], 100, "{away:?}");
    assert_eq!(away.get("setrange"), None, "{away:?}");
    for &follower in &followers {
        system.home(follower.get()).await;
    }
    let active = push(100).await;
    assert_eq!((active["getrange"], active["setrange"]), (100, 200), "{active:?}");
}
