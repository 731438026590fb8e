//! What an operator runs: `microblog restore` and `microblog verify`; and health checks.

use std::{collections::BTreeMap, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use microblog_local::{launch::program, remote};
use microblog_testkit::{PATIENCE, PostgresServer, Process, eventually};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use super::{Certificates, System};
use crate::{
    clock::{self, Millis},
    model::{PARTITIONS, Partition},
};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A violation may be a step that a sweeper has yet to complete.
const SETTLED: Duration = Duration::from_secs(60);

/// Longer than a busy machine takes to fill the database.
const FILLED: Duration = Duration::from_secs(240);

/// The time of the last recorded change of each partition.
pub(crate) type RecordedAt = BTreeMap<Partition, Millis>;

impl System {
    /// Waits until all servers are SERVING. The error has the log of one that is not.
    pub(crate) async fn wait_until_serving(&self) -> Result<()> {
        let is_serving = async |url: &str| {
            let Ok(channel) = remote::channel(url) else { return false };
            remote::is_serving(channel).await.unwrap_or_default()
        };
        for server in self.servers() {
            for url in &server.urls {
                let serving = async {
                    while !is_serving(url).await {
                        sleep(POLL_INTERVAL).await;
                    }
                };
                let log = || server.process.borrow().as_ref().map(Process::log).unwrap_or_default();
                let waited = timeout(PATIENCE, serving).await;
                waited.with_context(|| format!("{url} is not SERVING:\n{}", log()))?;
            }
        }
        Ok(())
    }

    /// Restores the posts of Redis from the database. Repeats a restore that a busy database has ended, as
    /// its error says.
    pub(crate) async fn restore(&self) -> Result<RecordedAt> {
        let (deadline, mut restored_at) = (Instant::now() + SETTLED, RecordedAt::new());
        loop {
            let (success, text) = self.run("restore", &["--verbose"]).await?;
            for line in text.lines().filter(|line| line.contains(": recorded up to ")) {
                let (partition, at) = recorded_at(line)?;
                // A repeated restore names the restore before.
                restored_at.entry(partition).or_insert(at);
            }
            if success {
                let is_complete = restored_at.len() == PARTITIONS as usize;
                ensure!(is_complete, "microblog restore does not name all partitions:\n{text}");
                return Ok(restored_at);
            }
            let is_repeated = text.contains("run the restore again") && Instant::now() < deadline;
            ensure!(is_repeated, "microblog restore failed:\n{text}");
        }
    }

    /// Waits until the database has all partitions of posts. Before that, there is nothing to restore.
    pub(crate) async fn wait_until_filled(&self) {
        eventually("the database is filled", FILLED, async || match self.database.server() {
            Some(postgres) => recorded_versions(postgres).len() == PARTITIONS as usize,
            // Only the services can read SQLite's files.
            None => self.restore().await.is_ok(),
        })
        .await;
    }

    /// Waits until the database has the changes of posts that Redis has now.
    pub(crate) async fn wait_until_recorded(&self) -> Result<()> {
        let Some(postgres) = self.database.server() else {
            // A restore of what has lost nothing records what the journals have.
            return self.restore().await.map(drop);
        };
        let newest = self.redis.newest_changes().await?;
        eventually("the database has the changes of Redis", SETTLED, async || {
            let recorded = recorded_versions(postgres);
            newest.iter().all(|(at, version)| recorded.get(at) >= Some(version))
        })
        .await;
        Ok(())
    }

    /// Waits until `microblog verify` finds no violation.
    pub(crate) async fn verify(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let (success, text) = self.run("verify", &["--wait-s=0"]).await?;
            if success {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "microblog verify:\n{text}");
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Repairs what can be repaired. Returns the number of partition clocks that were set back.
    pub(crate) async fn repair(&self) -> Result<usize> {
        // Under load, it also finds changes that are halfway, and fails.
        let (_, text) = self.run("verify", &["--repair", "--wait-s=0"]).await?;
        Ok(text.lines().filter(|line| line.contains("is set back by")).count())
    }

    /// Runs a command of the launcher on this system. Returns whether it succeeded, and its output.
    async fn run(&self, name: &str, flags: &[&str]) -> Result<(bool, String)> {
        let urls = self.urls();
        let mut command = Command::new(program("microblog")?);
        command.arg(name).args(flags);
        for (name, url) in [
            ("MICROBLOG_USER_URL", &urls.user),
            ("MICROBLOG_RELATION_URL", &urls.relation),
            ("MICROBLOG_POST_URL", &urls.post),
            ("MICROBLOG_TIMELINE_URL", &urls.timeline),
        ] {
            command.env(name, url);
        }
        command.envs(self.certificates.iter().flat_map(Certificates::of_command));
        let output = spawn_blocking(move || command.output()).await??;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Parses a line such as `post 7 restored: recorded up to 1-5, 2026-11-24T11:00:00.123Z`.
fn recorded_at(line: &str) -> Result<(Partition, Millis)> {
    let parse = || {
        let (partition, recorded) = line.split_once(": recorded up to ")?;
        let mut words = partition.split(' ');
        let key = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let (_version, time) = recorded.split_once(", ")?;
        let time = if time == "none" { Some(0) } else { clock::parse(time) };
        Some((key, time?))
    };
    parse().with_context(|| format!("not a line of microblog restore: {line}"))
}

/// Returns the recorded version of each partition of posts.
pub(crate) fn recorded_versions(postgres: &PostgresServer) -> BTreeMap<Partition, u64> {
    let parse = |line: &str| {
        let (partition, version) = line.split_once('|')?;
        Some((("post".to_owned(), partition.parse().ok()?), version.parse().ok()?))
    };
    let positions = postgres.sql("SELECT partition, version FROM post.journal_positions");
    positions.lines().filter_map(parse).collect()
}
