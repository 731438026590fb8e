//! The record in SQL has what Redis has: changes and what was there before, once and in order, also
//! after the database was away. Recorded changes that Redis lacks are detected.

use std::collections::BTreeSet;

use microblog_chassis::{Worker, status::reason_of};
use microblog_domain::Partition;
use microblog_keyspace::Version;
use microblog_proto::{
    common::{ErrorReason, RestoreSource},
    relation::{self as pb, EdgeList},
};
use microblog_record::WAITING_MAX;
use microblog_testkit::{Topology, eventually, redis};
use sqlx::{AnyConnection, Connection as _};
use tonic::{Code, Status};

use crate::support::{
    self, FOLLOWING, PATIENCE, System,
    database::{BLOCKS, Database, FOLLOWS, MUTES, Record as _},
    id, user,
};

async fn mute(system: &System, user_id: u64, target_id: u64) {
    system.client.clone().mute(pb::MuteRequest { user_id, target_id }).await.unwrap();
}

#[tokio::test]
async fn changes_reach_the_database() {
    for (database, topology) in
        Database::both().await.into_iter().zip([Topology::Single, Topology::Cluster])
    {
        let system = System::start_with(topology, &[&database.flag()]).await;
        let [one, two, three] = [id(1), id(2), id(3)];
        system.follow(one, two).await.unwrap();
        system.follow(two, one).await.unwrap();
        system.follow(three, one).await.unwrap();
        system.follow(one, three).await.unwrap();
        system.unfollow(one, three).await.unwrap();
        system.block(two, three).await.unwrap();
        mute(&system, one, two).await;
        mute(&system, one, three).await;
        let unmute = pb::UnmuteRequest { user_id: one, target_id: three };
        system.client.clone().unmute(unmute).await.unwrap();
        let mut expected = vec![
            ((FOLLOWS, one, two), true),
            ((FOLLOWS, two, one), true),
            ((FOLLOWS, three, one), true),
            ((FOLLOWS, one, three), false),
            ((BLOCKS, two, three), true),
            ((MUTES, one, two), true),
            ((MUTES, one, three), false),
        ];
        database.has(&expected).await;
        // Ends a follow of the other side, whose edge is in another partition.
        system.block(one, three).await.unwrap();
        expected[2].1 = false;
        expected.push(((BLOCKS, one, three), true));
        database.has(&expected).await;
        let forget = pb::ForgetUserRequest { user_id: one };
        system.client.clone().forget_user(forget).await.unwrap();
        // The edges of the account end, and its mutes are deleted.
        for ((_, source, target), exists) in &mut expected {
            *exists &= ![*source, *target].contains(&one);
        }
        expected.retain(|((kind, ..), _)| *kind != MUTES);
        database.has(&expected).await;
    }
}

#[tokio::test]
async fn a_new_database_is_filled_with_what_there_is() {
    for database in Database::both().await {
        let system = System::start(Topology::Single).await;
        let targets: Vec<u64> = (2..1_200).map(id).collect();
        let follows: Vec<_> = targets.iter().map(|&target| (id(1), target)).collect();
        system.import(&follows).await;
        mute(&system, id(2), id(1)).await;
        system.block(id(3), id(2)).await.unwrap();
        system.another(&[&database.flag()]).await;
        let mut expected: Vec<_> =
            targets.iter().map(|&target| ((FOLLOWS, id(1), target), true)).collect();
        expected.push(((MUTES, id(2), id(1)), true));
        expected.push(((BLOCKS, id(3), id(2)), true));
        database.has(&expected).await;
        system.unfollow(id(1), id(2)).await.unwrap();
        expected[0].1 = false;
        database.has(&expected).await;
    }
}

#[tokio::test]
async fn changes_wait_while_the_database_is_away() {
    let database = Database::postgres().await;
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    system.follow(id(1), id(2)).await.unwrap();
    database.has(&[((FOLLOWS, id(1), id(2)), true)]).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    system.unfollow(id(1), id(2)).await.unwrap();
    assert_eq!(system.follow(id(1), id(3)).await.unwrap(), FOLLOWING);
    server.restart().await;
    let expected = [((FOLLOWS, id(1), id(2)), false), ((FOLLOWS, id(1), id(3)), true)];
    database.has(&expected).await;
    assert_eq!(database.edges().await, expected.into_iter().collect(), "the end is kept");
}

/// Otherwise a long import would exceed the limit of journals, and partitions would be recovered.
#[tokio::test]
async fn an_import_waits_for_the_database() {
    const CALL: u64 = 2_000;
    let database = Database::postgres().await;
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    system.follow(id(2), id(1)).await.unwrap();
    database.has(&[((FOLLOWS, id(2), id(1)), true)]).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    let import = async |call: u64| {
        let followers = 3 + call * CALL..3 + (call + 1) * CALL;
        let follow = |n| pb::Follow { follower_id: id(n), target_id: id(1) };
        let request = pb::ImportFollowsRequest { follows: followers.map(follow).collect() };
        system.client.clone().import_follows(request).await
    };
    let mut calls = 0;
    let rejection = loop {
        match import(calls).await {
            Ok(_) => calls += 1,
            Err(rejection) => break rejection,
        }
    };
    assert_eq!(reason_of(&rejection), Some(ErrorReason::Overloaded), "{rejection:?}");
    let imported = calls * CALL;
    assert!((WAITING_MAX / 2..WAITING_MAX).contains(&imported), "{imported}");
    // Calls of people go on.
    system.follow(id(2), id(3)).await.unwrap();
    server.restart().await;
    eventually("the import goes on", PATIENCE, async || import(calls).await.is_ok()).await;
    let all = imported + CALL + 2;
    eventually("all follows are recorded", PATIENCE, async || {
        database.edges().await.len() as u64 == all
    })
    .await;
    assert_eq!(system.counts(id(1)).await.1, all - 1);
}

#[tokio::test]
async fn two_recorders_record_each_change_once() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        system.another(&[&database.flag()]).await;
        let mut expected = Vec::new();
        for target in 2..200 {
            system.follow(id(1), id(target)).await.unwrap();
            if target % 3 == 0 {
                system.unfollow(id(1), id(target)).await.unwrap();
            }
            expected.push(((FOLLOWS, id(1), id(target)), target % 3 > 0));
        }
        database.has(&expected).await;
    }
}

/// Takes the journal of account 1 back to before its newest entry, which has the follow of account 3.
async fn lose_newest_change(system: &System) {
    let key = format!("rel:{{{}}}:journal", user(1).partition());
    let mut admin = support::admin_of(&system.redis, &key).await;
    let entries = support::journal_texts(&system.redis, user(1).partition()).await;
    let mut lose = redis::pipe();
    // A deleted entry would leave its id behind.
    lose.atomic().del(&key);
    for (version, text) in &entries[..entries.len() - 1] {
        lose.cmd("XADD").arg(&key).arg(version.to_string()).arg("c").arg(text);
    }
    lose.exec_async(&mut admin).await.unwrap();
}

#[tokio::test]
async fn a_loss_of_recorded_changes_is_found_and_recovered() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        system.follow(id(1), id(2)).await.unwrap();
        settle(&system, &database, 3).await;
        // Held by another process, which does nothing.
        let lease = format!("rel:{{{}}}:journal:lease", user(1).partition());
        let mut admin = support::admin_of(&system.redis, &lease).await;
        let hold = redis::cmd("SET").arg(&lease).arg("other").arg("PX").arg(600_000).take();
        let () = hold.query_async(&mut admin).await.unwrap();
        lose_newest_change(&system).await;
        let mut other = system.another(&[&database.flag()]).await;
        let request = pb::UnfollowRequest { follower_id: id(1), target_id: id(4) };
        let followed = support::list_of(EdgeList::Following, id(1), 10);
        eventually("reads are rejected too", PATIENCE, async || {
            system.list(&followed).await.is_err()
                && other.list_edges(followed.clone()).await.is_err()
        })
        .await;
        let rejected = other.unfollow(request).await;
        support::assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
        let rejected = system.list(&followed).await;
        support::assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
        assert_eq!(database.edges().await.len(), 2, "nothing was recorded");
        // The sweeper goes on in the other partitions.
        let pending = |n| format!("rel:{{{}}}:pending", user(n).partition());
        for n in [1, 5] {
            let entry = format!("follow:{}>{}", id(n), id(6));
            let add = redis::cmd("ZADD").arg(pending(n)).arg(1).arg(entry).take();
            let () = add.query_async(&mut admin).await.unwrap();
        }
        eventually("the entry is settled", PATIENCE, async || {
            let left: u64 =
                redis::cmd("ZCARD").arg(pending(5)).query_async(&mut admin.clone()).await.unwrap();
            left == 0
        })
        .await;
        let release = redis::cmd("DEL").arg(&lease).take();
        let () = release.query_async(&mut admin).await.unwrap();
        eventually("the partition is recovered", PATIENCE, async || {
            system.list(&followed).await.is_ok() && other.unfollow(request).await.is_ok()
        })
        .await;
        let following = system.list(&followed).await.unwrap();
        assert_eq!(support::ids(&following.edges), [id(3), id(2)]);
    }
}

#[tokio::test]
async fn a_loss_of_changes_that_were_not_recorded_is_found_and_recovered() {
    let database = Database::postgres().await;
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    system.follow(id(1), id(2)).await.unwrap();
    database.has(&[((FOLLOWS, id(1), id(2)), true)]).await;
    let Database::Postgres(server) = &database else { unreachable!() };
    server.kill();
    system.follow(id(1), id(3)).await.unwrap();
    lose_newest_change(&system).await;
    let rejected = system.follow(id(1), id(4)).await;
    support::assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
    server.restart().await;
    eventually("the partition is recovered", PATIENCE, async || {
        system.follow(id(1), id(4)).await.is_ok()
    })
    .await;
    database.has(&[2, 3, 4].map(|target| ((FOLLOWS, id(1), id(target)), true))).await;
}

/// Restores one store from the other by the RPC, and returns how many partitions that changed.
async fn restore(system: &System, source: RestoreSource, force: bool) -> Result<usize, Status> {
    let request = pb::RestoreRequest { source: source.into(), force };
    let mut partitions = system.client.clone().restore(request).await?.into_inner();
    let (mut all, mut changed) = (0, 0);
    while let Some(restored) = partitions.message().await? {
        let partition = restored.partition.unwrap();
        // A new database has recorded nothing before.
        let is_recorded = partition.recorded_at.is_some() && partition.recorded_version != "0-0";
        assert!(is_recorded || source == RestoreSource::Redis, "{partition:?}");
        all += 1;
        changed += usize::from(partition.restored);
    }
    assert_eq!(all, usize::from(Partition::COUNT));
    Ok(changed)
}

#[tokio::test]
async fn damaged_rows_are_named_and_left_out() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        let [one, two, three, four, five, six] = [1, 2, 3, 4, 5, 6].map(id);
        for (from, to) in [(one, two), (two, one), (three, one), (four, one), (one, six)] {
            system.follow(from, to).await.unwrap();
        }
        mute(&system, one, four).await;
        system.block(six, four).await.unwrap();
        system.client.clone().forget_user(pb::ForgetUserRequest { user_id: five }).await.unwrap();
        settle(&system, &database, 3).await;
        let deletion = "SELECT complete FROM deleted_accounts";
        eventually("all is recorded", PATIENCE, async || {
            database.edges().await.len() == 8 && database.number(deletion).await == Some(1)
        })
        .await;
        let other = system.another(&[&database.flag()]).await;
        // PostgreSQL rejects what is no number.
        let bad_number = if matches!(database, Database::Sqlite(_)) { "'x'" } else { "-2" };
        let of = |kind: i64, from: u64, to: u64| {
            format!("WHERE kind = {kind} AND source = {from} AND target = {to}")
        };
        for change in [
            format!("UPDATE edges SET kind = 9 {}", of(FOLLOWS, one, two)),
            format!("UPDATE edges SET version = -1 {}", of(FOLLOWS, two, one)),
            format!("UPDATE edges SET version = {bad_number} {}", of(MUTES, one, four)),
            format!("UPDATE edges SET source = -{three} {}", of(FOLLOWS, three, one)),
            format!(
                "UPDATE edges SET target_partition = (target_partition + 1) % 1024 {}",
                of(FOLLOWS, four, one)
            ),
            "UPDATE deleted_accounts SET since = -1".to_owned(),
        ] {
            let mut connection = AnyConnection::connect(&database.url()).await.unwrap();
            let change = sqlx::query(sqlx::AssertSqlSafe(change)).execute(&mut connection).await;
            assert_eq!(change.unwrap().rows_affected(), 1);
        }
        flush(&system).await;
        let edge = |kind: i64, from: i64, to: u64| {
            ("edges".to_owned(), format!("kind={kind} source={from} target={to}"))
        };
        let expected = [
            edge(9, one as i64, two),
            edge(FOLLOWS, two as i64, one),
            edge(MUTES, one as i64, four),
            edge(FOLLOWS, -(three as i64), one),
            edge(FOLLOWS, four as i64, one),
            ("deleted_accounts".to_owned(), format!("account={five}")),
        ];
        let expected = BTreeSet::from(expected);
        // By any process, whichever has recovered a partition.
        for mut client in [system.client.clone(), other] {
            let request = pb::RestoreRequest::default();
            let mut partitions = client.restore(request).await.unwrap().into_inner();
            let mut damaged = BTreeSet::new();
            while let Some(restored) = partitions.message().await.unwrap() {
                let rows = restored.partition.unwrap().damaged;
                damaged.extend(rows.into_iter().map(|row| (row.table, row.key)));
            }
            assert_eq!(damaged, expected);
        }
        let following = support::list_of(EdgeList::Following, one, 10);
        eventually("the graph is served", PATIENCE, async || system.list(&following).await.is_ok())
            .await;
        assert_eq!(support::ids(&system.list(&following).await.unwrap().edges), [three, six]);
        let blocks = &lists(&system, &[six]).await[3].1;
        assert_eq!(support::ids(blocks), [four]);
        settle(&system, &database, 7).await;
    }
}

/// An end must not be older than its beginning, or a recovery would undo it.
#[tokio::test]
async fn ends_are_newer_than_beginnings_while_a_clock_is_ahead() {
    let database = Database::sqlite();
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    settle(&system, &database, 2).await;
    let key = format!("rel:{{{}}}:clock", user(1).partition());
    let mut admin = support::admin_of(&system.redis, &key).await;
    let clock: u64 = redis::cmd("GET").arg(&key).query_async(&mut admin).await.unwrap();
    // A minute ahead.
    let ahead = redis::cmd("SET").arg(&key).arg(clock + 60 * 4_000).take();
    let () = ahead.query_async(&mut admin).await.unwrap();
    mute(&system, id(1), id(2)).await;
    database.has(&[((FOLLOWS, id(1), id(2)), true), ((MUTES, id(1), id(2)), true)]).await;
    let version = "SELECT version FROM edges WHERE kind = 5";
    let muted = database.number(version).await.unwrap();
    let unmute = pb::UnmuteRequest { user_id: id(1), target_id: id(2) };
    system.client.clone().unmute(unmute).await.unwrap();
    database.has(&[((FOLLOWS, id(1), id(2)), true)]).await;
    assert!(database.number(version).await.unwrap() >= muted);
}

async fn flush(system: &System) {
    for node in system.redis.nodes() {
        // Replicas reject it.
        let _: Result<(), _> = redis::cmd("FLUSHALL").query_async(&mut node.admin().await).await;
    }
}

/// Returns the public lists, blocks and mutes of some accounts.
async fn lists(system: &System, accounts: &[u64]) -> Vec<(u64, Vec<pb::Edge>)> {
    let mut lists = Vec::new();
    for &account in accounts {
        for list in [
            EdgeList::Following,
            EdgeList::Followers,
            EdgeList::Mutuals,
            EdgeList::Blocks,
            EdgeList::Mutes,
        ] {
            let request = match list {
                EdgeList::Blocks | EdgeList::Mutes => {
                    support::list_for(account, list, account, 100)
                }
                _ => support::list_of(list, account, 100),
            };
            lists.push((account, system.list_all(request).await));
        }
    }
    lists
}

async fn graph(system: &System) {
    for (from, to) in [(1, 2), (2, 1), (3, 1), (1, 3), (4, 1), (1, 4), (2, 3), (5, 2), (2, 5)] {
        system.follow(id(from), id(to)).await.unwrap();
    }
    system.unfollow(id(1), id(3)).await.unwrap();
    system.block(id(2), id(4)).await.unwrap();
    system.block(id(3), id(2)).await.unwrap();
    mute(system, id(1), id(2)).await;
    system.client.clone().forget_user(pb::ForgetUserRequest { user_id: id(5) }).await.unwrap();
    system.converges().await;
}

/// Waits until everything so far is recorded: all partitions, and an edge that is made now.
async fn settle(system: &System, database: &Database, to: u64) {
    eventually("all partitions are recorded", PATIENCE, async || {
        let count = "SELECT COUNT(*) FROM journal_positions";
        database.number(count).await == Some(i64::from(Partition::COUNT))
    })
    .await;
    system.follow(id(1), id(to)).await.unwrap();
    let edge = (FOLLOWS, id(1), id(to));
    eventually("the follow is recorded", PATIENCE, async || {
        database.edges().await.get(&edge) == Some(&true)
    })
    .await;
}

#[tokio::test]
async fn an_empty_redis_is_restored_by_an_operator() {
    for (database, topology) in
        Database::both().await.into_iter().zip([Topology::Cluster, Topology::Single])
    {
        let system = System::start_with(topology, &[&database.flag()]).await;
        graph(&system).await;
        settle(&system, &database, 6).await;
        system.converges().await;
        let accounts: Vec<u64> = (1..7).map(id).collect();
        let before = lists(&system, &accounts).await;
        flush(&system).await;
        let rejected = system.follow(id(1), id(7)).await.unwrap_err();
        assert_eq!(rejected.code(), Code::Unavailable);
        let followed = support::list_of(EdgeList::Following, id(1), 10);
        eventually("nothing is served", PATIENCE, async || {
            let listed = system.list(&followed).await;
            listed.is_err_and(|status| reason_of(&status) == Some(ErrorReason::StoresMismatched))
        })
        .await;
        assert!(!system.store.is_ready().await);
        // A process that starts now never serves an empty graph.
        let starting = Worker { index: 1, count: 2 };
        let (mut other, _) = System::serve(&system.redis, starting, &[&database.flag()]).await;
        let rejected = other.list_edges(followed.clone()).await;
        assert_eq!(rejected.unwrap_err().code(), Code::Unavailable);

        // A restored partition is known again, so that the jobs recover others too.
        let restored = restore(&system, RestoreSource::Unspecified, false).await.unwrap();
        assert_eq!(restored, usize::from(Partition::COUNT));
        system.converges().await;
        assert_eq!(lists(&system, &accounts).await, before);
        let gone = system.follow(id(1), id(5)).await;
        support::assert_rejected(gone, Code::NotFound, ErrorReason::UserNotFound);
        // Recording goes on, with versions above all recorded ones.
        settle(&system, &database, 8).await;
        let newest = system.list(&followed).await.unwrap().edges[0];
        assert_eq!(newest.user_id, id(8));
        assert_eq!(restore(&system, RestoreSource::Unspecified, false).await.unwrap(), 0);
        assert!(system.store.is_ready().await);
    }
}

#[tokio::test]
async fn no_read_sees_a_redis_that_has_come_back_empty() {
    let database = Database::sqlite();
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    system.follow(id(1), id(2)).await.unwrap();
    database.has(&[((FOLLOWS, id(1), id(2)), true)]).await;
    let look = async || {
        let request = pb::GetRelationRequest { viewer_id: id(1), target_id: id(2) };
        system.client.clone().get_relation(request).await
    };
    let redis = &system.redis.nodes()[0];
    for is_lost in [false, true] {
        redis.kill();
        if is_lost {
            redis.delete_data();
        }
        let restart = async {
            redis.restart().await;
            eventually("calls are answered", PATIENCE, async || {
                let answer = look().await;
                answer.is_ok() != is_lost
                    && answer.err().and_then(|status| reason_of(&status))
                        == is_lost.then_some(ErrorReason::StoresMismatched)
            })
            .await;
        };
        let mut restart = std::pin::pin!(restart);
        loop {
            tokio::select! {
                () = &mut restart => break,
                answer = look() => if let Ok(answer) = answer {
                    let relation = answer.into_inner().relation.unwrap();
                    assert_eq!(relation.state, FOLLOWING);
                },
            }
        }
    }
}

#[tokio::test]
async fn an_emptied_shard_is_recovered_at_once() {
    let database = Database::sqlite();
    let system = System::start_with(Topology::Cluster, &[&database.flag()]).await;
    graph(&system).await;
    settle(&system, &database, 6).await;
    system.converges().await;
    let accounts: Vec<u64> = (1..7).map(id).collect();
    let before = lists(&system, &accounts).await;
    let key = format!("rel:{{{}}}:journal", user(1).partition());
    let mut shard = support::admin_of(&system.redis, &key).await;
    let () = redis::cmd("FLUSHALL").query_async(&mut shard).await.unwrap();
    eventually("the shard is recovered", PATIENCE, async || {
        let is_served = system.follow(id(1), id(2)).await.is_ok();
        is_served && restore(&system, RestoreSource::Unspecified, false).await.unwrap() == 0
    })
    .await;
    settle(&system, &database, 8).await;
    system.unfollow(id(1), id(8)).await.unwrap();
    system.converges().await;
    assert_eq!(lists(&system, &accounts).await, before);
}

#[tokio::test]
async fn a_redis_with_other_data_is_restored_by_force_alone() {
    other_data(RestoreSource::Unspecified, &[id(3), id(2)]).await;
}

#[tokio::test]
async fn a_database_is_written_anew_from_a_redis_with_older_versions() {
    other_data(RestoreSource::Redis, &[id(3)]).await;
}

async fn other_data(source: RestoreSource, expected: &[u64]) {
    let database = Database::sqlite();
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    settle(&system, &database, 2).await;
    flush(&system).await;
    // Without a database, a process takes Redis for a new one.
    let request = pb::FollowRequest { follower_id: id(1), target_id: id(3) };
    system.another(&[]).await.follow(request).await.unwrap();
    let rejected = restore(&system, RestoreSource::Unspecified, false).await;
    support::assert_rejected(rejected, Code::FailedPrecondition, ErrorReason::NotRestorable);
    restore(&system, source, true).await.unwrap();
    let followed = support::list_of(EdgeList::Following, id(1), 10);
    eventually("the graph is served", PATIENCE, async || system.list(&followed).await.is_ok())
        .await;
    assert_eq!(support::ids(&system.list(&followed).await.unwrap().edges), expected);
    settle(&system, &database, 4).await;
}

#[tokio::test]
async fn a_database_is_not_erased_because_redis_is_empty_or_another_one() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        system.follow(id(1), id(2)).await.unwrap();
        let recorded = [((FOLLOWS, id(1), id(2)), true)];
        database.has(&recorded).await;
        flush(&system).await;
        for is_other in [false, true] {
            if is_other {
                // Another database has recorded this Redis.
                let other = Database::sqlite();
                let (client, _) =
                    System::serve(&system.redis, Worker::ONLY, &[&other.flag()]).await;
                let request = pb::FollowRequest { follower_id: id(1), target_id: id(3) };
                let follow = async || client.clone().follow(request).await.is_ok();
                eventually("the other one serves", PATIENCE, follow).await;
            }
            let rejected = restore(&system, RestoreSource::Redis, false).await;
            support::assert_rejected(
                rejected,
                Code::FailedPrecondition,
                ErrorReason::NotRestorable,
            );
            database.has(&recorded).await;
        }
        flush(&system).await;
        restore(&system, RestoreSource::Unspecified, false).await.unwrap();
        let followed = support::list_of(EdgeList::Following, id(1), 10);
        assert_eq!(support::ids(&system.list(&followed).await.unwrap().edges), [id(2)]);
    }
}

#[tokio::test]
async fn another_database_is_not_filled_unless_an_operator_says_so() {
    for (database, other) in Database::both().await.into_iter().zip(Database::both().await) {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        settle(&system, &database, 2).await;
        let (client, _) = System::serve(&system.redis, Worker::ONLY, &[&other.flag()]).await;
        let replaced = System { client, ..system };
        // Redis serves what it has.
        eventually("Redis is served", PATIENCE, async || {
            replaced.follow(id(1), id(3)).await.is_ok()
        })
        .await;
        let recorded = restore(&replaced, RestoreSource::Unspecified, false).await;
        support::assert_rejected(recorded, Code::FailedPrecondition, ErrorReason::NotRestorable);
        assert_eq!(other.edges().await.len(), 0);
        restore(&replaced, RestoreSource::Redis, false).await.unwrap();
        other.has(&[((FOLLOWS, id(1), id(2)), true), ((FOLLOWS, id(1), id(3)), true)]).await;
        settle(&replaced, &other, 4).await;
    }
}

#[tokio::test]
async fn an_older_copy_of_redis_is_recovered() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        system.follow(id(1), id(2)).await.unwrap();
        settle(&system, &database, 3).await;
        let partition = user(1).partition();
        let key = |kind: &str| format!("rel:{{{partition}}}:{kind}");
        let mut admin = support::admin_of(&system.redis, &key("journal")).await;
        let copied = support::journal_texts(&system.redis, partition).await.len();
        let of_user = |kind: &str| format!("{}:{}", key(kind), id(1));
        let score = redis::cmd("ZSCORE").arg(of_user("following")).arg(id(2)).take();
        let since: String = score.query_async(&mut admin).await.unwrap();
        system.unfollow(id(1), id(2)).await.unwrap();
        settle(&system, &database, 4).await;
        system.block(id(1), id(6)).await.unwrap();
        settle(&system, &database, 5).await;
        // The copy has what followed 2 and 3 alone. It then took a version that was recorded.
        let newer = support::journal_texts(&system.redis, partition).await;
        let script = format!(
            "redis.call('ZREM', KEYS[2], '{four}', '{five}') redis.call('SREM', KEYS[3], '{four}', '{five}') \
             redis.call('ZADD', KEYS[2], '{since}', '{two}') redis.call('SADD', KEYS[3], '{two}') \
             redis.call('DEL', KEYS[4])",
            two = id(2),
            four = id(4),
            five = id(5),
        );
        let edit = redis::cmd("EVAL")
            .arg(format!("{script} return 1"))
            .arg(4)
            .arg(key("journal"))
            .arg(of_user("following"))
            .arg(of_user("following_ids"))
            .arg(of_user("blocks"))
            .take();
        let () = edit.query_async(&mut admin).await.unwrap();
        let (lost, _) = &newer[copied];
        let lost_later: Vec<String> =
            newer[copied..].iter().map(|(version, _)| version.to_string()).collect();
        let deleted: usize = redis::cmd("XDEL")
            .arg(key("journal"))
            .arg(&lost_later)
            .query_async(&mut admin)
            .await
            .unwrap();
        assert_eq!(deleted, lost_later.len(), "{lost}");
        let following = support::list_of(EdgeList::Following, id(1), 10);
        eventually("the copy is recovered", PATIENCE, async || {
            let following = system.list(&following).await;
            following.is_ok_and(|page| support::ids(&page.edges) == [5, 4, 3].map(id))
        })
        .await;
        system.converges().await;
        let blocks = &lists(&system, &[id(1)]).await[3].1;
        assert_eq!(support::ids(blocks), [id(6)]);
        settle(&system, &database, 7).await;
    }
}

#[tokio::test]
async fn a_loss_that_a_call_finds_is_recovered_by_a_process_that_has_not_seen_what_was_lost() {
    for database in Database::both().await {
        let system = System::start_without_jobs(Topology::Single).await;
        let partition = user(1).partition();
        support::open_journal(&system.redis, partition).await;
        for target in 2..5 {
            system.follow(id(1), id(target)).await.unwrap();
        }
        let key = format!("rel:{{{partition}}}:journal");
        let mut admin = support::admin_of(&system.redis, &key).await;
        let script = "redis.call('DEL', KEYS[1]) redis.call('XADD', KEYS[1], '1-0', 'c', 'opened')";
        let lose = redis::cmd("EVAL").arg(script).arg(1).arg(&key).take();
        let () = lose.query_async(&mut admin).await.unwrap();
        let rejected = system.follow(id(1), id(5)).await;
        support::assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
        let _other = system.another(&[&database.flag()]).await;
        eventually("the partition is recovered", PATIENCE, async || {
            system.follow(id(1), id(5)).await.is_ok()
        })
        .await;
        let follows = (2..6).map(|target| ((FOLLOWS, id(1), id(target)), true));
        database.has(&follows.collect::<Vec<_>>()).await;
    }
}

#[tokio::test]
async fn an_interrupted_recovery_rejects_changes_and_is_repeated() {
    is_repeated(false).await;
    // It had written to the database what Redis alone had, and not yet the reverse.
    is_repeated(true).await;
}

async fn is_repeated(is_merged: bool) {
    let database = Database::sqlite();
    let system = System::start_with(Topology::Single, &[&database.flag()]).await;
    settle(&system, &database, 2).await;
    let partition = user(1).partition();
    let key = format!("rel:{{{partition}}}:journal");
    let mut admin = support::admin_of(&system.redis, &key).await;
    // Its process has ended, and its lease ends soon.
    let hold = redis::cmd("SET").arg(format!("{key}:lease")).arg("x").arg("PX").arg(3_000).take();
    let () = hold.query_async(&mut admin).await.unwrap();
    let begin = redis::cmd("XADD").arg(&key).arg("9-0").arg("c").arg("recovering x 4").take();
    let () = begin.query_async(&mut admin).await.unwrap();
    if is_merged {
        let begun: Version = "9-0".parse().unwrap();
        let merge = format!(
            "UPDATE journal_positions SET version = {}, entry = 'recovering x 4' \
             WHERE partition = {partition}",
            begun.get()
        );
        let mut connection = AnyConnection::connect(&database.url()).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(merge)).execute(&mut connection).await.unwrap();
    }
    let rejected = system.follow(id(1), id(3)).await;
    support::assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
    eventually("the recovery is repeated", PATIENCE, async || {
        system.follow(id(1), id(3)).await.is_ok()
    })
    .await;
    settle(&system, &database, 4).await;
    assert_eq!(restore(&system, RestoreSource::Unspecified, false).await.unwrap(), 0);
}

#[tokio::test]
async fn a_database_from_an_older_copy_is_written_anew() {
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        settle(&system, &database, 2).await;
        settle(&system, &database, 3).await;
        let partition = user(1).partition();
        // In the copy, an account is followed that no longer is, and another not yet.
        for statement in [
            format!("UPDATE edges SET target = {} WHERE target = {}", id(9), id(2)),
            format!(
                "UPDATE journal_positions SET version = 1, entry = 'x' WHERE partition = {partition}"
            ),
        ] {
            let mut connection = AnyConnection::connect(&database.url()).await.unwrap();
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        }
        let key = format!("rel:{{{partition}}}:journal");
        let mut admin = support::admin_of(&system.redis, &key).await;
        let trim = redis::cmd("XTRIM").arg(&key).arg("MAXLEN").arg(1).take();
        let () = trim.query_async(&mut admin).await.unwrap();
        database.has(&[((FOLLOWS, id(1), id(2)), true), ((FOLLOWS, id(1), id(3)), true)]).await;
    }
}

#[tokio::test]
async fn all_deletions_of_a_partition_are_restored() {
    // More than a page.
    const DELETIONS: u64 = 2_100;
    for database in Database::both().await {
        let system = System::start_with(Topology::Single, &[&database.flag()]).await;
        settle(&system, &database, 2).await;
        let partition = user(1).partition();
        let number = u64::from(partition.number());
        let account = |n: u64| (n << 12) + number * 4;
        let rows = (1_000..1_000 + DELETIONS).map(|n| format!("({}, {number}, 4, 1)", account(n)));
        let insert = format!(
            "INSERT INTO deleted_accounts (account, partition, since, complete) VALUES {}",
            rows.collect::<Vec<_>>().join(", ")
        );
        let mut connection = AnyConnection::connect(&database.url()).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
        let key = format!("rel:{{{partition}}}:journal");
        let mut admin = support::admin_of(&system.redis, &key).await;
        let () = redis::cmd("DEL").arg(key).query_async(&mut admin).await.unwrap();
        eventually("the deletions are restored", PATIENCE, async || {
            let count = redis::cmd("SCARD").arg(format!("rel:{{{partition}}}:forgotten")).take();
            let count: u64 = count.query_async(&mut admin).await.unwrap();
            count == DELETIONS
        })
        .await;
    }
}
