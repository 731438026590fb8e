//! A change that is applied to a loaded entry gives the same bytes as loading the item again.

use microblog_storage::{Applied, Contents, Record};
use microblog_testkit::Topology;
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::support::{System, change, keys};

/// A change: the number of records that it appends, and a front.
type Step = (usize, Vec<u8>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec((0..40_usize, vec(any::<u8>(), 1..6)), 1..8)
}

#[test]
fn applying_a_change_gives_the_same_bytes_as_loading_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let system = runtime.block_on(System::start(Topology::Single));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
    let tested = runner.run(&(0..60_usize, steps(), 0..9_usize), |(loaded, steps, collected)| {
        runtime.block_on(check(&system, loaded, &steps, collected));
        Ok(())
    });
    tested.unwrap();
}

// Applies the steps to entry 4, the first ones while it is being loaded, and loads entry 8 after each.
async fn check(system: &System, loaded: usize, steps: &[Step], collected: usize) {
    system.cache.remove(&[keys(4), keys(8)]).await.unwrap();
    let mut all = records(0, loaded);
    let mut front = b"f".to_vec();
    let first = Contents { front: front.clone(), records: all.clone() };
    assert!(system.lease(4, 7).await);
    let install = async || assert!(system.install(4, 7, 1, &first).await);
    for (at, (count, next_front)) in steps.iter().enumerate() {
        if at == collected {
            install().await;
        }
        let new = records(all.len(), *count);
        all.extend(&new);
        front.clone_from(next_front);
        let revision = at as u64 + 1;
        let contents = Contents { front: front.clone(), records: new };
        let applied = system.apply(change(4, revision, revision + 1, Some(contents))).await;
        assert_eq!(applied, if at < collected { Applied::Collected } else { Applied::Put });
    }
    if collected >= steps.len() {
        install().await;
    }
    let again = Contents { front, records: all };
    system.load(8, steps.len() as u64 + 1, &again).await;
    assert_eq!(system.entry(&keys(4)).await, system.entry(&keys(8)).await);
    assert_eq!(system.set(&keys(4)).await, system.set(&keys(8)).await);
}

// Returns the bytes of records that come behind others.
fn records(behind: usize, count: usize) -> Vec<u8> {
    let times = (behind as u64..).take(count);
    Record::write_all(times.map(|time_ms| Record { time_ms, id: 4 * (time_ms + 1) }))
}
