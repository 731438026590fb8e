//! Sentinels that disagree, or report another primary while the old one still accepts calls.

use microblog_keyspace::{Config, Keyspace, redis};
use microblog_testkit::{LoneSentinel, PATIENCE, RedisServer, Sentinels, eventually};

use crate::support::{LIBRARY, USER, get, key, open};

/// Starts two servers that know their names.
async fn servers() -> [RedisServer; 2] {
    let [one, two] = [RedisServer::start().await, RedisServer::start().await];
    for (server, name) in [(&one, "one"), (&two, "two")] {
        let mut set = redis::cmd("SET");
        set.arg(key(1, "name")).arg(name).exec_async(&mut server.admin().await).await.unwrap();
    }
    [one, two]
}

async fn name(keyspace: &Keyspace) -> Option<String> {
    get(keyspace, &key(1, "name")).await.ok().flatten()
}

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1 {}", server.port())
}

/// Starts a Sentinel that monitors a server, with an epoch of its configuration.
async fn sentinel(server: &RedisServer, epoch: u8) -> LoneSentinel {
    let sentinel =
        Sentinels::lone(&address(server), &[("sentinel config-epoch", &format!("main {epoch}"))]);
    eventually("the sentinel answers", PATIENCE, async || {
        command(&sentinel, "SENTINEL MASTER main").await
    })
    .await;
    sentinel
}

async fn command(sentinel: &LoneSentinel, command: &str) -> bool {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", sentinel.port())).unwrap();
    let Ok(mut connection) = client.get_multiplexed_async_connection().await else { return false };
    let mut words = command.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.exec_async(&mut connection).await.is_ok()
}

/// Returns the URL of the primary that some Sentinels report.
fn url(server: &RedisServer, sentinels: &[&LoneSentinel]) -> String {
    let url = server.url(USER);
    let (credentials, _) = url.split_once('@').unwrap();
    let credentials = credentials.replace("redis://", "redis+sentinel://");
    let addresses: Vec<_> =
        sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
    format!("{credentials}@{}/main", addresses.join(","))
}

#[tokio::test]
async fn the_newest_configuration_counts() {
    let [one, two] = servers().await;
    let (old, new) = (sentinel(&one, 1).await, sentinel(&two, 2).await);
    for sentinels in [[&old, &new], [&new, &old]] {
        for _ in 0..10 {
            let keyspace = open(url(&one, &sentinels));
            assert_eq!(name(&keyspace).await.as_deref(), Some("two"));
        }
    }
}

#[tokio::test]
async fn all_workers_have_the_same_primary() {
    let [one, two] = servers().await;
    let sentinel = sentinel(&one, 1).await;
    let config = Config::at(url(&one, &[&sentinel]));
    let workers = [(); 2].map(|()| Keyspace::open(&config, LIBRARY).unwrap());
    for worker in &workers {
        assert_eq!(name(worker).await.as_deref(), Some("one"));
    }
    assert!(command(&sentinel, "SENTINEL REMOVE main").await);
    assert!(command(&sentinel, &format!("SENTINEL MONITOR main {} 1", address(&two))).await);

    // One of them loses its connection.
    let mut admin = one.admin().await;
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut admin).await.unwrap();
    let line = list.lines().find(|line| line.contains(&format!(" user={USER} "))).unwrap();
    let id = line.split(' ').next().unwrap().strip_prefix("id=").unwrap();
    let kill = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).take();
    kill.exec_async(&mut admin).await.unwrap();
    eventually("a worker finds the new primary", PATIENCE, async || {
        let names = [name(&workers[0]).await, name(&workers[1]).await];
        names.iter().any(|name| name.as_deref() == Some("two"))
    })
    .await;
    for worker in &workers {
        assert_eq!(name(worker).await.as_deref(), Some("two"));
    }
}
