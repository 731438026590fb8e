//! A change that is applied to a loaded entry gives the same bytes as loading the item again.

use microblog_storage::{Applied, Change, Contents, Patch, Record};
use microblog_testkit::Topology;
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::TestRunner,
};

use crate::support::{System, change, keys};

/// A change: which records it removes, the number of records that it appends, and the beginning of the front.
#[derive(Clone, Debug)]
struct Step {
    removed: Vec<Index>,
    added: usize,
    front: Vec<u8>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (vec(any::<Index>(), 0..4), 0..40_usize, vec(any::<u8>(), 1..6));
    vec(step.prop_map(|(removed, added, front)| Step { removed, added, front }), 1..8)
}

#[test]
fn applying_a_change_gives_the_same_bytes_as_loading_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let system = runtime.block_on(System::start(Topology::Single));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(128));
    let fronts = select(vec![1, 4, 1_200]);
    let inputs = (0..60_usize, fronts, steps(), 0..9_usize);
    let tested = runner.run(&inputs, |(loaded, front, steps, collected)| {
        runtime.block_on(check(&system, loaded, vec![b'f'; front], &steps, collected));
        Ok(())
    });
    tested.unwrap();
}

// Applies the steps to entry 4, the first ones while it is being loaded, and loads entry 8 after each.
async fn check(
    system: &System,
    loaded: usize,
    mut front: Vec<u8>,
    steps: &[Step],
    collected: usize,
) {
    system.cache.remove(&[keys(4), keys(8)]).await.unwrap();
    let mut all: Vec<Record> = (0..loaded as u64).map(record).collect();
    let mut next = loaded as u64;
    let first = Contents { front: front.clone().into(), records: bytes(&all) };
    assert!(system.lease(4, 7).await);
    let install = async || assert!(system.install(4, 7, 1, &first).await);
    for (at, step) in steps.iter().enumerate() {
        if at == collected {
            install().await;
        }
        let mut removed = Vec::new();
        for index in step.removed.iter() {
            if !all.is_empty() {
                removed.push(all.remove(index.index(all.len())).id);
            }
        }
        let added: Vec<Record> = (next..next + step.added as u64).map(record).collect();
        next += step.added as u64;
        all.extend(&added);
        let replaced = step.front.len().min(front.len());
        front.splice(..replaced, step.front.iter().copied());
        let revision = at as u64 + 1;
        let patch = Patch { front: step.front.clone(), added: bytes(&added), removed };
        let change = Change { patch: Some(patch), ..change(4, revision, revision + 1, None) };
        let applied = system.apply(change).await;
        assert_eq!(applied, if at < collected { Applied::Collected } else { Applied::Put });
    }
    if collected >= steps.len() {
        install().await;
    }
    let again = Contents { front: front.into(), records: bytes(&all) };
    system.load(8, steps.len() as u64 + 1, &again).await;
    assert_eq!(system.entry(&keys(4)).await, system.entry(&keys(8)).await);
    assert_eq!(system.set(&keys(4)).await, system.set(&keys(8)).await);
}

// Ids whose low bytes are found elsewhere, too: in times, across records, and in ids with other high bits.
fn record(number: u64) -> Record {
    let id = (number % 3) << 48 | (number % 7) << 18 | (number / 2 + 1) << 2;
    Record { time_ms: number * 4, id }
}

fn bytes(records: &[Record]) -> Vec<u8> {
    Record::write_all(records.iter().copied())
}
