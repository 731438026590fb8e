//! The keyspace: sends commands, calls and batches, and loads the function library.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::future::BoxFuture;
use microblog_domain::Partition;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    Batch, Call, Config, DedicatedConnection, Error, Library, Primaries,
    connection_metrics::ConnectionMetrics,
    dedicated_pool::DedicatedPools,
    endpoint::Endpoint,
    error::within,
    library::VersionedLibrary,
    reply::{check, decode, is_generic_error},
    round_trip_metrics::RoundTripMetrics,
    route::{partition_of, partition_of_command},
    shared_pool::SharedPool,
};

/// A service's part of Redis: a single server, a Sentinel group or a cluster, by its address.
///
/// Cheap to clone. Belongs to the runtime that first uses it: each worker thread opens its own.
/// Connects lazily and reconnects by itself. While Redis is unavailable, every call fails with
/// [`Error::Unavailable`].
///
/// The timeout holds for each step: a command has one step; a call has one, or up to three if its
/// function is not loaded; a page, a batch and readiness have as many as they need. A call may run
/// twice when a connection drops, so calls must be idempotent.
///
/// Methods return boxed futures: a round trip's future is large, and would be part of the future
/// of every caller.
#[derive(Clone)]
pub struct Keyspace {
    inner: Arc<Inner>,
}

struct Inner {
    shared: SharedPool,
    dedicated: Arc<DedicatedPools>,
    library: Arc<VersionedLibrary>,
    primaries: Primaries,
    // Of each client-side cache.
    cache_bytes_max: usize,
    // The number of completed loads, so that concurrent calls load the library once.
    load_count: AtomicU64,
    load_lock: Mutex<()>,
}

impl Keyspace {
    /// Validates the configuration. Does not connect.
    pub fn open(config: &Config, library: Library) -> Result<Self, Error> {
        let endpoint = Arc::new(Endpoint::new(config)?);
        let round_trips = RoundTripMetrics::new(library.name, endpoint.server().clone());
        let metrics = ConnectionMetrics::new(library.name, "exclusive");
        let timeout = config.timeout();
        Ok(Self {
            inner: Arc::new(Inner {
                shared: SharedPool::new(endpoint, round_trips, config.redis_connections, timeout),
                dedicated: Arc::new(DedicatedPools::new(
                    config.redis_dedicated_connections,
                    timeout,
                    metrics,
                )),
                library: VersionedLibrary::of(library),
                primaries: config.primaries.clone(),
                cache_bytes_max: config.redis_cache_bytes,
                load_count: AtomicU64::new(0),
                load_lock: Mutex::new(()),
            }),
        })
    }

    /// Checks that every primary replies, serves its slots, and has the library; loads the library
    /// where it is missing. A single server must be a primary.
    pub fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.inner.ready())
    }

    /// Sends one command. On a cluster, its keys determine the node; all must be in one partition.
    pub fn query<'a, T>(&'a self, command: Cmd) -> BoxFuture<'a, Result<T, Error>>
    where
        T: FromRedisValue + Send + 'a,
    {
        let partition = partition_of_command(&command);
        Box::pin(async move { decode(self.inner.shared.command(command, partition).await?) })
    }

    /// Calls a function in one round trip.
    pub fn call<'a, T>(&'a self, call: Call) -> BoxFuture<'a, Result<T, Error>>
    where
        T: FromRedisValue + Send + 'a,
    {
        let partition = call.first_key().and_then(partition_of);
        Box::pin(async move { decode(self.inner.call(call, partition).await?) })
    }

    /// Sends a batch as pipelines and returns the replies in the order added. If a node does not
    /// have the library, loads it and repeats the affected calls after the others.
    ///
    /// The timeout holds for each thousand commands. The first error reply fails the batch; other
    /// commands may have run.
    pub fn send(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Value>, Error>> {
        Box::pin(async move { self.inner.replies(&batch).await?.into_iter().map(check).collect() })
    }

    /// Sends a batch likewise. An error reply fails its own command alone.
    pub fn send_each(
        &self,
        batch: Batch,
    ) -> BoxFuture<'_, Result<Vec<Result<Value, Error>>, Error>> {
        Box::pin(
            async move { Ok(self.inner.replies(&batch).await?.into_iter().map(check).collect()) },
        )
    }

    /// Returns the name of the service, as metrics have it.
    pub fn name(&self) -> &'static str {
        self.shared_pool().round_trip_metrics().keyspace()
    }

    pub(crate) fn shared_pool(&self) -> &SharedPool {
        &self.inner.shared
    }

    pub(crate) fn cache_bytes_max(&self) -> usize {
        self.inner.cache_bytes_max
    }

    /// Returns whether a call may have keys of several partitions. A cluster rejects such calls.
    /// Each call has a fixed cost of some microseconds, so one call in place of many is faster.
    pub fn joins_partitions(&self) -> bool {
        !self.inner.shared.is_cluster()
    }

    /// Returns the first partition of each primary. One that has no partition is left out.
    pub async fn partitions_of_primaries(&self) -> Result<Vec<Partition>, Error> {
        let by_primary = self.partitions_by_primary().await?;
        Ok(by_primary.iter().filter_map(|partitions| partitions.first().copied()).collect())
    }

    /// Returns the partitions of each primary, in order. One that has none is left out, as are
    /// partitions without a primary.
    pub async fn partitions_by_primary(&self) -> Result<Vec<Vec<Partition>>, Error> {
        self.inner.shared.partitions_by_primary().await
    }

    /// Returns how many connections of shared pools the process has made, and how many times a cluster had
    /// other primaries: what it knew of a primary may not hold any more if that grows. Tracked connections
    /// do not count: what was read on one that was closed is discarded.
    pub fn reconnects(&self) -> u64 {
        self.inner.primaries.reconnects()
    }

    /// Calls functions together on a dedicated connection: on one server, whichever that is. An error
    /// reply fails its own call alone. The functions must be loaded, as they are after [`Self::ready`].
    pub async fn call_each_on(
        &self,
        connection: &mut DedicatedConnection,
        calls: &[Call],
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        let Inner { library, shared, .. } = &*self.inner;
        let mut commands = Pipeline::with_capacity(calls.len());
        for call in calls {
            commands.add_command(call.command(library));
        }
        let replies = connection.query_all(&commands, shared.timeout()).await?;
        Ok(replies.into_iter().map(check).collect())
    }

    /// Checks out a dedicated connection to the primary that holds a key, for blocking reads (BLOCK). The Redis user needs PING and UNWATCH, with which the pool recycles connections.
    pub fn dedicated_connection<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<DedicatedConnection, Error>> {
        Box::pin(self.inner.dedicated.get(&self.inner.shared, key))
    }
}

impl Inner {
    async fn ready(&self) -> Result<(), Error> {
        self.shared.warm_up().await?;
        self.load().await?;
        if self.shared.is_cluster() {
            self.check_cluster_state().await
        } else {
            self.check_role().await
        }
    }

    async fn call(&self, call: Call, partition: Option<Partition>) -> Result<Value, Error> {
        let load_count = self.load_count.load(Ordering::Acquire);
        let command = || call.command(&self.library);
        let mut reply = self.shared.command(command(), partition).await?;
        if is_generic_error(&reply) {
            // Boxed, like all rare paths: they would enlarge the future of the common one.
            Box::pin(self.load_once(load_count)).await?;
            reply = self.shared.command(command(), partition).await?;
        }
        Ok(reply)
    }

    // Returns the replies to a batch, which may be error replies.
    async fn replies(&self, batch: &Batch) -> Result<Vec<Value>, Error> {
        let load_count = self.load_count.load(Ordering::Acquire);
        let mut replies = batch.send(&self.shared, &self.library).await?;
        let failed = batch.calls_with_generic_error(&replies);
        if !failed.is_empty() {
            Box::pin(self.load_once(load_count)).await?;
            // Repeats no call that ran on a node with the library.
            let repeated = batch.select(&failed);
            let repeated = Box::pin(repeated.send(&self.shared, &self.library)).await?;
            for (index, reply) in failed.into_iter().zip(repeated) {
                replies[index] = reply;
            }
        }
        Ok(replies)
    }

    // Loads the library unless another call has loaded it since `load_count` was read. Ends within
    // the timeout.
    async fn load_once(&self, load_count: u64) -> Result<(), Error> {
        let load = async {
            let _guard = self.load_lock.lock().await;
            if self.load_count.load(Ordering::Acquire) != load_count {
                return Ok(());
            }
            self.load().await?;
            self.load_count.fetch_add(1, Ordering::Release);
            Ok(())
        };
        within(Instant::now() + self.shared.timeout(), load).await
    }

    // Checks that the server is a primary. A replica replies and has the library, but rejects every
    // write.
    async fn check_role(&self) -> Result<(), Error> {
        let generation = self.shared.endpoint().generation();
        let reply = check(self.shared.command(redis::cmd("ROLE"), None).await?);
        let role = match reply {
            // A Redis user from an older deployment lacks ROLE. A write detects a replica too.
            Err(Error::Refused { code, .. }) if code == "NOPERM" => return Ok(()),
            reply => reply?,
        };
        match role {
            Value::Array(fields) if fields.first() == Some(&Value::BulkString("master".into())) => {
                Ok(())
            }
            _ => {
                let error: RedisError =
                    (ServerErrorKind::ReadOnly.into(), "the server is not a primary").into();
                self.shared.reset(generation, error.clone());
                Err(error.into())
            }
        }
    }

    // Checks that every primary reports `cluster_state:ok`. Otherwise it rejects commands with keys.
    async fn check_cluster_state(&self) -> Result<(), Error> {
        for reply in self.shared.send_to_all(redis::cmd("CLUSTER").arg("INFO")).await? {
            let info: String = decode(reply)?;
            if !info.lines().any(|line| line == "cluster_state:ok") {
                return Err(Error::unavailable("a primary reports another cluster_state than ok"));
            }
        }
        Ok(())
    }

    async fn load(&self) -> Result<(), Error> {
        if self.is_loaded().await? {
            return Ok(());
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.library.code);
        let replies = self.shared.send_to_all(&load).await?;
        tracing::info!(
            library = self.library.name,
            nodes = replies.len(),
            "function library loaded"
        );
        // "Already exists" and a compile error have the same code, so checks again after an error.
        let error = replies.into_iter().find_map(|reply| check(reply).err());
        match error {
            None => Ok(()),
            Some(_) if self.is_loaded().await? => Ok(()),
            Some(error) => Err(error),
        }
    }

    // Returns whether every primary has the library.
    async fn is_loaded(&self) -> Result<bool, Error> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(&self.library.name);
        let replies = self.shared.send_to_all(&list).await?;
        let mut is_loaded = true;
        for reply in replies {
            is_loaded &= !matches!(check(reply)?, Value::Array(libraries) if libraries.is_empty());
        }
        Ok(is_loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Rare paths, such as connecting, have futures of 5 to 15 KiB, and must be boxed.
    #[test]
    fn futures_are_small() {
        const BYTES_MAX: usize = 2048;
        let config = Config::at("redis://127.0.0.1:6379");
        let keyspace = Keyspace::open(&config, Library { name: "test", source: "" }).unwrap();
        let Inner { shared, .. } = &*keyspace.inner;
        assert!(size_of_val(&shared.command(Cmd::new(), None)) < BYTES_MAX);
        assert!(size_of_val(&keyspace.inner.call(Call::new("test"), None)) < BYTES_MAX);
        assert!(size_of_val(&keyspace.inner.replies(&Batch::new())) < BYTES_MAX);
    }

    // The handlers of a server require `Send` futures.
    #[allow(dead_code, reason = "compiling is the test")]
    fn futures_are_send(keyspace: &'static Keyspace, call: Call, batch: Batch) {
        fn check(_: impl Send) {}
        check(keyspace.ready());
        check(keyspace.query::<u64>(Cmd::new()));
        check(keyspace.call::<u64>(call));
        check(keyspace.send(batch));
        check(keyspace.send_each(Batch::new()));
        check(keyspace.dedicated_connection("key"));
    }
}
