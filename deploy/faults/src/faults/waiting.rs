//! Work that waits for a service: what stays in a store meanwhile.

use std::{collections::BTreeSet, time::Duration};

use microblog_testkit::{
    PATIENCE, eventually,
    redis::{RedisResult, Value, aio::MultiplexedConnection, cmd},
};
use tokio::time::sleep;

use crate::trial::Trial;

/// Longer than a delivery or a job takes.
const STAYS: Duration = Duration::from_secs(2);

/// Waits until posts wait for their delivery to the timeline service.
pub(super) async fn deliveries(trial: &Trial) -> String {
    let undelivered = async || {
        let database = trial.system.database.server();
        let ids = database.map(|it| it.sql("SELECT id FROM post.undelivered")).unwrap_or_default();
        ids.lines().map(str::to_owned).collect()
    };
    let count = staying("undelivered posts", undelivered).await;
    format!("{count} posts that wait for their delivery")
}

/// Waits until fan-out jobs wait for another service.
pub(super) async fn jobs(trial: &Trial) -> String {
    let read = async |connection: &mut MultiplexedConnection, stream: &str| {
        let entries = cmd("XRANGE").arg(stream).arg("-").arg("+").query_async(connection).await;
        entries.map(|all: Vec<(String, Value)>| all.into_iter().map(|(id, _)| id).collect())
    };
    let count = staying("jobs", async || entries(trial, "tl:*:fanout", &read).await).await;
    format!("{count} jobs that wait")
}

/// Waits until changes of a service wait for the notice service: its position in their feed stays.
pub(super) async fn notices(trial: &Trial, service: &str) -> String {
    staying("positions in feeds", async || [position(trial, service)].into()).await;
    format!("changes of {service} that wait")
}

/// Waits until the notice service applies changes of post.
pub(super) async fn applied(trial: &Trial) -> String {
    let before = position(trial, "post");
    eventually("changes are applied", PATIENCE, async || position(trial, "post") != before).await;
    "changes that were applied meanwhile".to_owned()
}

/// Returns the position of the notice service in the feed of a service.
fn position(trial: &Trial, service: &str) -> String {
    let sql = format!("SELECT sequence FROM notice.positions WHERE feed = '{service}'");
    trial.system.database.server().map(|server| server.sql(&sql)).unwrap_or_default()
}

/// Waits until some of what is read stays for a while. Returns how much.
async fn staying(what: &str, read: impl AsyncFn() -> BTreeSet<String>) -> usize {
    let mut count = 0;
    eventually(&format!("{what} stay"), PATIENCE, async || {
        let before = read().await;
        sleep(STAYS).await;
        count = read().await.intersection(&before).count();
        count > 0
    })
    .await;
    count
}

async fn entries<R>(trial: &Trial, keys: &str, read: &R) -> BTreeSet<String>
where
    R: AsyncFn(&mut MultiplexedConnection, &str) -> RedisResult<Vec<String>>,
{
    let mut all = BTreeSet::new();
    for server in trial.system.redis.servers() {
        let mut connection = server.admin().await;
        let found = cmd("KEYS").arg(keys).query_async(&mut connection).await;
        let found: Vec<String> = found.unwrap_or_default();
        for key in found {
            // A replica redirects to its primary.
            let entries = read(&mut connection, &key).await.unwrap_or_default();
            all.extend(entries.into_iter().map(|entry| format!("{key} {entry}")));
        }
    }
    all
}
