//! The keyspace itself: commands, calls and batches through its links, with its functions loaded.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::future::BoxFuture;
use redis::{Cmd, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;

use crate::{
    Batch, Call, Config, Error, Exclusive, Kind, Library, Page, Range, Recall, batch::is_general,
    cluster, connected::Connected, endpoint::Endpoint, error::TimedOut, exclusive::ExclusiveLinks,
    library::Composed, links::Links, page, recall::Id, route, trip::Trips,
};

/// A service's part of Redis: a single server, a Sentinel group or a cluster, by its address.
///
/// Cheap to clone. It belongs to the runtime that first uses it: each worker thread opens its own.
/// Connects lazily and recovers by itself; while Redis is away, every call ends with
/// [`Error::Unavailable`]. The time-out holds for each step: a command is one; a call is one, and up
/// to three where its function is missing; a page, a batch and readiness have as many as they need.
/// A call may run twice when a connection drops, so whatever it does must be repeatable.
///
/// The futures of what it sends are boxed: a round trip's own is deep and large, and would be part of
/// those of all that await it.
#[derive(Clone)]
pub struct Keyspace {
    inner: Arc<Inner>,
}

struct Inner {
    links: Links,
    exclusive: ExclusiveLinks,
    library: Composed,
    // How many bytes of each kind are remembered.
    recall_bytes: usize,
    // Grows with each load, so that those who missed a function at once load it once.
    loads: AtomicU64,
    loading: Mutex<()>,
}

impl Keyspace {
    /// Checks the configuration; succeeds while Redis is away.
    pub fn open(config: &Config, library: Library) -> Result<Self, Error> {
        let endpoint = Arc::new(Endpoint::new(config)?);
        let trips = Trips::new(library.name, endpoint.server().clone());
        let connected = Connected::new(library.name, "exclusive");
        let links = Links::new(endpoint, trips, config.redis_links, config.timeout())?;
        let exclusive =
            ExclusiveLinks::new(config.redis_exclusive_links, config.timeout(), connected);
        let library = Composed::new(library);
        let (loads, loading) = (AtomicU64::new(0), Mutex::new(()));
        let recall_bytes = config.redis_recall_bytes;
        Ok(Self {
            inner: Arc::new(Inner { links, exclusive, library, recall_bytes, loads, loading }),
        })
    }

    /// Returns once every primary answers, serves its slots, and has the library, which is loaded
    /// where it is missing. A single server must be a primary.
    pub fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.inner.ready())
    }

    /// Sends one command. On a cluster, its keys say where to; all lie in one partition.
    pub fn query<'a, T>(&'a self, command: Cmd) -> BoxFuture<'a, Result<T, Error>>
    where
        T: FromRedisValue + Send + 'a,
    {
        Box::pin(async move { decode(self.inner.links.command(command, None).await?) })
    }

    /// Calls one function, in one round trip.
    pub fn call<'a, T>(&'a self, call: Call) -> BoxFuture<'a, Result<T, Error>>
    where
        T: FromRedisValue + Send + 'a,
    {
        Box::pin(async move { decode(self.inner.call(call).await?) })
    }

    /// Sends a batch, all of it together, and returns the answers in the order added. Calls of a
    /// function that a node did not know are sent again once it does, behind the others.
    ///
    /// The time-out holds for each thousand commands. The first refusal is the error of the whole;
    /// what else ran is unknown then.
    pub fn send(&self, batch: Batch) -> BoxFuture<'_, Result<Vec<Value>, Error>> {
        Box::pin(self.inner.send(batch))
    }

    /// Returns what it is called: its library's name.
    pub(crate) fn name(&self) -> &'static str {
        self.inner.links.trips().keyspace()
    }

    /// Returns whether a call may have keys of any partitions: not on a cluster, which refuses that.
    /// A call costs some microseconds besides what it does, so to make one of many is worth much.
    pub fn joins_partitions(&self) -> bool {
        !self.inner.links.is_cluster()
    }

    /// Reads a page of a sorted set whose members are ids and whose scores are integers.
    ///
    /// One round trip, but where more entries than a page has share the score at which it starts.
    pub fn page<'a>(&'a self, key: &'a str, range: Range) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(page::read(&self.inner.links, key, range))
    }

    /// Returns a way to read values of one kind of which those that have not changed are remembered.
    /// The user must be allowed PING and CLIENT TRACKING; without, nothing is remembered.
    pub fn recall<I: Id, T: Clone + Send + 'static>(&self, kind: Kind<I, T>) -> Recall<I, T> {
        Recall::new(self.clone(), self.inner.links.clone(), kind, self.inner.recall_bytes)
    }

    /// Returns a connection of one's own to the node that holds a key now, for what blocks: reads
    /// with BLOCK, and WAIT. The user must be allowed PING and UNWATCH, which make it fit for the
    /// next one.
    pub fn exclusive<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Exclusive, Error>> {
        Box::pin(self.inner.exclusive.get(&self.inner.links, key))
    }
}

impl Inner {
    async fn ready(&self) -> Result<(), Error> {
        self.links.warm_up().await?;
        self.load().await?;
        if self.links.is_cluster() {
            cluster::serves(&self.links).await
        } else {
            self.is_primary().await
        }
    }

    async fn call(&self, call: Call) -> Result<Value, Error> {
        let route = || call.first_key().map(route::of_key);
        let loads = self.loads.load(Ordering::Acquire);
        let answer = self.links.command(call.command(&self.library), route()).await?;
        if !is_general(&answer) {
            return Ok(answer);
        }
        // Boxed, as are all rare ways: they would make the common one's future large.
        Box::pin(self.load_after(loads)).await?;
        self.links.command(call.command(&self.library), route()).await
    }

    async fn send(&self, batch: Batch) -> Result<Vec<Value>, Error> {
        let loads = self.loads.load(Ordering::Acquire);
        let mut answers = batch.send(&self.links, &self.library).await?;
        let missed = batch.missed(&answers);
        if !missed.is_empty() {
            Box::pin(self.load_after(loads)).await?;
            // Those alone: what ran on nodes that know the functions need not run twice.
            let again = batch.pick(&missed);
            let again = Box::pin(again.send(&self.links, &self.library)).await?;
            for (index, answer) in missed.into_iter().zip(again) {
                answers[index] = answer;
            }
        }
        answers.into_iter().map(accept).collect()
    }

    // Loads unless somebody did since. Takes no longer than one more answer may.
    async fn load_after(&self, loads: u64) -> Result<(), Error> {
        let load = async {
            let _loading = self.loading.lock().await;
            if self.loads.load(Ordering::Acquire) != loads {
                return Ok(());
            }
            self.load().await?;
            self.loads.fetch_add(1, Ordering::Release);
            Ok(())
        };
        let longest = self.links.timeout();
        let loaded = tokio::time::timeout(longest, load).await;
        loaded.unwrap_or_else(|_| Err(Error::unavailable(TimedOut(longest))))
    }

    // A replica answers and has the library of its primary, but refuses every write.
    async fn is_primary(&self) -> Result<(), Error> {
        let answer = accept(self.links.command(redis::cmd("ROLE"), None).await?);
        let role = match answer {
            // Users from before the question was asked: a write will tell.
            Err(Error::Refused { code, .. }) if code == "NOPERM" => return Ok(()),
            answer => answer?,
        };
        match role {
            Value::Array(facts) if facts.first() == Some(&Value::BulkString("master".into())) => {
                Ok(())
            }
            _ => {
                let error: RedisError =
                    (ServerErrorKind::ReadOnly.into(), "the server is no primary").into();
                self.links.leave(error.clone());
                Err(error.into())
            }
        }
    }

    async fn load(&self) -> Result<(), Error> {
        if self.is_loaded().await? {
            return Ok(());
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.library.code);
        let answers = cluster::everywhere(&self.links, &load).await?;
        tracing::info!(
            library = self.library.name,
            nodes = answers.len(),
            "function library loaded"
        );
        // A node that has it already refuses with the same code as one that cannot compile it.
        let refusal = answers.into_iter().find_map(|answer| accept(answer).err());
        match refusal {
            None => Ok(()),
            Some(_) if self.is_loaded().await? => Ok(()),
            Some(refusal) => Err(refusal),
        }
    }

    // Whether every primary has the library.
    async fn is_loaded(&self) -> Result<bool, Error> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(&self.library.name);
        let answers = cluster::everywhere(&self.links, &list).await?;
        let mut is_loaded = true;
        for answer in answers {
            is_loaded &=
                !matches!(accept(answer)?, Value::Array(libraries) if libraries.is_empty());
        }
        Ok(is_loaded)
    }
}

/// Reads an answer of a batch.
pub fn decode<T: FromRedisValue>(value: Value) -> Result<T, Error> {
    Ok(redis::from_redis_value(accept(value)?)?)
}

// An answer that is no refusal. A refusal may lie deeper, but only in a transaction.
pub(crate) fn accept(value: Value) -> Result<Value, Error> {
    match value {
        Value::ServerError(error) => Err(Error::refused(error)),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What is needed seldom, such as to connect, is 5 to 15 KiB, and must not be part of each.
    #[test]
    fn what_a_command_needs_is_small() {
        const BYTES_MAX: usize = 2048;
        let config = Config::at("redis://127.0.0.1:6379");
        let keyspace = Keyspace::open(&config, Library { name: "test", source: "" }).unwrap();
        let Inner { links, .. } = &*keyspace.inner;
        let range = Range { order: crate::Order::Newest, after: None, above: None, count: 1 };
        assert!(size_of_val(&links.command(Cmd::new(), None)) < BYTES_MAX);
        assert!(size_of_val(&keyspace.inner.call(Call::new("test"))) < BYTES_MAX);
        assert!(size_of_val(&keyspace.inner.send(Batch::new())) < BYTES_MAX);
        assert!(size_of_val(&page::read(links, "key", range)) < BYTES_MAX);
    }

    // A server's handlers move between threads as far as their types know.
    #[allow(dead_code, reason = "compiling is the test")]
    fn calls_can_be_sent(keyspace: &'static Keyspace, call: Call, batch: Batch, range: Range) {
        fn check(_: impl Send) {}
        check(keyspace.ready());
        check(keyspace.query::<u64>(Cmd::new()));
        check(keyspace.call::<u64>(call));
        check(keyspace.send(batch));
        check(keyspace.page("key", range));
        check(keyspace.exclusive("key"));
    }
}
