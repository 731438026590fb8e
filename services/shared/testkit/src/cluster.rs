//! A Redis Cluster of redis-server processes.

use redis::{Cmd, FromRedisValue};

use crate::{
    PATIENCE, RedisServer, eventually, free_port,
    redis_config::{ADMIN, credentials, password},
};

const SLOTS: usize = 16_384;

/// A Redis Cluster on 127.0.0.1: primaries first, then replicas. Dropping it kills all nodes.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster with this number of replicas per primary, and waits until it serves all
    /// slots.
    pub async fn start(primaries: usize, replicas_each: usize) -> Self {
        Self::start_with(primaries, replicas_each, Vec::new).await
    }

    /// Starts a cluster with further options of each node: names and values as in `redis.conf`. With
    /// `tls-port` and `tls-cluster`, the nodes and their clients use TLS.
    pub async fn start_with(
        primaries: usize,
        replicas_each: usize,
        options: impl Fn() -> Vec<(&'static str, String)>,
    ) -> Self {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..primaries * (1 + replicas_each) {
            let bus_port = free_port();
            nodes.push(start_node(bus_port, replicas_each > 0, &options()).await);
            bus_ports.push(bus_port);
        }
        let cluster = Self { nodes };
        for (index, node) in cluster.nodes.iter().enumerate() {
            if index < primaries {
                let (start, end) = (SLOTS * index / primaries, SLOTS * (index + 1) / primaries - 1);
                run::<()>(node, "ADDSLOTSRANGE", &[start.to_string(), end.to_string()]).await;
            }
            run::<()>(node, "SET-CONFIG-EPOCH", &[(index + 1).to_string()]).await;
        }
        for (node, bus_port) in cluster.nodes.iter().zip(&bus_ports).skip(1) {
            let port = node.tls_port().unwrap_or(node.port());
            let address = ["127.0.0.1".to_owned(), port.to_string(), bus_port.to_string()];
            run::<()>(&cluster.nodes[0], "MEET", &address).await;
        }
        cluster
            .wait_for_info(|info| info.contains(&format!("known_nodes:{}\r", cluster.nodes.len())))
            .await;
        for (index, node) in cluster.nodes.iter().enumerate().skip(primaries) {
            let primary = &cluster.nodes[index % primaries];
            let id: String = run(primary, "MYID", &[]).await;
            eventually("a replica knows its primary", PATIENCE, async || {
                command("REPLICATE", std::slice::from_ref(&id))
                    .exec_async(&mut node.admin().await)
                    .await
                    .is_ok()
            })
            .await;
        }
        cluster
            .wait_for_info(|info| {
                info.contains("cluster_slots_ok:16384\r") && info.contains("cluster_state:ok")
            })
            .await;
        cluster.wait_for_replicas(primaries).await;
        cluster
    }

    /// Returns the cluster's URL for a user of `deploy/redis/users.acl`.
    pub fn url(&self, user: &str) -> String {
        let scheme = match self.nodes[0].tls_port() {
            Some(_) => "rediss-cluster",
            None => "redis-cluster",
        };
        let ports = self.nodes.iter().map(|node| node.tls_port().unwrap_or(node.port()));
        let addresses: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        format!("{scheme}://{}@{}", credentials(user), addresses.join(","))
    }

    /// Starts a further node that the others do not know.
    pub async fn start_node(&self) -> RedisServer {
        start_node(free_port(), true, &[]).await
    }

    /// Returns all nodes, the initial primaries first.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the index of the primary of a key, according to the node `seen_by`.
    pub async fn primary_of(&self, key: &str, seen_by: usize) -> usize {
        let seen_by = &self.nodes[seen_by];
        let slot: u16 = run(seen_by, "KEYSLOT", &[key.to_owned()]).await;
        let nodes: String = run(seen_by, "NODES", &[]).await;
        let serves = |line: &&str| {
            let ranges = line.split(' ').skip(8).filter_map(|range| {
                let (start, end) = range.split_once('-').unwrap_or((range, range));
                Some(start.parse::<u16>().ok()?..=end.parse().ok()?)
            });
            line.contains("master") && { ranges }.any(|range| range.contains(&slot))
        };
        let line = nodes.lines().find(serves).expect("a node serves the slot");
        let is_it = |node: &RedisServer| line.contains(&format!("127.0.0.1:{}@", node.port()));
        self.nodes.iter().position(is_it).expect("the node belongs to this cluster")
    }

    /// Kills a node (SIGKILL).
    pub fn kill(&self, node: usize) {
        self.nodes[node].kill();
    }

    /// Restarts a node with its data.
    pub async fn restart(&self, node: usize) {
        self.nodes[node].restart().await;
    }

    async fn wait_for_info(&self, is_ready: impl Fn(&str) -> bool) {
        eventually("the cluster forms", PATIENCE, async || {
            for node in &self.nodes {
                let info: String = run(node, "INFO", &[]).await;
                if !is_ready(&info) {
                    return false;
                }
            }
            true
        })
        .await;
    }

    async fn wait_for_replicas(&self, primaries: usize) {
        for replica in self.nodes.iter().skip(primaries) {
            replica.wait_until_in_sync().await;
        }
    }
}

async fn start_node(
    bus_port: u16,
    has_replicas: bool,
    more: &[(&'static str, String)],
) -> RedisServer {
    // In milliseconds. With replicas, short: a failover takes two or three seconds. Without
    // replicas, long: a stall of a busy machine must not take the cluster down.
    let node_timeout = if has_replicas { "1000" } else { "10000" };
    let (bus_port, password) = (bus_port.to_string(), password(ADMIN));
    let own = [
        ("cluster-enabled", "yes"),
        ("cluster-port", &bus_port),
        ("cluster-node-timeout", node_timeout),
        ("cluster-replica-validity-factor", "0"),
        ("repl-diskless-sync-delay", "0"),
        ("masteruser", ADMIN),
        ("masterauth", &password),
    ];
    let more = more.iter().map(|(name, value)| (*name, value.as_str()));
    RedisServer::start_with(&own.into_iter().chain(more).collect::<Vec<_>>()).await
}

fn command(name: &str, args: &[String]) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(name).arg(args);
    command
}

async fn run<T: FromRedisValue>(node: &RedisServer, name: &str, args: &[String]) -> T {
    let answer = command(name, args).query_async(&mut node.admin().await).await;
    answer.unwrap_or_else(|error| panic!("CLUSTER {name}: {error}"))
}
