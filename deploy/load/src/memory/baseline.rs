//! Baseline of follows: two plain sorted sets per account.

use microblog_keyspace::redis;
use microblog_local::edges::EdgeList;

use super::readings::Store;

/// The pattern of all keys that [`write()`] creates.
pub(super) const PATTERN: &str = "plain:*";

const FOLLOWS_PER_CALL: usize = 10_000;

/// The maximum number of entries of a packed sorted set (listpack), with Redis' default.
const PACKED_OPTION: &str = "zset-max-listpack-entries";
const PACKED_DEFAULT: &str = "128";

/// Writes the follows of a graph into two sorted sets each: following and followers. `ids` are the
/// ids of the graph's names. Meanwhile, Redis has its default listpack limit. Existing keys keep
/// their encoding.
pub(super) async fn write(store: &mut Store, graph: &EdgeList, ids: &[u64]) -> anyhow::Result<()> {
    let configured = store.configure(PACKED_OPTION, PACKED_DEFAULT).await?;
    let written = write_all(store, graph, ids).await;
    store.configure(PACKED_OPTION, &configured).await?;
    written
}

async fn write_all(store: &mut Store, graph: &EdgeList, ids: &[u64]) -> anyhow::Result<()> {
    // As large as a stamp, and increasing.
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
    async fn baseline_sets_have_the_default_encoding_and_the_option_is_restored() {
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
