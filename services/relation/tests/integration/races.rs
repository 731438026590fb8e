//! Groups of calls beside other transactions.

use futures::future::join_all;
use microblog_proto::relation as pb;
use microblog_testkit::{Database, PATIENCE, Store, Topology, eventually};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _};

use crate::support::{Client, FOLLOWING, NONE, System, id, import};

/// A group locks the rows of its accounts, and then reads their edges. An account without a row has no lock:
/// it may get its row and its edges in between.
#[tokio::test]
async fn an_edge_of_accounts_that_are_newer_than_the_group_is_left_alone() {
    let database = Database::postgres().await;
    let system = System::start_on(Store::start(Topology::Single).await, database, &[]).await;
    let Database::Postgres(server) = &system.database else { unreachable!() };
    let (follower, target) = (id(1), id(2));

    sqlx::any::install_default_drivers();
    let mut other = AnyConnection::connect(&server.url()).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    other.execute("LOCK TABLE follows IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let request = pb::UnfollowRequest { follower_id: follower, target_id: target };
    let mut client = system.client.clone();
    let unfollow = tokio::spawn(async move { client.unfollow(request).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND query LIKE '%SELECT since FROM follows%'";
    eventually("the group reads the edges", PATIENCE, async || server.sql(waiting) == "1").await;
    // Both with the revisions that one follow leaves.
    let edge = format!(
        "INSERT INTO accounts VALUES \
         ({follower}, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0), \
         ({target}, 1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0); \
         INSERT INTO follows VALUES ({follower}, {target}, 1); COMMIT"
    );
    sqlx::raw_sql(AssertSqlSafe(edge)).execute(&mut other).await.unwrap();

    let state = unfollow.await.unwrap().unwrap().into_inner().state;
    assert_eq!(state, NONE, "as before the other transaction");
    system.converges().await;
    assert_eq!(system.counts(follower).await, (1, 0, 0));
    assert_eq!(system.relation(follower, target).await.state, FOLLOWING);
}

/// Takes a step between two accounts, of which callers may take another one at the same time.
async fn step(client: &Client, number: usize, [user, peer]: [u64; 2]) {
    let mut client = client.clone();
    let (follower_id, target_id) = (user, peer);
    let done = match number % 5 {
        0 => client.follow(pb::FollowRequest { follower_id, target_id }).await.map(drop),
        1 => client.unfollow(pb::UnfollowRequest { follower_id, target_id }).await.map(drop),
        2 => client.block(pb::BlockRequest { user_id: user, target_id }).await.map(drop),
        3 => client.unblock(pb::UnblockRequest { user_id: user, target_id }).await.map(drop),
        _ => {
            let follows = vec![pb::Follow { follower_id, target_id }];
            client.import_follows(pb::ImportFollowsRequest { follows }).await.map(drop)
        }
    };
    if let Err(status) = done {
        assert!(status.message().contains("blocked"), "{status:?}");
    }
}

#[tokio::test]
async fn concurrent_steps_of_two_accounts_leave_no_violation() {
    let database = Database::postgres().await;
    let system = System::start_on(Store::start(Topology::Single).await, database, &[]).await;
    let clients = [system.client.clone(), system.another(&[]).await];
    for round in 0..40 {
        let pair = [id(2 * round + 10), id(2 * round + 11)];
        let steps = (0..20_usize).map(|n| {
            let users = if n % 3 == 0 { [pair[1], pair[0]] } else { pair };
            step(&clients[n % 2], n * 7 + round as usize, users)
        });
        join_all(steps).await;
    }
    system.converges().await;
}

#[tokio::test]
async fn a_limit_holds_for_concurrent_follows() {
    const LIMIT: usize = 5;
    let flags = ["--following-limit", "5"];
    let database = Database::postgres().await;
    let system = System::start_on(Store::start(Topology::Single).await, database, &flags).await;
    let clients = [system.client.clone(), system.another(&flags).await];
    for round in 0..10 {
        let follower_id = id(100 + round);
        let follow = |n: u64| {
            let mut client = clients[n as usize % 2].clone();
            async move {
                client.follow(pb::FollowRequest { follower_id, target_id: id(n) }).await.is_ok()
            }
        };
        let followed = join_all((1..=12).map(follow)).await;
        assert_eq!(followed.iter().filter(|&&is_done| is_done).count(), LIMIT);
        assert_eq!(system.counts(follower_id).await.0, LIMIT as u64);
    }
    system.converges().await;
}

#[tokio::test]
async fn follows_of_an_account_that_is_deleted_end_or_are_rejected() {
    for database in Database::both().await {
        let store = Store::start(Topology::Single).await;
        let system = System::start_on(store, database, &[]).await;
        for round in 0..10 {
            let deleted = id(1_000 + round);
            let follow = |n: u64| system.follow(id(n), deleted);
            let forget = async {
                let request = pb::ForgetUserRequest { user_id: deleted };
                system.client.clone().forget_user(request).await.unwrap();
            };
            // Those that come later are rejected.
            tokio::join!(join_all((10..20).map(follow)), forget);
        }
        system.converges().await;
        for n in 10..20 {
            assert_eq!(system.counts(id(n)).await, (0, 0, 0), "user {n}");
        }
    }
}

/// Groups make the rows of new accounts that others need as well, in any order.
#[tokio::test]
async fn concurrent_imports_of_new_accounts_do_not_wait_for_each_other() {
    let database = Database::postgres().await;
    let system = System::start_on(Store::start(Topology::Single).await, database, &[]).await;
    let clients = [system.client.clone(), system.another(&[]).await];
    for round in 0..30_u64 {
        // Each importer has followers of its own, and the followed accounts are the same.
        let imports = (0..4_u64).map(|importer| {
            let follow = move |n: u64| {
                let target = 10_000 + round * 50 + (n * (importer * 2 + 7)) % 50;
                (id(100_000 + (round * 4 + importer) * 100 + n), id(target))
            };
            let follows: Vec<_> = (0..100).map(follow).collect();
            let client = clients[importer as usize % 2].clone();
            async move { import(&client, &follows).await }
        });
        for imported in join_all(imports).await {
            assert_eq!(imported.created, 100);
        }
    }
    system.converges().await;
}
