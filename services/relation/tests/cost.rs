//! The cost of reads in commands does not depend on the length of lists.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::collections::BTreeMap;

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{RedisServer, Store as Redis, Topology, redis};
use support::{System, id, list_of};

/// The commands that the service sends for calls.
const COUNTED: [&str; 8] =
    ["zrange", "zcard", "zscore", "zmscore", "smismember", "scard", "fcall", "get"];

/// The repetitions of each call, so that the readiness probe does not matter.
const TIMES: u64 = 50;

fn server(system: &System) -> &RedisServer {
    match &system.redis {
        Redis::Single(server) => server,
        Redis::Cluster(_) => panic!("counted on a single server"),
    }
}

/// The reads of the server from connections: one per round trip.
async fn reads(server: &RedisServer) -> u64 {
    let mut admin = server.admin().await;
    let info: String = redis::cmd("INFO").arg("stats").query_async(&mut admin).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.unwrap().trim().parse().unwrap()
}

/// Makes a call many times. Returns the cost of one: commands and round trips.
async fn cost(system: &System, mut call: impl AsyncFnMut()) -> (BTreeMap<String, u64>, u64) {
    let server = server(system);
    server.reset_commandstats().await;
    let before = reads(server).await;
    for _ in 0..TIMES {
        call().await;
    }
    let round_trips = (reads(server).await - before) / TIMES;
    let mut stats: BTreeMap<_, _> = server.commandstats().await.into_iter().collect();
    stats.retain(|name, _| COUNTED.contains(&name.as_str()));
    (stats.into_iter().map(|(name, calls)| (name, calls / TIMES)).collect(), round_trips)
}

fn one_round_trip(commands: &[(&str, u64)]) -> (BTreeMap<String, u64>, u64) {
    (commands.iter().map(|&(name, calls)| (name.to_owned(), calls)).collect(), 1)
}

#[tokio::test]
async fn reads_cost_the_same_for_a_hundred_and_a_hundred_thousand_entries() {
    let system = System::start_without_jobs(Topology::Single).await;
    let (small, large, viewer) = (id(1), id(2), id(3));
    let small_list: Vec<_> = (1_000..1_100).map(|n| (id(n), small)).collect();
    let large_list: Vec<_> = (1_000..101_000).map(|n| (id(n), large)).collect();
    let viewers_list: Vec<_> = (1_000..3_000).map(|n| (viewer, id(n))).collect();
    for list in [small_list, large_list, viewers_list] {
        system.import(&list).await;
    }

    let include = [EdgeList::Blocks.into(), EdgeList::Mutes.into()];
    for user_id in [small, large] {
        let mut request = list_of(EdgeList::Followers, user_id, 50);
        let mut page = pb::ListEdgesResponse::default();
        for which in ["the first page", "the second page"] {
            let cost = cost(&system, async || {
                page = system.list(&request).await.unwrap();
                assert_eq!(page.edges.len(), 50);
            })
            .await;
            assert_eq!(cost, one_round_trip(&[("zrange", 1)]), "{which} of {user_id}");
            request.page_token.clone_from(&page.next_page_token);
        }

        let target_ids: Vec<_> = page.edges.iter().map(|edge| edge.user_id).collect();
        let request =
            pb::BatchGetRelationsRequest { viewer_id: viewer, target_ids, ..Default::default() };
        let annotate = cost(&system, async || {
            let response = system.client.clone().batch_get_relations(request.clone()).await;
            assert_eq!(response.unwrap().into_inner().relations.len(), 50);
        });
        assert_eq!(annotate.await, one_round_trip(&[("smismember", 2)]));

        let request = pb::BatchGetRelationsRequest { include: include.to_vec(), ..request };
        let of_list = cost(&system, async || {
            system.client.clone().batch_get_relations(request.clone()).await.unwrap();
        });
        assert_eq!(of_list.await, one_round_trip(&[("smismember", 2), ("zrange", 3)]));

        let request =
            pb::BatchGetRelationsRequest { include_newest_following_version: true, ..request };
        let of_home = cost(&system, async || {
            system.client.clone().batch_get_relations(request.clone()).await.unwrap();
        });
        assert_eq!(of_home.await, one_round_trip(&[("smismember", 2), ("zrange", 4)]));

        let few = pb::BatchGetRelationsRequest {
            target_ids: request.target_ids[..7].to_vec(),
            ..request
        };
        let of_few = cost(&system, async || {
            system.client.clone().batch_get_relations(few.clone()).await.unwrap();
        });
        let look_ups = [("smismember", 2), ("zmscore", 3), ("zrange", 1)];
        assert_eq!(of_few.await, one_round_trip(&look_ups));

        let request = list_of(EdgeList::FollowersNotFollowedBack, user_id, 50);
        let not_followed_back = cost(&system, async || {
            assert_eq!(system.list(&request).await.unwrap().edges.len(), 50);
        });
        let chunk =
            [("smismember", 1), ("zrange", 1)].map(|(name, calls)| (name.to_owned(), calls));
        assert_eq!(not_followed_back.await, (chunk.into(), 2));

        let request = pb::BatchGetCountsRequest { user_ids: vec![user_id] };
        let counts = cost(&system, async || {
            system.client.clone().batch_get_counts(request.clone()).await.unwrap();
        });
        assert_eq!(counts.await, one_round_trip(&[("zcard", 3)]));
    }
}

#[tokio::test]
async fn the_ids_of_a_list_cost_one_command_for_each_two_thousand() {
    let system = System::start_without_jobs(Topology::Single).await;
    let followings: Vec<_> = (1_000..6_000).map(|n| (id(1), id(n))).collect();
    system.import(&followings).await;
    // One command more is for the settled version.
    for (user_id, commands) in [(id(1), 4), (id(2), 1)] {
        let list = EdgeList::Following.into();
        let request = pb::ListEdgeIdsRequest { user_id, list, ..Default::default() };
        let cost = cost(&system, async || {
            system.client.clone().list_edge_ids(request.clone()).await.unwrap();
        });
        let expected = BTreeMap::from([("zrange".to_owned(), commands)]);
        assert_eq!(cost.await, (expected, commands));
    }
}
