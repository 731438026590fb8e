//! Several processes of the service.

use microblog_proto::notice::notice_service_client::NoticeServiceClient;
use microblog_testkit::{Process, Topology};

use super::{Client, System, args, channel};

/// Processes on a cluster and PostgreSQL.
pub(crate) struct Processes {
    /// The stores, and what the processes follow. It has no service of its own.
    pub(crate) system: System,
    pub(crate) running: Vec<(Process, Client)>,
}

impl Processes {
    pub(crate) async fn start(count: usize) -> Self {
        let mut system = System::start(Topology::Cluster).await;
        system.stop().await;
        let mut processes = Self { system, running: Vec::new() };
        for _ in 0..count {
            let process = processes.start_one().await;
            processes.running.push(process);
        }
        processes.system.client = processes.running[0].1.clone();
        processes
    }

    async fn start_one(&self) -> (Process, Client) {
        let System { redis, database, followed, .. } = &self.system;
        let mut args = args(&redis.url("notice"), &database.url());
        for (service, url) in ["user", "relation", "post"].iter().zip(&followed.urls) {
            args.extend([format!("--{service}-url"), url.clone()]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let process = Process::start(env!("CARGO_BIN_EXE_microblog-notice"), &args).await;
        let client = NoticeServiceClient::new(channel(&process.address()));
        (process, client)
    }

    /// Kills a process, and starts another one in its place.
    pub(crate) async fn replace(&mut self, which: usize) {
        self.running[which].0.kill9();
        self.running[which] = self.start_one().await;
        self.system.client = self.running[0].1.clone();
    }

    /// Kills a process. Its leases end, too.
    pub(crate) async fn kill(&mut self, which: usize) {
        self.running[which].0.kill9();
        self.system.release_leases().await;
    }

    /// Returns how far the feed of post is applied: the position, and the number of the last change.
    pub(crate) async fn progress(&self) -> [i64; 2] {
        let sql = "SELECT unnest(ARRAY[sequence, applied]) FROM positions WHERE feed = 'post'";
        self.system.numbers(sql).await.try_into().expect("two numbers")
    }

    /// Returns the client of the n-th process, in turns.
    pub(crate) fn client(&self, n: usize) -> Client {
        self.running[n % self.running.len()].1.clone()
    }
}
