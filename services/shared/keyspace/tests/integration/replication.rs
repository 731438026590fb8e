//! Calls wait until replicas have the changes that their results rely on. A change that the primary
//! has lost since is not taken for replicated.

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Call, Config, Error, Keyspace, Library, redis};
use microblog_testkit::{PATIENCE, RedisCluster, RedisServer};

use crate::support::{USER, key};

const LIBRARY: Library = Library {
    name: "test",
    source: "
register_change('test_change', function(keys, args)
  append_change(args[1])
  return 1
end, 'allow-oom')

register_change('test_look', function(keys, args)
  return 1
end)

-- The reply of a primary that has been replaced since.
register('test_lost_change', function(keys, args)
  return { 1, args[1], args[2] }
end)
",
};

async fn open(url: String) -> Keyspace {
    // A replica of a busy machine may be late.
    let config = Config { redis_timeout_ms: PATIENCE.as_millis() as u64, ..Config::at(url) };
    let keyspace = Keyspace::open(&config, LIBRARY).unwrap();
    keyspace.ready().await.unwrap();
    keyspace.require_replicas(1);
    keyspace
}

/// Returns a call that changes a partition.
fn call(function: &'static str, partition: u16) -> Call {
    Call::new(function).journal(Partition::new(partition), key(partition, "journal"))
}

/// Opens the journal of a partition, with the version 1-1.
async fn open_journal(keyspace: &Keyspace, partition: u16) {
    let open =
        redis::cmd("XADD").arg(key(partition, "journal")).arg("1-1").arg("c").arg("x").take();
    keyspace.query::<String>(open).await.unwrap();
}

#[tokio::test]
async fn a_change_that_the_primary_has_lost_is_not_replicated() {
    let primary = RedisServer::start().await;
    let _replica = primary.start_replica().await;
    let keyspace = open(primary.url(USER)).await;
    let lost = |version: &str, text: &str| {
        keyspace.call::<u64>(call("test_lost_change", 5).arg(version).arg(text))
    };
    assert!(matches!(lost("1-1", "x").await, Err(Error::NotReplicated(_))), "no journal");
    open_journal(&keyspace, 5).await;
    assert_eq!(lost("1-1", "x").await.unwrap(), 1, "the journal has it");
    let another_took_its_version = lost("1-1", "y").await;
    assert!(matches!(another_took_its_version, Err(Error::NotReplicated(_))));
    assert!(matches!(lost("1-2", "y").await, Err(Error::NotReplicated(_))));
    let call = call("test_look", 5);
    assert!(matches!(keyspace.call::<u64>(call).await, Err(Error::Recovering(_))));
}

#[tokio::test]
async fn changes_of_all_primaries_are_replicated() {
    let cluster = RedisCluster::start(3, 1).await;
    let keyspace = open(cluster.url(USER)).await;
    for partition in 0..24 {
        open_journal(&keyspace, partition).await;
    }
    for function in ["test_change", "test_look"] {
        let mut batch = Batch::new();
        for partition in 0..24 {
            batch.call(Partition::new(partition), call(function, partition).arg("change"));
        }
        assert_eq!(keyspace.send(batch).await.unwrap(), vec![redis::Value::Int(1); 24]);
    }
}

#[tokio::test]
async fn a_change_is_replicated_at_the_memory_limit() {
    let primary = RedisServer::start().await;
    let _replica = primary.start_replica().await;
    let keyspace = open(primary.url(USER)).await;
    open_journal(&keyspace, 5).await;
    let limit = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).take();
    limit.exec_async(&mut primary.admin().await).await.unwrap();
    assert_eq!(keyspace.call::<u64>(call("test_change", 5).arg("change")).await.unwrap(), 1);
    assert!(matches!(keyspace.call::<u64>(call("test_look", 5)).await, Err(Error::Full(_))));
}
