//! A post service whose old posts leave Redis when the test says so: it runs without its jobs.

use std::collections::BTreeSet;

use microblog_post::{Archive, Archiver, Config, Moved, Mover, Posts, Tiers};
use microblog_testkit::Topology;
use tokio::sync::Mutex;

use crate::support::{
    self, System, WITHOUT_JOBS,
    archives::{ArchiveServer, Kind, connect, numbers},
};

/// Makes a test of each of these functions on each kind of database.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::support::archives::Kind::Sqlite).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::support::archives::Kind::Postgres).await;
                }
            )*
        }
    };
}
pub(crate) use on_both;

/// A post service with an archive.
pub(crate) struct Aging {
    pub(crate) system: System,
    pub(crate) archives: ArchiveServer,
    pub(crate) archive: Archive,
    pub(crate) config: Config,
    pub(crate) mover: Mover,
    archiver: Mutex<Archiver>,
}

impl Aging {
    /// Starts one that keeps so many posts of each author in Redis, however old, and no others.
    pub(crate) async fn start(kind: Kind, hot_posts: usize) -> Self {
        let archives = ArchiveServer::start(kind).await;
        Self::start_on(archives, hot_posts).await
    }

    /// Starts one likewise on a database that may be away.
    pub(crate) async fn start_on(archives: ArchiveServer, hot_posts: usize) -> Self {
        let flags = flags(&archives.url(), hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let system = System::start_as(WITHOUT_JOBS, Topology::Single, &flags).await;
        let config = support::config(&system.redis.url("post"), &flags);
        Self::of(system, archives, config).await
    }

    /// Starts one likewise in the place of one that has no archive.
    pub(crate) async fn start_after(before: System, kind: Kind, hot_posts: usize) -> Self {
        let archives = ArchiveServer::start(kind).await;
        let flags = flags(&archives.url(), hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let config = support::config(&before.redis.url("post"), &flags);
        let service = microblog_post::service(&config, None, WITHOUT_JOBS).await.unwrap();
        let address = support::run(service, &config);
        let client = support::client(&address);
        Self::of(System { address, client, ..before }, archives, config).await
    }

    /// Goes on with a service that has its archive there.
    pub(crate) async fn on(
        system: System,
        archives: ArchiveServer,
        url: &str,
        hot_posts: usize,
    ) -> Self {
        let flags = flags(url, hot_posts);
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let config = support::config(&system.redis.url("post"), &flags);
        Self::of(system, archives, config).await
    }

    async fn of(system: System, archives: ArchiveServer, config: Config) -> Self {
        let archive = Archive::open(&config.archive).unwrap().unwrap();
        let mover = Mover::new(system.store.clone(), archive.clone(), &config.archive);
        let mut archiver = Archiver::new(system.store.clone(), archive.clone());
        // If it fails, the database is away; but what is made from now on is noted.
        let _ = archiver.pass().await;
        assert_eq!(system.store.unarchived_count().await.unwrap(), 0);
        Self { system, archives, archive, config, mover, archiver: Mutex::new(archiver) }
    }

    /// Returns posts wherever they are, as the service sees them.
    pub(crate) fn tiers(&self) -> Tiers {
        let archive = Some(self.archive.clone());
        Tiers::new(self.system.store.clone(), archive, self.config.archive.warm_window)
    }

    /// Returns what the jobs delete posts with.
    pub(crate) fn posts(&self) -> Posts {
        let delivery = microblog_post::Delivery::new(self.system.store.clone(), None);
        Posts::new(self.tiers(), delivery)
    }

    /// Writes to the archive all that waits.
    pub(crate) async fn archive(&self) {
        let mut archiver = self.archiver.lock().await;
        while archiver.pass().await.unwrap() {}
    }

    /// Archives what waits, and moves what is old in the partitions of some accounts or posts.
    pub(crate) async fn age(&self, ids: &[u64]) -> Moved {
        self.archive().await;
        let partitions: BTreeSet<_> =
            ids.iter().map(|&id| support::post(id).partition().number()).collect();
        let mut all = Moved::default();
        for partition in partitions {
            let partition = microblog_domain::Partition::new(partition);
            let moved = self.mover.partition(partition).await.unwrap();
            all.retired += moved.retired;
            all.evicted += moved.evicted;
        }
        all
    }

    /// Moves posts to the archive, with all that is as old in their partitions.
    pub(crate) async fn evict(&self, ids: &[u64]) {
        self.age(ids).await;
        for &id in ids {
            let left = support::keys_of(&self.system, id).await;
            assert!(left.is_empty(), "{id} is in Redis: {left:?}");
        }
    }

    /// Asserts that nothing waits and all invariants hold, once all is archived.
    pub(crate) async fn is_sound(&self) {
        self.archive().await;
        assert_eq!(support::violations(&self.system.client).await, Vec::<String>::new());
    }

    /// Returns the one number that a query of the archive answers.
    pub(crate) async fn count(&self, query: &str) -> i64 {
        numbers(&mut connect(&self.archives.url()).await, query).await[0][0]
    }
}

/// Returns the flags of a service with an archive, whose posts are old at once.
pub(crate) fn flags(url: &str, hot_posts: usize) -> Vec<String> {
    vec![
        format!("--archive-url={url}"),
        format!("--hot-posts={hot_posts}"),
        "--hot-window=0s".to_owned(),
        "--warm-window=0s".to_owned(),
    ]
}
