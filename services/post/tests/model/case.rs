//! One case: a store, its concurrent actors, and the expected state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use microblog_chassis::Peer;
use microblog_domain::{CommentId, PostId, UserId};
use microblog_post::{
    Archive, ArchiveConfig, BacklinkUpdate, Comment, Config, Content, Delivery, Error, Posts,
    Reactions, Store, Sweeper, TieredStore,
};
use microblog_testkit::{self as testkit, redis::aio::MultiplexedConnection};
use tokio::task::JoinSet;

use crate::{
    evictors,
    operation::{Plan, USERS},
    readers,
    support::{self, timelines::Mode, timelines::Timelines},
    user_operations,
    watch::Watch,
};

/// The pause between two runs of a sweeper: it must not always precede the caller's repetition.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Something that was created, and the state of its deletion.
#[derive(Clone, Debug)]
pub(crate) struct Made<T> {
    pub(crate) it: T,
    pub(crate) ends: bool,
    pub(crate) ended: bool,
}

/// The expected state.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) posts: BTreeMap<PostId, Made<Content>>,
    pub(crate) comments: BTreeMap<CommentId, Made<Comment>>,
    /// Likes, and since when. A like is not here while it is being removed.
    pub(crate) likes: BTreeMap<(PostId, UserId), u64>,
    /// Posts and reposts that were seen on their lists.
    pub(crate) listed: BTreeSet<(PostId, PostId)>,
    /// Updates of backlinks, to be repeated late.
    pub(crate) notified: Vec<BacklinkUpdate>,
}

/// The archive, as several processes have it open.
#[derive(Clone)]
pub(crate) struct Archived {
    pub(crate) url: String,
    pub(crate) config: ArchiveConfig,
    /// For two processes that archive and evict, apart from that of the callers.
    pub(crate) jobs: [Archive; 2],
    pub(crate) callers: Archive,
}

/// The stores of a case.
pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) admins: Vec<MultiplexedConnection>,
    pub(crate) config: Config,
    pub(crate) archived: Option<Archived>,
    pub(crate) watch: Arc<Watch>,
}

/// The actors on a store, and the expected state.
#[derive(Clone)]
pub(crate) struct Case {
    /// The first and the last share a partition.
    pub(crate) users: [UserId; USERS],
    pub(crate) store: Store,
    /// Connections to its servers, with all permissions.
    pub(crate) admins: Vec<MultiplexedConnection>,
    pub(crate) tiered: TieredStore,
    pub(crate) posts: Posts,
    pub(crate) reactions: Reactions,
    pub(crate) delivery: Delivery,
    pub(crate) timelines: Timelines,
    pub(crate) archived: Option<Archived>,
    /// Whether the archive is enabled from the beginning, if there is one.
    pub(crate) is_archived: bool,
    pub(crate) watch: Arc<Watch>,
    model: Arc<Mutex<Model>>,
}

impl Archived {
    pub(crate) fn open(config: &Config) -> Option<Self> {
        let url = config.database.database_url.clone()?;
        let open = || Archive::open(&config.database).unwrap().unwrap();
        let config = config.archive.clone();
        Some(Self { url, jobs: [open(), open()], callers: open(), config })
    }
}

impl Case {
    /// Returns a case with its own users.
    pub(crate) fn new(number: u64, place: &Place, is_archived: bool) -> Self {
        let Place { store, admins, config, archived, watch } = place;
        let id = |n| support::id(8 * number + n);
        let users = [id(1), id(2), id(4), id(1) + 4096].map(|id| UserId::new(id).unwrap());
        let timelines = Timelines::default();
        let peer = Peer::local(&timelines.service(), &config.chassis);
        let delivery = Delivery::new(store.clone(), Some(peer));
        let archive = archived.as_ref().map(|archived| archived.callers.clone());
        let tiered = TieredStore::new(store.clone(), archive, config.archive.warm_window);
        Self {
            users,
            store: store.clone(),
            posts: Posts::new(tiered.clone(), delivery.clone()),
            reactions: Reactions::new(tiered.clone()),
            tiered,
            delivery,
            timelines,
            archived: archived.clone(),
            is_archived,
            admins: admins.clone(),
            watch: watch.clone(),
            model: Arc::default(),
        }
    }

    // The pause between two runs of a job: it must not always precede the caller's repetition; with
    // an archive, the other jobs need time as well.
    pub(crate) fn pause(&self) -> Duration {
        if self.archived.is_some() { 10 * PAUSE } else { PAUSE }
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// Repeats steps 2 and 3 of operations that were not killed before them, in reverse order.
    async fn replay(&self) {
        let notified = self.model().notified.clone();
        for update in notified.into_iter().rev() {
            let updates = [update];
            patiently(|| self.posts.complete(&updates)).await.unwrap();
        }
    }

    async fn sweep(&self, sweeper: &mut Sweeper) {
        for done in
            [sweeper.notify_targets(Duration::ZERO).await, sweeper.deliver(Duration::ZERO).await]
        {
            match done {
                Ok(()) | Err(Error::Timeline(_) | Error::RetriesExhausted) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Runs all concurrent actors to their end.
    pub(crate) async fn play(&self, plan: &Plan) -> Result<(), Error> {
        self.timelines.answer(plan.mood);
        if self.is_archived {
            evictors::begin(self).await;
        }
        let mut background = JoinSet::new();
        for _ in 0..2 {
            let case = self.clone();
            background.spawn(async move {
                let mut sweeper = Sweeper::new(case.tiered.clone(), case.delivery.clone());
                loop {
                    case.sweep(&mut sweeper).await;
                    tokio::time::sleep(case.pause()).await;
                }
            });
        }
        let case = self.clone();
        background.spawn(async move {
            loop {
                case.replay().await;
                tokio::time::sleep(case.pause()).await;
            }
        });
        evictors::spawn(self, &mut background);
        readers::spawn(self, &mut background);
        let mut users = JoinSet::new();
        for (place, user) in self.users.into_iter().enumerate() {
            let of_user = plan.operations.iter().filter(|operation| operation.user == place);
            users.spawn(user_operations::run(self.clone(), user, of_user.copied().collect()));
        }
        while let Some(done) = users.join_next().await {
            done.unwrap()?;
        }
        self.timelines.answer(Mode::Ok);
        testkit::eventually("the backlogs are empty", support::PATIENCE / 2, async || {
            // Background tasks end only by failing.
            if let Some(ended) = background.try_join_next() {
                std::panic::resume_unwind(ended.unwrap_err().into_panic());
            }
            self.backlogs_are_empty().await
        })
        .await;
        background.shutdown().await;
        evictors::let_time_pass(self).await;
        self.replay().await;
        evictors::settle(self).await;
        if self.archived.is_some() {
            evictors::delete_archived(self).await;
            evictors::settle(self).await;
        }
        self.is_as_the_model().await?;
        if self.archived.is_some() {
            evictors::purge(self).await;
            evictors::restore_all(self).await;
            self.is_as_the_model().await?;
        }
        Ok(())
    }

    async fn backlogs_are_empty(&self) -> bool {
        for user in self.users {
            if self.store.backlogs(user.partition()).await.unwrap() != [0; 3] {
                return false;
            }
        }
        true
    }
}

/// Repeats a call while its post moves between the tiers.
pub(crate) async fn patiently<T, F>(call: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 0..100 {
        match call().await {
            Err(Error::RetriesExhausted) => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
    panic!("a post moved between the tiers in every attempt");
}

/// Repeats a step that concurrent actors may prevent a few times.
pub(crate) async fn until<F>(step: impl Fn() -> F) -> Result<(), Error>
where
    F: Future<Output = Result<bool, Error>>,
{
    for _ in 0..100 {
        if step().await? {
            return Ok(());
        }
    }
    panic!("the step never succeeds");
}
