//! What an operator runs: `microblog verify`; and health checks.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use microblog_local::{launch::program, remote};
use microblog_testkit::{PATIENCE, Process};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

use super::{Certificates, System};
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What is under way, such as a deletion, may cause violations until then.
const SETTLED: Duration = Duration::from_secs(60);

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
            ("MICROBLOG_NOTICE_URL", &urls.notice),
        ] {
            command.env(name, url);
        }
        command.envs(self.certificates.iter().flat_map(Certificates::of_command));
        let output = spawn_blocking(move || command.output()).await??;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
}
