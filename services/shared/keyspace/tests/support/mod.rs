//! Helpers of the tests: a small function library, and a store of each topology.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod certificates;
pub(crate) mod migration;

use std::time::{Duration, Instant};

use microblog_domain::Partition;
use microblog_keyspace::{Batch, Call, Config, Error, Keyspace, Library, decode, redis};
use microblog_testkit::{RedisCluster, RedisServer, Sentinels};

/// The Redis user of the tests.
pub(crate) const USER: &str = "post";

pub(crate) const LIBRARY: Library = Library {
    name: "test",
    source: "
local function put(keys, args)
  redis.call('SET', keys[1], args[1])
  return args[1]
end
local function reject(keys, args)
  return redis.error_reply('LIMIT is what this function says')
end
local function overreach(keys, args)
  return redis.call('FLUSHALL')
end
local function fail(keys, args)
  error('a mistake')
end
redis.register_function('test_put' .. suffix, put)
redis.register_function('test_reject' .. suffix, reject)
redis.register_function('test_overreach' .. suffix, overreach)
redis.register_function('test_fail' .. suffix, fail)
",
};

pub(crate) fn open(url: String) -> Keyspace {
    Keyspace::open(&Config::at(url), LIBRARY).unwrap()
}

pub(crate) async fn open_ready(url: String) -> Keyspace {
    let keyspace = open(url);
    keyspace.ready().await.unwrap();
    keyspace
}

/// Returns a key in a partition.
pub(crate) fn key(partition: u16, name: impl std::fmt::Display) -> String {
    format!("pst:{{{partition}}}:{name}")
}

/// Writes a value through a function, which returns it.
pub(crate) async fn put(keyspace: &Keyspace, key: &str, value: &str) -> Result<String, Error> {
    keyspace.call(Call::new("test_put").key(key).arg(value)).await
}

pub(crate) async fn get(keyspace: &Keyspace, key: &str) -> Result<Option<String>, Error> {
    let mut command = redis::cmd("GET");
    command.arg(key);
    keyspace.query(command).await
}

/// Returns a batch of a call and a command for each of `partitions`.
pub(crate) fn batch(partitions: u16, value: &str) -> Batch {
    let mut batch = Batch::new();
    for number in 0..partitions {
        let (partition, key) = (Partition::new(number), key(number, "batch"));
        batch.call(partition, Call::new("test_put").key(&key).arg(format!("{value}{number}")));
        let mut command = redis::cmd("EXISTS");
        command.arg(&key);
        batch.query(partition, command);
    }
    batch
}

pub(crate) async fn send(keyspace: &Keyspace, partitions: u16, value: &str) -> Result<(), Error> {
    let answers = keyspace.send(batch(partitions, value)).await?;
    assert_eq!(answers.len(), 2 * usize::from(partitions));
    for (number, pair) in answers.chunks(2).enumerate() {
        assert_eq!(decode::<String>(pair[0].clone())?, format!("{value}{number}"));
        assert_eq!(decode::<u64>(pair[1].clone())?, 1);
    }
    Ok(())
}

/// Returns the result of a call and its duration.
pub(crate) async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    (call.await, start.elapsed())
}

/// A store of any topology.
pub(crate) enum Any {
    Single(RedisServer),
    Sentinels(Sentinels),
    Cluster(RedisCluster),
}

impl Any {
    pub(crate) fn url(&self) -> String {
        self.url_of(USER)
    }

    pub(crate) fn url_of(&self, user: &str) -> String {
        match self {
            Self::Single(server) => server.url(user),
            Self::Sentinels(group) => group.url(user),
            Self::Cluster(cluster) => cluster.url(user),
        }
    }

    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Single(server) => vec![server],
            Self::Sentinels(group) => vec![group.primary()],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
        }
    }
}

pub(crate) async fn single() -> Any {
    Any::Single(RedisServer::start().await)
}

pub(crate) async fn sentinels() -> Any {
    Any::Sentinels(Sentinels::start().await)
}

pub(crate) async fn cluster() -> Any {
    Any::Cluster(RedisCluster::start(3, 0).await)
}
