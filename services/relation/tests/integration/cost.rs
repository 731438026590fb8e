//! The cost of reads in commands does not depend on the length of lists.

use std::time::Duration;

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{Cost, CostMeter, PATIENCE, Topology, eventually};
use tokio::time::sleep;

use crate::support::{System, id, list_of};

/// The mark of the primary, which each round trip reads as well.
const MARK: (&str, u64) = ("hmget", 1);

/// Asserts the cost of a call, as soon as the background jobs do not add to it.
async fn costs(system: &System, what: &str, commands: &[(&str, u64)], call: impl AsyncFn()) {
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let commands: Vec<_> = commands.iter().copied().chain([MARK]).collect();
    let (expected, mut last) = (Cost::new(1, &commands), None);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while last.as_ref() != Some(&expected) {
        assert!(tokio::time::Instant::now() < deadline, "{what}: {last:?}, not {expected:?}");
        last = Some(meter.cost(async |_| call().await).await);
    }
}

#[tokio::test]
async fn reads_cost_the_same_for_a_hundred_and_ten_thousand_entries() {
    let system = System::start(Topology::Single).await;
    let (small, large, viewer) = (id(1), id(2), id(3));
    let small_list: Vec<_> = (1_000..1_100).map(|n| (id(n), small)).collect();
    let large_list: Vec<_> = (1_000..10_900).map(|n| (id(n), large)).collect();
    let viewers_list: Vec<_> = (1_000..3_000).map(|n| (viewer, id(n))).collect();
    for list in [small_list, large_list, viewers_list] {
        system.import(&list).await;
    }
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    eventually("the verifier has applied the imports", PATIENCE, async || {
        let meanwhile = async || sleep(Duration::from_millis(700)).await;
        let cost = meter.cost_once(meanwhile).await;
        cost.commands.get("fcall").is_none_or(|&calls| calls < 10)
    })
    .await;
    for user_id in [small, large] {
        let first = list_of(EdgeList::Followers, user_id, 50);
        let page_token = system.list(&first).await.unwrap().next_page_token;
        let second = pb::ListEdgesRequest { page_token, ..first.clone() };
        for (what, request, reads) in
            [("the first page", &first, 2), ("the second page", &second, 1)]
        {
            costs(&system, what, &[("getrange", reads)], async || {
                assert_eq!(system.list(request).await.unwrap().edges.len(), 50);
            })
            .await;
        }
        let request = pb::BatchGetRelationsRequest {
            viewer_id: viewer,
            target_ids: (1_000..1_050).map(id).collect(),
            include: vec![EdgeList::Blocks.into(), EdgeList::Mutes.into()],
            include_newest_following_version: true,
            ..Default::default()
        };
        let relations = [("getrange", 7), ("smismember", 5)];
        costs(&system, "relations", &relations, async || {
            system.client.clone().batch_get_relations(request.clone()).await.unwrap();
        })
        .await;
        let request = pb::BatchGetCountsRequest { user_ids: vec![user_id, viewer] };
        costs(&system, "counts", &[("getrange", 4)], async || {
            system.client.clone().batch_get_counts(request.clone()).await.unwrap();
        })
        .await;
    }
}
