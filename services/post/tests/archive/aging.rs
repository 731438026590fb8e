//! A post service without jobs: the test decides when posts are archived and evicted.

use std::{collections::BTreeSet, sync::Arc};

use microblog_post::{
    Archive, Config, Evictions, Evictor, PostTables, Posts, Store, TieredStore, recorder,
    verify_partition,
};
use microblog_record::Recorder;
use microblog_testkit::Topology;

use crate::support::{
    self, System, WITHOUT_JOBS,
    archives::{ArchiveServer, connect, numbers},
};

/// Makes a test of each of these functions on SQLite, and one of all of them on a PostgreSQL
/// server, which starts slowly.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod sqlite {
            use crate::support::archives::{ArchiveServer, Kind};

            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(&ArchiveServer::start(Kind::Sqlite).await).await;
                }
            )*
        }

        mod postgres {
            use crate::support::archives::{ArchiveServer, Kind};

            #[tokio::test]
            async fn all_of_it() {
                let archives = ArchiveServer::start(Kind::Postgres).await;
                $(
                    println!("{}", stringify!($name));
                    super::$name(&archives).await;
                )*
            }
        }
    };
}
pub(crate) use on_both;

/// A post service with an archive.
pub(crate) struct Aging {
    pub(crate) system: System,
    pub(crate) url: String,
    pub(crate) archive: Archive,
    pub(crate) config: Config,
    pub(crate) evictor: Evictor,
    pub(crate) recorder: Arc<Recorder<PostTables>>,
}

impl Aging {
    /// Starts one with its own archive. It keeps `hot_posts` of each author in Redis, whatever
    /// their age, and no others.
    pub(crate) async fn start(archives: &ArchiveServer, hot_posts: usize) -> Self {
        Self::start_with(archives, hot_posts, &[]).await
    }

    /// Likewise with further flags.
    pub(crate) async fn start_with(
        archives: &ArchiveServer,
        hot_posts: usize,
        more: &[&str],
    ) -> Self {
        Self::start_in(Topology::Single, archives, hot_posts, more).await
    }

    /// Likewise in a topology.
    pub(crate) async fn start_in(
        topology: Topology,
        archives: &ArchiveServer,
        hot_posts: usize,
        more: &[&str],
    ) -> Self {
        let url = archives.another().await;
        let flags = flags(&url, hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let system = System::start_as(WITHOUT_JOBS, topology, &flags).await;
        Self::on(system, &url, hot_posts).await
    }

    /// Likewise in the place of a service without an archive.
    pub(crate) async fn start_after(
        before: System,
        archives: &ArchiveServer,
        hot_posts: usize,
    ) -> Self {
        let url = archives.another().await;
        let flags = flags(&url, hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let config = support::config(&before.redis.url("post"), &flags);
        let service = microblog_post::service(&config, None, WITHOUT_JOBS).await.unwrap();
        let address = support::run(service, &config);
        let client = support::client(&address);
        let store = Store::open(&config).unwrap();
        Self::on(System { address, client, store, ..before }, &url, hot_posts).await
    }

    /// Continues with a service whose archive is at `url`.
    pub(crate) async fn on(system: System, url: &str, hot_posts: usize) -> Self {
        let flags = flags(url, hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let config = support::config(&system.redis.url("post"), &flags);
        let archive = Archive::open(&config.database).unwrap().unwrap();
        let store = || system.store.clone();
        let recorder = Arc::new(recorder(&system.store, &archive, &config.archive));
        let evictor = Evictor::new(store(), archive.clone(), recorder.clone(), &config.archive);
        recorder.run().await.unwrap();
        let url = url.to_owned();
        Self { system, url, archive, config, evictor, recorder }
    }

    /// Returns the tiered store of the service.
    pub(crate) fn tiered(&self) -> TieredStore {
        let archive = Some(self.archive.clone());
        TieredStore::new(self.system.store.clone(), archive, self.config.archive.warm_window)
    }

    /// Returns the operations with which jobs delete posts.
    pub(crate) fn posts(&self) -> Posts {
        let delivery = microblog_post::Delivery::new(self.system.store.clone(), None);
        Posts::new(self.tiered(), delivery)
    }

    /// Records all changes.
    pub(crate) async fn archive(&self) {
        self.recorder.run().await.unwrap();
    }

    /// Archives, then evicts what is old in the partitions of some accounts or posts.
    pub(crate) async fn age(&self, ids: &[u64]) -> Evictions {
        self.archive().await;
        let partitions: BTreeSet<_> =
            ids.iter().map(|&id| support::post(id).partition().number()).collect();
        let mut all = Evictions::default();
        for partition in partitions {
            let partition = microblog_domain::Partition::new(partition);
            let moved = self.evictor.partition(partition).await.unwrap();
            all.evictable += moved.evictable;
            all.evicted += moved.evicted;
        }
        all
    }

    /// Evicts posts, and all that are as old in their partitions.
    pub(crate) async fn evict(&self, ids: &[u64]) {
        self.age(ids).await;
        for &id in ids {
            let left = support::keys_of(&self.system, id).await;
            assert!(left.is_empty(), "{id} is in Redis: {left:?}");
        }
    }

    /// Archives, then asserts that the backlogs are empty and all invariants hold in the first
    /// thirty accounts' partitions; all would take a while.
    pub(crate) async fn is_sound(&self) {
        self.archive().await;
        let tiered = self.tiered();
        let mut checked = 0;
        for n in 1..=30 {
            let report = verify_partition(&tiered, support::user(n).partition()).await.unwrap();
            assert_eq!(report.violations.into_vec(), Vec::<String>::new());
            assert_eq!(report.unarchived, 0);
            checked += report.posts;
        }
        let authors = self.system.timelines.deliveries().into_iter().map(|heard| heard.author_id);
        let others: BTreeSet<_> =
            authors.filter(|author| (1..=30).all(|n| support::id(n) != *author)).collect();
        assert!(others.is_empty(), "{others:?} are not checked, {checked} posts are");
    }

    /// Asserts the same of all partitions, through the service.
    pub(crate) async fn is_sound_everywhere(&self) {
        self.archive().await;
        assert_eq!(support::violations(&self.system.client).await, Vec::<String>::new());
    }

    /// Returns the number that a query of the archive selects.
    pub(crate) async fn count(&self, query: &str) -> i64 {
        numbers(&mut connect(&self.url).await, query).await[0][0]
    }
}

/// Returns the flags of a service with an archive, whose posts are old at once.
pub(crate) fn flags(url: &str, hot_posts: usize) -> Vec<String> {
    vec![
        format!("--database-url={url}"),
        format!("--hot-posts={hot_posts}"),
        "--hot-window=0s".to_owned(),
        "--warm-window=0s".to_owned(),
    ]
}
