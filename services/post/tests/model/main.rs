//! A model test of posts. Some users publish, repost, like and comment concurrently. Each operation
//! stops after any of its steps or completes, is repeated, or is executed by two callers at once.
//! Updates of backlinks are repeated late and in reverse order, two sweepers run, and the timeline
//! service may be unavailable. In the end, every list and count equals the model, deleted posts
//! leave nothing behind, and every post was delivered.
//!
//! A user's operations are sequential, and only a post's author deletes it. So an operation must
//! succeed if the deletion of its subject had not begun when the operation ended. It must be
//! rejected if the deletion had ended when the operation began.
//!
//! With an archive, posts are evicted and restored all the time as well. Two processes record and
//! evict, killed at any moment; others execute the same steps late. Readers always find what was
//! acknowledged and is not being deleted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod case;
mod certain;
mod comments;
mod end;
mod evictors;
mod leftovers;
mod operation;
mod posts;
mod readers;
#[path = "../support/mod.rs"]
mod support;
mod user_operations;
mod watch;

use std::{cell::Cell, sync::Arc};

use case::{Archived, Case, Place};
use microblog_post::Store;
use microblog_testkit::{self as testkit, Topology, redis::aio::MultiplexedConnection};
use proptest::{
    prelude::*,
    test_runner::{self, RngSeed, TestError, TestRunner},
};
use support::archives::{ArchiveServer, Kind};
use watch::Watch;

/// All but two posts of an author can be evicted at once, also restored ones. A busy machine takes
/// its time.
const FLAGS: [&str; 5] = [
    "--hot-window=0s",
    "--hot-posts=2",
    "--warm-window=0s",
    "--database-timeout-ms=20000",
    "--redis-timeout-ms=10000",
];

/// The most repetitions of all cases until every event of the archive occurred. Some events are
/// rare: on a busy machine, few posts are restored and evicted again within a case.
const ROUNDS_MAX: u32 = 10;

fn any_interleaving_matches_the_model(topology: Topology, archive: Option<Kind>, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    let redis = runtime.block_on(testkit::Store::start(topology));
    let server = archive.map(|kind| runtime.block_on(ArchiveServer::start(kind)));
    let mut cases_config = test_runner::Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100,
        max_shrink_time: 60_000,
        ..Default::default()
    };
    let mut seed = match cases_config.rng_seed {
        RngSeed::Random => uuid::Uuid::new_v4().as_u64_pair().0,
        RngSeed::Fixed(seed) => seed,
    };
    let case_number = Cell::new(0);
    let admins = runtime.block_on(leftovers::admins(&redis));
    let watch = Arc::<Watch>::default();
    for _ in 0..ROUNDS_MAX {
        cases_config.rng_seed = RngSeed::Fixed(seed);
        let mut runner = TestRunner::new(cases_config.clone());
        let outcome = runner.run(&operation::plan(archive.is_some()), |plan| {
            case_number.set(case_number.get() + 1);
            runtime.block_on(async {
                leftovers::empty(&redis).await;
                let place = place(&redis, &admins, server.as_ref(), &watch).await;
                let case = Case::new(case_number.get(), &place, plan.is_archived);
                let played = case.play(&plan).await;
                played.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
                leftovers::has_no_leftovers(&redis).await;
                Ok(())
            })
        });
        if let Err(TestError::Fail(reason, input)) = outcome {
            let cases = case_number.get();
            panic!("{reason}\n{input:#?}\nafter {cases} cases with PROPTEST_RNG_SEED={seed}");
        }
        if archive.is_none() || watch.count().is_complete() {
            return;
        }
        seed = seed.wrapping_add(1);
    }
    panic!("not every event occurred: {:?}", watch.count());
}

// Opens an empty Redis and a new archive: an archive knows what its Redis must have.
async fn place(
    redis: &testkit::Store,
    admins: &[MultiplexedConnection],
    server: Option<&ArchiveServer>,
    watch: &Arc<Watch>,
) -> Place {
    let url = match server {
        Some(server) => Some(format!("--database-url={}", server.another().await)),
        None => None,
    };
    let flags: Vec<_> = FLAGS.into_iter().chain(url.as_deref()).collect();
    let config = support::config(&redis.url("post"), &flags);
    let store = Store::open(&config).unwrap();
    testkit::eventually("redis is ready", support::PATIENCE, async || store.is_ready().await).await;
    let archived = Archived::open(&config);
    if let Some(archived) = &archived {
        archived.callers.migrate().await.unwrap();
    }
    Place { store, admins: admins.to_vec(), config, archived, watch: watch.clone() }
}

#[test]
fn any_interleaving_matches_the_model_on_a_single_server() {
    any_interleaving_matches_the_model(Topology::Single, None, 100);
}

#[test]
fn any_interleaving_matches_the_model_on_a_cluster() {
    any_interleaving_matches_the_model(Topology::Cluster, None, 30);
}

#[test]
fn any_interleaving_matches_the_model_with_an_archive_in_sqlite() {
    any_interleaving_matches_the_model(Topology::Single, Some(Kind::Sqlite), 12);
}

#[test]
fn any_interleaving_matches_the_model_with_an_archive_in_postgres() {
    any_interleaving_matches_the_model(Topology::Single, Some(Kind::Postgres), 12);
}

#[test]
fn any_interleaving_matches_the_model_on_a_cluster_with_an_archive() {
    any_interleaving_matches_the_model(Topology::Cluster, Some(Kind::Sqlite), 8);
}
