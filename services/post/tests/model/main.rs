//! Posts against a model: posts, reposts, likes and comments by some users at once, each of their
//! operations stopped after any of its steps or carried out whole, repeated or carried out by two
//! callers at the same time; what was told of reposts is told again late and in reverse, two
//! sweepers are at work, and the timeline service may be away. In the end every list and count is
//! what the model says, what was deleted has left nothing behind, and every post was delivered.
//!
//! A user's operations run one after the other, and only a post's author deletes it. So an
//! operation must succeed if the deletion of what it is about had not begun when it ended, and must
//! be refused if that deletion had ended when it began.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod end;
mod lane;
#[path = "../support/mod.rs"]
mod support;

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use microblog_chassis::Peer;
use microblog_domain::{CommentId, PostId, UserId};
use microblog_post::{
    Change, Comment, Comments, Config, Content, Delivery, Error, Posts, Store, Sweeper,
};
use microblog_testkit::{self as testkit, Topology};
use proptest::{
    prelude::*,
    test_runner::{self, RngSeed, TestError, TestRunner},
};
use support::timelines::{Mood, Timelines};
use tokio::task::JoinSet;

/// The first and the last share a partition.
const USERS: [UserId; 4] = [
    support::user(1),
    support::user(2),
    support::user(3),
    UserId::new(support::id(1) + 4096).unwrap(),
];

/// Between two rounds of a sweeper: so that it does not always come before the caller who repeats.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
enum Verb {
    Create,
    Repost,
    Delete,
    Like,
    Unlike,
    Comment,
    Answer,
    Uncomment,
}

/// After which step the process that carries out an operation is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Fate {
    Truth,
    /// Not killed, but held up: what follows the truth comes late.
    Stall,
    Telling,
    Confirmation,
    Delivery,
    /// Not by steps, but as the service does it.
    Whole,
    /// Likewise, by two callers at once.
    Twice,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    user: usize,
    verb: Verb,
    /// Which of the posts or comments that there are.
    place: usize,
    fate: Fate,
    /// Whether the caller repeats it.
    again: bool,
}

fn operation() -> impl Strategy<Value = Operation> {
    let verb = prop_oneof![
        2 => Just(Verb::Create),
        6 => Just(Verb::Repost),
        4 => Just(Verb::Delete),
        3 => Just(Verb::Like),
        2 => Just(Verb::Unlike),
        2 => Just(Verb::Comment),
        2 => Just(Verb::Answer),
        2 => Just(Verb::Uncomment),
    ];
    let fate = prop_oneof![
        2 => Just(Fate::Truth),
        1 => Just(Fate::Stall),
        1 => Just(Fate::Telling),
        1 => Just(Fate::Confirmation),
        1 => Just(Fate::Delivery),
        2 => Just(Fate::Whole),
        1 => Just(Fate::Twice),
    ];
    (0..USERS.len(), verb, 0..60_usize, fate, any::<bool>())
        .prop_map(|(user, verb, place, fate, again)| Operation { user, verb, place, fate, again })
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![2 => Just(Mood::Well), 1 => Just(Mood::Away), 1 => Just(Mood::Failing)]
}

/// Something that was made, and how far its deletion is.
#[derive(Clone, Debug)]
struct Made<T> {
    it: T,
    ends: bool,
    ended: bool,
}

/// What there must be.
#[derive(Default)]
struct Model {
    posts: BTreeMap<PostId, Made<Content>>,
    comments: BTreeMap<CommentId, Made<Comment>>,
    /// Since when who likes what.
    likes: BTreeMap<(PostId, UserId), u64>,
    /// What was told of reposts, or is to be told late.
    told: Vec<Change>,
}

/// A store, what works on it, and what must be in it.
#[derive(Clone)]
struct Case {
    store: Store,
    posts: Posts,
    comments: Comments,
    delivery: Delivery,
    timelines: Timelines,
    model: Arc<Mutex<Model>>,
}

impl Case {
    fn new(store: &Store, config: &Config) -> Self {
        let timelines = Timelines::default();
        let peer = Peer::local(&timelines.service(), &config.chassis);
        let delivery = Delivery::new(store.clone(), Some(peer));
        let tiers = support::tiers(store);
        let posts = Posts::new(tiers.clone(), delivery.clone());
        let comments = Comments::new(tiers);
        let model = Arc::default();
        Self { store: store.clone(), posts, comments, delivery, timelines, model }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// Carries out the second and third steps of what was not killed before them, once more, the
    /// later first.
    async fn replay(&self) {
        let told = self.model().told.clone();
        for change in told.into_iter().rev() {
            self.store.tell(&[change]).await.unwrap();
            self.store.confirm(&[change]).await.unwrap();
        }
    }

    async fn sweep(&self, sweeper: &mut Sweeper) {
        sweeper.tell(Duration::ZERO).await.unwrap();
        match sweeper.deliver(Duration::ZERO).await {
            Ok(()) | Err(Error::Timeline(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Runs everything that may happen at the same time, to its end.
    async fn play(&self, mood: Mood, operations: &[Operation]) -> Result<(), Error> {
        self.timelines.answer(mood);
        let mut background = JoinSet::new();
        for _ in 0..2 {
            let case = self.clone();
            background.spawn(async move {
                let mut sweeper = Sweeper::new(support::tiers(&case.store), case.delivery.clone());
                loop {
                    case.sweep(&mut sweeper).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        let case = self.clone();
        background.spawn(async move {
            loop {
                case.replay().await;
                tokio::task::yield_now().await;
            }
        });
        let mut lanes = JoinSet::new();
        for user in 0..USERS.len() {
            let of_user = operations.iter().filter(|operation| operation.user == user);
            lanes.spawn(lane::run(self.clone(), of_user.copied().collect()));
        }
        while let Some(lane) = lanes.join_next().await {
            lane.unwrap()?;
        }
        self.timelines.answer(Mood::Well);
        testkit::eventually("nothing waits", support::PATIENCE / 2, async || {
            self.nothing_waits().await
        })
        .await;
        background.shutdown().await;
        self.replay().await;
        self.is_as_the_model().await
    }
}

fn any_interleaving_ends_as_the_model(topology: Topology, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(testkit::Store::start(topology));
    let config = support::config(&redis.url("post"), &[]);
    let store = runtime.block_on(async {
        let store = Store::open(&config).unwrap();
        testkit::eventually("redis is ready", support::PATIENCE, async || store.is_ready().await)
            .await;
        store
    });
    let mut runner = test_runner::Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100,
        max_shrink_time: 60_000,
        ..Default::default()
    };
    if runner.rng_seed == RngSeed::Random {
        runner.rng_seed = RngSeed::Fixed(uuid::Uuid::new_v4().as_u64_pair().0);
    }
    let (seed, case_number) = (runner.rng_seed, Cell::new(0));
    let operations = prop::collection::vec(operation(), 1..80);
    let outcome = TestRunner::new(runner).run(&(mood(), operations), |(mood, operations)| {
        case_number.set(case_number.get() + 1);
        runtime.block_on(async {
            end::empty(&redis).await;
            let played = Case::new(&store, &config).play(mood, &operations).await;
            played.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
            end::nothing_is_left_behind(&redis).await;
            Ok(())
        })
    });
    if let Err(TestError::Fail(reason, input)) = outcome {
        let cases = case_number.get();
        panic!("{reason}\n{input:#?}\nafter {cases} cases with PROPTEST_RNG_SEED={seed}");
    }
}

#[test]
fn any_interleaving_ends_as_the_model_on_a_single_server() {
    any_interleaving_ends_as_the_model(Topology::Single, 100);
}

#[test]
fn any_interleaving_ends_as_the_model_on_a_cluster() {
    any_interleaving_ends_as_the_model(Topology::Cluster, 30);
}
