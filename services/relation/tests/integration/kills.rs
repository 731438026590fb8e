//! A process that is killed or stopped between two statements, and stores that come back without the last
//! ones: nothing acknowledged is missing, and no read that begins 15 s later is wrong.

use std::time::{Duration, Instant};

use microblog_proto::relation::{self as pb, EdgeList};
use microblog_testkit::{
    Database, PATIENCE, PostgresServer, Process, Proxy, RedisServer, Store, TableLocks, Topology,
    eventually, redis::cmd,
};
use tokio::task::JoinHandle;

use crate::support::{Client, FOLLOWING, NONE, System, client, id, ids, list_of};

/// The time after a fault in which a read may answer what it answered before.
const STALE: Duration = Duration::from_secs(15);

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is gone (SIGKILL).
    Killed,
    /// It does nothing (SIGSTOP), until it goes on (SIGCONT).
    Stopped,
}

/// Both, with two accounts each.
const ENDS: [(End, [u64; 2]); 2] =
    [(End::Killed, [id(1), id(2)]), (End::Stopped, [id(11), id(12)])];

/// The servers of the cluster.
const ALL: [usize; 3] = [0, 1, 2];

/// Two processes on the same stores: one that ends, and one that goes on.
struct Pair {
    system: System,
    _survivor: Process,
    urls: [String; 2],
    victim: Process,
    victim_client: Client,
    /// The first of the accounts of which nothing is cached.
    next_cold: u64,
}

async fn start_process([redis_url, url]: &[String; 2]) -> Process {
    let args = ["--redis-url", redis_url, "--database-url", url, "--threads", "1"];
    Process::start(env!("CARGO_BIN_EXE_microblog-relation"), &args).await
}

impl Pair {
    /// Starts both on a cluster and PostgreSQL.
    async fn start() -> Self {
        let redis = Store::start(Topology::Cluster).await;
        let database = Database::postgres().await;
        let urls = [redis.url("relation"), database.url()];
        Self::start_on(redis, database, urls).await
    }

    /// Starts both with these URLs of Redis and of the database.
    async fn start_on(redis: Store, database: Database, urls: [String; 2]) -> Self {
        let survivor = start_process(&urls).await;
        let victim = start_process(&urls).await;
        let system = System { redis, database, client: client(&survivor.address()).await };
        system.caches().await;
        let victim_client = client(&victim.address()).await;
        let next_cold = 10_000;
        let mut pair = Self { system, _survivor: survivor, urls, victim, victim_client, next_cold };
        pair.warm_up().await;
        pair
    }

    /// Has the victim load entries until it relies on the cache, and has the statement prepared by each
    /// connection: what waits for a lock is then the reading.
    async fn warm_up(&mut self) {
        let mut first = self.next_cold;
        eventually("the victim loads entries", PATIENCE, async || {
            let users = (first..first + 40).map(id);
            let reads: Vec<_> = users.map(|user| self.victim_reads(user)).collect();
            for read in reads {
                assert!(read.await.unwrap());
            }
            first += 40;
            self.entry(EdgeList::Followers, id(first - 1)).await.is_some()
        })
        .await;
        self.next_cold = first;
    }

    /// Replaces a process that was killed.
    async fn replace(&mut self, end: End) {
        if end == End::Killed {
            self.victim = start_process(&self.urls).await;
            self.victim_client = client(&self.victim.address()).await;
            self.warm_up().await;
        }
    }

    /// Goes on with another server of the database.
    fn on(mut self, server: PostgresServer) -> Self {
        self.system.database = Database::Postgres(server);
        self
    }

    fn postgres(&self) -> &PostgresServer {
        let Database::Postgres(server) = &self.system.database else { unreachable!() };
        server
    }

    fn victim_follows(&self, follower_id: u64, target_id: u64) -> JoinHandle<bool> {
        let mut client = self.victim_client.clone();
        let request = pb::FollowRequest { follower_id, target_id };
        tokio::spawn(async move { client.follow(request).await.is_ok() })
    }

    fn victim_reads(&self, user_id: u64) -> JoinHandle<bool> {
        let mut client = self.victim_client.clone();
        let request = list_of(EdgeList::Followers, user_id, 0);
        tokio::spawn(async move { client.list_edges(request).await.is_ok() })
    }

    /// Has the victim take the lease on the followers of an account, of which there is one, and wait for
    /// their table until the lock is dropped.
    async fn victim_begins_to_read(&self, user_id: u64) -> TableLocks {
        self.system.follow(id(3), user_id).await.unwrap();
        let lock = self.postgres().lock_tables(&["follows".to_owned()]).await;
        let _read = self.victim_reads(user_id);
        self.wait_for_lock("SELECT%").await;
        lock
    }

    /// Returns the entry of a list, and the server that has it.
    async fn entry(&self, list: EdgeList, user: u64) -> Option<(usize, Vec<u8>)> {
        let name = list.as_str_name().trim_start_matches("EDGE_LIST_").to_lowercase();
        for (n, node) in self.system.redis.nodes().iter().enumerate() {
            let mut admin = node.admin().await;
            let keys = cmd("KEYS").arg(format!("rel:*:{name}:*:{user}")).take();
            let keys: Vec<String> = keys.query_async(&mut admin).await.unwrap();
            let is_entry = |key: &&String| !key.contains(":lease:") && !key.contains(":set:");
            if let Some(key) = keys.iter().find(is_entry) {
                let entry: Option<Vec<u8>> =
                    cmd("GET").arg(key).query_async(&mut admin).await.unwrap();
                return entry.map(|entry| (n, entry));
            }
        }
        None
    }

    /// Reads a list until it is cached, and returns its entry.
    async fn cached(&self, list: EdgeList, user: u64) -> (usize, Vec<u8>) {
        let mut found = None;
        eventually("the list is cached", PATIENCE, async || {
            self.system.list(&list_of(list, user, 0)).await.unwrap();
            self.system.counts(user).await;
            found = self.entry(list, user).await;
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    fn end(&self, end: End) {
        match end {
            End::Killed => self.victim.kill9(),
            End::Stopped => self.victim.pause(),
        }
    }

    /// Makes writes to some servers of Redis wait, until [`Self::resume_redis`].
    async fn pause_redis(&self, nodes: &[usize]) {
        for &node in nodes {
            let mut pause = cmd("CLIENT");
            pause.arg("PAUSE").arg(600_000).arg("WRITE");
            let node = &self.system.redis.nodes()[node];
            pause.exec_async(&mut node.admin().await).await.unwrap();
        }
    }

    async fn resume_redis(&self) {
        for node in self.system.redis.nodes() {
            let resume = cmd("CLIENT").arg("UNPAUSE").take();
            resume.exec_async(&mut node.admin().await).await.unwrap();
        }
    }

    /// Returns how many commands wait at each server.
    async fn waiting_commands(&self) -> Vec<usize> {
        let mut waiting = Vec::new();
        for node in self.system.redis.nodes() {
            let info = cmd("INFO").arg("clients").take();
            let info: String = info.query_async(&mut node.admin().await).await.unwrap();
            let blocked = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
            waiting.push(blocked.unwrap().parse().unwrap());
        }
        waiting
    }

    /// Waits until the mark of a verifier waits at each server.
    async fn wait_for_marks(&self) {
        eventually("the marks wait", PATIENCE, async || {
            self.waiting_commands().await.iter().all(|&waiting| waiting > 0)
        })
        .await;
    }

    async fn wait_for_lock(&self, statements: &str) {
        let waiting = format!(
            "SELECT count(*) > 0 FROM pg_stat_activity \
             WHERE wait_event_type = 'Lock' AND query LIKE '{statements}'"
        );
        let server = self.postgres();
        eventually("a lock is waited for", PATIENCE, async || server.sql(&waiting) == "t").await;
    }

    async fn wait_until_idle(&self) {
        let active = "SELECT count(*) FROM pg_stat_activity \
                      WHERE state = 'active' AND query LIKE '%follows%' AND pid <> pg_backend_pid()";
        let server = self.postgres();
        eventually("no list is being read", PATIENCE, async || server.sql(active) == "0").await;
    }

    fn is_committed(&self, follower: u64, target: u64) -> bool {
        let row =
            format!("SELECT count(*) FROM follows WHERE source = {follower} AND target = {target}");
        self.postgres().sql(&row) == "1"
    }

    async fn wait_for_commit(&self, follower: u64, target: u64) {
        let is_committed = async || self.is_committed(follower, target);
        eventually("the follow is committed", PATIENCE, is_committed).await;
    }

    /// Asserts that the follow is answered as the database has it, by each read that begins 15 s after
    /// `fault`; and from then on, when the stopped process goes on as well.
    async fn answers_what_is_committed(
        &self,
        follower: u64,
        target: u64,
        fault: Instant,
        end: End,
    ) {
        let is_right = async || {
            let state = if self.is_committed(follower, target) { FOLLOWING } else { NONE };
            let (following, ..) = self.system.counts(follower).await;
            let followers = list_of(EdgeList::Followers, target, 0);
            let followers = ids(&self.system.list(&followers).await.unwrap().edges);
            self.system.relation(follower, target).await.state == state
                && (following == 1) == (state == FOLLOWING)
                && followers.contains(&follower) == (state == FOLLOWING)
        };
        loop {
            let is_late = fault.elapsed() > STALE;
            if is_right().await {
                break;
            }
            assert!(!is_late, "{end:?}: a read is wrong {:?} after the fault", fault.elapsed());
        }
        if end == End::Stopped {
            self.victim.resume();
        }
        for _ in 0..50 {
            assert!(is_right().await, "{end:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.system.converges().await;
    }
}

#[tokio::test]
async fn a_writer_that_ends_when_commit_was_sent_leaves_what_is_committed() {
    let mut pair = Pair::start().await;
    pair.postgres().sql(
        "CREATE TABLE held (id BIGINT); \
         CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN LOCK TABLE held; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON follows DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION hold()",
    );
    for (end, [follower, target]) in ENDS {
        // On a busy machine, the lock may not be free in time: the group is rolled back.
        loop {
            assert_eq!(pair.system.counts(follower).await, (0, 0, 0));
            let lock = pair.postgres().lock_tables(&["held".to_owned()]).await;
            let _call = pair.victim_follows(follower, target);
            pair.wait_for_lock("%COMMIT AND CHAIN").await;
            pair.end(end);
            drop(lock);
            let open = "SELECT count(*) FROM pg_stat_activity \
                        WHERE state = 'active' AND query LIKE '%COMMIT AND CHAIN'";
            let server = pair.postgres();
            eventually("the commit ends", PATIENCE, async || server.sql(open) == "0").await;
            let is_committed = pair.is_committed(follower, target);
            pair.answers_what_is_committed(follower, target, Instant::now(), end).await;
            pair.replace(end).await;
            if is_committed {
                break;
            }
        }
    }
}

/// The marks of the verifier, which has looked before the commit, wait as well.
#[tokio::test]
async fn a_writer_that_ends_before_it_applies_leaves_nothing_old() {
    let mut pair = Pair::start().await;
    for (end, [follower, target]) in ENDS {
        for user in [follower, target] {
            assert_eq!(pair.system.counts(user).await, (0, 0, 0));
        }
        pair.pause_redis(&ALL).await;
        pair.wait_for_marks().await;
        let _call = pair.victim_follows(follower, target);
        pair.wait_for_commit(follower, target).await;
        pair.end(end);
        pair.resume_redis().await;
        pair.answers_what_is_committed(follower, target, Instant::now(), end).await;
        pair.replace(end).await;
    }
}

#[tokio::test]
async fn a_writer_that_ends_between_two_applies_leaves_nothing_old() {
    let mut pair = Pair::start().await;
    for (end, [follower, mut target]) in ENDS {
        let (here, _) = pair.cached(EdgeList::Following, follower).await;
        // At another server.
        while pair.cached(EdgeList::Followers, target).await.0 == here {
            target += 4;
        }
        let (there, before) = pair.cached(EdgeList::Followers, target).await;
        pair.pause_redis(&[here]).await;
        let _call = pair.victim_follows(follower, target);
        eventually("the other entry is changed", PATIENCE, async || {
            pair.entry(EdgeList::Followers, target).await != Some((there, before.clone()))
        })
        .await;
        pair.end(end);
        pair.resume_redis().await;
        pair.answers_what_is_committed(follower, target, Instant::now(), end).await;
        pair.replace(end).await;
    }
}

/// Between the lease and the read. What the process has read when it goes on is older than the follow, and
/// its lease is gone.
#[tokio::test]
async fn a_loader_that_ends_before_it_reads_installs_nothing_old() {
    let mut pair = Pair::start().await;
    for (end, [follower, target]) in ENDS {
        let lock = pair.victim_begins_to_read(target).await;
        pair.end(end);
        drop(lock);
        pair.wait_until_idle().await;
        // So many that the entries are removed, with the lease.
        let others = (0..200).map(|n| (id(2_000 + n), target));
        let follows: Vec<_> = others.chain([(follower, target)]).collect();
        pair.system.import(&follows).await;
        assert_eq!(pair.system.counts(target).await, (0, 202, 0), "it was acknowledged");
        pair.cached(EdgeList::Followers, target).await;
        pair.answers_what_is_committed(follower, target, Instant::now(), end).await;
        pair.replace(end).await;
    }
}

/// Between the read and the installation, which waits at Redis when the follow is committed.
#[tokio::test]
async fn a_loader_that_ends_before_it_installs_installs_nothing_old() {
    let mut pair = Pair::start().await;
    for (end, [follower, target]) in ENDS {
        let lock = pair.victim_begins_to_read(target).await;
        pair.pause_redis(&ALL).await;
        pair.wait_for_marks().await;
        drop(lock);
        pair.wait_until_idle().await;
        // Time to send the installation.
        tokio::time::sleep(Duration::from_millis(50)).await;
        pair.end(end);
        let system = &pair.system;
        let (followed, ()) = tokio::join!(system.follow(follower, target), async {
            pair.wait_for_commit(follower, target).await;
            pair.resume_redis().await;
        });
        followed.unwrap();
        assert_eq!(pair.system.counts(target).await, (0, 2, 0), "it was acknowledged");
        pair.answers_what_is_committed(follower, target, Instant::now(), end).await;
        pair.replace(end).await;
    }
}

/// The replica has what the primary had when it was cut off, and takes its place a while later: at once,
/// while the marks of the primary are young, and after their time.
#[tokio::test]
async fn a_redis_that_fails_over_to_an_old_replica_answers_nothing_old_for_long() {
    for behind in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(13)] {
        let primary = RedisServer::start().await;
        let proxy = Proxy::start(primary.port()).await;
        let url = primary
            .url("relation")
            .replace(&format!(":{}", primary.port()), &format!(":{}", proxy.port()));
        let replica = primary.start_replica().await;
        let database = Database::postgres().await;
        let urls = [url, database.url()];
        let pair = Pair::start_on(Store::Single(primary), database, urls).await;
        let [follower, target] = [id(1), id(2)];
        assert_eq!(pair.system.counts(follower).await, (0, 0, 0));
        pair.cached(EdgeList::Followers, target).await;
        eventually("the replica has the entry", PATIENCE, async || {
            let keys = cmd("KEYS").arg(format!("rel:*:followers:*:{target}")).take();
            let keys: Vec<String> = keys.query_async(&mut replica.admin().await).await.unwrap();
            !keys.is_empty()
        })
        .await;
        let mut promote = cmd("REPLICAOF");
        promote.arg("NO").arg("ONE").exec_async(&mut replica.admin().await).await.unwrap();
        assert!(pair.victim_follows(follower, target).await.unwrap());
        tokio::time::sleep(behind).await;
        proxy.move_to(replica.port());
        pair.system.redis.nodes()[0].kill();
        pair.answers_what_is_committed(follower, target, Instant::now(), End::Stopped).await;
        // The cache answers again.
        let keys = cmd("KEYS").arg(format!("rel:*:following:*:{follower}")).take();
        eventually("the entry is loaded again", PATIENCE, async || {
            pair.system.counts(follower).await;
            let keys: Vec<String> = keys.query_async(&mut replica.admin().await).await.unwrap();
            !keys.is_empty()
        })
        .await;
    }
}

/// The standby lacks the last half second. A process that was stopped before goes on after the promotion,
/// with changes of the lost history.
#[tokio::test]
async fn a_standby_that_lacks_half_a_second_is_what_counts_after_its_promotion() {
    let primary = PostgresServer::start_primary().await;
    let standby = primary.start_standby().await;
    let proxy = Proxy::start(primary.port()).await;
    let redis = Store::start(Topology::Cluster).await;
    let urls = [
        redis.url("relation"),
        primary.url().replace(&primary.port().to_string(), &proxy.port().to_string()),
    ];
    let pair = Pair::start_on(redis, Database::Postgres(primary), urls).await;
    let [follower, target, lost, other] = [id(1), id(2), id(3), id(4)];
    pair.system.follow(follower, target).await.unwrap();
    eventually("the standby has the follow", PATIENCE, async || {
        standby.try_sql(&standby.url(), "SELECT count(*) FROM follows") == Ok("1".to_owned())
    })
    .await;
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    eventually("the standby is cut off", PATIENCE, async || {
        standby.sql("SELECT count(*) FROM pg_stat_wal_receiver") == "0"
    })
    .await;
    for user in [lost, other] {
        assert!(pair.victim_follows(user, target).await.unwrap());
        assert_eq!(pair.system.counts(user).await, (1, 0, 0));
    }
    // Its last change waits for Redis.
    pair.pause_redis(&ALL).await;
    let _call = pair.victim_follows(lost, other);
    pair.wait_for_commit(lost, other).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    pair.end(End::Stopped);
    pair.postgres().kill();
    standby.promote().await;
    proxy.move_to(standby.port());
    pair.resume_redis().await;
    let pair = pair.on(standby);
    eventually("writes go on", PATIENCE, async || pair.system.follow(other, target).await.is_ok())
        .await;
    for (follower, target) in [(follower, target), (other, target), (lost, target), (lost, other)] {
        pair.answers_what_is_committed(follower, target, Instant::now(), End::Stopped).await;
    }
    assert!(pair.is_committed(follower, target) && !pair.is_committed(lost, target));
}
