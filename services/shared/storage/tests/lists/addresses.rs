//! Connections of a process that lead to different servers, since the address of its Redis has moved.

use std::time::Duration;

use microblog_keyspace::{Config, redis::cmd};
use microblog_testkit::{
    ADMIN, Database as Server, PATIENCE, Proxy, RedisServer, Store, eventually, password,
};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    client_side::{MARK, info, start_with_list, wait_until_cached},
    lists::{Add, Process},
    losses::{promote, wait_for_replica},
};

/// Ends the connections of clients to a server: those with client tracking, or the others.
async fn end_connections(redis: &Store, are_tracked: bool) {
    let mut admin = redis.nodes()[0].admin().await;
    let own: u64 = cmd("CLIENT").arg("ID").query_async(&mut admin).await.unwrap();
    let list = cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal").take();
    let list: String = list.query_async(&mut admin).await.unwrap();
    for client in list.lines() {
        let field = |name: &str| client.split(' ').find_map(|field| field.strip_prefix(name));
        let (id, flags) = (field("id=").unwrap(), field("flags=").unwrap());
        if flags.contains('t') == are_tracked && id != own.to_string() {
            let kill = cmd("CLIENT").arg("KILL").arg("ID").arg(id).take();
            // It may have gone.
            let _: u64 = kill.query_async(&mut admin).await.unwrap();
        }
    }
}

/// A primary with a replica, and a process that reaches them by an address, which is the primary's. There
/// is an entry of list 4, with one member, on both.
struct Moving {
    primary: Store,
    replica: Store,
    address: Proxy,
    reader: Process,
    /// That of the primary.
    verifier: JoinHandle<()>,
}

impl Moving {
    async fn start(server: &Server, configure: impl FnOnce(&mut Config)) -> Self {
        let primary = RedisServer::start().await;
        let replica = primary.start_replica().await;
        let address = Proxy::start(primary.port()).await;
        let [port, of_proxy] = [primary.port(), address.port()].map(|port| format!(":{port}"));
        let mut config = Config::at(primary.admin_url().replace(&port, &of_proxy));
        configure(&mut config);
        let (primary, replica) = (Store::Single(primary), Store::Single(replica));
        let verifier = start_with_list(server, &primary).await.verifier();
        let verifier = tokio::spawn(verifier.run());
        let reader = Process::start_at(server, config).await;
        reader.trusted(4).await;
        reader.load(4).await;
        wait_for_replica(&primary).await;
        Self { primary, replica, address, reader, verifier }
    }

    /// Promotes the replica. The primary goes on, and gets another member, which the replica lacks.
    async fn promote(&self, server: &Server) {
        promote(&self.replica).await;
        let writer = Process::start(server, &self.primary).await;
        assert!(writer.writer.write(Add { list: 4, member: 12 }).await.unwrap());
        assert_eq!(self.reader.read(4).await, [8, 12]);
    }

    /// New connections lead to the replica.
    fn move_address(&self) {
        self.address.move_to(self.replica.nodes()[0].port());
    }
}

#[tokio::test]
async fn a_tracked_connection_that_stays_at_an_old_primary_is_not_relied_on() {
    let server = Server::postgres().await;
    let moving = Moving::start(&server, |_| {}).await;
    let Moving { primary, replica, reader, verifier, .. } = &moving;
    let (primary_node, replica_node) = (&primary.nodes()[0], &replica.nodes()[0]);
    wait_until_cached(reader, primary_node).await;
    promote(replica).await;
    verifier.abort();
    moving.move_address();
    end_connections(primary, false).await;
    let writer = Process::start(&server, replica).await;
    let verifier = tokio::spawn(writer.verifier().run());
    writer.trusted(4).await;
    assert!(writer.writer.write(Add { list: 4, member: 12 }).await.unwrap());
    let mut expected = vec![8, 12];
    let is_read = async || reader.read(4).await == expected;
    eventually("the new primary is read", PATIENCE, is_read).await;
    for member in 16..36 {
        assert!(writer.writer.write(Add { list: 4, member }).await.unwrap());
        expected.push(member);
        assert_eq!(reader.read(4).await, expected);
    }
    assert_eq!(info(primary_node, "tracking_clients").await, 1, "it is connected");

    // The old primary gets the changes and the marks of the new one, a moment later.
    let mut admin = primary_node.admin().await;
    for (name, value) in [("masteruser", ADMIN), ("masterauth", &*password(ADMIN))] {
        cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(&mut admin).await.unwrap();
    }
    let follow = cmd("REPLICAOF").arg("127.0.0.1").arg(replica_node.port()).take();
    follow.exec_async(&mut admin).await.unwrap();
    eventually("the connection to a replica is closed", PATIENCE, async || {
        assert_eq!(reader.read(4).await, expected);
        info(primary_node, "tracking_clients").await == 0
    })
    .await;
    verifier.abort();
}

/// A promoted replica has the mark of its former primary.
#[tokio::test]
async fn a_tracked_connection_to_a_server_that_is_not_verified_is_not_relied_on() {
    let server = Server::postgres().await;
    let moving = Moving::start(&server, |_| {}).await;
    let Moving { primary, replica, reader, verifier, .. } = &moving;
    wait_until_cached(reader, &primary.nodes()[0]).await;
    moving.promote(&server).await;
    moving.move_address();
    end_connections(primary, true).await;
    let replica_node = &replica.nodes()[0];
    eventually("the other server is tracked", PATIENCE, async || {
        assert_eq!(reader.read(4).await, [8, 12]);
        info(replica_node, "tracking_total_keys").await >= 2
    })
    .await;
    for _ in 0..100 {
        assert_eq!(reader.read(4).await, [8, 12]);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(info(replica_node, "tracking_clients").await, 1, "it is connected");
    verifier.abort();
}

#[tokio::test]
async fn a_shared_connection_to_a_server_that_is_not_verified_is_not_relied_on() {
    let server = Server::postgres().await;
    let without_tracking = |config: &mut Config| {
        (config.redis_cache_bytes, config.redis_connections) = (0, 2);
    };
    let moving = Moving::start(&server, without_tracking).await;
    let Moving { primary, replica, reader, verifier, .. } = &moving;
    moving.promote(&server).await;
    // It makes one when it needs one, and the other when it is to be ready.
    end_connections(primary, false).await;
    assert_eq!(reader.read(4).await, [8, 12]);
    moving.move_address();
    reader.keyspace.ready().await.unwrap();
    let marked_s = async |redis: &Store| {
        let time = cmd("HGET").arg(MARK).arg("time").take();
        time.query_async::<u64>(&mut redis.nodes()[0].admin().await).await.unwrap()
    };
    eventually("the primary is marked again", PATIENCE, async || {
        marked_s(primary).await > marked_s(replica).await
    })
    .await;
    // Until it is read.
    sleep(Duration::from_secs(1)).await;
    reader.trusted(4).await;
    for _ in 0..100 {
        assert_eq!(reader.read(4).await, [8, 12]);
        sleep(Duration::from_millis(10)).await;
    }
    verifier.abort();
}
