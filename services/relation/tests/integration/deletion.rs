//! Deleted accounts: all their edges end, also after crashes, and no new ones begin.

use microblog_proto::{
    common::ErrorReason,
    relation::{self as pb, EdgeList},
};
use microblog_testkit::{self as testkit, Database, Topology};
use tonic::Code;

use crate::support::{self, System, assert_rejected, id, ids, list_for};

#[tokio::test]
async fn a_deleted_account_has_no_edges_and_gets_none() {
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start_with(topology, &["--blocks-limit", "1"]).await;
        let deleted = id(1);
        let mut follows: Vec<_> = (2..700).map(|n| (id(n), deleted)).collect();
        follows.extend((500..900).map(|n| (deleted, id(n))));
        system.import(&follows).await;
        system.block(deleted, id(1000)).await.unwrap();
        system.block(id(1001), deleted).await.unwrap();
        let mute = async |user_id, target_id| {
            system.client.clone().mute(pb::MuteRequest { user_id, target_id }).await
        };
        mute(deleted, id(2)).await.unwrap();
        mute(id(1002), deleted).await.unwrap();

        let request = pb::ForgetUserRequest { user_id: deleted };
        system.client.clone().forget_user(request).await.unwrap();
        system.client.clone().forget_user(request).await.unwrap();
        system.converges().await;

        assert_eq!(system.counts(deleted).await, (0, 0, 0));
        for n in [2, 600, 899] {
            assert_eq!(system.counts(id(n)).await, (0, 0, 0), "user {n}");
        }
        for list in [EdgeList::Blocks, EdgeList::Mutes] {
            for n in [1, 1001, 1002] {
                let left = system.list_all(list_for(id(n), list, id(n), 10)).await;
                assert_eq!(ids(&left), [0; 0], "{list:?} of {n}");
            }
        }
        assert!(!system.relation(id(1000), deleted).await.blocked_by);
        for (from, to) in [(deleted, id(2)), (id(2), deleted)] {
            let rejection = system.follow(from, to).await;
            assert_rejected(rejection, Code::NotFound, ErrorReason::UserNotFound);
            let rejection = system.block(from, to).await;
            assert_rejected(rejection, Code::NotFound, ErrorReason::UserNotFound);
            assert_rejected(mute(from, to).await, Code::NotFound, ErrorReason::UserNotFound);
        }
        // Their places are free again.
        system.block(id(1001), id(3)).await.unwrap();
        mute(id(1002), id(3)).await.unwrap();
        let imported = system.import(&[(id(2), deleted), (deleted, id(2)), (id(2), id(3))]).await;
        assert_eq!((imported.created, imported.rejected_deleted), (1, 2));
        system.converges().await;
        assert_eq!(system.counts(id(2)).await, (1, 0, 0));
    }
}

#[tokio::test]
async fn a_deletion_continues_after_a_crash() {
    for database in Database::both().await {
        let redis = testkit::Store::start(Topology::Single).await;
        let program = env!("CARGO_BIN_EXE_microblog-relation");
        let (url, flag) = (redis.url("relation"), database.flag());
        let args = ["--redis-url", url.as_str(), flag.as_str()];
        let process = testkit::Process::start(program, &args).await;
        let client = support::client(&process.address()).await;
        let follows: Vec<_> = (2..8_000).map(|n| (id(n), id(1))).collect();
        support::import(&client, &follows).await;
        client.clone().forget_user(pb::ForgetUserRequest { user_id: id(1) }).await.unwrap();
        process.kill9();

        let process = testkit::Process::start(program, &args).await;
        let client = support::client(&process.address()).await;
        support::converges(&client).await;
        let request = pb::BatchGetCountsRequest { user_ids: vec![id(1), id(2)] };
        let counts = client.clone().batch_get_counts(request).await.unwrap().into_inner().counts;
        assert!(counts.iter().all(|counts| counts.followers + counts.following == 0), "{counts:?}");
    }
}
