//! The follow graph against a model: follows, unfollows, removals, blocks and unblocks by many
//! tasks on few users, some of them stopped after any of their steps, all of them replayed in any
//! order, with two sweepers at work meanwhile. In the end both sides, mutuals, counts and id sets
//! agree with the model, and nothing is pending.
//!
//! Before some of the operations, one side of their edge is lost, in part or whole: each call makes
//! both sides agree whatever they were before.
//!
//! Operations on one pair of users run one after the other, so that the model knows the outcome;
//! different pairs run at once, and share the lists.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod support;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use microblog_domain::UserId;
use microblog_relation::{
    Change, Edge, Edges, Error, List, Outcome, Store, Sweeper, Targets, Waiting, verify_user,
};
use microblog_testkit::{self as testkit, Topology};
use proptest::{
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};

const USERS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Follow,
    Unfollow,
    Block,
    Unblock,
}

/// After which step the process that carries out an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Fate {
    Truth,
    Projection,
    Confirmation,
    /// Not by steps, but as the service does it.
    Whole,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    from: usize,
    to: usize,
    verb: Verb,
    fate: Fate,
    /// What is lost of each of the edges that the operation changes, before a whole operation.
    lost: Option<Lost>,
}

/// What is lost of an edge: bits for its list, its id set, and the list of mutuals beside it.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// Of the follower's side (or the blocker's), or of the target's.
    truth: bool,
    parts: u8,
}

fn operation() -> impl Strategy<Value = Operation> {
    let verb = prop_oneof![
        5 => Just(Verb::Follow),
        3 => Just(Verb::Unfollow),
        1 => Just(Verb::Block),
        1 => Just(Verb::Unblock),
    ];
    let fate = prop_oneof![
        Just(Fate::Truth),
        Just(Fate::Projection),
        Just(Fate::Confirmation),
        Just(Fate::Whole),
    ];
    let users = (0..USERS, 1..USERS).prop_map(|(from, step)| (from, (from + step) % USERS));
    let lost = (any::<bool>(), 1..8_u8).prop_map(|(truth, parts)| Lost { truth, parts });
    let lost = prop_oneof![2 => Just(None), 1 => lost.prop_map(Some)];
    (users, verb, fate, lost).prop_map(|((from, to), verb, fate, lost)| {
        let lost = lost.filter(|_| fate == Fate::Whole);
        Operation { from, to, verb, fate, lost }
    })
}

/// What is to be replayed.
#[derive(Clone, Copy, Debug)]
enum Replay {
    Follow(Change),
    Block(Change),
}

/// The users of one case, its store, and what its operations said.
#[derive(Clone)]
struct Case {
    users: Arc<Vec<UserId>>,
    store: Store,
    edges: Edges,
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

    /// Loses what an operation says of the edges that it changes. (The tombstones stay, which
    /// refuse the replays of long ago.)
    async fn lose(&self, operation: Operation, lost: Lost) {
        let Operation { from, to, verb, .. } = operation;
        let Edge { from, to } = self.edge(from, to);
        let (mut lists, mut sets, mut mutuals) = (Vec::new(), Vec::new(), Vec::new());
        let mut follow = |from: UserId, to: UserId| {
            let (owner, peer) = if lost.truth { (from, to) } else { (to, from) };
            let [list, set] = match lost.truth {
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
            lists.push(if lost.truth { ("blocks", from, to) } else { ("blocked_by", to, from) });
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

    /// Carries out an operation, and says whether it was accepted.
    async fn run(&self, operation: Operation) -> Result<bool, Error> {
        let Operation { from, to, verb, fate, .. } = operation;
        let edge = self.edge(from, to);
        match (verb, fate) {
            (Verb::Follow, Fate::Whole) => match self.edges.follow(edge).await {
                Ok(_) => Ok(true),
                Err(Error::BlockedByTarget | Error::TargetBlocked) => Ok(false),
                Err(error) => Err(error),
            },
            (Verb::Unfollow, Fate::Whole) => self.edges.unfollow(edge).await.map(|_| true),
            (Verb::Block, Fate::Whole) => self.edges.block(edge).await.map(|()| true),
            (Verb::Unblock, Fate::Whole) => self.edges.unblock(edge, false).await.map(|()| true),
            (Verb::Follow, _) => self.follow_by_steps(edge, true, fate).await,
            (Verb::Unfollow, _) => self.follow_by_steps(edge, false, fate).await,
            (Verb::Block, _) => self.block_by_steps(edge, true, fate).await,
            (Verb::Unblock, _) => self.block_by_steps(edge, false, fate).await,
        }
    }

    async fn follow_by_steps(&self, edge: Edge, exists: bool, fate: Fate) -> Result<bool, Error> {
        let group = [Targets::one(edge)];
        let truth = match exists {
            true => self.store.follow(&group).await?[0],
            false => self.store.unfollow(&group, false).await?[0],
        };
        if matches!(truth.outcome, Outcome::BlockedByTarget | Outcome::TargetBlocked) {
            return Ok(false);
        }
        if matches!(truth.outcome, Outcome::Done | Outcome::Pending) {
            let change = Change { edge, version: truth.version, exists };
            self.record(Replay::Follow(change));
            if fate > Fate::Truth {
                self.store.project(&[change]).await?;
            }
            if fate > Fate::Projection {
                self.store.confirm(&[change]).await?;
            }
        }
        Ok(true)
    }

    // What comes after depends on the other side's having heard of a block, so an operation that
    // was stopped is repeated, as its caller would.
    async fn block_by_steps(&self, edge: Edge, exists: bool, fate: Fate) -> Result<bool, Error> {
        let (outcome, version) = match exists {
            true => self.store.block(edge).await.map(|truth| (truth.outcome, truth.version))?,
            false => self.store.unblock(edge, false).await?,
        };
        if matches!(outcome, Outcome::Done | Outcome::Pending) {
            let change = Change { edge, version, exists };
            self.record(Replay::Block(change));
            if fate > Fate::Truth {
                self.store.project_block(&change).await?;
            }
            if fate > Fate::Projection {
                self.store.confirm_block(&change).await?;
            }
        }
        match exists {
            true => self.edges.block(edge).await?,
            false => self.edges.unblock(edge, false).await?,
        }
        Ok(true)
    }

    /// Replays everything that was recorded so far, the later first.
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

    /// Carries out the operations of one pair, and returns what they must have come to.
    async fn lane(self, operations: Vec<Operation>) -> Result<(Set, Set), Error> {
        let (mut follows, mut blocks) = (Set::new(), Set::new());
        for operation in operations {
            let Operation { from, to, verb, .. } = operation;
            let is_blocked = blocks.contains(&(from, to)) || blocks.contains(&(to, from));
            // A call that is refused changes nothing.
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

    async fn nothing_waits(&self) -> bool {
        let partitions: Vec<_> = self.users.iter().map(|user| (user.partition(), 0)).collect();
        let waiting = self.store.waiting(&partitions).await.unwrap();
        let ours = |waiting: &(Waiting, u64)| self.users.contains(&waiting.0.edge().from);
        !waiting.iter().flatten().flatten().any(ours)
    }
}

/// Runs the operations of a case and everything that may happen at the same time.
async fn play(case: Case, operations: Vec<Operation>) -> Result<(), Error> {
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
    case.agrees_with(&follows, &blocks).await
}

fn any_interleaving_ends_as_the_model(topology: Topology, cases: u32) {
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
        cases,
        failure_persistence: None,
        max_shrink_iters: 100,
        ..Config::default()
    });
    let outcome = runner.run(&prop::collection::vec(operation(), 1..80), |operations| {
        case_number.set(case_number.get() + 1);
        let first = case_number.get() * USERS as u64;
        let case = Case {
            users: Arc::new((first..first + USERS as u64).map(support::user).collect()),
            store: store.clone(),
            edges: Edges::new(store.clone()),
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
fn any_interleaving_ends_as_the_model_on_a_single_server() {
    any_interleaving_ends_as_the_model(Topology::Single, 60);
}

#[test]
fn any_interleaving_ends_as_the_model_on_a_cluster() {
    any_interleaving_ends_as_the_model(Topology::Cluster, 25);
}
