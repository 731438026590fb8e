//! A few shared connections in a deadpool, each cloned out and handed back at once, so that
//! many calls share one, and a broken one is replaced. Knows no function and no batch.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{Manager, Metrics, Pool, PoolError, RecycleError, RecycleResult};
use futures::{FutureExt as _, future::join_all};
use redis::{Cmd, RedisError, RedisResult, Value, cluster_routing::SingleNodeRoutingInfo};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use crate::{
    Error,
    address::Node,
    cluster::Primaries,
    connected::{Connected, Counted},
    connection::{Connection, Many, One, Request},
    endpoint::Endpoint,
    error::TimedOut,
    lock::lock,
    trip::Trips,
};

// After a connection could not be made, calls fail at once for this long.
const PAUSE: Duration = Duration::from_millis(50);

// So many time-outs in a row mean that a connection is dead although nobody closed it.
const TIMEOUTS_IN_A_ROW_MAX: u32 = 3;

/// The shared connections of a keyspace.
#[derive(Clone)]
pub(crate) struct Links {
    pool: Pool<Maker>,
    timeout: Duration,
    // After a restart of Redis every link is dead, and each is found out in turn.
    attempts: usize,
    // The primaries of the cluster as last asked.
    primaries: Arc<Mutex<Primaries>>,
    departures: Arc<AtomicU64>,
    trips: Arc<Trips>,
}

impl Links {
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        trips: Arc<Trips>,
        links: usize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let maker = Maker::new(endpoint, Connected::new(trips.keyspace(), "shared"));
        // First in, first out: the calls take turns among the links.
        let pool = Pool::builder(maker).max_size(links).build();
        let pool = pool.map_err(|error| Error::Config(error.into()))?;
        let (primaries, departures) = (Arc::default(), Arc::default());
        Ok(Self { pool, timeout, attempts: links + 1, primaries, departures, trips })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.pool.manager().endpoint.is_cluster()
    }

    /// Returns the longest wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.pool.manager().endpoint
    }

    /// Returns what round trips are measured by.
    pub(crate) fn trips(&self) -> &Trips {
        &self.trips
    }

    /// Makes the links that there are not yet: an ordinary call makes one only if there is none.
    ///
    /// They are made outside of the pool, so that calls go on over those that there are.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        self.pool.retain(|link, _| !link.health.is_broken());
        let status = self.pool.status();
        let maker = self.pool.manager();
        let missing = (status.size..status.max_size).map(|_| maker.connect());
        let mut result = Ok(());
        for link in join_all(missing).await {
            match link {
                Ok(link) => maker.keep(link),
                Err(error) => result = Err(error.into()),
            }
        }
        // The pool makes a link only while all others are out: for this moment, without waiting.
        let mut out = Vec::new();
        while maker.has_made()
            && let Some(Ok(link)) = self.pool.get().now_or_never()
        {
            out.push(link);
        }
        maker.forget_made();
        result
    }

    /// Learns who the primaries of the cluster are. If others than before, links are made anew:
    /// their client reaches a new primary as the replica that it was, so that nothing tells it of
    /// the failover, and it goes back to the old primary as soon as that is up again.
    pub(crate) fn learn_primaries(&self, primaries: &HashSet<Node>) {
        if lock(&self.primaries).learn(primaries) {
            self.pool.retain(|_, _| false);
        }
    }

    /// Sends one command and returns the answer, which may be a refusal.
    pub(crate) async fn command(
        &self,
        command: Cmd,
        route: Option<SingleNodeRoutingInfo>,
    ) -> Result<Value, Error> {
        let trip = self.trips.begin(std::iter::once(&command));
        let answer = self.send(One { command, route }).await;
        trip.end(answer.as_ref().map(std::slice::from_ref));
        let answer = answer?;
        self.look_for_replicas(std::slice::from_ref(&answer));
        Ok(answer)
    }

    /// Sends commands of one partition (of any, where there is no cluster), and returns their
    /// answers, some of which may be refusals.
    pub(crate) async fn commands(
        &self,
        commands: Vec<Cow<'_, Cmd>>,
        route: SingleNodeRoutingInfo,
    ) -> Result<Vec<Value>, Error> {
        let trip = self.trips.begin(commands.iter().map(AsRef::as_ref));
        let answers = self.send(Many { commands, route }).await;
        trip.end(answers.as_deref());
        let answers = answers?;
        self.look_for_replicas(&answers);
        Ok(answers)
    }

    // Sends something on a link, and again on the next one when a connection was dropped: every
    // command may run twice. Ends within the time-out.
    async fn send<R: Request>(&self, mut request: R) -> Result<R::Answer, Error> {
        let deadline = Instant::now() + self.timeout;
        for _ in 0..self.attempts {
            let mut link = self.link(deadline).await?;
            let answer = timeout_at(deadline, request.send(&mut link.connection)).await;
            if let Some(answer) = self.judge(&link.health, answer) {
                return answer;
            }
        }
        Err(Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
    }

    // What was a primary has become a replica: links lead elsewhere after a pause.
    fn look_for_replicas(&self, answers: &[Value]) {
        let is_from_replica = |answer: &&Value| matches!(answer, Value::ServerError(error) if error.code() == "READONLY");
        if let Some(Value::ServerError(error)) = answers.iter().find(is_from_replica) {
            self.leave(error.clone().into());
        }
    }

    /// Drops all links; new ones are made after a pause.
    pub(crate) fn leave(&self, error: RedisError) {
        self.departures.fetch_add(1, Ordering::Relaxed);
        self.pool.retain(|_, _| false);
        self.pool.manager().failed(error);
    }

    /// Returns how often all links were dropped, since what they led to is no primary any more.
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Ordering::Relaxed)
    }

    async fn link(&self, deadline: Instant) -> Result<Link, Error> {
        match timeout_at(deadline, self.pool.get()).await {
            Ok(Ok(link)) => Ok(link.clone()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::unavailable(TimedOut(self.timeout))),
        }
    }

    // Draws the conclusions about a link. `None` means that its connection was dropped.
    fn judge<T>(
        &self,
        health: &Health,
        answer: Result<RedisResult<T>, Elapsed>,
    ) -> Option<Result<T, Error>> {
        match answer {
            Ok(Ok(answer)) => {
                health.answered();
                Some(Ok(answer))
            }
            // The cluster's client has repeated it already, and mends its own connections.
            Ok(Err(error)) if self.is_cluster() => {
                health.failed();
                Some(Err(error.into()))
            }
            Ok(Err(error)) if error.is_unrecoverable_error() => {
                health.broken.store(true, Ordering::Relaxed);
                if error.is_connection_dropped() { None } else { Some(Err(error.into())) }
            }
            Ok(Err(error)) => Some(Err(error.into())),
            Err(_) => {
                health.failed();
                Some(Err(Error::unavailable(TimedOut(self.timeout))))
            }
        }
    }
}

#[derive(Clone)]
struct Link {
    connection: Connection,
    /// Of the certificates that it was made with.
    generation: u64,
    health: Arc<Health>,
}

/// Whether a connection still answers. Shared by all who use it: whoever finds it broken says so.
#[derive(Default)]
pub(crate) struct Health {
    broken: AtomicBool,
    failures_in_a_row: AtomicU32,
    // All who use the connection have this, and so it counts as long as there is one.
    _counted: Option<Counted>,
}

impl Health {
    /// Returns that of a new connection.
    pub(crate) fn of(counted: Counted) -> Self {
        Self { _counted: Some(counted), ..Self::default() }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn answered(&self) {
        // Written seldom, so that the cache line stays shared.
        if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that there was no answer, which may be a moment's.
    pub(crate) fn failed(&self) {
        if self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_IN_A_ROW_MAX {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

struct Maker {
    endpoint: Arc<Endpoint>,
    // The last failure to connect and its time.
    failure: Mutex<Option<(Instant, RedisError)>>,
    // Links on their way into the pool.
    made: Mutex<Vec<Link>>,
    connected: Connected,
}

impl Maker {
    fn new(endpoint: Arc<Endpoint>, connected: Connected) -> Self {
        Self { endpoint, failure: Mutex::default(), made: Mutex::default(), connected }
    }

    async fn connect(&self) -> Result<Link, RedisError> {
        let failure = lock(&self.failure).clone();
        if let Some((_, error)) = failure.filter(|(at, _)| at.elapsed() < PAUSE) {
            return Err(error);
        }
        // Before: at worst it is made once more.
        let generation = self.endpoint.generation();
        match self.connected.make(self.endpoint.connect()).await {
            Ok((connection, counted)) => {
                Ok(Link { connection, generation, health: Arc::new(Health::of(counted)) })
            }
            Err(error) => {
                self.failed(error.clone());
                Err(error)
            }
        }
    }

    fn failed(&self, error: RedisError) {
        *lock(&self.failure) = Some((Instant::now(), error));
    }

    fn keep(&self, link: Link) {
        lock(&self.made).push(link);
    }

    fn has_made(&self) -> bool {
        !lock(&self.made).is_empty()
    }

    fn forget_made(&self) {
        lock(&self.made).clear();
    }
}

impl Manager for Maker {
    type Type = Link;
    type Error = RedisError;

    async fn create(&self) -> Result<Link, RedisError> {
        let made = lock(&self.made).pop();
        match made {
            Some(link) => Ok(link),
            // Boxed: it is huge, seldom needed, and would be part of every command's future.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<RedisError> {
        if link.health.is_broken() || self.endpoint.has_outdated(link.generation) {
            return Err(RecycleError::message("broken"));
        }
        Ok(())
    }
}

impl From<PoolError<RedisError>> for Error {
    fn from(error: PoolError<RedisError>) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            error => Self::unavailable(error),
        }
    }
}
