//! Durability levels: an acknowledged change survives what its level states, and a change that may
//! not survive it is not acknowledged.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use futures::future::join_all;
use microblog_chassis::Worker;
use microblog_domain::Partition;
use microblog_proto::{common::ErrorReason, relation as pb};
use microblog_relation::{StartError, service};
use microblog_testkit::{
    Cost, CostMeter, RedisCluster, RedisServer, Store, Topology, eventually, redis,
};
use sqlx::{Connection as _, PgConnection};
use tonic::{Code, Status};

use crate::support::{
    self, Client, FOLLOWING, NONE, PATIENCE, System, assert_rejected,
    database::{BLOCKS, Database, FOLLOWS, MUTES, Record as _},
    id, user,
};

/// Twice the timeouts of Redis and of the database together: the machine is busy.
const BOUND: Duration = Duration::from_secs(10);

const RECORDED: &str = "--durability=recorded";
const REPLICATED: &str = "--durability=replicated";

/// Starts a service with a level. Returns once it acknowledges changes of all partitions: the
/// database is filled.
async fn start(topology: Topology, database: &Database, level: &str) -> System {
    let system = System::start_with(topology, &[&database.flag(), level]).await;
    filled(&system).await;
    system
}

/// Waits until all partitions are recorded. They are filled in ascending order.
async fn filled(system: &System) {
    let last = opened(system).await;
    let of_last = (900_000 << 12) + u64::from(last.number()) * 4;
    eventually("a change of the last partition is acknowledged", PATIENCE, async || {
        match system.follow(of_last, id(900_001)).await {
            Ok(_) => true,
            Err(status) if status.code() == Code::Unavailable => false,
            Err(status) => panic!("{status:?}"),
        }
    })
    .await;
}

/// Waits until all journals are open, and returns the last partition.
async fn opened(system: &System) -> Partition {
    let last = Partition::all().last().unwrap();
    eventually("the journals are open", PATIENCE, async || {
        !support::journal_texts(&system.redis, last).await.is_empty()
    })
    .await;
    last
}

async fn follow(client: &Client, follower_id: u64, target_id: u64) -> Result<i32, Status> {
    let request = pb::FollowRequest { follower_id, target_id };
    Ok(client.clone().follow(request).await?.into_inner().state)
}

/// Asserts that a change was not acknowledged, in time.
async fn assert_not_durable(system: &System, from: u64, to: u64, reason: ErrorReason) {
    let begun = Instant::now();
    assert_rejected(system.follow(id(from), id(to)).await, Code::Unavailable, reason);
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_level_without_a_database_is_a_start_error() {
    for level in [RECORDED, REPLICATED] {
        let config = support::config("redis://127.0.0.1:1", &[level]);
        let started = service(&config, Worker::ONLY).await;
        let error = started.err().expect("an error");
        assert!(matches!(error, StartError::Database(_)));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("--database-url"), "{source}");
    }
}

#[tokio::test]
async fn recorded_changes_are_in_the_database_when_they_are_acknowledged() {
    for (database, topology) in
        Database::both().await.into_iter().zip([Topology::Single, Topology::Cluster])
    {
        let system = start(topology, &database, RECORDED).await;
        let [one, two, three] = [id(1), id(2), id(3)];
        let recorded = async |kind, source, target| {
            database.edges().await.get(&(kind, source, target)).copied()
        };
        system.follow(one, two).await.unwrap();
        assert_eq!(recorded(FOLLOWS, one, two).await, Some(true));
        system.unfollow(one, two).await.unwrap();
        assert_eq!(recorded(FOLLOWS, one, two).await, Some(false));
        system.follow(three, one).await.unwrap();
        system.block(one, three).await.unwrap();
        assert_eq!(recorded(BLOCKS, one, three).await, Some(true));
        assert_eq!(recorded(FOLLOWS, three, one).await, Some(false), "of another partition");
        let mute = pb::MuteRequest { user_id: one, target_id: two };
        system.client.clone().mute(mute).await.unwrap();
        assert_eq!(recorded(MUTES, one, two).await, Some(true));
        let follows: Vec<_> = (10..500).map(|target| (one, id(target))).collect();
        assert_eq!(system.import(&follows).await.created, 490);
        let edges = database.edges().await;
        assert!(follows.iter().all(|&(one, target)| edges[&(FOLLOWS, one, target)]));
    }
}

#[tokio::test]
async fn a_change_is_not_acknowledged_while_the_database_is_away() {
    let database = Database::postgres().await;
    let Database::Postgres(server) = &database else { unreachable!() };
    let system = start(Topology::Single, &database, RECORDED).await;
    for (is_killed, to) in [(true, 2), (false, 3)] {
        if is_killed {
            server.kill();
        } else {
            server.pause();
        }
        assert_not_durable(&system, 1, to, ErrorReason::NotRecorded).await;
        // It exists already, and is not recorded yet.
        assert_not_durable(&system, 1, to, ErrorReason::NotRecorded).await;
        if is_killed {
            server.restart().await;
        } else {
            server.resume();
        }
        eventually("the change is acknowledged", PATIENCE, async || {
            system.follow(id(1), id(to)).await.is_ok()
        })
        .await;
        assert_eq!(database.edges().await.get(&(FOLLOWS, id(1), id(to))), Some(&true));
    }
    system.converges().await;
}

#[tokio::test]
async fn an_unchanged_result_waits_for_the_change_that_it_relies_on() {
    let database = Database::postgres().await;
    let Database::Postgres(server) = &database else { unreachable!() };
    let system = start(Topology::Single, &database, RECORDED).await;
    let other = system.another(&[]).await;
    server.kill();
    follow(&other, id(1), id(2)).await.expect("the other process acknowledges local changes");
    assert_not_durable(&system, 1, 2, ErrorReason::NotRecorded).await;
    server.restart().await;
    eventually("the change is acknowledged", PATIENCE, async || {
        system.follow(id(1), id(2)).await.is_ok()
    })
    .await;
    assert_eq!(database.edges().await.get(&(FOLLOWS, id(1), id(2))), Some(&true));
}

#[tokio::test]
async fn concurrent_changes_share_transactions() {
    let database = Database::postgres().await;
    let system = start(Topology::Single, &database, RECORDED).await;
    let follow = |n| system.follow(id(n), id(n + 1));
    join_all((100..164).map(follow)).await.into_iter().for_each(|followed| {
        assert_eq!(followed.unwrap(), FOLLOWING);
    });
    let mut connection = PgConnection::connect(&database.url()).await.unwrap();
    let transactions: i64 = sqlx::query_scalar(
        "SELECT count(DISTINCT xmin::text) FROM edges WHERE source >= $1 AND source < $2",
    )
    .bind(id(100) as i64)
    .bind(id(164) as i64)
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!((1..=16).contains(&transactions), "{transactions} transactions");
}

#[tokio::test]
async fn two_processes_acknowledge_changes_of_the_same_partition() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, RECORDED).await;
        let other = system.another(&[&database.flag(), RECORDED]).await;
        let clients = [&system.client, &other];
        let follow = |n| follow(clients[n as usize % 2], id(1), id(n));
        for followed in join_all((2..100).map(follow)).await {
            assert_eq!(followed.unwrap(), FOLLOWING);
        }
        let edges = database.edges().await;
        assert!((2..100).all(|n| edges[&(FOLLOWS, id(1), id(n))]));
    }
}

#[tokio::test]
async fn an_emptied_redis_has_lost_nothing_that_was_recorded() {
    for database in Database::both().await {
        let system = start(Topology::Single, &database, RECORDED).await;
        let count = Cell::new(0);
        let flush = async {
            eventually("changes are acknowledged", PATIENCE, async || count.get() >= 32).await;
            let mut admin = system.redis.nodes()[0].admin().await;
            redis::cmd("FLUSHALL").exec_async(&mut admin).await.unwrap();
        };
        // Each account follows others until it is rejected.
        let follow = async |from: u64| {
            let mut followed = Vec::new();
            for to in 200.. {
                match system.follow(id(from), id(to)).await {
                    Ok(_) => {
                        count.set(count.get() + 1);
                        followed.push((FOLLOWS, id(from), id(to)));
                    }
                    Err(status) => {
                        let rejected = Err::<(), _>(status);
                        assert_rejected(rejected, Code::Unavailable, ErrorReason::Recovering);
                        return followed;
                    }
                }
            }
            followed
        };
        let (acknowledged, ()) = tokio::join!(join_all((1..33).map(follow)), flush);
        let edges = database.edges().await;
        let acknowledged: Vec<_> = acknowledged.into_iter().flatten().collect();
        assert!(acknowledged.len() >= 32, "{}", acknowledged.len());
        assert!(acknowledged.iter().all(|edge| edges.get(edge) == Some(&true)));
    }
}

#[tokio::test]
async fn a_local_change_reads_nothing_more_for_durability() {
    let system = System::start_without_jobs(Topology::Single).await;
    support::open_journal(&system.redis, user(1).partition()).await;
    system.follow(id(1), id(2)).await.unwrap();
    let mut meter = CostMeter::new(&system.redis.nodes()[0]).await;
    let unchanged = meter.cost(async |_| {
        system.follow(id(1), id(2)).await.unwrap();
    });
    let Cost { commands, .. } = unchanged.await;
    assert_eq!(commands.get("xrevrange"), None, "{commands:?}");
}

/// Starts a service on a primary.
async fn replicated(primary: RedisServer, database: &Database) -> System {
    let flags = [&*database.flag(), REPLICATED];
    System::start_on(Store::Single(primary), Worker::ONLY, &flags).await
}

#[tokio::test]
async fn replicated_changes_wait_for_the_replica() {
    let database = Database::sqlite();
    let primary = RedisServer::start().await;
    let replica = primary.start_replica().await;
    let system = replicated(primary, &database).await;
    filled(&system).await;
    let concurrent = join_all((100..164).map(|n| system.follow(id(n), id(n + 1)))).await;
    assert!(concurrent.into_iter().all(|followed| followed.unwrap() == FOLLOWING));
    replica.pause();
    assert_not_durable(&system, 1, 2, ErrorReason::NotReplicated).await;
    // It exists already, and is not replicated yet.
    assert_not_durable(&system, 1, 2, ErrorReason::NotReplicated).await;
    let local = system.another(&[]).await;
    assert_eq!(follow(&local, id(1), id(3)).await.unwrap(), FOLLOWING);
    replica.resume();
    eventually("the change is acknowledged", PATIENCE, async || {
        system.follow(id(1), id(2)).await.is_ok()
    })
    .await;
    replica.kill();
    assert_not_durable(&system, 1, 4, ErrorReason::NotReplicated).await;
    replica.restart().await;
    eventually("the change is acknowledged", PATIENCE, async || {
        system.follow(id(1), id(4)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn replicated_changes_need_as_many_replicas_as_are_configured() {
    let database = Database::sqlite();
    let primary = RedisServer::start().await;
    let system = replicated(primary, &database).await;
    opened(&system).await;
    assert_not_durable(&system, 1, 2, ErrorReason::NotReplicated).await;
    let Store::Single(primary) = &system.redis else { unreachable!() };
    let _one = primary.start_replica().await;
    filled(&system).await;
    let flags = [&*database.flag(), REPLICATED, "--durability-replicas=2"];
    let other = system.another(&flags).await;
    let rejected = follow(&other, id(1), id(3)).await;
    assert_rejected(rejected, Code::Unavailable, ErrorReason::NotReplicated);
    let _two = primary.start_replica().await;
    eventually("the change is acknowledged", PATIENCE, async || {
        follow(&other, id(1), id(3)).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_failover_loses_a_local_change_and_no_acknowledged_replicated_one() {
    let database = Database::sqlite();
    let cluster = RedisCluster::start(3, 1).await;
    let flags = [&*database.flag(), REPLICATED];
    let system = System::start_on(Store::Cluster(cluster), Worker::ONLY, &flags).await;
    let Store::Cluster(cluster) = &system.redis else { unreachable!() };
    filled(&system).await;
    let concurrent = join_all((100..164).map(|n| system.follow(id(n), id(n + 1)))).await;
    assert!(concurrent.into_iter().all(|followed| followed.unwrap() == FOLLOWING));
    system.follow(id(1), id(2)).await.unwrap();

    let key = format!("rel:{{{}}}:clock", user(1).partition());
    let primary = cluster.primary_of(&key, 0).await;
    // The nodes n and n + 3 replicate each other. A stall may have changed their roles.
    let replica = (primary + 3) % 6;
    let local = system.another(&[]).await;
    follow(&local, id(2), id(1)).await.unwrap();
    // Without a connection to its primary, the replica gets nothing more.
    cluster.nodes()[replica].pause();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("replica");
    kill.exec_async(&mut cluster.nodes()[primary].admin().await).await.unwrap();
    assert_eq!(follow(&local, id(1), id(3)).await.unwrap(), FOLLOWING, "acknowledged");
    assert_not_durable(&system, 1, 4, ErrorReason::NotReplicated).await;
    cluster.kill(primary);
    cluster.nodes()[replica].resume();

    let relation = async |target_id| {
        let request = pb::GetRelationRequest { viewer_id: id(1), target_id };
        let response = local.clone().get_relation(request).await.ok()?;
        Some(response.into_inner().relation.unwrap().state)
    };
    eventually("the replica is the primary", PATIENCE, async || relation(id(2)).await.is_some())
        .await;
    assert_eq!(relation(id(2)).await, Some(support::MUTUAL), "the acknowledged change is there");
    assert_eq!(relation(id(3)).await, Some(NONE), "the local change is lost");
}
