//! Deleted accounts: all their edges end, also after crashes, and no new ones begin.

use microblog_proto::{common::ErrorReason, relation as pb};
use microblog_relation::{Edge, List, Outcome, Targets, forget_marked};
use microblog_testkit::{self as testkit, Topology};
use tonic::Code;

use crate::support::{self, System, assert_rejected, id, user};

#[tokio::test]
async fn a_forgotten_account_has_no_edges_and_gets_none() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let deleted = id(1);
        let mut follows: Vec<_> = (2..700).map(|n| (id(n), deleted)).collect();
        follows.extend((500..900).map(|n| (deleted, id(n))));
        system.import(&follows).await;
        system.block(deleted, id(1000)).await.unwrap();
        system.block(id(1001), deleted).await.unwrap();
        let request = pb::MuteRequest { user_id: deleted, target_id: id(2) };
        system.client.clone().mute(request).await.unwrap();

        let request = pb::ForgetUserRequest { user_id: deleted };
        system.client.clone().forget_user(request).await.unwrap();
        system.client.clone().forget_user(request).await.unwrap();
        system.converges().await;

        assert_eq!(system.counts(deleted).await, (0, 0, 0));
        for n in [2, 600, 899] {
            assert_eq!(system.counts(id(n)).await, (0, 0, 0), "user {n}");
        }
        for list in [List::Blocks, List::BlockedBy, List::Mutes] {
            for n in [1, 1000, 1001] {
                let page = system.store.page(list, user(n), None, None, 10).await.unwrap();
                assert!(page.entries.is_empty(), "{list:?} of {n}");
            }
        }
        for (from, to) in [(deleted, id(2)), (id(2), deleted)] {
            let rejection = system.follow(from, to).await;
            assert_rejected(rejection, Code::NotFound, ErrorReason::UserNotFound);
            let rejection = system.block(from, to).await;
            assert_rejected(rejection, Code::NotFound, ErrorReason::UserNotFound);
        }
        let imported = system.import(&[(id(2), deleted), (deleted, id(2)), (id(2), id(3))]).await;
        assert_eq!((imported.created, imported.rejected_forgotten), (1, 2));
        system.converges().await;
        assert_eq!(system.counts(id(2)).await, (1, 0, 0));
    }
}

#[tokio::test]
async fn a_pending_follow_of_a_forgotten_account_ends() {
    let system = System::start(Topology::Single).await;
    let edge = Edge { from: user(2), to: user(1) };
    let source = system.store.follow(&[Targets::one(edge)]).await.unwrap()[0];
    assert_eq!(source.outcome, Outcome::Done);
    // A crash here. The target's deletion completes before the sweeper runs.
    system.store.forget(edge.to).await.unwrap();
    forget_marked(&system.store).await.unwrap();

    system.converges().await;
    assert_eq!(system.counts(id(1)).await, (0, 0, 0));
    assert_eq!(system.counts(id(2)).await, (0, 0, 0));
}

#[tokio::test]
async fn account_deletion_continues_after_a_crash() {
    let redis = testkit::Store::start(Topology::Single).await;
    let program = env!("CARGO_BIN_EXE_microblog-relation");
    let url = redis.url("relation");
    let args = ["--redis-url", url.as_str()];
    let process = testkit::Process::start(program, &args).await;
    let client = support::client(&process.address()).await;
    let follows = (2..20_000).map(|n| pb::Follow { follower_id: id(n), target_id: id(1) });
    let request = pb::ImportFollowsRequest { follows: follows.collect() };
    client.clone().import_follows(request).await.unwrap();
    client.clone().forget_user(pb::ForgetUserRequest { user_id: id(1) }).await.unwrap();
    process.kill9();

    let process = testkit::Process::start(program, &args).await;
    let client = support::client(&process.address()).await;
    support::converges(&client).await;
    let request = pb::BatchGetCountsRequest { user_ids: vec![id(1), id(2)] };
    let counts = client.clone().batch_get_counts(request).await.unwrap().into_inner().counts;
    assert!(counts.iter().all(|counts| counts.followers + counts.following == 0), "{counts:?}");
}
