//! The content of the fan-out streams and of stored timelines.

use microblog_domain::UserId;
use microblog_testkit::{
    self as testkit, RedisServer,
    redis::{Value, cmd},
};
use microblog_timeline::{Job, Store};
use prost::Message as _;

use super::{PATIENCE, System};

const STREAMS: u16 = 16;

/// The fields of a stream entry.
type Fields = Vec<(String, Vec<u8>)>;

/// Returns the jobs in the streams of a single server, pending ones included.
pub(crate) async fn jobs(redis: &RedisServer) -> Vec<Job> {
    let mut admin = redis.admin().await;
    let mut jobs = Vec::new();
    for stream in 0..STREAMS {
        let mut range = cmd("XRANGE");
        range.arg(format!("tl:{{{stream}}}:fanout")).arg("-").arg("+");
        let steps: Vec<(String, Fields)> = range.query_async(&mut admin).await.unwrap();
        let fields = steps.into_iter().flat_map(|(_, fields)| fields);
        jobs.extend(fields.filter_map(|(_, job)| Job::decode(&job[..]).ok()));
    }
    jobs
}

/// Returns the number of steps, pending ones included.
pub(crate) async fn depth(redis: &testkit::Store) -> u64 {
    let mut depth = 0;
    for stream in 0..STREAMS {
        for node in redis.nodes() {
            let mut len = cmd("XLEN");
            len.arg(format!("tl:{{{stream}}}:fanout"));
            // In a cluster, one node has the stream.
            if let Ok(Value::Int(len)) = len.query_async(&mut node.admin().await).await {
                depth += len as u64;
            }
        }
    }
    depth
}

/// Waits until the streams are empty.
pub(crate) async fn drained(system: &System) {
    let is_idle = async || depth(&system.redis).await == 0;
    testkit::eventually("the streams are empty", PATIENCE, is_idle).await;
}

/// Returns the stored posts of a home timeline, oldest first.
pub(crate) async fn stored(store: &Store, user: u64) -> Vec<u64> {
    let user = UserId::new(user).unwrap();
    let mut entries = Vec::new();
    // On a busy machine, a server may respond late.
    testkit::eventually("the store answers", PATIENCE, async || {
        let home = store.home(user).await;
        home.is_ok_and(|home| {
            entries = home.map(|home| home.entries).unwrap_or_default();
            true
        })
    })
    .await;
    entries.into_iter().map(|entry| entry.post.get()).collect()
}

/// Returns the stored posts of a user timeline, newest first.
pub(crate) async fn published(store: &Store, author: u64) -> Vec<u64> {
    let author = UserId::new(author).unwrap();
    let mut entries = Vec::new();
    testkit::eventually("the store answers", PATIENCE, async || {
        let tails = store.tails(&[author], None).await;
        tails.is_ok_and(|tails| {
            entries = tails.into_iter().flat_map(|tail| tail.entries).collect();
            true
        })
    })
    .await;
    entries.into_iter().rev().map(|entry| entry.post.get()).collect()
}
