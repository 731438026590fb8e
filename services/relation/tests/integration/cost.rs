//! The cost of reads in commands does not depend on the length of lists.

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{Cost, CostMeter, Topology};

use crate::support::{System, id, list_of};

#[tokio::test]
async fn reads_cost_the_same_for_a_hundred_and_a_hundred_thousand_entries() {
    let system = System::start_without_jobs(Topology::Single).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
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
            let cost = meter
                .cost(async |_| {
                    page = system.list(&request).await.unwrap();
                    assert_eq!(page.edges.len(), 50);
                })
                .await;
            assert_eq!(cost, Cost::new(1, &[("zrange", 1)]), "{which} of {user_id}");
            request.page_token.clone_from(&page.next_page_token);
        }

        let target_ids: Vec<_> = page.edges.iter().map(|edge| edge.user_id).collect();
        let request =
            pb::BatchGetRelationsRequest { viewer_id: viewer, target_ids, ..Default::default() };
        let annotate = meter.cost(async |_| {
            let response = system.client.clone().batch_get_relations(request.clone()).await;
            assert_eq!(response.unwrap().into_inner().relations.len(), 50);
        });
        assert_eq!(annotate.await, Cost::new(1, &[("smismember", 2)]));

        let request = pb::BatchGetRelationsRequest { include: include.to_vec(), ..request };
        let of_list = meter.cost(async |_| {
            system.client.clone().batch_get_relations(request.clone()).await.unwrap();
        });
        assert_eq!(of_list.await, Cost::new(1, &[("smismember", 2), ("zrange", 3)]));

        let request =
            pb::BatchGetRelationsRequest { include_newest_following_version: true, ..request };
        let of_home = meter.cost(async |_| {
            system.client.clone().batch_get_relations(request.clone()).await.unwrap();
        });
        assert_eq!(of_home.await, Cost::new(1, &[("smismember", 2), ("zrange", 4)]));

        let with_times =
            pb::BatchGetRelationsRequest { include_following_since: true, ..request.clone() };
        let of_times = meter.cost(async |_| {
            system.client.clone().batch_get_relations(with_times.clone()).await.unwrap();
        });
        // The viewer's list is too long to read: the targets are looked up.
        let commands = [("smismember", 2), ("zmscore", 1), ("zrange", 5)];
        assert_eq!(of_times.await, Cost::new(2, &commands));

        let few = pb::BatchGetRelationsRequest {
            target_ids: request.target_ids[..7].to_vec(),
            ..request
        };
        let of_few = meter.cost(async |_| {
            system.client.clone().batch_get_relations(few.clone()).await.unwrap();
        });
        let look_ups = [("smismember", 2), ("zmscore", 3), ("zrange", 1)];
        assert_eq!(of_few.await, Cost::new(1, &look_ups));

        let request = list_of(EdgeList::FollowersNotFollowedBack, user_id, 50);
        let not_followed_back = meter.cost(async |_| {
            assert_eq!(system.list(&request).await.unwrap().edges.len(), 50);
        });
        let chunk = [("smismember", 1), ("zrange", 1)];
        assert_eq!(not_followed_back.await, Cost::new(2, &chunk));

        let request = pb::BatchGetCountsRequest { user_ids: vec![user_id] };
        let counts = meter.cost(async |_| {
            system.client.clone().batch_get_counts(request.clone()).await.unwrap();
        });
        assert_eq!(counts.await, Cost::new(1, &[("zcard", 3)]));
    }
}

#[tokio::test]
async fn the_ids_of_a_list_cost_one_command_for_each_two_thousand() {
    let system = System::start_without_jobs(Topology::Single).await;
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let followings: Vec<_> = (1_000..6_000).map(|n| (id(1), id(n))).collect();
    system.import(&followings).await;
    // One command more is for the settled version.
    for (user_id, commands) in [(id(1), 4), (id(2), 1)] {
        let list = EdgeList::Following.into();
        let request = pb::ListEdgeIdsRequest { user_id, list, ..Default::default() };
        let cost = meter.cost(async |_| {
            system.client.clone().list_edge_ids(request.clone()).await.unwrap();
        });
        assert_eq!(cost.await, Cost::new(commands, &[("zrange", commands)]));
    }
}
