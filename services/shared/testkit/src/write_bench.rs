//! What writes of a service cost with each database: throughput, latency, commands and transactions; and
//! what the service costs while nothing calls it.

use std::{
    fs,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use nix::unistd::{SysconfVar, sysconf};
use tonic::transport::{Channel, Endpoint};

use crate::{Database, PATIENCE, PostgresServer, Process, RedisServer, eventually};

/// Calls of concurrent callers, and of one.
const CALLS: u64 = 6_400;
const CALLS_ALONE: u64 = 640;

/// Connections to the service.
const CONNECTIONS: usize = 8;

/// Settings with which PostgreSQL's commits are durable, as SQLite's are.
const SYNCED: [&str; 1] = ["fsync=on"];

/// How long the service is observed without calls.
const IDLE: Duration = Duration::from_secs(10);

/// What varies.
#[derive(Clone, Copy, Debug)]
pub struct WriteSetting {
    workers: usize,
    callers: usize,
    is_embedded: bool,
}

impl WriteSetting {
    /// Returns all of one and 64 callers with each database, and of these `workers`.
    pub fn all(workers: &[usize]) -> Vec<Self> {
        let mut all = Vec::new();
        for &workers in workers {
            for callers in if workers == 1 { &[64, 1][..] } else { &[64] } {
                let with = |is_embedded| Self { workers, callers: *callers, is_embedded };
                all.extend([false, true].map(with));
            }
        }
        all
    }
}

/// A service with its database and Redis.
pub struct WriteBench {
    setting: WriteSetting,
    process: Process,
    database: Database,
    redis: RedisServer,
    channels: Vec<Channel>,
}

impl WriteBench {
    /// Starts a service (`env!("CARGO_BIN_EXE_…")`) as a user of Redis, with further arguments.
    pub async fn start(setting: WriteSetting, program: &str, user: &str, args: &[&str]) -> Self {
        let redis = RedisServer::start().await;
        let database = match setting.is_embedded {
            true => Database::sqlite(),
            false => Database::Postgres(PostgresServer::start_with(&SYNCED).await),
        };
        let (url, workers) = (redis.url(user), setting.workers.to_string());
        let mut all = vec!["--redis-url", &url, "--threads", &workers, "--log", "error"];
        let database_flag = database.flag();
        all.push(&database_flag);
        all.extend(args);
        let process = Process::start(program, &all).await;
        let channel = |_| {
            let endpoint = Endpoint::from_shared(process.address()).expect("an address");
            endpoint.connect_lazy()
        };
        let channels = (0..CONNECTIONS).map(channel).collect();
        Self { setting, process, database, redis, channels }
    }

    /// Returns the connection for a call.
    pub fn channel(&self, call: u64) -> Channel {
        self.channels[call as usize % CONNECTIONS].clone()
    }

    /// Waits until a change in each partition is acknowledged, and the functions are loaded. Then prints the processor time without calls.
    pub async fn warm_up(&self, change: impl AsyncFn(u64) -> bool) {
        for partition in 0..1_024 {
            eventually("a change is acknowledged", PATIENCE, async || change(partition).await)
                .await;
        }
        let before = self.processor_ms().await;
        tokio::time::sleep(IDLE).await;
        let after = self.processor_ms().await;
        let each = |n: usize| (after[n] - before[n]) / IDLE.as_secs_f64();
        let [service, redis] = [0, 1].map(each);
        println!("{}: idle: {service:.1} ms a second, Redis {redis:.1} ms", self.name());
    }

    /// Makes calls, and prints what they cost. The calls have written `rows`: a table, with a
    /// condition that others do not meet.
    pub async fn measure(&self, what: &str, rows: &str, call: impl AsyncFn(u64)) {
        self.redis.reset_commandstats().await;
        let calls = if self.setting.callers == 1 { CALLS_ALONE } else { CALLS };
        let begun = Instant::now();
        let timed = async |n| {
            let begun = Instant::now();
            call(n).await;
            begun.elapsed()
        };
        let mut latencies: Vec<Duration> = stream::iter(0..calls)
            .map(timed)
            .buffer_unordered(self.setting.callers)
            .collect()
            .await;
        let rate = calls as f64 / begun.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let [median, last] = [50, 99].map(|part| latencies[latencies.len() * part / 100]);
        let commands = self.redis.commandstats().await;
        let each = |name: &str| *commands.get(name).unwrap_or(&0) as f64 / calls as f64;
        println!(
            "{}: {what}: {rate:.0}/s, median {median:.1?}, 99% {last:.1?}; per call: {:.2} fcall{}",
            self.name(),
            each("fcall"),
            self.transactions(rows, calls).await,
        );
    }

    fn name(&self) -> String {
        let WriteSetting { workers, callers, .. } = self.setting;
        format!("{workers} workers, {callers} callers, {}", self.database.kind())
    }

    // Returns how many transactions wrote rows. PostgreSQL alone tells.
    async fn transactions(&self, rows: &str, calls: u64) -> String {
        let Database::Postgres(server) = &self.database else { return String::new() };
        let counts = format!("SELECT count(DISTINCT xmin::text), count(*) FROM {rows}");
        let all = format!("{calls}");
        let mut count = String::new();
        eventually("all rows are there", PATIENCE, async || {
            let found = server.sql(&counts);
            let (transactions, rows) = found.split_once('|').expect("two columns");
            count = transactions.to_owned();
            rows == all
        })
        .await;
        let count: f64 = count.parse().expect("a count");
        format!(", {:.3} transactions", count / calls as f64)
    }

    // Returns the processor time so far of the service, and of Redis, in ms.
    async fn processor_ms(&self) -> [f64; 2] {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("a stat");
        // Behind the name, utime and stime are fields 12 and 13 (proc_pid_stat(5)).
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let fields = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = fields.map(|field| field.parse::<f64>().expect("ticks")).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK).expect("ticks").expect("ticks") as f64;
        let info: String = redis::cmd("INFO")
            .arg("cpu")
            .query_async(&mut self.redis.admin().await)
            .await
            .expect("read the processor time");
        let used = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.expect("a time").trim().parse().expect("seconds")
        };
        let redis = used("used_cpu_sys") + used("used_cpu_user");
        [ticks / per_second * 1e3, redis * 1e3]
    }
}
