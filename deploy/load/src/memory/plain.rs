//! The same follows in two plain sorted sets: what most would do, to measure ours beside it.

use microblog_keyspace::redis;
use microblog_local::edges::EdgeList;

use super::store::Store;

/// The names of all keys that [`write()`] makes.
pub(super) const PATTERN: &str = "plain:*";

const FOLLOWS_PER_CALL: usize = 10_000;

/// How many entries a sorted set keeps packed, where nobody configures it.
const PACKED_OPTION: &str = "zset-max-listpack-entries";
const PACKED_DEFAULT: &str = "128";

/// Writes the follows of a graph, whose names have these ids, into two sorted sets each: whom the
/// follower follows, and who follows the other. Meanwhile Redis packs sorted sets as it does where
/// nobody configures it; what is there stays as it is.
pub(super) async fn write(store: &mut Store, graph: &EdgeList, ids: &[u64]) -> anyhow::Result<()> {
    let configured = store.configure(PACKED_OPTION, PACKED_DEFAULT).await?;
    let written = write_all(store, graph, ids).await;
    store.configure(PACKED_OPTION, &configured).await?;
    written
}

async fn write_all(store: &mut Store, graph: &EdgeList, ids: &[u64]) -> anyhow::Result<()> {
    // As large as the stamps of ours, and larger with each.
    let mut since = ids.first().copied().unwrap_or_default();
    for edges in graph.edges.chunks(FOLLOWS_PER_CALL) {
        let mut pipeline = redis::pipe();
        for edge in edges {
            let follower = ids[edge.follower as usize];
            let target = ids[edge.target as usize];
            pipeline.cmd("ZADD").arg(format!("plain:following:{follower}")).arg(since).arg(target);
            pipeline.cmd("ZADD").arg(format!("plain:followers:{target}")).arg(since).arg(follower);
            since += 1;
        }
        store.run(&pipeline).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis::cmd;
    use microblog_local::edges::Edge;
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn sets_are_packed_as_redis_comes_and_later_ones_as_configured() {
        const FOLLOWERS: u32 = 200;
        let server = RedisServer::start().await;
        let mut admin = server.admin().await;
        let mut store = Store::new(admin.clone());
        let edges = (1..=FOLLOWERS).map(|follower| Edge { follower, target: 0 }).collect();
        let graph = EdgeList::new((0..=FOLLOWERS).map(|number| format!("u{number}")), edges);
        let ids: Vec<u64> = (0..=u64::from(FOLLOWERS)).map(|number| (1 << 52) + number).collect();
        let configured = store.configure(PACKED_OPTION, "500").await.unwrap();
        write(&mut store, &graph, &ids).await.unwrap();
        assert_eq!(store.configure(PACKED_OPTION, &configured).await.unwrap(), "500");
        let mut encoding = async |key: String| -> String {
            cmd("OBJECT").arg("ENCODING").arg(key).query_async(&mut admin).await.unwrap()
        };
        assert_eq!(encoding(format!("plain:followers:{}", ids[0])).await, "skiplist");
        assert_eq!(encoding(format!("plain:following:{}", ids[1])).await, "listpack");
        let removed = store.remove(PATTERN).await.unwrap();
        let keys: u64 = removed.values().map(|kind| kind.keys).sum();
        assert_eq!(keys, 1 + u64::from(FOLLOWERS));
    }
}
