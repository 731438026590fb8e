//! Deleted accounts: all their edges end, also after crashes, and no new ones begin.

use std::collections::BTreeSet;

use microblog_proto::{common::ErrorReason, relation as pb};
use microblog_record::WAITING_MAX;
use microblog_relation::{Edge, Error, List, Outcome, Targets, forget_marked};
use microblog_testkit::{self as testkit, Topology, eventually};
use tonic::Code;

use crate::support::{
    self, PATIENCE, System, assert_rejected,
    database::{Database, Record as _},
    id, user,
};

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
    let follows: Vec<_> = (2..20_000).map(|n| (id(n), id(1))).collect();
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

/// Otherwise the journal of the account's partition would exceed its limit, and the partition would be
/// recovered.
#[tokio::test]
async fn account_deletion_waits_for_the_database() {
    // More than a journal may have, with what two runs of the job end at the same time.
    const FOLLOWERS: u64 = WAITING_MAX / 2 + 2_000;
    const CALL: usize = 2_000;
    let database = Database::postgres().await;
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    let followers: Vec<u64> = (2..2 + FOLLOWERS).map(id).collect();
    for followers in followers.chunks(CALL) {
        let follow = |&follower_id| pb::Follow { follower_id, target_id: id(1) };
        let request = pb::ImportFollowsRequest { follows: followers.iter().map(follow).collect() };
        eventually("the follows are imported", PATIENCE, async || {
            system.client.clone().import_follows(request.clone()).await.is_ok()
        })
        .await;
    }
    let partitions = BTreeSet::from([user(1).partition()]);
    let journal = async || system.store.longest_journal(&partitions).await.unwrap();
    eventually("the follows are recorded", PATIENCE, async || journal().await < 1_000).await;
    let oldest = "SELECT oldest FROM change_feed_state";
    let before = database.number(oldest).await;
    assert!(before.is_some(), "there is a change feed");

    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    let request = pb::ForgetUserRequest { user_id: id(1) };
    system.client.clone().forget_user(request).await.unwrap();
    let stopped = forget_marked(&system.store).await;
    assert!(matches!(stopped, Err(Error::RecorderBehind)), "{stopped:?}");
    let length = journal().await;
    assert!((WAITING_MAX / 2..WAITING_MAX).contains(&length), "{length}");

    server.restart().await;
    system.converges().await;
    assert_eq!(system.counts(id(1)).await, (0, 0, 0));
    assert_eq!(database.number(oldest).await, before, "no partition was written anew");
}
