//! The cost of calls in Redis commands and round trips, which does not depend on the amount of
//! data.

use std::sync::Arc;

use microblog_chassis::Worker;
use microblog_domain::UserId;
use microblog_proto::timeline as pb;
use microblog_testkit::{self as testkit, Cost, CostMeter, RedisServer, Topology::Single};
use microblog_timeline::FanoutState;

use crate::support::{
    System, delivery, entry, id, pages::deliver_all, post_id, relations::Relation,
};

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

    async fn meter(&self) -> CostMeter {
        CostMeter::new(&self.system.redis.nodes()[0]).await
    }
}

#[tokio::test]
async fn a_home_read_takes_one_round_trip_and_one_more_with_pulled_authors() {
    let apart = Isolated::start().await;
    let (system, mut meter) = (&apart.system, apart.meter().await);
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
            let page = async |_| {
                assert_eq!(system.home_page(bob, 20, token, "").await.unwrap().0.len(), 20);
            };
            assert_eq!(meter.cost(page).await, Cost::new(1, &[("mget", 1)]), "{posts} posts");
        }
        let count = pb::CountNewRequest { user_id: bob, since_token: since };
        let nothing_new = async |_| {
            let count = system.client.clone().count_new(count.clone()).await.unwrap();
            assert_eq!(count.into_inner().count, 0);
        };
        apart.of_relation.reset_commandstats().await;
        assert_eq!(meter.cost(nothing_new).await, Cost::new(1, &[("mget", 1)]));
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
    let page = async |_| {
        assert_eq!(system.home_page(bob.get(), 20, "", "").await.unwrap().0.len(), 20);
    };
    assert_eq!(meter.cost(page).await, Cost::new(2, &[("getrange", 3), ("mget", 1)]));
}

#[tokio::test]
async fn a_delivery_takes_two_round_trips() {
    let apart = Isolated::start().await;
    let (system, mut meter) = (&apart.system, apart.meter().await);
    let alice = id(1);
    system.post(alice).await;
    let deliver = meter
        .cost(async |_| {
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
    let many = meter.cost(async |_| {
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
    let (system, mut meter) = (&apart.system, apart.meter().await);
    let alice = id(1);
    // Ten in each of ten partitions.
    let followers = (0..10).flat_map(|n| (100..110).map(move |m| id(m + 1_024 * n)));
    let followers: Vec<_> = followers.map(|user| UserId::new(user).unwrap()).collect();
    let mut push = async |written: u64| {
        let push = meter.cost(async |_| {
            let post = entry(post_id(alice), alice);
            assert_eq!(system.store.push(&post, &followers).await.unwrap(), written);
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
