//! Model test of the follow graph: many tasks follow, unfollow, remove, block and unblock among few
//! users. Some operations stop after any of their steps; all are replayed in any order; two
//! sweepers run meanwhile. In the end both sides, mutuals, counts and id sets agree with the model,
//! and the outbox is empty. The change journals have the same edges.
//!
//! Before some operations, one side of their edge is lost, in part or whole: each call reconciles
//! both sides.
//!
//! Operations on one pair of users are sequential, so that the model knows the result. Those on
//! different pairs are concurrent and share the lists. `MICROBLOG_MODEL_STEPS` makes runs longer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use microblog_domain::UserId;
use microblog_relation::{
    Change, Edge, EdgeSaga, Error, JournalEntry, List, OutboxEntry, Outcome, Store, Sweeper,
    Targets, verify_user,
};
use microblog_testkit::{self as testkit, Topology};
use proptest::{
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};

const USERS: usize = 5;

/// The operations of a case, on average.
const CASE_STEPS: usize = 40;

/// The most steps of a run; more are several runs. Cases read the journals of all earlier ones of a run.
const RUN_STEPS_MAX: usize = 4_000;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Follow,
    Unfollow,
    Block,
    Unblock,
}

/// The step after which the process of an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum CrashPoint {
    Source,
    Projection,
    Acknowledgement,
    /// A complete operation, by the service's code.
    Complete,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    from: usize,
    to: usize,
    verb: Verb,
    crash_point: CrashPoint,
    /// The loss of the edges that the operation changes, before a complete operation.
    lost: Option<Lost>,
}

/// The loss of an edge: bits for its list, its id set, and the list of mutuals.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// On the source side, or on the inverse side.
    source: bool,
    parts: u8,
}

fn operation() -> impl Strategy<Value = Operation> {
    let verb = prop_oneof![
        5 => Just(Verb::Follow),
        3 => Just(Verb::Unfollow),
        1 => Just(Verb::Block),
        1 => Just(Verb::Unblock),
    ];
    let crash_point = prop_oneof![
        Just(CrashPoint::Source),
        Just(CrashPoint::Projection),
        Just(CrashPoint::Acknowledgement),
        Just(CrashPoint::Complete),
    ];
    let users = (0..USERS, 1..USERS).prop_map(|(from, step)| (from, (from + step) % USERS));
    let lost = (any::<bool>(), 1..8_u8).prop_map(|(source, parts)| Lost { source, parts });
    let lost = prop_oneof![2 => Just(None), 1 => lost.prop_map(Some)];
    (users, verb, crash_point, lost).prop_map(|((from, to), verb, crash_point, lost)| {
        let lost = lost.filter(|_| crash_point == CrashPoint::Complete);
        Operation { from, to, verb, crash_point, lost }
    })
}

/// What is replayed.
#[derive(Clone, Copy, Debug)]
enum Replay {
    Follow(Change),
    Block(Change),
}

/// The users of a case, its store, and the recorded steps.
#[derive(Clone)]
struct Case {
    users: Arc<Vec<UserId>>,
    store: Store,
    edges: EdgeSaga,
    replays: Arc<Mutex<Vec<Replay>>>,
    redis: Arc<testkit::Store>,
}

type Set = BTreeSet<(usize, usize)>;

impl Case {
    fn edge(&self, from: usize, to: usize) -> Edge {
        Edge { from: self.users[from], to: self.users[to] }
    }

    fn record(&self, replay: Replay) {
        self.replays.lock().unwrap().push(replay);
    }

    /// Loses data of the edges that an operation changes. Keeps tombstones, which reject old
    /// replays.
    async fn lose(&self, operation: Operation, lost: Lost) {
        let Operation { from, to, verb, .. } = operation;
        let Edge { from, to } = self.edge(from, to);
        let (mut lists, mut sets, mut mutuals) = (Vec::new(), Vec::new(), Vec::new());
        let mut follow = |from: UserId, to: UserId| {
            let (owner, peer) = if lost.source { (from, to) } else { (to, from) };
            let [list, set] = match lost.source {
                true => ["following", "following_ids"],
                false => ["followers", "follower_ids"],
            };
            lists.push((list, owner, peer));
            sets.push((set, owner, peer));
            mutuals.push(("mutual", owner, peer));
        };
        if matches!(verb, Verb::Follow | Verb::Unfollow | Verb::Block) {
            follow(from, to);
        }
        if matches!(verb, Verb::Block) {
            follow(to, from);
        }
        if matches!(verb, Verb::Block | Verb::Unblock) {
            lists.push(if lost.source { ("blocks", from, to) } else { ("blocked_by", to, from) });
        }
        for (bit, command, entries) in [(1, "ZREM", lists), (2, "SREM", sets), (4, "ZREM", mutuals)]
        {
            for (kind, owner, peer) in entries {
                let key = format!("rel:{{{}}}:{kind}:{owner}", owner.partition());
                if lost.parts & bit > 0 {
                    let mut admin = support::admin_of(&self.redis, &key).await;
                    let mut remove = testkit::redis::cmd(command);
                    remove.arg(key).arg(peer.get()).exec_async(&mut admin).await.unwrap();
                }
            }
        }
    }

    /// Runs an operation, and returns whether it was accepted.
    async fn run(&self, operation: Operation) -> Result<bool, Error> {
        let Operation { from, to, verb, crash_point, .. } = operation;
        let edge = self.edge(from, to);
        match (verb, crash_point) {
            (Verb::Follow, CrashPoint::Complete) => match self.edges.follow(edge).await {
                Ok(_) => Ok(true),
                Err(Error::BlockedByTarget | Error::TargetBlocked) => Ok(false),
                Err(error) => Err(error),
            },
            (Verb::Unfollow, CrashPoint::Complete) => self.edges.unfollow(edge).await.map(|_| true),
            (Verb::Block, CrashPoint::Complete) => self.edges.block(edge).await.map(|()| true),
            (Verb::Unblock, CrashPoint::Complete) => {
                self.edges.unblock(edge, false).await.map(|()| true)
            }
            (Verb::Follow, _) => self.follow_by_steps(edge, true, crash_point).await,
            (Verb::Unfollow, _) => self.follow_by_steps(edge, false, crash_point).await,
            (Verb::Block, _) => self.block_by_steps(edge, true, crash_point).await,
            (Verb::Unblock, _) => self.block_by_steps(edge, false, crash_point).await,
        }
    }

    async fn follow_by_steps(
        &self,
        edge: Edge,
        exists: bool,
        crash_point: CrashPoint,
    ) -> Result<bool, Error> {
        let group = [Targets::one(edge)];
        let source = match exists {
            true => self.store.follow(&group).await?[0],
            false => self.store.unfollow(&group, false).await?[0],
        };
        if matches!(source.outcome, Outcome::BlockedByTarget | Outcome::TargetBlocked) {
            return Ok(false);
        }
        if matches!(source.outcome, Outcome::Done | Outcome::Pending) {
            let change = Change { edge, version: source.version, exists };
            self.record(Replay::Follow(change));
            if crash_point > CrashPoint::Source {
                self.store.project(&[change]).await?;
            }
            if crash_point > CrashPoint::Projection {
                self.store.acknowledge(&[change]).await?;
            }
        }
        Ok(true)
    }

    // Later operations depend on the projection of a block, so a stopped operation is repeated, as
    // a caller would.
    async fn block_by_steps(
        &self,
        edge: Edge,
        exists: bool,
        crash_point: CrashPoint,
    ) -> Result<bool, Error> {
        let (outcome, version) = match exists {
            true => self.store.block(edge).await.map(|source| (source.outcome, source.version))?,
            false => self.store.unblock(edge, false).await?,
        };
        if matches!(outcome, Outcome::Done | Outcome::Pending) {
            let change = Change { edge, version, exists };
            self.record(Replay::Block(change));
            if crash_point > CrashPoint::Source {
                self.store.project_block(&change).await?;
            }
            if crash_point > CrashPoint::Projection {
                self.store.acknowledge_block(&change).await?;
            }
        }
        match exists {
            true => self.edges.block(edge).await?,
            false => self.edges.unblock(edge, false).await?,
        }
        Ok(true)
    }

    /// Replays all recorded steps, the latest first.
    async fn replay(&self) -> Result<(), Error> {
        let replays = self.replays.lock().unwrap().clone();
        for replay in replays.into_iter().rev() {
            match replay {
                Replay::Follow(change) => {
                    self.store.project(&[change]).await?;
                }
                Replay::Block(change) => {
                    self.store.project_block(&change).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs the operations of one pair, and returns their expected result.
    async fn lane(self, operations: Vec<Operation>) -> Result<(Set, Set), Error> {
        let (mut follows, mut blocks) = (Set::new(), Set::new());
        for operation in operations {
            let Operation { from, to, verb, .. } = operation;
            let is_blocked = blocks.contains(&(from, to)) || blocks.contains(&(to, from));
            // A rejected call changes nothing.
            if let Some(lost) = operation.lost
                && !(is_blocked && matches!(verb, Verb::Follow))
            {
                self.lose(operation, lost).await;
            }
            let accepted = self.run(operation).await?;
            let expected = !(is_blocked && matches!(verb, Verb::Follow));
            assert_eq!(accepted, expected, "{operation:?}, blocks {blocks:?}");
            match verb {
                Verb::Follow if expected => {
                    follows.insert((from, to));
                }
                Verb::Follow => {}
                Verb::Unfollow => {
                    follows.remove(&(from, to));
                }
                Verb::Block => {
                    blocks.insert((from, to));
                    follows.remove(&(from, to));
                    follows.remove(&(to, from));
                }
                Verb::Unblock => {
                    blocks.remove(&(from, to));
                }
            }
        }
        Ok((follows, blocks))
    }

    async fn members(&self, list: List, user: usize) -> Result<BTreeSet<usize>, Error> {
        let page = self.store.page(list, self.users[user], None, None, 100).await?;
        let place = |id| self.users.iter().position(|user| user.get() == id).unwrap();
        Ok(page.entries.iter().map(|entry| place(entry.member)).collect())
    }

    async fn agrees_with(&self, follows: &Set, blocks: &Set) -> Result<(), Error> {
        let targets = |set: &Set, user| -> BTreeSet<usize> {
            set.iter().filter(|(from, _)| *from == user).map(|(_, to)| *to).collect()
        };
        let sources = |set: &Set, user| -> BTreeSet<usize> {
            set.iter().filter(|(_, to)| *to == user).map(|(from, _)| *from).collect()
        };
        for user in 0..USERS {
            let (following, followers) = (targets(follows, user), sources(follows, user));
            let mutuals: BTreeSet<_> = following.intersection(&followers).copied().collect();
            let counts = self.store.counts(&[self.users[user]]).await?[0];
            let lengths = [counts.following, counts.followers, counts.mutuals];
            let expected = [&following, &followers, &mutuals].map(|set| set.len() as u64);
            assert_eq!(lengths, expected, "counts of {user}");
            assert_eq!(self.members(List::Following, user).await?, following);
            assert_eq!(self.members(List::Followers, user).await?, followers);
            assert_eq!(self.members(List::Mutuals, user).await?, mutuals);
            assert_eq!(self.members(List::Blocks, user).await?, targets(blocks, user));
            assert_eq!(self.members(List::BlockedBy, user).await?, sources(blocks, user));
            let report = verify_user(&self.store, self.users[user], false).await?;
            assert_eq!(report.violations.into_vec(), Vec::<String>::new());
        }
        Ok(())
    }

    /// Opens the journals of the users' partitions.
    async fn open_journals(&self) {
        for user in self.users.iter() {
            support::open_journal(&self.redis, user.partition()).await;
        }
    }

    /// Checks that the entries of the journals, in any order, have the edges of the lists with their
    /// versions: the greatest version of an edge wins, and at the same version the end. If no side has
    /// lost data, either side's entries alone have them.
    async fn journals_agree(&self, is_any_lost: bool) -> Result<(), Error> {
        const SOURCES: &[List] = &[List::Following, List::Blocks];
        const INVERSES: &[List] = &[List::Followers, List::BlockedBy];
        let both = [SOURCES, INVERSES].concat();
        let sides = if is_any_lost { vec![&*both] } else { vec![SOURCES, INVERSES] };
        let mut entries = Vec::new();
        for partition in self.users.iter().map(|user| user.partition()).collect::<BTreeSet<_>>() {
            entries.extend(support::journal(&self.redis, partition).await);
        }
        for &user in self.users.iter() {
            for list in &both {
                let page = self.store.page(*list, user, None, None, 100).await?;
                let stored: BTreeMap<_, _> =
                    page.entries.iter().map(|entry| (entry.member, entry.score)).collect();
                for side in &sides {
                    let recorded = recorded(&entries, side, *list, user);
                    assert_eq!(stored, recorded, "{list:?} of {user} by {side:?}");
                }
            }
        }
        Ok(())
    }

    async fn nothing_waits(&self) -> bool {
        let partitions: Vec<_> = self.users.iter().map(|user| (user.partition(), 0)).collect();
        let waiting = self.store.outbox_page(&partitions).await.unwrap();
        let ours = |waiting: &(OutboxEntry, u64)| self.users.contains(&waiting.0.edge().from);
        !waiting.iter().flatten().flatten().any(ours)
    }
}

/// Returns a list of a user by the journals' entries of some lists.
fn recorded(
    entries: &[JournalEntry],
    side: &[List],
    list: List,
    user: UserId,
) -> BTreeMap<u64, u64> {
    let is_follow = |list| matches!(list, List::Following | List::Followers);
    let is_source = matches!(list, List::Following | List::Blocks);
    let mut newest = BTreeMap::<u64, (u64, bool)>::new();
    for entry in entries {
        let (of, Change { edge, version, exists }) = match *entry {
            JournalEntry::Edge(of, change) | JournalEntry::Still(of, change) => (of, change),
            JournalEntry::Forget(..) | JournalEntry::Forgotten(..) => continue,
        };
        let (owner, member) = if is_source { (edge.from, edge.to) } else { (edge.to, edge.from) };
        if side.contains(&of) && is_follow(of) == is_follow(list) && owner == user {
            let newest = newest.entry(member.get()).or_default();
            *newest = (*newest).max((version, !exists));
        }
    }
    let current = newest.into_iter().filter(|(_, (_, ended))| !ended);
    current.map(|(member, (version, _))| (member, version)).collect()
}

/// Runs the operations of a case, with all concurrent disturbances.
async fn play(case: Case, operations: Vec<Operation>) -> Result<(), Error> {
    case.open_journals().await;
    let is_any_lost = operations.iter().any(|operation| operation.lost.is_some());
    let mut lanes = Vec::new();
    for first in 0..USERS {
        for second in first + 1..USERS {
            let of_pair = |o: &&Operation| (o.from.min(o.to), o.from.max(o.to)) == (first, second);
            let lane: Vec<_> = operations.iter().filter(of_pair).copied().collect();
            lanes.push(tokio::spawn(case.clone().lane(lane)));
        }
    }
    let sweepers = [(); 2].map(|()| {
        let store = case.store.clone();
        tokio::spawn(async move {
            let mut sweeper = Sweeper::new(store);
            loop {
                sweeper.sweep(Duration::ZERO).await.unwrap();
            }
        })
    });
    let replayer = tokio::spawn({
        let case = case.clone();
        async move {
            loop {
                case.replay().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    let (mut follows, mut blocks) = (Set::new(), Set::new());
    for lane in lanes {
        let (lane_follows, lane_blocks) = lane.await.unwrap()?;
        follows.extend(lane_follows);
        blocks.extend(lane_blocks);
    }
    case.replay().await?;
    testkit::eventually("nothing is pending", support::PATIENCE, async || {
        case.nothing_waits().await
    })
    .await;
    replayer.abort();
    sweepers.iter().for_each(|sweeper| sweeper.abort());
    case.replay().await?;
    case.agrees_with(&follows, &blocks).await?;
    case.journals_agree(is_any_lost).await
}

fn any_interleaving_ends_as_the_model(topology: Topology, steps: usize) {
    for steps in testkit::model_runs(steps, RUN_STEPS_MAX) {
        run(topology, steps);
        println!("{steps} steps");
    }
}

/// Runs so many steps with Redis servers of their own.
fn run(topology: Topology, steps: usize) {
    let cases = steps.div_ceil(CASE_STEPS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Arc::new(runtime.block_on(testkit::Store::start(topology)));
    let config = support::config(&redis.url("relation"), &[]);
    let store = runtime.block_on(async {
        let store = Store::open(&config).unwrap();
        testkit::eventually("redis is ready", support::PATIENCE, async || store.is_ready().await)
            .await;
        store
    });
    let case_number = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config {
        cases: cases.try_into().unwrap(),
        failure_persistence: None,
        max_shrink_iters: 100,
        ..Config::default()
    });
    let operations = (prop::collection::vec(operation(), 1..2 * CASE_STEPS), any::<bool>());
    let operations = operations.prop_map(|(mut operations, is_any_lost)| {
        operations.iter_mut().for_each(|it| it.lost = it.lost.filter(|_| is_any_lost));
        operations
    });
    let outcome = runner.run(&operations, |operations| {
        case_number.set(case_number.get() + 1);
        let first = case_number.get() * USERS as u64;
        let case = Case {
            users: Arc::new((first..first + USERS as u64).map(support::user).collect()),
            store: store.clone(),
            edges: EdgeSaga::new(store.clone()),
            replays: Arc::default(),
            redis: redis.clone(),
        };
        runtime.block_on(play(case, operations)).map_err(|e| TestCaseError::fail(e.to_string()))
    });
    if let Err(TestError::Fail(reason, operations)) = outcome {
        panic!("{reason}\n{operations:#?}");
    }
}

#[test]
fn any_interleaving_matches_the_model_on_a_single_server() {
    any_interleaving_ends_as_the_model(Topology::Single, 2_400);
}

#[test]
fn any_interleaving_matches_the_model_on_a_cluster() {
    any_interleaving_ends_as_the_model(Topology::Cluster, 1_000);
}
