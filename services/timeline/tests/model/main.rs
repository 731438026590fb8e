//! Model test of timelines: 50 users post, repost, follow, unfollow, block and mute in many
//! concurrent tasks. Some follows stop halfway for a moment; some posts are delivered late or
//! twice; some home timelines are deleted. Sometimes many posts are delivered again, as after a
//! restart. Meanwhile others scroll, count and poll for new posts.
//!
//! Each response is compared with what the specification allows and requires, given the operations
//! before and during it (`history`, `check`). From time to time, all tasks wait until the fan-out
//! is complete. Then each timeline must be exactly as specified.
//!
//! This service does not store deletions. But a scroll returns no post twice, as an entry or as a
//! suppressed repost, so none shows twice after deletions either.
//!
//! A failure prints its seed. With `MICROBLOG_MODEL_SEED`, the tasks make the same choices; their
//! interleaving still differs. `MICROBLOG_MODEL_STEPS` makes more and longer runs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod calls;
mod check;
mod history;
mod quiescent;
mod restarts;
mod ring;
mod rng;
#[path = "../support/mod.rs"]
mod support;
mod task;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use microblog_domain::UserId;
use microblog_keyspace::Keyspace;
use microblog_proto::relation::relation_service_client::RelationServiceClient;
use microblog_testkit::{self as testkit, Topology};
use microblog_timeline::{FanoutState, Store};
use support::{Client, PATIENCE, System};
use task::{Phase, Task};
use tokio::{runtime::Builder, task::JoinSet, time::sleep};
use tonic::transport::Channel;

use crate::{history::History, rng::Rng};

/// The number of users. Those with low numbers post more and have more followers.
const USERS: usize = 50;

/// The number of concurrent tasks.
const TASKS: usize = 10;

/// The steps, over all tasks.
const STEPS: usize = 2_000;

/// The most steps of a run; more are several runs, each with a system and a seed of its own. Each check
/// reads the history of its run.
const RUN_STEPS_MAX: usize = 10_000;

/// The phases of a run; all timelines are compared after each.
const PHASES: [Phase; 5] =
    [Phase::Growth, Phase::Calm, Phase::Decline, Phase::Growth, Phase::Decline];

/// The most further declines until some author has switched both ways, which is random.
const DECLINES_MORE: usize = 10;

/// The pull threshold; about half of the authors exceed it at times.
const THRESHOLD: &str = "8";

/// The poll interval of the streams.
const LOOK: Duration = Duration::from_millis(5);

/// A system under test and its model.
struct Case {
    client: Client,
    relation: RelationServiceClient<Channel>,
    keyspace: Keyspace,
    store: Store,
    history: Mutex<History>,
    has_failed: AtomicBool,
}

impl Case {
    fn new(system: &System, is_direct: bool) -> Self {
        Self {
            client: system.client.clone(),
            relation: system.relation.clone(),
            keyspace: calls::keyspace(&system.config),
            store: system.store.clone(),
            history: Mutex::new(History::new(USERS, is_direct)),
            has_failed: AtomicBool::new(false),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    async fn becomes_quiet(&self) {
        testkit::eventually("the fan-out is done", PATIENCE, async || self.check_if_idle().await)
            .await;
    }
}

/// Runs the steps of all tasks concurrently.
async fn play(
    case: &Arc<Case>,
    tasks: Vec<Task>,
    phase: Phase,
    steps: usize,
) -> Result<Vec<Task>, String> {
    let looking = tokio::spawn({
        let case = case.clone();
        async move {
            loop {
                case.check_if_idle().await;
                sleep(LOOK).await;
            }
        }
    });
    let mut playing = JoinSet::new();
    for task in tasks {
        let case = case.clone();
        playing.spawn(async move {
            let played = task.run(phase, steps).await;
            if played.is_err() {
                case.has_failed.store(true, Ordering::Relaxed);
            }
            played
        });
    }
    let played = playing.join_all().await;
    looking.abort();
    played.into_iter().collect()
}

/// The fan-out states of authors in the course of a run.
#[derive(Debug, Default)]
struct Ways {
    pulled: BTreeSet<usize>,
    pushed_again: BTreeSet<usize>,
}

impl Ways {
    fn are_both(&self) -> bool {
        !self.pulled.is_empty() && !self.pushed_again.is_empty()
    }

    async fn note(&mut self, store: &Store) {
        let authors: Vec<_> =
            (0..USERS).filter_map(|n| UserId::new(support::id(n as u64))).collect();
        let states = store.fanout_states(&authors).await.expect("the states");
        for (author, state) in states.into_iter().enumerate() {
            match state {
                FanoutState::OnRead => drop(self.pulled.insert(author)),
                FanoutState::OnWrite if self.pulled.contains(&author) => {
                    self.pushed_again.insert(author);
                }
                FanoutState::OnWrite | FanoutState::Switching => {}
            }
        }
    }
}

async fn run(
    case: Arc<Case>,
    store: Store,
    seed: u64,
    steps: usize,
    crosses: bool,
) -> Result<Ways, String> {
    let mut ways = Ways::default();
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        tasks.push(Task::new(case.clone(), seed, number, TASKS).prepare().await?);
    }
    let mut rng = Rng::new(seed, TASKS as u64);
    let more = [Phase::Decline; DECLINES_MORE];
    for (number, phase) in PHASES.into_iter().chain(more).enumerate() {
        if number >= PHASES.len() && (ways.are_both() || !crosses) {
            break;
        }
        tasks = play(&case, tasks, phase, steps / TASKS / PHASES.len()).await?;
        case.becomes_quiet().await;
        ways.note(&store).await;
        quiescent::all_is_as_expected(&case, &mut rng).await?;
        for task in &mut tasks {
            task.nothing_is_left().await?;
        }
    }
    Ok(ways)
}

fn every_answer_is_allowed(topology: Topology, mode: &str) {
    for steps in testkit::model_runs(STEPS, RUN_STEPS_MAX) {
        // The servers of a run end with its runtime: those of a hundred runs would slow down the next.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(every_answer_of_a_run_is_allowed(topology, mode, steps));
    }
}

/// Starts a system, and runs it with so many steps.
async fn every_answer_of_a_run_is_allowed(topology: Topology, mode: &str, steps: usize) {
    let seed = rng::seed();
    let flags = ["--mode", mode, "--pull-threshold", THRESHOLD];
    let system = System::start_with(topology, &flags).await;
    let case = Arc::new(Case::new(&system, mode == "pull"));
    let begin = Instant::now();
    let crosses = mode == "hybrid";
    let outcome = run(case.clone(), system.store.clone(), seed, steps, crosses).await;
    let posts = case.history().posts.len();
    println!("{steps} steps, {posts} posts in {:?}", begin.elapsed());
    match outcome {
        Ok(ways) => assert!(ways.are_both() || !crosses, "{ways:?}\n{}", rng::again(seed)),
        Err(reason) => panic!("{reason}\n{}", rng::again(seed)),
    }
}

macro_rules! runs {
    ($($name:ident: $topology:ident, $mode:literal;)*) => {
        $(
            #[test]
            fn $name() {
                every_answer_is_allowed(Topology::$topology, $mode);
            }
        )*
    };
}

runs! {
    every_answer_is_allowed_in_hybrid_mode_on_a_single_server: Single, "hybrid";
    every_answer_is_allowed_in_hybrid_mode_on_a_cluster: Cluster, "hybrid";
    every_answer_is_allowed_in_push_mode_on_a_single_server: Single, "push";
    every_answer_is_allowed_in_push_mode_on_a_cluster: Cluster, "push";
    every_answer_is_allowed_in_pull_mode_on_a_single_server: Single, "pull";
    every_answer_is_allowed_in_pull_mode_on_a_cluster: Cluster, "pull";
}
