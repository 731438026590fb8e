//! Several processes of the service.

use std::sync::Arc;

use microblog_testkit::{self as testkit, Process, Store};

use super::{Client, Database, Topology, client, config, start_process, timelines::Timelines};

/// Processes on the same stores: a cluster and PostgreSQL.
pub(crate) struct Processes {
    urls: [String; 3],
    pub(crate) running: Vec<(Process, Client)>,
    pub(crate) timelines: Timelines,
    pub(crate) redis: Arc<Store>,
    pub(crate) database: Database,
}

impl Processes {
    pub(crate) async fn start(count: usize) -> Self {
        let redis = Arc::new(Store::start(Topology::Cluster).await);
        let database = Database::postgres().await;
        let timelines = Timelines::default();
        let port = testkit::free_port();
        let config = config(&redis.url("post"), &database.url(), &[]);
        timelines.listen_on(testkit::listen_again(([127, 0, 0, 1], port).into()), &config);
        let urls = [redis.url("post"), database.url(), format!("http://127.0.0.1:{port}")];
        let mut processes = Self { urls, running: Vec::new(), timelines, redis, database };
        for _ in 0..count {
            let process = processes.start_one().await;
            processes.running.push(process);
        }
        processes
    }

    async fn start_one(&self) -> (Process, Client) {
        let [redis, database, timeline] = &self.urls;
        let process = start_process(redis, database, timeline, &[]).await;
        let client = client(&process.address());
        (process, client)
    }

    /// Kills a process, and starts another one in its place.
    pub(crate) async fn replace(&mut self, which: usize) {
        self.running[which].0.kill9();
        self.running[which] = self.start_one().await;
    }

    /// Returns the client of the n-th process, in turns.
    pub(crate) fn client(&self, n: usize) -> Client {
        self.running[n % self.running.len()].1.clone()
    }
}
