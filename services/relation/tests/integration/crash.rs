//! Processes killed under load: acknowledged changes hold, and both sides converge.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use microblog_proto::relation as pb;
use microblog_testkit::{self as testkit, Process, RedisServer, Topology};
use tonic::{Code, Request};

use crate::support::{self, Client, PATIENCE, id};

const USERS: u64 = 12;
const DEADLINE: Duration = Duration::from_secs(10);

/// The callers' view of each edge: whether it exists; `None` if unknown.
type Known = Arc<Mutex<HashMap<(u64, u64), Option<bool>>>>;

/// Follows and unfollows at random until stopped. One caller owns the edges of a follower, so that
/// it knows their state.
async fn caller(client: Client, follower: u64, load: Load) {
    let Load { known, stop, acknowledged } = load;
    let mut step = follower;
    while !stop.load(Ordering::Relaxed) {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let target = 1 + (step >> 33) % USERS;
        if target == follower {
            continue;
        }
        let follows = !(step >> 20).is_multiple_of(3);
        let began = Instant::now();
        let (follower_id, target_id) = (id(follower), id(target));
        let result = if follows {
            let mut request = Request::new(pb::FollowRequest { follower_id, target_id });
            request.set_timeout(DEADLINE);
            client.clone().follow(request).await.map(|_| ())
        } else {
            let mut request = Request::new(pb::UnfollowRequest { follower_id, target_id });
            request.set_timeout(DEADLINE);
            client.clone().unfollow(request).await.map(|_| ())
        };
        assert!(began.elapsed() < DEADLINE + PATIENCE / 2, "outlived its deadline");
        let outcome = match &result {
            Ok(()) => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                Some(follows)
            }
            Err(status) => {
                let may_be_done =
                    [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown];
                assert!(may_be_done.contains(&status.code()), "{status:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                None
            }
        };
        known.lock().unwrap().insert((follower, target), outcome);
    }
}

#[derive(Clone, Default)]
struct Load {
    known: Known,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
}

struct Running {
    load: Load,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Running {
    fn start(client: &Client) -> Self {
        let load = Load::default();
        let call = |user| tokio::spawn(caller(client.clone(), user, load.clone()));
        Self { callers: (1..=USERS).map(call).collect(), load }
    }

    async fn calls_succeed(&self) {
        let acknowledged = || self.load.acknowledged.load(Ordering::Relaxed);
        let before = acknowledged();
        testkit::eventually("calls succeed", PATIENCE, async || acknowledged() > before + 100)
            .await;
    }

    /// Ends the load, waits until the graph has converged, and compares it with the callers' view.
    async fn ends_converged(self, client: &Client) {
        self.load.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        support::converges(client).await;
        let known = self.load.known.lock().unwrap().clone();
        for ((follower, target), exists) in known {
            let request = pb::GetRelationRequest { viewer_id: id(follower), target_id: id(target) };
            let response = client.clone().get_relation(request).await.unwrap().into_inner();
            let state = response.relation.unwrap().state();
            let follows = matches!(state, pb::RelationState::Following | pb::RelationState::Mutual);
            if let Some(exists) = exists {
                assert_eq!(follows, exists, "{follower} follows {target}");
            }
        }
    }
}

#[tokio::test]
async fn repeated_service_crashes_leave_no_one_sided_follow() {
    let redis = testkit::Store::start(Topology::Single).await;
    let program = env!("CARGO_BIN_EXE_microblog-relation");
    let url = redis.url("relation");
    let args = ["--redis-url", url.as_str()];
    let port = testkit::free_port();
    let start = || Process::start_on(port, program, &args);
    let mut process = start().await;
    let client = support::client(&process.address()).await;
    let load = Running::start(&client);
    for _ in 0..5 {
        load.calls_succeed().await;
        process.kill9();
        process = start().await;
    }
    load.calls_succeed().await;
    load.ends_converged(&client).await;
    drop(process);
}

#[tokio::test]
async fn a_redis_crash_under_load_loses_no_change() {
    let redis = RedisServer::start().await;
    let url = redis.url("relation");
    let program = env!("CARGO_BIN_EXE_microblog-relation");
    let process = Process::start(program, &["--redis-url", url.as_str()]).await;
    let client = support::client(&process.address()).await;
    let load = Running::start(&client);
    load.calls_succeed().await;

    redis.kill();
    testkit::eventually("health notices", PATIENCE, async || !process.is_serving().await).await;
    redis.restart().await;
    load.calls_succeed().await;
    testkit::eventually("health recovers", PATIENCE, async || process.is_serving().await).await;
    load.ends_converged(&client).await;
}
