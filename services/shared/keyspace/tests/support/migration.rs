//! Migration of slots between the primaries of a cluster.

use std::time::Duration;

use microblog_keyspace::redis;
use microblog_testkit::{RedisCluster, RedisServer};

/// The migration of a slot between two primaries.
pub(crate) struct Migration<'a> {
    nodes: &'a [RedisServer],
    slot: String,
    /// The index of the node that owned the slot.
    pub(crate) from: usize,
    to: usize,
    to_id: String,
}

impl<'a> Migration<'a> {
    /// Begins to migrate the slot of a key to another primary.
    pub(crate) async fn begin(cluster: &'a RedisCluster, key: &str) -> Self {
        let nodes = cluster.nodes();
        let from = cluster.primary_of(key, 0).await;
        let to = (from + 1) % 3;
        let keyslot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).take();
        let slot: u16 = keyslot.query_async(&mut nodes[from].admin().await).await.unwrap();
        let (from_id, to_id) = (
            cluster_command(&nodes[from], &["MYID"]).await,
            cluster_command(&nodes[to], &["MYID"]).await,
        );
        let slot = slot.to_string();
        cluster_command(&nodes[to], &["SETSLOT", &slot, "IMPORTING", &from_id]).await;
        cluster_command(&nodes[from], &["SETSLOT", &slot, "MIGRATING", &to_id]).await;
        Self { nodes, slot, from, to, to_id }
    }

    /// Migrates a key at a time, and then the slot.
    pub(crate) async fn complete(&self) {
        let &Self { nodes, ref slot, from, to, ref to_id } = self;
        let admin = redis::Client::open(nodes[to].admin_url()).unwrap();
        let admin = admin.get_connection_info().redis_settings();
        let (user, password) = (admin.username().unwrap(), admin.password().unwrap());
        loop {
            let mut keys = redis::cmd("CLUSTER");
            keys.arg("GETKEYSINSLOT").arg(slot).arg(1);
            let keys: Vec<String> = keys.query_async(&mut nodes[from].admin().await).await.unwrap();
            let Some(key) = keys.first() else { break };
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(nodes[to].port()).arg("").arg(0).arg(60_000);
            migrate.arg("AUTH2").arg(user).arg(password).arg("KEYS").arg(key);
            migrate.exec_async(&mut nodes[from].admin().await).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for node in [to, from] {
            cluster_command(&nodes[node], &["SETSLOT", slot, "NODE", to_id]).await;
        }
    }
}

pub(crate) async fn cluster_command(node: &RedisServer, parts: &[&str]) -> String {
    let command = redis::cmd("CLUSTER").arg(parts).take();
    command.query_async(&mut node.admin().await).await.unwrap()
}
